"""P11: the same pipeline in a loop of Polars and deltalake, in two settings.

`small`: batches of a million rows over what the batches before them left. `large`: the same over a
silver table of 50 million ids. What counts is the time from the first read to the last commit, in
processes that are warm, and how each side's time grows from the one setting to the other.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import Finding, Goal, Report, arguments, hand_in, in_turns, ratios, say
from benchmarks.peers.events import Stream
from benchmarks.peers.history import CONDITION, lend, prepare, reaching, searched
from benchmarks.peers.process import Side, running
from benchmarks.peers.truth import Tables, check
from tidelake.config import load_environment
from tidelake.spark.session import build_session

_SIDES = ("tidelake", "polars")
_SETTINGS = ("small", "large")
_WHOLE = {"batch_files": 10, "batch_bytes": "1g"}


@dataclass
class Found:
    """What the settings gave so far."""

    findings: list[Finding] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    checked: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def take(self, setting: str, limit: float, seconds: dict[str, list[float]]) -> None:
        """Take the seconds of both sides."""
        self.seconds |= {f"{side}, {setting}": spent for side, spent in seconds.items()}
        goal = Goal(f"rows/s against Polars and deltalake, {setting}", limit, at_least=True)
        self.findings.append(Finding.of(goal, ratios(seconds["polars"], seconds["tidelake"])))
        say(self.findings[-1].told())

    def grown(self, small: str, large: str) -> None:
        """Compare both settings; the other side's growth is only told."""
        over, under = (
            {side: self.seconds[f"{side}, {setting}"] for side in _SIDES}
            for setting in (large, small)
        )
        goal = Goal(f"seconds over {large} against a {small}", 1.1, at_least=False)
        self.findings.append(Finding.of(goal, ratios(over["tidelake"], under["tidelake"])))
        self.details["growth"] = {side: median(over[side]) / median(under[side]) for side in _SIDES}


def main() -> None:
    """Measure, and hand in."""
    parser = arguments(__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="lines of a batch")
    parser.add_argument("--ids", type=int, default=50_000_000, help="of the large history")
    parser.add_argument("--settings", nargs="+", choices=_SETTINGS, default=_SETTINGS)
    parser.add_argument("--days", type=int, default=1, help="of the large history within the TTL")
    parser.add_argument("--folder", type=Path, default=Path("build/bench/peers"))
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rounds = Path(tempfile.mkdtemp(prefix="p11-", dir=folder))
    found = Found()
    history = folder / f"history-{asked.ids}"
    try:
        seed = _history(asked, rounds, history)
        if "small" in asked.settings:
            _batches(asked, found, rounds / "small", "small history", 0.3)
        if "large" in asked.settings:
            lend(history, rounds / "large")
            name = f"{asked.ids:,} ids of history"
            ttl = reaching(history, asked.days)
            _batches(asked, found, rounds / "large", name, 0.6, seed, ttl=ttl)
            if "small" in asked.settings:
                found.grown("small history", name)
    finally:
        shutil.rmtree(rounds)
    hand_in(_report(asked, found), asked.json)


def _report(asked: Any, found: Found) -> Report:
    return Report(
        row="P11",
        title="Files to silver and one-minute sums: Tidelake against a Polars and deltalake loop",
        findings=found.findings,
        seconds=found.seconds,
        checked="; ".join(found.checked),
        setting={
            "events a batch": asked.events,
            "duplicates": "one event in twenty, within the batch",
            "Tidelake": f"writes bronze and its books besides; one batch a hop; dedup.ttl 1 hour, "
            f"over the large history {asked.days} days: ids that arrived within it, and those of "
            "the batch's dates, are looked at, and no others",
            "Polars": "looks at all ids that silver has, since nothing tells it which to leave out",
            "history": f"{asked.ids:,} ids, a million a day, none of which comes again",
        },
        details=found.details,
    )


def _history(asked: Any, rounds: Path, history: Path) -> list[Path]:
    """Make the large history in a session of this process; the files that lie in it besides."""
    if "large" not in asked.settings:
        return []
    spark = build_session(load_environment("local", root=str(rounds / "session")))
    try:
        return prepare(spark, history, asked.ids)
    finally:
        spark.stop()


def _batches(
    asked: Any,
    found: Found,
    folder: Path,
    setting: str,
    limit: float,
    seed: list[Path] | None = None,
    ttl: str = "1 hour",
) -> None:
    stream = Stream(asked.events)
    batches = [stream.land(asked.folder.resolve() / "events", n) for n in range(asked.repeats + 1)]
    outs = {name: folder / name for name in _SIDES}
    with (
        running("tidelake_pipeline", folder / "logs") as ours,
        running("polars_pipeline", folder / "logs") as theirs,
    ):
        if seed:
            theirs.round(seed, outs["polars"])
        turns: dict[str, Callable[[int], float]] = {
            "tidelake": partial(_turn, ours, batches, outs["tidelake"], {**_WHOLE, "ttl": ttl}),
            "polars": partial(_turn, theirs, batches, outs["polars"], {}),
        }
        found.take(setting, limit, in_turns(turns, asked.repeats))
    files = [*(seed or []), *(file for batch in batches for file in batch)]
    tables = {name: Tables.of(name, out) for name, out in outs.items()}
    found.checked.append(check(files, tables, history=CONDITION if seed else ""))
    say(found.checked[-1])
    found.details[setting] = {
        "ids searched by Tidelake, newest batch first": searched(outs["tidelake"]),
        **{side.name: {"first": side.first, "rounds": side.told} for side in (ours, theirs)},
    }


def _turn(
    side: Side, batches: list[list[Path]], out: Path, settings: dict[str, Any], number: int
) -> float:
    return float(side.round(batches[number], out, **settings)["seconds"])


if __name__ == "__main__":
    main()
