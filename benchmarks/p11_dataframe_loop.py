"""P11: the same pipeline as a loop of Polars and deltalake, in two settings.

`small`: batches of a million rows on top of the batches before them. `large`: the same on a silver
table of 50 million ids. The time is from the first read to the last commit, in warm processes. The
last figure is how much Tidelake's time grows from `small` to `large`.
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
from benchmarks.peers.history import CONDITION, link_tables, prepare, reaching, searched
from benchmarks.peers.process import Side, running
from benchmarks.peers.truth import Tables, check
from tidelake.config import load_environment
from tidelake.spark.session import build_session

_SIDES = ("tidelake", "polars")
_SETTINGS = ("small", "large")
_WHOLE = {"batch_files": 10, "batch_bytes": "1g"}


@dataclass
class Results:
    """Results of the settings so far."""

    findings: list[Finding] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    checked: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def take(self, setting: str, limit: float, seconds: dict[str, list[float]]) -> None:
        """Add the seconds of both sides in one setting."""
        self.seconds |= {f"{side}, {setting}": spent for side, spent in seconds.items()}
        goal = Goal(f"rows/s against Polars and deltalake, {setting}", limit, at_least=True)
        self.findings.append(Finding.of(goal, ratios(seconds["polars"], seconds["tidelake"])))
        say(self.findings[-1].line())

    def grown(self, small: str, large: str) -> None:
        """Compare both settings: a goal for Tidelake, only a detail for Polars."""
        over, under = (
            {side: self.seconds[f"{side}, {setting}"] for side in _SIDES}
            for setting in (large, small)
        )
        goal = Goal(f"seconds over {large} against a {small}", 1.1, at_least=False)
        self.findings.append(Finding.of(goal, ratios(over["tidelake"], under["tidelake"])))
        self.details["growth"] = {side: median(over[side]) / median(under[side]) for side in _SIDES}


def main() -> None:
    """Measure, and write the report."""
    parser = arguments(__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="lines a batch")
    parser.add_argument("--ids", type=int, default=50_000_000, help="ids in the large history")
    parser.add_argument("--settings", nargs="+", choices=_SETTINGS, default=_SETTINGS)
    parser.add_argument(
        "--days", type=int, default=1, help="days of the large history within the TTL"
    )
    parser.add_argument("--folder", type=Path, default=Path("build/bench/peers"))
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rounds = Path(tempfile.mkdtemp(prefix="p11-", dir=folder))
    results = Results()
    history = folder / f"history-{options.ids}"
    try:
        seed = _history(options, rounds, history)
        if "small" in options.settings:
            _batches(options, results, rounds / "small", "small history", 0.3)
        if "large" in options.settings:
            link_tables(history, rounds / "large")
            name = f"{options.ids:,} ids of history"
            ttl = reaching(history, options.days)
            _batches(options, results, rounds / "large", name, 0.6, seed, ttl=ttl)
            if "small" in options.settings:
                results.grown("small history", name)
    finally:
        shutil.rmtree(rounds)
    hand_in(_report(options, results), options.json)


def _report(options: Any, results: Results) -> Report:
    return Report(
        row="P11",
        title="Files to silver and one-minute sums: Tidelake against a Polars and deltalake loop",
        findings=results.findings,
        seconds=results.seconds,
        checked="; ".join(results.checked),
        setting={
            "events a batch": options.events,
            "duplicates": "one event in twenty, within the batch",
            "Tidelake": f"also writes bronze and its ledger; one batch a hop; dedup.ttl 1 hour, "
            f"with the large history {options.days} days: only ids that arrived within it, and "
            "those of the batch's dates, are searched",
            "Polars": "searches all ids in silver, since it has no TTL",
            "history": f"{options.ids:,} ids, a million a day, none repeated in a batch",
        },
        details=results.details,
    )


def _history(options: Any, rounds: Path, history: Path) -> list[Path]:
    """Create the large history in a session of this process; return the files it also contains."""
    if "large" not in options.settings:
        return []
    spark = build_session(load_environment("local", root=str(rounds / "session")), use="bulk")
    try:
        return prepare(spark, history, options.ids)
    finally:
        spark.stop()


def _batches(
    options: Any,
    results: Results,
    folder: Path,
    setting: str,
    limit: float,
    seed: list[Path] | None = None,
    ttl: str = "1 hour",
) -> None:
    stream = Stream(options.events)
    batches = [
        stream.land(options.folder.resolve() / "events", n) for n in range(options.repeats + 1)
    ]
    outs = {name: folder / name for name in _SIDES}
    with (
        running("tidelake_pipeline", folder / "logs") as tidelake,
        running("polars_pipeline", folder / "logs") as polars,
    ):
        if seed:
            polars.round(seed, outs["polars"])
        turns: dict[str, Callable[[int], float]] = {
            "tidelake": partial(_turn, tidelake, batches, outs["tidelake"], {**_WHOLE, "ttl": ttl}),
            "polars": partial(_turn, polars, batches, outs["polars"], {}),
        }
        results.take(setting, limit, in_turns(turns, options.repeats))
    files = [*(seed or []), *(file for batch in batches for file in batch)]
    tables = {name: Tables.of(name, out) for name, out in outs.items()}
    results.checked.append(check(files, tables, history=CONDITION if seed else ""))
    say(results.checked[-1])
    results.details[setting] = {
        "ids searched by Tidelake, newest batch first": searched(outs["tidelake"]),
        **{side.name: {"first": side.first, "rounds": side.reports} for side in (tidelake, polars)},
    }


def _turn(
    side: Side, batches: list[list[Path]], out: Path, settings: dict[str, Any], number: int
) -> float:
    return float(side.round(batches[number], out, **settings)["seconds"])


if __name__ == "__main__":
    main()
