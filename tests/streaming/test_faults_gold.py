"""Faults of gold: a crash between its tables, commits of others, small files, other partitions.

A crash beside a merge and a compaction in its way: `test_gold_properties.py`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from tests.crashes import after_merges
from tests.following import GOLD, JOINS, assert_gold_follows
from tests.running import click, operations, read, versions
from tests.worlds import TO_SILVER, World, world
from tidelake.delta import merge
from tidelake.delta.log import commits
from tidelake.ledger.terms import read_ledger
from tidelake.runtime import gold
from tidelake.spark import tuning

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
    assert operations(made.lake.table(_TABLES[0])) == expected
    assert_gold_follows(made, GOLD[:1])


def test_a_first_batch_without_a_row_for_a_table_is_in_its_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    returns = {**GOLD[0], "name": "returns", "where": "action = 'return'"}
    made = world(spark, tmp_path, gold=[returns], quality=None)
    made.land("0.jsonl", [click(0, minute=0)])
    made.run()
    table = made.lake.gold("returns")
    last = next(commits(table))
    assert (last.batch, last.note["eligible"]) == (0, 0)
    made.land("1.jsonl", [click(1, minute=1, action="return")])
    made.run()
    assert_gold_follows(made, [returns])
    assert read_ledger(made.lake, made.pipeline).balanced


@pytest.mark.long
def test_small_files_are_put_together_where_merges_copy_none(
    waiting: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "COMPACTION_BATCHES", 2)
    # Any copied row is too many.
    monkeypatch.setattr(tuning, "COPIED_ROWS", 0)
    monkeypatch.setattr(merge, "_KEPT_CHECKSUMS", 1)
    waiting.run(hops=["gold"])
    waiting.land("2.jsonl", _lines(2))
    waiting.land("3.jsonl", _lines(3))
    try:
        waiting.run()
    finally:
        for name in ("2.jsonl", "3.jsonl"):
            (waiting.landing / name).unlink()
    # Silver is compacted half an interval after bronze.
    for name, since in (("bronze.clickstream", 0), ("silver.clickstream", 1), ("gold.by_hours", 0)):
        table = DeltaTable.forPath(waiting.spark, str(waiting.lake.table(name).path))
        assert table.history(since + 1).collect()[-1]["operation"] == "OPTIMIZE"
        assert table.detail().collect()[0]["numFiles"] == since + 1
    # That of the last compaction, and of the commits since.
    for name, since in (("gold.by_hours", 1), ("gold.ever", 1)):
        log = waiting.lake.table(name).path / "_delta_log"
        assert len(list(log.glob("*.crc"))) == since
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
