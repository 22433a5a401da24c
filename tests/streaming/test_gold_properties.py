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
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.oracles.gold import Recomputation, Row, columns_of, consumed, stored
from tests.running import START, event
from tests.worlds import World, world
from tidelake.runtime.hop import Run
from tidelake.runtime.pipeline import run_hops
from tidelake.runtime.progress import Progress
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.tables import HOPS

_EXAMPLES = int(os.environ.get("TIDELAKE_GOLD_EXAMPLES", "100"))
_SEED = int(os.environ.get("TIDELAKE_SEED", str(time.time_ns() % 1_000_000)))
# Of the mean of a decimal with two digits.
_MEAN_SCALE = -6
_COUNTED = {"events": {"count": "*"}, "total": {"sum": "value"}}
_ORDERED = {
    "events": {"count": "*"},
    "bought": {"count_if": "action = 'purchase'"},
    "cheapest": {"min": "value"},
    "dearest": {"max": "value"},
    "usual": {"avg": "value"},
    "opened_by": {"first": "product_id"},
    "closed_by": {"last": "value"},
    "products": {"approx_count_distinct": "product_id"},
}
GOLD: list[dict[str, Any]] = [
    {
        "name": "by_minutes",
        "window": {"kind": "tumbling", "size": "7 minutes", "offset": "3 minutes"},
        "keys": ["user_id", "action"],
        "measures": _ORDERED,
    },
    {
        "name": "by_hours",
        "window": {
            "kind": "hopping",
            "size": "1 hour",
            "slide": "20 minutes",
            "offset": "5 minutes",
        },
        "where": "action <> 'bot'",
        "keys": ["user_id"],
        "measures": _COUNTED,
    },
    {
        "name": "visits",
        "window": {"kind": "session", "gap": "30 minutes"},
        "keys": ["user_id"],
        "measures": _ORDERED,
    },
    {
        "name": "ever",
        "window": {"kind": "global"},
        "keys": ["user_id", "product_id"],
        "measures": _ORDERED,
    },
]
_CLICKED = {
    "left": {
        "where": "action = 'click'",
        "columns": {"clicked_at": "event_time", "user_id": "user_id", "click": "event_id"},
    },
    "right": {
        "pipeline": "clickstream",
        "where": "action = 'purchase'",
        "columns": {"bought_at": "event_time", "purchase": "event_id", "value": "value"},
    },
    "within": "30 minutes",
}
JOINS: list[dict[str, Any]] = [
    {"name": "click_to_purchase", "on": ["user_id"], **_CLICKED},
    {"name": "bought_again", "on": ["user_id", "product_id"], **_CLICKED, "type": "inner"},
]


def test_gold_is_what_duckdb_makes_of_the_silver_it_consumed(
    spark: SparkSession, tmp_path: Path
) -> None:
    print(f"seed {_SEED}; repeat with TIDELAKE_SEED={_SEED} TIDELAKE_GOLD_EXAMPLES={_EXAMPLES}")
    played = world(spark, tmp_path, gold=GOLD, joins=JOINS, quality=None)
    files = _files(random.Random(_SEED))
    checked: list[int] = []
    for number, lines in enumerate(files):
        played.land(f"{number}.jsonl", lines)
        # Some runs find one file, some two.
        if number in (0, 1, len(files) - 1):
            _run_checked(played, checked)
    assert len(checked) == len(files)


def _files(chance: random.Random) -> list[list[bytes]]:
    """Write the streams into four files, each event wherever chance puts it."""
    files: list[list[bytes]] = [[] for _ in range(4)]
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
                _assert_equal(played)
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


def _assert_equal(played: World) -> None:
    root, name = played.lake.root, played.pipeline.name
    for table in [*GOLD, *JOINS]:
        place = root / "gold" / table["name"]
        silver = Recomputation(root, name, consumed(place))
        expected = silver.join(name, table) if "left" in table else silver.aggregate(name, table)
        assert _in_order(stored(place, columns_of(table))) == _in_order(expected), table["name"]


def _in_order(rows: list[Row]) -> list[Row]:
    """Sort rows; a mean is a decimal in one and a float in the other."""
    return sorted((tuple(map(_plain, row)) for row in rows), key=repr)


def _plain(value: Any) -> Any:
    is_mean = isinstance(value, float) or (
        isinstance(value, Decimal) and value.as_tuple().exponent == _MEAN_SCALE
    )
    return round(float(value), 4) if is_mean else value
