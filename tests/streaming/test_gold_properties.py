"""After each batch gold is what DuckDB makes of the silver that gold has consumed.

Many random streams share one run: each has users of its own, so that each is an example of its own
for every keyed table.
"""

from __future__ import annotations

import json
import os
import random
import time
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from tests.following import GOLD, JOINS, assert_gold_follows
from tests.running import START, event
from tests.worlds import World, world
from tidelake.delta.tables import HOPS
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger

_EXAMPLES = int(os.environ.get("TIDELAKE_GOLD_EXAMPLES", "60"))
_SEED = int(os.environ.get("TIDELAKE_SEED", str(time.time_ns() % 1_000_000)))


def test_gold_is_what_duckdb_makes_of_the_silver_it_consumed(
    spark: SparkSession, tmp_path: Path
) -> None:
    print(f"seed {_SEED}; repeat with TIDELAKE_SEED={_SEED} TIDELAKE_GOLD_EXAMPLES={_EXAMPLES}")
    played = world(spark, tmp_path, gold=GOLD, joins=JOINS, quality=None)
    files = _files(random.Random(_SEED))
    checked: list[int] = []
    for number, lines in enumerate(files):
        played.land(f"{number}.jsonl", lines)
        # One run finds one file, the other two.
        if number in (0, len(files) - 1):
            _run_checked(played, checked)
    assert len(checked) == len(files)


def _files(chance: random.Random) -> list[list[bytes]]:
    """Write the streams into three files, each event wherever chance puts it."""
    files: list[list[bytes]] = [[] for _ in range(3)]
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


def _run_checked(played: World, checked: list[int]) -> None:
    """Run, and hold every table against the recomputation whenever a gold batch has closed."""
    failures: list[BaseException] = []

    def look(line: str) -> None:
        if line.startswith("gold"):
            try:
                assert_gold_follows(played)
            except BaseException as error:
                failures.append(error)
                raise
            checked.append(1)

    run = Run(played.spark, played.pipeline, played.lake, played.environment, Progress(look))
    try:
        run_hops(run, HOPS, parse_trigger(AVAILABLE_NOW))
    except Exception:
        if failures:
            raise failures[0] from None
        raise
