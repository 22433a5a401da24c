"""Faults of gold: a crash between its tables, a compaction beside a merge, other partitions."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.crashes import after_merges
from tests.following import GOLD, JOINS, assert_gold_follows
from tests.running import click, read, versions
from tests.worlds import TO_SILVER, World, world
from tidelake.delta.log import commits
from tidelake.delta.merge import CONFLICTS
from tidelake.delta.tables import Table
from tidelake.gold.kinds import MergePlan
from tidelake.ledger.terms import read_ledger
from tidelake.runtime import gold
from tidelake.spark import tuning

_REWRITTEN = "gold.ever"
_TABLES = [f"gold.{table['name']}" for table in (*GOLD, *JOINS)]


def _lines(part: int) -> list[bytes]:
    """Write events; every third lies among those of the file before."""
    return [
        click(n, minute=n * 1.5 - (60 if n % 3 == 0 else 0), action=("click", "purchase")[n % 2])
        for n in range(part * 40, part * 40 + 40)
    ]


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Fill gold with one file; silver holds two."""
    made = world(spark, tmp_path_factory.mktemp("gold"), gold=GOLD, joins=JOINS, quality=None)
    made.land("0.jsonl", _lines(0))
    made.run()
    made.land("1.jsonl", _lines(1))
    made.run(hops=TO_SILVER)
    return made


@pytest.fixture
def waiting(filled: World, tmp_path: Path) -> World:
    """Give a copy whose gold has one batch to take."""
    return filled.copied(tmp_path / "copy")


@pytest.mark.long
def test_a_crash_between_any_two_tables_of_a_batch_writes_each_once(waiting: World) -> None:
    before = versions(waiting.lake)
    for held in range(1, len(_TABLES)):
        # The run goes on where the one before died, and dies one table later.
        with after_merges(1):
            waiting.run(hops=["gold"])
        after = versions(waiting.lake)
        assert [after[name] - before[name] for name in _TABLES].count(1) == held
    waiting.run(hops=["gold"])
    assert [versions(waiting.lake)[name] - before[name] for name in _TABLES] == [1] * len(_TABLES)
    assert_gold_follows(waiting)
    assert read_ledger(waiting.lake, waiting.pipeline).balanced


def _operations(spark: SparkSession, at: World, name: str) -> list[str]:
    """Name what a gold table's commits did, oldest first."""
    history = DeltaTable.forPath(spark, str(at.lake.table(name).path)).history()
    return [row["operation"] for row in history.orderBy("version").collect()]


def _rewritten_meanwhile(partials: DataFrame, folder: Path) -> DataFrame:
    """Make a merge's source slow, and rewrite its target's files while it waits."""
    spark = partials.sparkSession

    def optimize() -> None:
        DeltaTable.forPath(spark, str(folder)).optimize().executeZOrderBy("user_id")

    threading.Timer(2, optimize).start()
    asleep = spark.range(1).where("reflect('java.lang.Thread', 'sleep', 6000L) = 'null'")
    return partials.crossJoin(F.broadcast(asleep.drop("id")))


def test_a_crash_beside_a_merge_and_a_compaction_in_its_way_write_each_table_once(
    waiting: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = versions(waiting.lake)
    with after_merges(1, slots=2):
        waiting.run(hops=["gold"])
    after = versions(waiting.lake)
    # Either of the two may have been the first to begin.
    assert sorted(after[name] - before[name] for name in _TABLES)[-2:] == [0, 1]
    assert after[_REWRITTEN] == before[_REWRITTEN]

    real = gold.merge
    failed: list[str] = []

    def merge(plan: MergePlan, table: Table, note: dict[str, Any]) -> None:
        if table.name == _REWRITTEN and not failed:
            plan = replace(plan, rows=_rewritten_meanwhile(plan.rows, table.path))
        try:
            real(plan, table, note)
        except CONFLICTS as error:
            failed.append(type(error).__name__)
            raise

    monkeypatch.setattr(gold, "merge", merge)
    waiting.run(hops=["gold"])
    assert len(failed) == 1
    assert_gold_follows(waiting)
    assert read_ledger(waiting.lake, waiting.pipeline).balanced
    # The first batch is appended.
    for name in _TABLES:
        rewritten = ["OPTIMIZE"] if name == _REWRITTEN else []
        expected = ["CREATE TABLE", "WRITE", *rewritten, "MERGE"]
        assert _operations(waiting.spark, waiting, name) == expected


@pytest.mark.long
def test_a_table_that_has_another_commit_than_the_one_that_made_it_is_merged(
    waiting: World,
) -> None:
    """It may be a merge that carried no metadata, whose rows are there already."""
    for name in ("gold", "checkpoints/clickstream/gold"):
        shutil.rmtree(waiting.lake.root / name)
    made = waiting.redefined(gold=GOLD[:1], joins=[])
    gold.GoldHop(made.context)
    place = made.lake.table(_TABLES[0]).sql
    made.spark.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('tidelake.test' = 'written')")
    made.run(hops=["gold"])
    expected = ["CREATE TABLE", "SET TBLPROPERTIES", "MERGE", "MERGE"]
    assert _operations(made.spark, made, _TABLES[0]) == expected
    assert_gold_follows(made, GOLD[:1])


@pytest.mark.long
def test_small_files_are_put_together_where_merges_copy_none(
    waiting: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "COMPACTION_BATCHES", 2)
    # Any copied row is too many.
    monkeypatch.setattr(tuning, "COPIED_ROWS", 0)
    waiting.run(hops=["gold"])
    waiting.land("2.jsonl", _lines(2))
    waiting.land("3.jsonl", _lines(3))
    try:
        waiting.run()
    finally:
        for name in ("2.jsonl", "3.jsonl"):
            (waiting.landing / name).unlink()
    for name in ("bronze.clickstream", "silver.clickstream", "gold.by_hours"):
        table = DeltaTable.forPath(waiting.spark, str(waiting.lake.table(name).path))
        assert table.history(1).collect()[0]["operation"] == "OPTIMIZE"
        assert table.detail().collect()[0]["numFiles"] == 1
    copied = [commit.copied for commit in commits(waiting.lake.gold("by_hours"))]
    assert copied[:2] == [0, 0]
    assert any(copied)
    assert_gold_follows(waiting)
    assert read_ledger(waiting.lake, waiting.pipeline).balanced
    assert waiting.run() == []


@pytest.mark.parametrize(
    "partitions",
    [pytest.param(number, marks=pytest.mark.long) for number in ("1", "2", "8")],
)
def test_sums_do_not_depend_on_the_number_of_partitions(
    waiting: World, monkeypatch: pytest.MonkeyPatch, partitions: str
) -> None:
    """Also a change of the setting between two batches of one checkpoint."""
    key = "spark.sql.shuffle.partitions"
    before = waiting.spark.conf.get(key)
    # Not the setting for small batches, which is one partition.
    monkeypatch.setattr(tuning, "SMALL_BATCH_ROWS", 0)
    waiting.spark.conf.set(key, partitions)
    try:
        waiting.run(hops=["gold"])
    finally:
        waiting.spark.conf.set(key, str(before))
    assert_gold_follows(waiting)
    totals = read(waiting.lake, "gold.ever", "user_id, events")
    assert sum(row[1] for row in totals) == 80
