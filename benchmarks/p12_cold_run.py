"""P12: a cold `tidelake run` of one small batch, from the start of the process to its end.

One file of a thousand clicks, a fifth of them duplicates, goes through bronze, silver
(deduplicated, checked by the suite, with its ledger) and two gold tables. No table exists before.
Two other processes run in alternating rounds: one only starts the same session, writes a small
Delta table and reads it; the other is written by hand and fills the same tables with three
streams, without row rules, routing, lateness or a ledger. The second goal is the run's time beyond
the latter: both plan each hop for the first time, in a cold JVM.

Usage: python -m benchmarks.p12_cold_run [--repeats 3] [--events 1000] [--json FILE]
"""

from __future__ import annotations

import json
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

_WHOLE = Goal("whole process", 20, False, "s")
_BEYOND = Goal("beyond a program by hand that fills the same tables", 0, False, "s")
_RUN, _START, _BY_HAND = "tidelake run", "Spark's start alone", "by hand"
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
    cpu: dict[str, list[float]] = {_RUN: [], _START: [], _BY_HAND: []}

    def run(number: int) -> float:
        root = folder / f"run{number}"
        seconds = spent(_RUN, [*_command(), *_run_arguments(file, landing, root)])
        _compare_tables(folder, number)
        return seconds

    def peer(side: str, word: str) -> Any:
        def measured(number: int) -> float:
            root = folder / f"{word}{number}"
            words = ["-m", "benchmarks.cold_sides", word, str(landing), str(root)]
            seconds = spent(side, [sys.executable, *words])
            _compare_tables(folder, number)
            return seconds

        return measured

    def spent(side: str, command: list[str]) -> float:
        found = took(command, folder / "words.log")
        cpu[side].append(round(found.cpu, 2))
        return found.seconds

    sides = {_RUN: run, _START: peer(_START, "start"), _BY_HAND: peer(_BY_HAND, "by_hand")}
    seconds = in_turns(sides, repeats)
    beyond = [a - b for a, b in zip(seconds[_RUN], seconds[_BY_HAND], strict=True)]
    return Report(
        row="P12",
        title="A cold run of one small batch through all hops, whole process",
        findings=[
            Finding.of(_WHOLE, seconds[_RUN]),
            Finding.of(_BEYOND, beyond),
        ],
        seconds=seconds,
        checked="both gold tables equal those of the program by hand, all rows, in each round",
        setting={"events": events, "copies": 0.2, "gold tables": list(TWO), "files": 1},
        details={
            "seconds of cores": {side: sorted(one)[len(one) // 2] for side, one in cpu.items()},
            "steps of one run": _steps(folder, file, landing),
            "all of clickstream (six gold tables, a lookup, a join), seconds": round(
                took(
                    [*_command(), *_run_arguments("clickstream", landing, folder / "whole")],
                    folder / "words.log",
                ).seconds,
                1,
            ),
        },
    )


def _command() -> list[str]:
    return [sys.executable, "-m", "tidelake.cli"]


def _run_arguments(pipeline: Path | str, landing: Path, root: Path) -> list[str]:
    return ["run", str(pipeline), "--source", str(landing), "--root", str(root)]


def _compare_tables(folder: Path, number: int) -> None:
    """Compare the gold tables of both sides, once both have run in a round.

    Raises:
        SystemExit: The tables differ.
    """
    run, by_hand = folder / f"run{number}", folder / f"by_hand{number}"
    if not (run.exists() and by_hand.exists()):
        return
    for name, columns in _COMPARED.items():
        sql = f"SELECT {columns} FROM gold.{name} ORDER BY ALL"
        of_run, of_program = (ask(Lake(root), sql).rows for root in (run, by_hand))
        if not of_run or of_run != of_program:
            raise SystemExit(f"gold.{name} differs between the two sides")
    say("both gold tables are equal on both sides")


def _steps(folder: Path, file: Path, landing: Path) -> dict[str, float]:
    """Run once more with each step timed."""
    steps, root = folder / "steps.json", folder / "steps"
    command = [sys.executable, "-m", "benchmarks.cold_steps", str(steps), str(time.time())]
    took([*command, *_run_arguments(file, landing, root)], folder / "words.log")
    found: dict[str, float] = json.loads(steps.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    main()
