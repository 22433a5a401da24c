"""Verification: what follows from bronze is equal, and one row that is off shows by its name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.following import GOLD, JOINS
from tests.running import START, click
from tests.worlds import TO_SILVER, World, world
from tidelake.delta.access import load
from tidelake.instants import Range
from tidelake.ledger.history import closed_version
from tidelake.names import ID_HASH
from tidelake.replay.certificates import certify, changed_since, read_certificate
from tidelake.replay.compare import RowDifference, TableComparison
from tidelake.replay.repairing import repair, reset
from tidelake.replay.requeue import Choice, apply_late, replay_quarantine
from tidelake.replay.verify import (
    Judged,
    judge_bronze,
    judge_target,
    verify,
)
from tidelake.replay.verify_silver import judge_silver, read_inputs
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.gold_tables import targets_of

_DAY = 24 * 60
_ROUGH: dict[str, Any] = {
    "name": "rough",
    "window": {"kind": "global"},
    "keys": ["user_id"],
    "measures": {
        "typical": {"approx_percentile": {"expression": "value", "p": 0.5}},
        "weight": {"sum": "CAST(value AS DOUBLE) / 3"},
        "usual": {"avg": "CAST(value AS DOUBLE) / 3"},
    },
}
_ARRIVALS = [START + timedelta(days=3, minutes=n) for n in range(2)]


def _lines(part: int) -> list[bytes]:
    """Write events of every fate."""
    own = [
        click(n, minute=3 * _DAY - n, action=("click", "purchase")[n % 2])
        for n in range(part * 20, part * 20 + 20)
    ]
    late = [click(900 + part * 10 + n, minute=n) for n in range(3 * min(part, 1))]
    refused = [b"garbage", click(800 + part, minute=0, value="12,50")]
    conflict = click(part * 20, minute=3 * _DAY, action="view")
    return [*own, *own[:4], conflict, *late, *refused, click(700 + part, minute=0, action=None)]


def _landed(spark: SparkSession, folder: Path) -> World:
    """Give a pipeline with two files that no run has read."""
    made = world(spark, folder, gold=[GOLD[0], _ROUGH], joins=JOINS[:1], quality=None)
    for part in range(2):
        made.land(f"{part}.jsonl", _lines(part))
    return made


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run two batches; a late row is sent again."""
    made = _landed(spark, tmp_path_factory.mktemp("verify"))
    made.run(*_ARRIVALS)
    assert apply_late(made.context, Range(end=START + timedelta(days=1))) == 3
    made.run()
    return made


@pytest.fixture
def played(filled: World, tmp_path: Path) -> World:
    return filled.copied(tmp_path / "copy")


def _rewrite(played: World, table: str, change: str, where: str) -> None:
    """Delete, double or alter the first row for which a condition holds."""
    path = str(played.lake.table(table).path)
    stored = DeltaTable.forPath(played.spark, path)
    rows = stored.toDF().where(where)
    if change == "double":
        rows.limit(1).coalesce(1).write.format("delta").mode("append").save(path)
    elif change == "delete":
        stored.delete(where)
    else:
        column, sql = change.split("=", 1)
        stored.update(where, {column: sql})


def _wrong(tables: Iterable[Judged]) -> dict[str, list[tuple[str, list[str]]]]:
    """Give the kinds of differences by table, and the columns that differ."""
    return {
        one.table.name: [(d.kind, sorted(d.columns)) for d in one.comparison.differences]
        for one in tables
        if not one.comparison.equal
    }


@pytest.mark.long
def test_percentiles_of_many_values_are_those_of_the_stored_sketches(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Of more values than a sketch keeps, each merge drops others at random."""
    typical = {"typical": {"approx_percentile": "value", "p": 0.5}}
    windows: dict[str, dict[str, Any]] = {
        "hourly": {"window": {"kind": "tumbling", "size": "1 hour"}},
        "visits": {"window": {"kind": "session", "gap": "30 minutes"}},
        "doubled": {"window": {"kind": "global"}, "derive": {"twice": "typical * 2"}},
    }
    percentiles = [
        {"name": name, "keys": ["user_id"], "measures": typical, **rest}
        for name, rest in windows.items()
    ]
    made = world(spark, tmp_path, gold=[_ROUGH, *percentiles], quality=None)
    for part, arrival in enumerate(_ARRIVALS):
        numbers = range(part * 2000, part * 2000 + 2000)
        # All in one hour, 166 values of a key and batch.
        values = [click(n, minute=n / 100, user_id=f"u{n % 12}", value=n) for n in numbers]
        made.land(f"{part}.jsonl", values)
        made.run(arrival)
        for name in ("rough", *windows):
            rows = load(spark, made.lake.table(f"gold.{name}")).selectExpr(
                "count(*)",
                "min(kll_sketch_get_n_double(_typical_sketch))",
                "count_if(typical = kll_sketch_get_quantile_double(_typical_sketch, 0.5D))",
            )
            assert [tuple(row) for row in rows.collect()] == [(12, (166, 333)[part], 12)], name
    assert _wrong(verify(made.context).tables) == {}


@pytest.mark.long
def test_a_reset_mends_percentiles_of_other_sketches_and_a_repair_does_not(played: World) -> None:
    """Earlier versions stored such percentiles: of another merge of the same states."""
    _rewrite(played, "gold.rough", "typical=typical + 0.001", "typical IS NOT NULL")
    altered = _wrong(verify(played.context).tables)
    assert {kind for kind, _ in altered["gold.rough"]} == {"altered"}
    assert {tuple(columns) for _, columns in altered["gold.rough"]} == {("typical",)}
    repair(played.context, "gold")
    assert _wrong(verify(played.context).tables) == altered
    reset(played.context, "gold")
    assert _wrong(verify(played.context).tables) == {}


@pytest.mark.long
def test_tables_that_nobody_touched_are_equal_also_after_a_compaction(played: World) -> None:
    for table in played.lake.existing():
        DeltaTable.forPath(played.spark, str(table.path)).optimize().executeCompaction()
    verdict = verify(played.context)
    assert _wrong(verdict.tables) == {}
    told = verdict.to_json()
    assert told["equal"] is True
    assert told["tables"]["silver.clickstream"] == {
        "equal": True,
        "rows": 43,
        "differing": 0,
        "differences": [],
    }
    assert {name: table["rows"] for name, table in told["tables"].items()} == {
        "bronze.clickstream": 59,
        "bronze.clickstream__requeue": 3,
        "silver.clickstream": 43,
        "silver.clickstream__quarantine": 6,
        "silver.clickstream__late": 0,
        "gold.by_minutes": 43,
        "gold.rough": 5,
        "gold.click_to_purchase": 20,
    }


@pytest.mark.long
def test_a_row_that_is_off_shows_in_each_table_by_its_name(played: World) -> None:
    _rewrite(played, "silver.clickstream__quarantine", "double", "event_id = 'e800'")
    _rewrite(played, "gold.by_minutes", "delete", "user_id = 'u1' AND dearest = 10.25")
    _rewrite(played, "gold.by_minutes", "dearest=dearest + 0.01", "user_id = 'u2'")
    _rewrite(played, "gold.rough", "typical=typical + 1000", "user_id = 'u0'")
    _rewrite(played, "gold.click_to_purchase", "bought_at=NULL", "bought_at IS NOT NULL")
    found = _wrong(verify(played.context).tables)
    kinds = {name: {kind for kind, _ in told} for name, told in found.items()}
    assert kinds == {
        "silver.clickstream__quarantine": {"doubled"},
        "gold.by_minutes": {"missing", "altered"},
        "gold.rough": {"altered"},
        "gold.click_to_purchase": {"altered"},
    }
    assert ("altered", ["dearest"]) in found["gold.by_minutes"]
    assert found["gold.rough"] == [("altered", ["typical"])]


def _judge_silver(played: World, since: datetime | None = None) -> dict[str, Any]:
    with CheckpointedFrames() as frames:
        inputs = read_inputs(played.context).since(since)
        return judge_silver(played.context, inputs, since, frames)


@pytest.mark.long
def test_one_row_of_silver_that_is_off_shows_whatever_became_of_it(played: World) -> None:
    _rewrite(played, "silver.clickstream", "delete", "event_id = 'e7'")
    _rewrite(played, "silver.clickstream", "double", "event_id = 'e8'")
    _rewrite(played, "silver.clickstream", "value=99.5", "event_id = 'e27'")
    # A verdict on lateness follows from the watermark of the row's batch.
    _rewrite(played, "silver.clickstream", "is_late=NOT is_late", "event_id = 'e30'")
    off = {
        difference.kind: sorted(difference.columns)
        for difference in _judge_silver(played)["silver.clickstream"].differences
        if difference.kind != "altered"
    }
    assert off == {"missing": [], "doubled": []}
    # Of what arrived later, the older rows are no part.
    found = _judge_silver(played, _ARRIVALS[1])["silver.clickstream"]
    assert sorted(sorted(one.columns) for one in found.differences) == [["is_late"], ["value"]]
    assert found.rows == 23


def test_one_row_of_bronze_that_is_off_shows_by_its_arrival(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = _landed(spark, tmp_path)
    played.run(*_ARRIVALS, hops=["bronze"])
    # Of what arrived later, the older rows are no part.
    _, later = judge_bronze(played.context, _ARRIVALS[1])
    assert (later.equal, later.rows) == (True, 31)
    # Copies: nothing in silver follows from them.
    _rewrite(played, "bronze.clickstream", "delete", "endswith(record_id, '0.jsonl:21')")
    _, found = judge_bronze(played.context, None)
    assert [(one.kind, dict(one.columns)) for one in found.differences] == [
        ("missing", {"rows": (28, 27)})
    ]
    _rewrite(played, "bronze.clickstream", "double", "endswith(record_id, '1.jsonl:21')")
    altered = "payload=encode('{}', 'utf-8')"
    _rewrite(played, "bronze.clickstream", altered, "endswith(record_id, '0.jsonl:22')")
    _rewrite(played, "bronze.clickstream", "double", "endswith(record_id, '0.jsonl:23')")
    _, found = judge_bronze(played.context, None)
    assert [one.kind for one in found.differences] == ["doubled", "doubled", "altered", "extra"]


def _judge_totals(played: World, since: datetime | None) -> TableComparison:
    (target,) = (
        one
        for one in targets_of(played.lake, played.pipeline)
        if one.table.name == "gold.by_minutes"
    )
    version = closed_version(played.lake, target.table)
    return judge_target(played.context, target, version, since)


@pytest.mark.long
def test_since_an_arrival_rows_are_compared_that_later_arrivals_may_have_changed(
    played: World,
) -> None:
    since = _ARRIVALS[1]
    tables = verify(played.context, since=since).tables
    assert _wrong(tables) == {}
    rows = {one.table.name: one.comparison.rows for one in tables}
    assert (rows["bronze.clickstream"], rows["silver.clickstream"]) == (31, 23)

    # The earliest of the later arrivals, a late row, is in the middle of this window.
    path = str(played.lake.gold("by_minutes").path)
    first = "window_start = TIMESTAMP '2026-01-04 23:57:00Z' AND user_id = 'u0'"
    stored = played.spark.read.format("delta").load(path).where(first)
    bounds = {name: F.expr(f"{name} - INTERVAL 1 DAY") for name in ("window_start", "window_end")}
    stored.withColumns(bounds).write.format("delta").mode("append").save(path)
    assert [one.kind for one in _judge_totals(played, None).differences] == ["extra"]
    assert _judge_totals(played, since).equal
    _rewrite(played, "gold.by_minutes", "dearest=dearest + 0.01", first)
    found = _judge_totals(played, since).differences
    assert [(one.kind, [*one.columns]) for one in found] == [("altered", ["dearest"])]


@pytest.mark.long
def test_rows_sent_again_under_other_rules_are_judged_by_todays(played: World) -> None:
    eased = played.redefined(event={"where": "action IS NULL OR action <> 'view'"})
    assert not verify(eased.context).equal
    widened = played.redefined(watermark={"max_future_skew": "9 days"})
    assert replay_quarantine(widened.context, Choice()).released == 0
    assert verify(widened.context).equal


@pytest.mark.long
def test_columns_that_a_new_definition_adds_are_differences_until_they_are_filled(
    played: World,
) -> None:
    event = played.pipeline.event.model_dump(by_alias=True)
    doubled = {**GOLD[0], "measures": {**GOLD[0]["measures"], "twice": {"sum": "2 * value"}}}
    changed = played.redefined(
        event={"select": {**event["select"], "again": "action"}}, gold=[doubled, _ROUGH]
    )
    found = {one.table.name: one.comparison for one in verify(changed.context).tables}
    silver, totals = found["silver.clickstream"], found[f"gold.{GOLD[0]['name']}"]
    for table, column in ((silver, "again"), (totals, "twice")):
        assert table.differences == (RowDifference("missing", {"column": column}),)


@pytest.mark.long
def test_a_certificate_tells_later_what_is_not_the_same_any_more(
    played: World, tmp_path: Path
) -> None:
    file = tmp_path / "certificate.json"
    file.write_text(json.dumps(certify(verify(played.context), played.pipeline)))
    told = read_certificate(file, "clickstream")
    # As if the next batch had come before it was complete.
    told.made_at = datetime.now(UTC) + timedelta(days=9000)
    assert "u1" not in file.read_text()
    played.land("3.jsonl", _lines(3))
    try:
        played.run(hops=TO_SILVER)
    finally:
        (played.landing / "3.jsonl").unlink()
    unchanged: dict[str, list[Any]] = {"bronze.clickstream": [], "silver.clickstream": []}
    # An earlier version of silver has no hashes of ids, and a type was widened since.
    spark, silver = played.spark, played.lake.silver("clickstream")
    for change in (
        "SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
        "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "ALTER COLUMN value TYPE DECIMAL(20, 2)",
        f"DROP COLUMN {ID_HASH}",
    ):
        spark.sql(f"ALTER TABLE {silver.sql} {change}")
    assert changed_since(played.context, told) == unchanged
    _rewrite(played, "silver.clickstream", "delete", "event_id = 'e7'")
    _rewrite(played, "bronze.clickstream", "key=payload", "endswith(record_id, '0.jsonl:7')")
    changed = changed_since(played.context, told)
    assert [one.kind for one in changed["bronze.clickstream"]] == ["changed since"]
    rows = {one.where["group"]: one.columns["rows"] for one in changed["silver.clickstream"]}
    assert rows == {"2026-01-07": (39, 38)}
    # Silver was deleted and rebuilt since.
    told.tables["silver.clickstream"].id = "another"
    assert changed_since(played.context, told).keys() == {"bronze.clickstream"}
