"""P10: the same pipeline in Tidelake, in Flink SQL and by the template of Structured Streaming.

Each side is a process of its own. Its first round is cold, and counts with the start of its process
as the whole process's time; in the rounds after it the JVM is warm, and what counts is the time
from the first read to the last commit. All take the same files into tables of their own.
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
_CALLED = {"flink": "Flink SQL", "template": "the template pattern"}


def main() -> None:
    """Measure, and hand in."""
    parser = arguments(__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="lines in the files")
    parser.add_argument("--folder", type=Path, default=Path("build/bench/peers"))
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    files = Stream(asked.events).land(folder / "events", 0)
    rounds = Path(tempfile.mkdtemp(prefix="p10-", dir=folder))
    try:
        hand_in(_measured(files, rounds, asked), asked.json)
    finally:
        shutil.rmtree(rounds)


def _measured(files: list[Path], rounds: Path, asked: Any) -> Report:
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        tables = {}
        for name in _SIDES:
            sides[name] = stack.enter_context(running(f"{name}_pipeline", rounds / "logs"))
            out = rounds / name / "first"
            sides[name].round(files, out)
            tables[name] = Tables.of(name, out)
            say(f"{name}: {sides[name].first:.1f} s with the start of its process")
        checked = check(files, tables)
        say(checked)
        _refuse_other_flink(sides["flink"])
        turns = {name: partial(_turn, sides[name], files, rounds) for name in _SIDES}
        seconds = in_turns(turns, asked.repeats, warm_up=0)
    whole = {f"{name}, whole process": [side.first] for name, side in sides.items()}
    findings = []
    for peer, limit in _LIMITS.items():
        against = f"rows/s against {_CALLED[peer]}"
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
            "events": asked.events,
            "bytes": sum(file.stat().st_size for file in files),
            "files": len(files),
            "order": "nothing is more than 5 minutes behind, and Spark's watermarks wait 10. Flink "
            "takes the files in no order, so its watermark waits for 2 days. None drops a row",
            "batches of both Spark sides": "5 files; later hops about as much",
            "Tidelake": "writes bronze and its books besides silver and gold",
            "Flink": "2 slots, RocksDB, exactly once, a checkpoint every 5 s; gold's rows are "
            "written once, when the input ends",
        },
        details={
            **{f"{name}: rounds": side.told for name, side in sides.items()},
            "rows/s, warm": {
                name: [round(asked.events / one) for one in spent]
                for name, spent in seconds.items()
            },
        },
    )


def _turn(side: Side, files: list[Path], rounds: Path, number: int) -> float:
    out = rounds / side.name / str(number)
    seconds = float(side.round(files, out)["seconds"])
    # Spark may still be clearing old files of its own away; the rest goes with the folder of all.
    shutil.rmtree(out, ignore_errors=True)
    return seconds


def _refuse_other_flink(side: Side) -> None:
    """See that checkpoints were made, and that RocksDB held the state."""
    for told in side.told:
        assert told["checkpoints"] and told["rocksdb"], told


if __name__ == "__main__":
    main()
