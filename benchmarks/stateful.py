"""Tidelake's gold hop against Spark's stateful operators, on the same silver table.

Each side computes one-minute counts and sums and 30-minute sessions by user, in alternating rounds:
a catch-up on most of silver, then a restart and small batches. Spark runs once for each watermark
delay. All results are compared with an exact recomputation by DuckDB. The first round warms the
JVM and does not count.
Prints a table, or JSON with ``--json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.stateful_data import (
    NAME,
    SMALL_ROWS,
    Difference,
    compare,
    cut,
    draw,
    fill_silver,
    land,
)
from benchmarks.stateful_sides import Operators, Played, Side, Tables, play
from tidelake.config import load_environment
from tidelake.delta.tables import Lake
from tidelake.folders import Folder
from tidelake.ledger.query import ask
from tidelake.spark.session import build_session

# Batches of the catch-up.
_BATCHES = 8
_EACH_FILE = "1k"
_Figures = dict[str, Any]


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=150_000, help="events of the catch-up")
    parser.add_argument("--small", type=int, default=8, help="number of batches of 1,000 rows")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--delays", nargs="+", default=["10 minutes", "6 hours"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        spark = build_session(load_environment("local", root=str(base / "spark")))
        try:
            _make(spark, base, options.events, options.small)
            pairs = [
                _pair(spark, base, repeat, options.delays, options.events)
                for repeat in range(options.repeats + 1)
            ][1:]
            ties = _ties(spark, base)
        finally:
            spark.stop()
    sides = {side: _medians([pair[side] for pair in pairs]) for side in pairs[0]}
    for side, found in ties.items():
        sides.setdefault(side, {}).update(found)
    if options.json:
        print(json.dumps({**vars(options), **sides}))
    else:
        _print(sides)


def _make(spark: SparkSession, base: Path, events: int, small: int) -> None:
    """Create silver in two states: for the catch-up, and with the small batches after it."""
    lines = draw(events + small * SMALL_ROWS)
    land(base / "landing", "large", cut(lines[:events], -(-events // _BATCHES)))
    fill_silver(spark, base / "made", base / "landing")
    shutil.copytree(base / "made" / "silver", base / "early" / "silver")
    land(base / "landing", "small", cut(lines[events:], SMALL_ROWS))
    fill_silver(spark, base / "made", base / "landing")
    _say(f"silver holds {len(lines):,} events")


def _pair(
    spark: SparkSession, base: Path, repeat: int, delays: Sequence[str], events: int
) -> dict[str, _Figures]:
    """Run a catch-up and small batches on each side, in alternating order."""
    root = base / f"pair{repeat}"
    shutil.copytree(base / "early", root)
    lake = Lake(root)
    sides: dict[str, Side] = {
        "tidelake": Tables(spark, lake),
        **{f"spark, {delay}": Operators(spark, lake, delay) for delay in delays},
    }
    turns = list(sides.items())[:: -1 if repeat % 2 else 1]
    limit = f"{_bytes(lake.silver(NAME).path, '*.parquet') // _BATCHES}b"
    large = {name: play(side, limit) for name, side in turns}
    # Add the later batches of silver.
    shutil.copytree(base / "made" / "silver", root / "silver", dirs_exist_ok=True)
    small = {name: play(side, _EACH_FILE) for name, side in turns}
    found = {}
    for name, side in sides.items():
        exact = compare(
            lake,
            side.minutes,
            side.sessions,
            watermark=small[name].watermark,
            last=name == "tidelake",
        )
        found[name] = _figures(side, large[name], small[name], exact, events)
        _say(f"{name}: {found[name]}")
    tidelake = found["tidelake"]
    assert not any(tidelake[name] for name in ("lost", "minutes_wrong", "sessions_wrong", "pieces"))
    shutil.rmtree(root)
    return found


def _figures(side: Side, large: Played, small: Played, exact: Difference, events: int) -> _Figures:
    queries = ("minutes", "sessions") if len(small.batches) > 1 else ("both",)
    return {
        "catch_up_s": large.seconds,
        "rows_per_s": events / large.seconds,
        "small_s": max(small.batches),
        **{f"small_{query}_s": spent for query, spent in zip(queries, small.batches, strict=True)},
        "empty_s": median(small.empty) if small.empty else 0.0,
        "restart_s": small.first,
        "checkpoint_bytes": _bytes(side.checkpoints, "*"),
        "checkpoint_files": len(_files(side.checkpoints, "*")),
        "dropped_large": sum(large.dropped),
        "dropped_small": sum(small.dropped),
        **exact._asdict(),
    }


def _ties(spark: SparkSession, base: Path) -> dict[str, _Figures]:
    """Run both sides on silver in one batch, twice, with the rows in different orders."""
    last: dict[str, list[dict[Any, Any]]] = {}
    for order in ("arrival", "shuffled"):
        root = base / order
        lake = Lake(root)
        if order == "arrival":
            shutil.copytree(base / "early", root)
        else:
            rows = spark.read.format("delta").load(str(Lake(base / "early").silver(NAME).path))
            rows.orderBy(F.rand(7)).write.format("delta").save(str(lake.silver(NAME).path))
        turns: dict[str, Side] = {
            "tidelake": Tables(spark, lake),
            "spark, 10 minutes": Operators(spark, lake, "10 minutes"),
        }
        for name, side in turns.items():
            play(side, "1g")
            sql = f"SELECT user_id, session_start, events, last_action FROM gold.{side.sessions}"
            last.setdefault(name, []).append({row[:3]: row[3] for row in ask(lake, sql).rows})
    return {
        name: {
            "compared": len(one.keys() & two.keys()),
            "last_differs": sum(one[key] != two[key] for key in one.keys() & two.keys()),
        }
        for name, (one, two) in last.items()
    }


def _medians(repeats: list[_Figures]) -> _Figures:
    return {name: median(one[name] for one in repeats) for name in repeats[0]}


def _files(folder: Folder, pattern: str) -> list[Folder]:
    # Hadoop's checksum files on a local disk are not part of the checkpoint.
    return [file for file in folder.rglob(pattern) if file.is_file() and file.suffix != ".crc"]


def _bytes(folder: Folder, pattern: str) -> int:
    return sum(file.stat().st_size for file in _files(folder, pattern))


def _print(sides: dict[str, _Figures]) -> None:
    rows = (
        ("catch-up, both tables, s", "catch_up_s", ".1f"),
        ("  rows/s", "rows_per_s", ",.0f"),
        ("small batch, both tables, s", "small_s", ".2f"),
        ("  its query of minutes, s", "small_minutes_s", ".2f"),
        ("  its query of sessions, s", "small_sessions_s", ".2f"),
        ("  a batch without rows after it, s", "empty_s", ".2f"),
        ("restart until the first batch committed, s", "restart_s", ".2f"),
        ("checkpoint, bytes", "checkpoint_bytes", ",.0f"),
        ("checkpoint, files", "checkpoint_files", ",.0f"),
        ("dropped in the catch-up, by Spark's metric", "dropped_large", ",.0f"),
        ("dropped in small batches, by Spark's metric", "dropped_small", ",.0f"),
        ("events missing in the minutes", "lost", ",.0f"),
        ("rows of minutes", "minutes", ",.0f"),
        ("  wrong or missing", "minutes_wrong", ",.0f"),
        ("sessions", "sessions", ",.0f"),
        ("  not shown while open", "open", ",.0f"),
        ("  wrong or missing otherwise", "sessions_wrong", ",.0f"),
        ("  rows that are no session", "pieces", ",.0f"),
        ("same sessions, rows in two orders", "compared", ",.0f"),
        ("  with a different last action", "last_differs", ",.0f"),
    )
    print(f"{'':<44}" + "".join(f"{name:>18}" for name in sides))
    for label, key, form in rows:
        cells = [format(side[key], form) if key in side else "-" for side in sides.values()]
        print(f"{label:<44}" + "".join(f"{value:>18}" for value in cells))


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
