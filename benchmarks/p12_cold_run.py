"""P12: a cold `tidelake run` of one small batch, from the start of the process to its end.

One file of a thousand clicks, a fifth of them duplicates, goes through bronze, silver
(deduplicated, checked by the suite, with its ledger) and two gold tables. No table exists before.
The same run is timed on a machine with an archive of the JVM's classes, as `tidelake doctor
--archive` creates it once. Two other processes run in alternating rounds, without an archive: one
only starts the same session, writes a small Delta table and reads it; the other is written by hand
and fills the same tables with three streams, without row rules, routing, lateness or a ledger. The
last goal is the run's time beyond the latter: both plan each hop for the first time, in a cold JVM.

Usage: python -m benchmarks.p12_cold_run [--repeats 3] [--events 1000] [--json FILE]
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.clicks import TWO, definition, land
from benchmarks.measuring import Finding, Goal, Report, arguments, hand_in, in_turns, say
from benchmarks.processes import took
from tidelake.delta.tables import Lake
from tidelake.ledger.query import ask
from tidelake.spark.java import CACHE_VARIABLE, ensure_jars

_WHOLE = Goal("whole process", 20, False, "s")
_ARCHIVED = Goal("whole process, with the archive of classes", 20, False, "s")
_BEYOND = Goal("beyond a program by hand that fills the same tables", 0, False, "s")
_RUN, _FAST = "tidelake run", "tidelake run with the archive"
_START, _BY_HAND = "Spark's start alone", "by hand"
_COMPARED = {
    "user_activity_1m": "window_start, user_id, events, clicks, total_value",
    "product_totals": "product_id, events, revenue, cheapest",
}


def main() -> None:
    """Measure, and write the report."""
    parser = arguments(__doc__)
    parser.set_defaults(repeats=3)
    parser.add_argument("--events", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidelake-cold-") as name:
        folder = Path(name)
        hand_in(_measured(folder, options.events, options.repeats), options.json)


def _measured(folder: Path, events: int, repeats: int) -> Report:
    landing = folder / "landing"
    land(landing, [events])
    file = definition(folder)
    cpu: dict[str, list[float]] = {_RUN: [], _FAST: [], _START: [], _BY_HAND: []}
    plain, archived = (_cache(folder / name) for name in ("jars", "archived"))
    say("creating the archive of classes")
    took([*_command(), "doctor", "--archive"], folder / "words.log", archived)

    def run(side: str, word: str, variables: dict[str, str]) -> Any:
        def measured(number: int) -> float:
            root = folder / f"{word}{number}"
            seconds = spent(side, [*_command(), *_run_arguments(file, landing, root)], variables)
            _compare_tables(folder, number)
            return seconds

        return measured

    def peer(side: str, word: str) -> Any:
        def measured(number: int) -> float:
            root = folder / f"{word}{number}"
            words = ["-m", "benchmarks.cold_sides", word, str(landing), str(root)]
            seconds = spent(side, [sys.executable, *words], plain)
            _compare_tables(folder, number)
            return seconds

        return measured

    def spent(side: str, command: list[str], variables: dict[str, str]) -> float:
        found = took(command, folder / "words.log", variables)
        cpu[side].append(round(found.cpu, 2))
        return found.seconds

    sides = {
        _RUN: run(_RUN, "run", plain),
        _FAST: run(_FAST, "fast", archived),
        _START: peer(_START, "start"),
        _BY_HAND: peer(_BY_HAND, "by_hand"),
    }
    seconds = in_turns(sides, repeats)
    beyond = [a - b for a, b in zip(seconds[_RUN], seconds[_BY_HAND], strict=True)]
    return Report(
        row="P12",
        title="A cold run of one small batch through all hops, whole process",
        findings=[
            Finding.of(_WHOLE, seconds[_RUN]),
            Finding.of(_ARCHIVED, seconds[_FAST]),
            Finding.of(_BEYOND, beyond),
        ],
        seconds=seconds,
        checked="both gold tables equal those of the program by hand, all rows, in each round",
        setting={"events": events, "copies": 0.2, "gold tables": list(TWO), "files": 1},
        details={
            "seconds of cores": {side: sorted(one)[len(one) // 2] for side, one in cpu.items()},
            "steps of one run": _steps(folder, file, landing, plain),
            "all of clickstream (six gold tables, a lookup, a join), seconds": round(
                took(
                    [*_command(), *_run_arguments("clickstream", landing, folder / "whole")],
                    folder / "words.log",
                    plain,
                ).seconds,
                1,
            ),
        },
    )


def _cache(folder: Path) -> dict[str, str]:
    """Copy the jars into a folder of their own, and return the variable that names it.

    The user's cache may hold an archive of classes.
    """
    folder.mkdir()
    for jar in ensure_jars():
        shutil.copy2(jar, folder)
    return {CACHE_VARIABLE: str(folder)}


def _command() -> list[str]:
    return [sys.executable, "-m", "tidelake.cli"]


def _run_arguments(pipeline: Path | str, landing: Path, root: Path) -> list[str]:
    return ["run", str(pipeline), "--source", str(landing), "--root", str(root)]


def _compare_tables(folder: Path, number: int) -> None:
    """Compare the gold tables of the three sides, once all have run in a round.

    Raises:
        SystemExit: The tables differ.
    """
    roots = [folder / f"{word}{number}" for word in ("by_hand", "run", "fast")]
    if not all(root.exists() for root in roots):
        return
    for name, columns in _COMPARED.items():
        sql = f"SELECT {columns} FROM gold.{name} ORDER BY ALL"
        of_program, *of_runs = (ask(Lake(root), sql).rows for root in roots)
        if not of_program or any(rows != of_program for rows in of_runs):
            raise SystemExit(f"gold.{name} differs between the sides")
    say("both gold tables are equal on all sides")


def _steps(folder: Path, file: Path, landing: Path, variables: dict[str, str]) -> dict[str, float]:
    """Run once more with each step timed."""
    steps, root = folder / "steps.json", folder / "steps"
    command = [sys.executable, "-m", "benchmarks.cold_steps", str(steps), str(time.time())]
    took([*command, *_run_arguments(file, landing, root)], folder / "words.log", variables)
    found: dict[str, float] = json.loads(steps.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    main()
