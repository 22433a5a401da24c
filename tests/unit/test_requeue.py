"""Side tables are read by a query that carries the frames of its own lake's tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.pipelines import shop
from tests.running import START
from tests.unit.handmade import write_commit
from tidelake.config import Environment
from tidelake.delta.access import load
from tidelake.delta.append import ensure_table
from tidelake.delta.log import batch_reached, commits, last_commit, newest_version
from tidelake.delta.tables import Lake, Table
from tidelake.errors import LockedError, UsageError
from tidelake.ledger.side_tables import not_requeued
from tidelake.replay import requeue
from tidelake.replay.requeue import read_side
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress


def test_live_and_green_side_tables_of_one_name_are_read_apart(
    tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, Table]]] = []
    # A frame is what it was loaded from; through Spark Connect it is looked at when rows are read.
    session = SimpleNamespace(sql=lambda query, **frames: asked.append((query, frames)))
    monkeypatch.setattr(requeue, "load", lambda _, table: table)
    lakes = [Lake(tmp_path / "live"), Lake(tmp_path / "green")]
    for lake in lakes:
        tables = (lake.silver("shop"), lake.quarantine("shop"), lake.requeue("shop"))
        for table in (*tables, lake.discarded("shop")):
            write_commit(table, 0, note={"generation": "g1", "batch": 0})
        run = Run(cast(Any, session), shop(tmp_path), lake, environment, Progress(lambda _: None))
        read_side(run, lake.quarantine("shop"), exclude_discarded=True)

    assert len({query for query, _ in asked}) == 1
    for lake, (query, frames) in zip(lakes, asked, strict=True):
        assert {table.path for table in frames.values()} == {
            lake.quarantine("shop").path,
            lake.requeue("shop").path,
            lake.discarded("shop").path,
        }
        written = query.format(**{name: f"<{table.name}>" for name, table in frames.items()})
        for table in frames.values():
            assert f"FROM <{table.name}> " in written


@pytest.mark.parametrize("gone", ["silver.shop__late", "bronze.shop__requeue"])
def test_a_deleted_table_is_named_with_what_creates_it(tmp_path: Path, gone: str) -> None:
    lake = Lake(tmp_path)
    for table in (lake.silver("shop"), lake.late("shop"), lake.requeue("shop")):
        if table.name != gone:
            write_commit(table, 0, note={"generation": "g1", "batch": 0})
    # Silver is refused beside another requeue than it has read.
    remedy = r"run shop\b.* held rows.* tidelake backfill run" if "late" in gone else "repair"
    with pytest.raises(UsageError, match=rf"^{gone} is gone.* tidelake {remedy} shop"):
        not_requeued(lake.late("shop"), lake.requeue("shop"), last_commit(lake.silver("shop")))


def test_rows_of_an_earlier_requeue_come_back_in_one_file(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that ends between two files would decide one half of a requeue without the other."""
    appended: dict[int, int] = {}

    def append(_: Run, rows: DataFrame, expected: int) -> None:
        appended[expected] = rows.rdd.getNumPartitions()

    monkeypatch.setattr(requeue, "requeue_rows", append)
    monkeypatch.setattr(requeue, "next_instant", lambda _: START)
    reason = F.when(F.col("id") < 3, "late").otherwise("quarantine").alias("reason")
    rows = spark.range(0, 10, numPartitions=4).select(F.col("id").alias("record_id"), reason)
    # As many partitions as a shuffle may have.
    spread = rows.repartition(4, "record_id")
    requeue.requeue_again(cast(Any, None), spread.unionByName(spread))
    assert appended == {3: 1, 7: 1}


@pytest.mark.usefixtures("interpreted")
def test_without_a_lock_rows_that_were_chosen_at_one_version_are_appended_once(
    spark: SparkSession, environment: Environment, lake: Lake, tmp_path: Path
) -> None:
    """The server of Spark Connect may go on with a command whose client was killed."""
    unlocked = replace(lake, needs_locks=False)
    run = Run(spark, shop(tmp_path), unlocked, environment, Progress(lambda _: None))
    table, rows = unlocked.requeue("shop"), spark.range(3).coalesce(1)
    note = {"hop": "requeue", "generation": "g1", "batch": -1}
    ensure_table(spark, table, rows.schema, note)
    for version in (0, 1):
        requeue._append_next(run, rows, table, 3, note | {"at": version}, version)
        with pytest.raises(LockedError, match="was written by another process meanwhile"):
            requeue._append_next(run, rows, table, 3, note | {"at": "again"}, version)
    assert [one.note.get("at") for one in commits(table)] == [1, 0, None]
    assert load(spark, table).count() == 6
    # A rollback takes batches back; those that follow are appended under the same numbers.
    spark.sql(f"RESTORE TABLE {table.sql} TO VERSION AS OF 0")
    requeue._append_next(run, rows, table, 3, note, newest_version(table))
    assert (batch_reached(table), load(spark, table).count()) == (0, 3)
