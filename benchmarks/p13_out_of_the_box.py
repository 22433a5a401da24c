"""P13: a first run with nothing configured, against a plain batch job for the same tables.

The input is two million clicks in twenty files, a fifth of them duplicates. One side is
``tidelake run`` of the reference pipeline with one gold table and the environment ``local`` as
shipped. The other is the batch job that a good engineer writes by hand (``batch_job.py``), without
a ledger and without a second run. Both are whole processes, in alternating rounds.

Usage: python -m benchmarks.p13_out_of_the_box [--repeats 3] [--events 2000000] [--json FILE]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.batch_job import run_batch_job
from benchmarks.clicks import definition, land
from benchmarks.measuring import Finding, Goal, Report, arguments, hand_in, in_turns, ratios
from benchmarks.processes import took
from tidelake.config import load_environment
from tidelake.delta.tables import Lake
from tidelake.ledger.query import ask
from tidelake.spark.session import build_session

_GOAL = Goal("seconds of the batch job over seconds of the run", 0.80, at_least=True)
_RUN, _JOB = "tidelake run", "batch job"
_GOLD = "user_activity_1m"
_FILES = 20
_COMPARED = "window_start, user_id, events, clicks, total_value"


def main() -> None:
    """Measure, and write the report; with ``job`` run the batch job."""
    if sys.argv[1:2] == ["job"]:
        _job(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    parser = arguments(__doc__)
    parser.set_defaults(repeats=3)
    parser.add_argument("--events", type=int, default=2_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidelake-first-") as name:
        hand_in(_measured(Path(name), options.events, options.repeats), options.json)


def _measured(folder: Path, events: int, repeats: int) -> Report:
    landing = folder / "landing"
    land(landing, [events // _FILES] * _FILES)
    file = definition(folder, [_GOLD])

    def run(number: int) -> float:
        words = ["-m", "tidelake.cli", "run", str(file), "--source", str(landing)]
        return _took(folder, _RUN, number, [*words, "--root"])

    def job(number: int) -> float:
        words = ["-m", "benchmarks.p13_out_of_the_box", "job", str(landing)]
        return _took(folder, _JOB, number, words)

    seconds = in_turns({_RUN: run, _JOB: job}, repeats)
    return Report(
        row="P13",
        title="A first run with nothing configured, whole process",
        findings=[Finding.of(_GOAL, ratios(seconds[_JOB], seconds[_RUN]))],
        seconds=seconds,
        checked="the gold table equals that of the batch job, all rows, in each round",
        setting={"events": events, "copies": 0.2, "files": _FILES, "gold tables": [_GOLD]},
    )


def _took(folder: Path, side: str, number: int, words: list[str]) -> float:
    root = folder / f"{side}{number}"
    seconds = took([sys.executable, *words, str(root)], folder / "words.log").seconds
    roots = [folder / f"{each}{number}" for each in (_RUN, _JOB)]
    if all(path.exists() for path in roots):
        sql = f"SELECT {_COMPARED} FROM gold.{_GOLD} ORDER BY ALL"
        of_run, of_job = (ask(Lake(path), sql).rows for path in roots)
        if not of_run or of_run != of_job:
            raise SystemExit(f"gold.{_GOLD} differs between the two sides")
    return seconds


def _job(landing: Path, root: Path) -> None:
    # The Java options that `tidelake run` starts with for as much input.
    spark = build_session(load_environment("local", root=str(root)), use="bulk")
    try:
        run_batch_job(spark, landing, root, [_GOLD])
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
