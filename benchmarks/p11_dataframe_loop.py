"""P11: the same pipeline in a loop of Polars and deltalake, in three settings.

`small`: batches of a million rows over what the batches before them left. `large`: the same over a
silver table of 50 million ids. `upserts`: events that touch one row in a hundred of a large gold
table. What counts is the time from the first read to the last commit, in processes that are warm.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import Finding, Goal, Report, arguments, hand_in, in_turns, ratios, say
from benchmarks.peers.events import Stream
from benchmarks.peers.history import CONDITION, lend, prepare, reaching, searched
from benchmarks.peers.process import Side, running
from benchmarks.peers.truth import Tables, check, check_same
from benchmarks.peers.upserts import Large, Spread
from tidelake.config import load_environment
from tidelake.spark.session import build_session

_SIDES = ("tidelake", "polars")
_SETTINGS = ("small", "large", "upserts")
_WHOLE = {"batch_files": 10, "batch_bytes": "1g"}
_SHARE = 0.01


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


def main() -> None:
    """Measure, and hand in."""
    parser = arguments(__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="lines of a batch")
    parser.add_argument("--ids", type=int, default=50_000_000, help="of the large history")
    parser.add_argument("--gold", type=int, default=5_000_000, help="rows of the large table")
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
        seed = _in_session(asked, found, rounds, history)
        if "small" in asked.settings:
            _batches(asked, found, rounds / "small", "small history", 0.4)
        if "large" in asked.settings:
            lend(history, rounds / "large")
            name = f"{asked.ids:,} ids of history"
            ttl = reaching(history, asked.days)
            _batches(asked, found, rounds / "large", name, 1.0, seed, ttl=ttl)
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
            "gold": f"{asked.gold:,} rows in a file a day; one in a hundred is touched",
        },
        details=found.details,
    )


def _in_session(asked: Any, found: Found, rounds: Path, history: Path) -> list[Path]:
    """Do what needs a session of this process: the history, and the merges."""
    seed: list[Path] = []
    if not {"large", "upserts"} & set(asked.settings):
        return seed
    spark = build_session(load_environment("local", root=str(rounds / "session")))
    try:
        if "large" in asked.settings:
            seed = prepare(spark, history, asked.ids)
        if "upserts" in asked.settings:
            for spread in ("recent", "everywhere"):
                large = Large.made(spark, rounds / spread / "tidelake", asked.gold)
                _upserts(asked, found, rounds / spread, large, spread)
    finally:
        spark.stop()
    return seed


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


def _upserts(asked: Any, found: Found, folder: Path, large: Large, spread: Spread) -> None:
    events = large.events(folder / "events", _SHARE, spread)
    tables = {name: folder / name for name in ("bounded", "on keys")}
    for table in tables.values():
        large.lend(table)
    with running("polars_upserts", folder / "logs") as theirs:
        merge = {
            name: partial(_merged, theirs, events, table, name == "bounded")
            for name, table in tables.items()
        }
        turns = {"tidelake": lambda _: large.merge(events), **merge}
        spent = in_turns(turns, asked.repeats)
        polars = dict(zip(merge, (spent[name] for name in merge), strict=True))
    for name, seconds in polars.items():
        setting = f"upserts {spread}, merge {name}"
        found.take(setting, 3.0, {"tidelake": spent["tidelake"], "polars": seconds})
    found.checked.append(
        check_same(
            large.path,
            list(tables.values()),
            events=asked.gold * (1 + _SHARE * (asked.repeats + 1)),
        )
    )
    say(found.checked[-1])
    found.details[f"upserts {spread}"] = {"tidelake": large.metrics(), "polars": theirs.told}


def _merged(side: Side, events: Path, table: Path, bounded: bool, _: int) -> float:
    return float(side.round([events], table, bounded=bounded)["seconds"])


if __name__ == "__main__":
    main()
