"""After each batch gold is what DuckDB makes of the silver that gold has consumed.

Many random streams share one run: each has users of its own, so that each is an example of its own
for every keyed table. One batch dies beside a merge, and meets a compaction when it is repeated.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.crashes import after_merges
from tests.following import GOLD, JOINS, assert_gold_follows
from tests.running import START, event, operations, versions
from tests.worlds import World, world
from tidelake.delta.merge import CONFLICTS
from tidelake.delta.tables import Table
from tidelake.gold.merge_plan import MergePlan
from tidelake.ledger.terms import read_ledger
from tidelake.runtime import gold

_FEW = 60
_EXAMPLES = int(os.environ.get("TIDELAKE_GOLD_EXAMPLES", _FEW))
# With many, also a batch that merges into what a merge wrote, in the run that repeats one.
_FILES = 2 if _EXAMPLES <= _FEW else 3
_SEED = int(os.environ.get("TIDELAKE_SEED", str(time.time_ns() % 1_000_000)))
_REWRITTEN = "gold.ever"
_TABLES = [f"gold.{table['name']}" for table in (*GOLD, *JOINS)]


def test_gold_is_what_duckdb_makes_of_the_silver_it_consumed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a batch that died beside a merge, and met a compaction when it was repeated."""
    print(f"seed {_SEED}; repeat with TIDELAKE_SEED={_SEED} TIDELAKE_GOLD_EXAMPLES={_EXAMPLES}")
    played = world(spark, tmp_path, gold=GOLD, joins=JOINS, quality=None)
    files = _files(random.Random(_SEED))
    for number, lines in enumerate(files):
        played.land(f"{number}.jsonl", lines)
    checked: list[dict[str, int]] = []
    # In the second batch.
    with after_merges(len(_TABLES) + 1, slots=2):
        _run_checked(played, checked)
    (before,) = checked
    after = versions(played.lake)
    # Either of the two may have been the first to begin.
    assert sorted(after[name] - before[name] for name in _TABLES)[-2:] == [0, 1]
    assert after[_REWRITTEN] == before[_REWRITTEN]
    failed = _compacted_beside_a_merge(monkeypatch)
    _run_checked(played, checked)
    assert len(failed) == 1
    assert len(checked) == len(files)
    assert read_ledger(played.lake, played.pipeline).balanced
    # The first batch is appended. The repeated one is in each table once.
    for name in _TABLES:
        rewritten = ["OPTIMIZE"] if name == _REWRITTEN else []
        expected = ["CREATE TABLE", "WRITE", *rewritten, *["MERGE"] * (len(files) - 1)]
        assert operations(played.lake.table(name)) == expected


def _compacted_beside_a_merge(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Rewrite a table's files while it is merged into; give the conflicts that this makes."""
    real = gold.merge
    failed: list[str] = []

    def merge(plan: MergePlan, table: Table, note: dict[str, Any], **options: int) -> None:
        if table.name == _REWRITTEN and not failed:
            plan = replace(plan, rows=_rewritten_meanwhile(plan.rows, table.path))
        try:
            real(plan, table, note, **options)
        except CONFLICTS as error:
            failed.append(type(error).__name__)
            raise

    monkeypatch.setattr(gold, "merge", merge)
    return failed


def _rewritten_meanwhile(partials: DataFrame, folder: Path) -> DataFrame:
    """Make a merge's source slow, and rewrite its target's files while it waits."""
    spark = partials.sparkSession

    def optimize() -> None:
        DeltaTable.forPath(spark, str(folder)).optimize().executeZOrderBy("user_id")

    threading.Timer(2, optimize).start()
    asleep = spark.range(1).where("reflect('java.lang.Thread', 'sleep', 6000L) = 'null'")
    return partials.crossJoin(F.broadcast(asleep.drop("id")))


def _files(chance: random.Random) -> list[list[bytes]]:
    """Write the streams into files, each event wherever chance puts it.

    The last file has the earliest and the latest event of its batch, whose partners are outside of
    the batch's time, in the first file.
    """
    files: list[list[bytes]] = [[] for _ in range(_FILES)]
    for file, minute, action in (
        (0, -35, "click"),
        (-1, -20, "purchase"),
        # After all others: there are 20 steps of up to 30 minutes.
        (-1, 600, "click"),
        (0, 620, "purchase"),
    ):
        when = START + timedelta(minutes=minute)
        made = event(0, when, event_id=f"at {minute}", user_id="edge", action=action)
        files[file].append(json.dumps(made).encode())
    for example in range(_EXAMPLES):
        step = chance.choice([1, 5, 10, 30])
        for number in range(chance.randrange(2, 16)):
            when = START + timedelta(minutes=step * chance.randrange(0, 20))
            when += timedelta(microseconds=chance.choice([0, 0, 0, -1, 1]))
            changes = {
                "event_id": f"{example}-{number}",
                "user_id": f"{example}/{chance.randrange(2)}",
                "event_time": when.isoformat(timespec="microseconds"),
                "action": chance.choice(["click", "click", "purchase", "purchase", "bot"]),
                "product_id": chance.choice(["p0", "p1", None]),
                "value": chance.choice([None, 0, 10.25, 99.99]),
            }
            line = json.dumps(event(number, when, **changes)).encode()
            # A copy may come in another file, or in the same.
            for _ in range(chance.choice([1, 1, 1, 2])):
                chance.choice(files).append(line)
    return files


def _run_checked(played: World, checked: list[dict[str, int]]) -> None:
    """Run; whenever a gold batch has closed, hold every table against the recomputation.

    Then ``checked`` gets the tables' versions.
    """
    failures: list[BaseException] = []

    def look(line: str) -> None:
        if line.split()[:2] == ["gold", "batch"]:
            try:
                assert_gold_follows(played)
            except BaseException as error:
                failures.append(error)
                raise
            checked.append(versions(played.lake))

    try:
        played.run(look=look)
    except Exception:
        if failures:
            raise failures[0] from None
        raise
