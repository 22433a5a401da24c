"""P10: the same pipeline in Tidelake, in Flink SQL and in Structured Streaming's template pattern.

Each side is its own process, reads the same files and writes its own tables. Its first round is
cold and is timed from the start of the process (whole process). In later rounds the JVM is warm,
and the time is from the first read to the last commit.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import Finding, Goal, Report, arguments, hand_in, in_turns, ratios, say
from benchmarks.peers.events import Stream
from benchmarks.peers.process import Side, running
from benchmarks.peers.truth import Tables, check

_LIMITS = {"flink": 1.2, "template": 1.2}
_SIDES = ("tidelake", *_LIMITS)
_TITLES = {"flink": "Flink SQL", "template": "the template pattern"}


def main() -> None:
    """Measure, and write the report."""
    parser = arguments(__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="lines in the files")
    parser.add_argument("--folder", type=Path, default=Path("build/bench/peers"))
    options = parser.parse_args()
    folder = options.folder.resolve()
    files = Stream(options.events).land(folder / "events", 0)
    rounds = Path(tempfile.mkdtemp(prefix="p10-", dir=folder))
    try:
        hand_in(_measured(files, rounds, options), options.json)
    finally:
        shutil.rmtree(rounds)


def _measured(files: list[Path], rounds: Path, options: Any) -> Report:
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        tables = {}
        for name in _SIDES:
            sides[name] = stack.enter_context(running(f"{name}_pipeline", rounds / "logs"))
            out = rounds / name / "first"
            sides[name].round(files, out)
            tables[name] = Tables.of(name, out)
            say(f"{name}: {sides[name].first:.1f} s including the start of its process")
        checked = check(files, tables)
        say(checked)
        _assert_flink_settings(sides["flink"])
        turns = {name: partial(_turn, sides[name], files, rounds) for name in _SIDES}
        seconds = in_turns(turns, options.repeats, warm_up=0)
    whole = {f"{name}, whole process": [side.first] for name, side in sides.items()}
    findings = []
    for peer, limit in _LIMITS.items():
        against = f"rows/s against {_TITLES[peer]}"
        findings += [
            Finding.of(
                Goal(f"{against}, warm", limit, at_least=True),
                ratios(seconds[peer], seconds["tidelake"]),
            ),
            Finding.of(
                Goal(f"{against}, whole process", limit, at_least=True),
                ratios(whole[f"{peer}, whole process"], whole["tidelake, whole process"]),
            ),
        ]
    return Report(
        row="P10",
        title="Files to silver and one-minute sums: Tidelake, Flink SQL, Spark's template",
        findings=findings,
        seconds={**seconds, **whole},
        checked=checked,
        setting={
            "events": options.events,
            "bytes": sum(file.stat().st_size for file in files),
            "files": len(files),
            "order": "no event is more than 5 minutes behind, and Spark's watermark delay is 10. "
            "Flink reads the files in no order, so its watermark delay is 2 days. None drops a row",
            "batches of both Spark sides": "5 files; later hops about the same amount",
            "Tidelake": "also writes bronze and its ledger",
            "Flink": "2 slots, RocksDB, exactly once, a checkpoint every 5 s; gold's rows are "
            "written once, at the end of the input",
        },
        details={
            **{f"{name}: rounds": side.reports for name, side in sides.items()},
            "rows/s, warm": {
                name: [round(options.events / one) for one in spent]
                for name, spent in seconds.items()
            },
        },
    )


def _turn(side: Side, files: list[Path], rounds: Path, number: int) -> float:
    out = rounds / side.name / str(number)
    seconds = float(side.round(files, out)["seconds"])
    # Spark may still be deleting old files; what remains is removed with the parent folder.
    shutil.rmtree(out, ignore_errors=True)
    return seconds


def _assert_flink_settings(side: Side) -> None:
    """Assert that Flink completed checkpoints and kept its state in RocksDB."""
    for report in side.reports:
        assert report["checkpoints"] and report["rocksdb"], report


if __name__ == "__main__":
    main()
