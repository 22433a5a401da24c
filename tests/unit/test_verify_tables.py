"""What verification says of tables that are damaged or missing, and which version it reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.unit.handmade import SHOP, write_commit, write_rows
from tidelake.config import load_environment, load_pipeline
from tidelake.delta.access import load
from tidelake.delta.tables import Lake
from tidelake.errors import DamagedError
from tidelake.replay import verify
from tidelake.replay.compare import RowDifference, TableComparison
from tidelake.replay.verify_silver import (
    SilverInputs,
    _late_without_cause,
    judge_requeue,
    naming_damage,
)
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress

_GOLD = [{**SHOP["gold"][0], "name": name} for name in ("totals", "visits")]


def _run(lake: Lake, spark: SparkSession | None = None) -> Run:
    """Give what verification reads of a run."""
    pipeline = SimpleNamespace(name="shop", gold_names=("gold.totals",))
    return cast(Run, SimpleNamespace(spark=spark, lake=lake, pipeline=pipeline, replays=False))


def _record(number: int, payload: str, hour: int) -> str:
    return (
        f"SELECT 't:0:{number}' AS record_id, NULL::BLOB AS key, '{payload}'::BLOB AS payload, "
        "NULL::STRUCT(key VARCHAR, value BLOB)[] AS headers, 't' AS source, "
        "NULL::TIMESTAMPTZ AS source_timestamp, DATE '2026-01-05' AS ingest_date, "
        f"TIMESTAMPTZ '2026-01-05 {hour}:00:00Z' AS ingested_at"
    )


@pytest.mark.parametrize("damage", ["truncated", "empty", "deleted"])
def test_a_table_of_which_a_file_cannot_be_read_is_named_with_the_remedy(
    spark: SparkSession, tmp_path: Path, damage: str
) -> None:
    lake = Lake(tmp_path / "the lake")
    table = lake.gold("totals")
    write_rows(table, "SELECT 1 AS a", note={"generation": "g1", "batch": 0})
    (file,) = table.path.glob("*.parquet")
    content = file.read_bytes()
    file.unlink() if damage == "deleted" else file.write_bytes(content[: damage == "truncated"])
    with (
        pytest.raises(DamagedError, match=r"^gold\.totals cannot be read .*from a backup\.$"),
        naming_damage(_run(lake, spark)),
    ):
        load(spark, table).collect()


@pytest.mark.parametrize(
    "said",
    [
        "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:{0}. File ",
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/landing/a.json. ",
        "[DIVIDE_BY_ZERO] [FAILED_READ_FILE.NO_HINT] Encountered error while reading file {0}. ",
    ],
)
def test_other_errors_are_no_damage_of_a_table(tmp_path: Path, said: str) -> None:
    lake = Lake(tmp_path)
    # The newest version does not have the file.
    write_commit(lake.gold("totals"), 0)
    with pytest.raises(PySparkException), naming_damage(_run(lake)):
        raise PySparkException(said.format(lake.gold("totals").path / "part-0.parquet"))


def test_requeued_rows_are_compared_also_before_silver_has_read_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path)
    note = {"generation": "g1", "batch": 0}
    run = _run(lake, spark)
    assert judge_requeue(run, None) == (-1, TableComparison(0, {}, {}))
    for number, hour in ((1, 10), (2, 11)):
        write_rows(lake.bronze("shop"), _record(number, "old", hour), note=note)
    # A row may be requeued again.
    for _ in range(2):
        write_rows(lake.requeue("shop"), _record(1, "old", 10), note=note)
    version, found = judge_requeue(run, None)
    assert (version, found.equal, found.rows) == (1, True, 1)

    write_rows(lake.requeue("shop"), _record(2, "new", 11), note=note)
    version, found = judge_requeue(run, None)
    altered = RowDifference("altered", {"record_id": "t:0:2"}, {"payload": (None, None)})
    assert (version, found.differences) == (2, (altered,))
    eleven = datetime(2026, 1, 5, 11, tzinfo=UTC)
    assert judge_requeue(run, eleven)[1].differences == (altered,)
    assert judge_requeue(run, eleven + timedelta(hours=1)) == (2, TableComparison(0, {}, {}))


def _at(hour: int, minute: int = 0) -> str:
    return f"TIMESTAMP '2026-01-05 {hour}:{minute:02}:00Z'"


@pytest.mark.parametrize(
    ("arrivals", "mark", "reached"),
    [
        # An event of an earlier commit had reached the watermark, or none had.
        ((10, 11, 12), (9, 30), None),
        ((10, 11, 12), (9, 31), "2026-01-05 09:30:00+00:00"),
        ((11, 12), (9, 30), "None"),
        # The order of arrival is unknown.
        ((10, 12, 11), (9, 31), None),
    ],
)
def test_a_row_is_late_only_by_events_that_arrived_before_it(
    spark: SparkSession,
    tmp_path: Path,
    arrivals: tuple[int, ...],
    mark: tuple[int, int],
    reached: str | None,
) -> None:
    lake = Lake(tmp_path)
    for batch, hour in enumerate(arrivals):
        note = {"batch": batch, "records": 1, "ingested_at": f"2026-01-05T{hour}:00:00+00:00"}
        write_commit(lake.bronze("shop"), batch, note={"generation": "g1"} | note)
    # The last one arrived with the late row.
    accepted = [(hour, event) for hour, event in ((10, (9, 30)), (11, (9, 45))) if hour in arrivals]
    silver = " UNION ALL ".join(
        f"SELECT {_at(hour)} AS ingested_at, {_at(*event)} AS event_time"
        for hour, event in accepted
    )
    # Another writer's rows have no times.
    silver += f" UNION ALL SELECT {_at(9)}, NULL UNION ALL SELECT NULL, NULL"
    late = (
        f"SELECT 'r' || id AS record_id, {_at(11)} AS ingested_at, {_at(*mark)} AS watermark, "
        f"IF(id = 2, {_at(12)}, NULL) AS _requeued_at FROM range(3) "
        f"UNION ALL SELECT 'x', {_at(12)}, NULL, NULL"
    )
    tables = {lake.silver("shop"): silver, lake.quarantine("shop"): silver, lake.late("shop"): late}
    decided = {table: spark.sql(sql) for table, sql in tables.items()}
    inputs = SilverInputs(0, [], spark.sql(silver), spark.sql(late), decided)

    found = list(_late_without_cause(_run(lake), inputs))

    where = {"ingested_at": "2026-01-05 11:00:00+00:00", "rows": 2, "record_id": "r0"}
    shown = (None if reached == "None" else reached, f"2026-01-05 09:{mark[1]:02}:00+00:00")
    wanted = [RowDifference("altered", where, {"watermark": shown})]
    assert found == ([] if reached is None else wanted)


@pytest.mark.parametrize("known_by", ["an epoch", "a batch of another table", ""])
def test_a_gold_table_that_was_filled_and_is_gone_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_by: str
) -> None:
    """One that no batch has filled is still to come."""
    file = tmp_path / "shop.yml"
    file.write_text(yaml.safe_dump(SHOP | {"gold": _GOLD}), encoding="utf-8")
    environment = load_environment("local", root=str(tmp_path / "lake"))
    lake, said = Lake(tmp_path / "lake"), list[str]()
    note: dict[str, Any] = {"generation": "g1", "pipeline": "shop", "batch": 0}
    names = ["gold.totals", "gold.visits"] if known_by.startswith("a batch") else ["gold.totals"]
    write_commit(lake.gold("totals"), 0, note=note | {"tables": names})
    versions = {"gold.totals": 0} | ({"gold.visits": 0} if known_by == "an epoch" else {})
    last = {"shop": {"epoch": 1, "versions": versions}, "bank": {"epoch": 1, "versions": {}}}
    write_commit(lake.epochs(), 0, note=note | {"last": last})
    run = Run(
        cast(Any, None),
        load_pipeline(str(file), environment),
        lake,
        environment,
        Progress(said.append),
    )
    equal = TableComparison(0, {}, {})
    monkeypatch.setattr(verify, "judge_bronze", lambda *_: (0, equal))
    monkeypatch.setattr(verify, "judge_silver", lambda *_: {})
    monkeypatch.setattr(verify, "judge_target", lambda *_: equal)

    judged = verify._judged(run, cast(Any, None), None)
    found = {one.table.name: one.comparison for one in judged}

    assert found.pop("gold.totals").equal
    if known_by:
        gone = RowDifference("missing", {"table": "gold.visits"})
        assert (found["gold.visits"].differences, said) == ((gone,), [])
    else:
        assert "gold.visits" not in found
        assert said == [
            "gold.visits is not verified: it does not exist yet. Fill it with: tidelake run shop"
        ]
