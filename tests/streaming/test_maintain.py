"""Maintenance: few files, old ones gone, and whoever still reads them is named first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from tests.running import click, read
from tests.worlds import TO_SILVER, World, world
from tidelake.config.table_settings import FILE_RETENTION, LOG_RETENTION
from tidelake.delta.access import properties
from tidelake.delta.locks import hold_hops
from tidelake.delta.log import last_commit, newest_version
from tidelake.delta.merge import clustering_of
from tidelake.delta.properties import RETENTIONS, stored_properties
from tidelake.delta.store import sql_pairs
from tidelake.errors import RefusedError
from tidelake.ledger.query import ask_at_epoch
from tidelake.ledger.terms import read_ledger
from tidelake.ops.maintenance import Plan, plan_upkeep, upkeep
from tidelake.replay.verify import verify

_GOLD: list[dict[str, Any]] = [
    {
        "name": "totals",
        "window": {"kind": "global"},
        "keys": ["user_id"],
        "measures": {"events": {"count": "*"}},
    },
    {
        "name": "hours",
        "window": {"kind": "tumbling", "size": "1 hour"},
        "keys": ["user_id"],
        "measures": {"events": {"count": "*"}},
    },
]
pytestmark = pytest.mark.long
_HORIZON = timedelta(days=7)
_LATER = timedelta(days=9)
_MONTH = timedelta(days=30)


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run two files through all hops; silver holds a third."""
    made = world(spark, tmp_path_factory.mktemp("maintain"), gold=_GOLD, quality=None)
    for part in range(3):
        made.land(f"{part}.jsonl", [click(n, minute=n) for n in range(part * 9, part * 9 + 9)])
        made.run(hops=TO_SILVER if part == 2 else ["bronze", "silver", "gold"])
    return made


@pytest.fixture
def played(filled: World, tmp_path: Path) -> World:
    return filled.copied(tmp_path / "copy")


def test_a_reader_that_lags_is_named_with_what_lets_it_catch_up(played: World) -> None:
    later = datetime.now(UTC) + _LATER
    with pytest.raises(RefusedError, match=r"still needed: .* or first: tidelake run clickstream"):
        plan_upkeep(played.lake, played.pipeline, horizon=_HORIZON, keep=_HORIZON, now=later)
    plans = plan_upkeep(played.lake, played.pipeline, horizon=_HORIZON, now=later)
    by_name = {plan.table.name: plan for plan in plans}
    assert by_name["silver.clickstream"].keep > _LATER
    told = {need.by: need.remedy for need in by_name["silver.clickstream"].needs}
    assert told["gold.totals has not read further"] == "tidelake run clickstream --hop gold"
    assert by_name["gold.totals"].keep == _HORIZON


def test_less_than_the_horizon_is_refused(played: World) -> None:
    with pytest.raises(RefusedError, match=r"less than the recovery horizon of 7\.0 days"):
        plan_upkeep(played.lake, played.pipeline, horizon=_HORIZON, keep=timedelta(days=1))


def test_files_are_put_together_and_the_tables_stay_what_they_were(played: World) -> None:
    played.run()
    plans = plan_upkeep(played.lake, played.pipeline, horizon=timedelta(hours=1))
    done = {one.table.name: one for one in upkeep(played.context, plans)}
    assert (done["silver.clickstream"].files_before, done["silver.clickstream"].files) == (3, 1)
    assert read_ledger(played.lake, played.pipeline).balanced
    assert verify(played.context).equal
    # What was put together just now is not old enough to be deleted: the epoch still reads it.
    total = "SELECT sum(events) FROM gold.totals"
    answer, epoch = ask_at_epoch(played.lake, total)
    assert epoch is not None
    assert answer.rows == ((27,),)
    stored = DeltaTable.forPath(played.spark, str(played.lake.silver("clickstream").path))
    found = stored.detail().select("properties").collect()[0]["properties"]
    assert found["delta.logRetentionDuration"] == "interval 30 days"
    assert played.run() == []
    assert read(played.lake, "silver.clickstream", "count(*)") == [(27,)]


def test_a_table_whose_merges_scatter_rows_is_sorted_unless_a_run_writes_it(played: World) -> None:
    hours = played.lake.gold("hours")
    place = f"delta.`{hours.path}`"
    played.spark.sql(
        f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)"
    )
    plans = plan_upkeep(played.lake, played.pipeline, horizon=_HORIZON)
    mine = [plan for plan in plans if plan.table == hours]
    with hold_hops(played.lake, "clickstream", ["gold"]):
        list(upkeep(played.context, mine))
    assert clustering_of(played.spark, hours) == ()
    list(upkeep(played.context, plans))
    assert clustering_of(played.spark, hours) == ("window_start",)
    # Totals has no deletion vectors, and nothing else is filled by merges.
    assert clustering_of(played.spark, played.lake.gold("totals")) == ()
    assert clustering_of(played.spark, played.lake.silver("clickstream")) == ()
    played.run()
    assert verify(played.context).equal


def test_the_log_of_a_table_that_rests_reaches_back_to_its_newest_note(
    played: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bronze = played.lake.bronze("clickstream")
    last = last_commit(bronze)
    assert last is not None
    rested = replace(last, written_at=datetime.now(UTC) - timedelta(days=40))
    monkeypatch.setattr("tidelake.ops.maintenance.last_commit", lambda _: rested)
    list(upkeep(played.context, [Plan(bronze, _HORIZON)]))
    detail = DeltaTable.forPath(played.spark, str(bronze.path)).detail().select("properties")
    found = detail.collect()[0]["properties"]
    assert found["delta.logRetentionDuration"] == "interval 81 days"
    assert found["delta.deletedFileRetentionDuration"] == "interval 7 days"


def test_what_somebody_set_on_a_table_is_kept_and_no_file_deleted_that_it_keeps(
    played: World,
) -> None:
    silver, theirs = played.lake.silver("clickstream"), {FILE_RETENTION: "30 days"}
    theirs[LOG_RETENTION] = "INTERVAL 1 week 2 DAYS 350 days"
    played.spark.sql(f"ALTER TABLE {silver.sql} SET TBLPROPERTIES ({sql_pairs(theirs)})")
    played.run()
    for _ in range(2):
        plans = plan_upkeep(played.lake, played.pipeline, horizon=timedelta(hours=1))
        [mine] = [plan for plan in plans if plan.table == silver]
        assert (mine.keep, mine.reason[1]) == (_MONTH, f"its {FILE_RETENTION} of '30 days'")
        version = newest_version(silver)
        list(upkeep(played.context, [mine]))
        stored = properties(played.spark, silver)
        assert {key: stored[key] for key in theirs} == theirs
        # Spark and the log agree.
        assert stored_properties(silver)[RETENTIONS] == stored[RETENTIONS] == "{}"
    last = played.spark.sql(f"DESCRIBE HISTORY {silver.sql}").where(f"version > {version}")
    assert {row["operation"] for row in last.collect()} <= {"VACUUM START", "VACUUM END"}
