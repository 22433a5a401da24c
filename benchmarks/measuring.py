"""What every row of the benchmarks shares: sides in turns, goals, and the report as JSON."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Seconds = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Goal:
    """What a row asks for.

    Attributes:
        what: The figure, in words.
        limit: What it is held against.
        at_least: Whether more is better.
        unit: Of figure and limit; ``x`` for a ratio.
    """

    what: str
    limit: float
    at_least: bool
    unit: str = "x"

    def met_by(self, value: float) -> bool:
        """Tell whether a figure is as good as asked."""
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True)
class Finding:
    """A figure and what it was to be.

    Attributes:
        goal: What was asked.
        value: The median.
        low: The least of the repeats.
        high: The largest of them.
    """

    goal: Goal
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, goal: Goal, values: Sequence[float]) -> Finding:
        """Sum up the figures of the repeats."""
        return cls(goal, statistics.median(values), min(values), max(values))

    def told(self) -> str:
        """Write it as one line."""
        sign = "≥" if self.goal.at_least else "≤"
        verdict = "met" if self.goal.met_by(self.value) else "NOT MET"
        return (
            f"{self.goal.what}: {self.value:,.2f} {self.goal.unit} "
            f"({self.low:,.2f} to {self.high:,.2f}), asked {sign} {self.goal.limit:g}: {verdict}"
        )


@dataclass(frozen=True)
class Report:
    """What a row's script found.

    Attributes:
        row: As in ``P7``.
        title: What is compared, in words.
        findings: Its figures.
        seconds: Of each side, one for each repeat.
        checked: What was compared before times counted, and found identical.
        setting: Sizes and settings, so that others can run it again.
        details: More: ``durationMs``, metrics of a MERGE, times of stages. What stands under
            ``plots`` is drawn: see :func:`lines` and :func:`spread`.
    """

    row: str
    title: str
    findings: Sequence[Finding]
    seconds: Seconds
    checked: str
    setting: Mapping[str, Any]
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Write it for machines, with the machine and the commit."""
        met = [finding.goal.met_by(finding.value) for finding in self.findings]
        findings = [
            {**asdict(finding), "met": one} for finding, one in zip(self.findings, met, strict=True)
        ]
        return {
            "row": self.row,
            "title": self.title,
            "met": all(met),
            "findings": findings,
            "seconds": {side: list(values) for side, values in self.seconds.items()},
            "checked": self.checked,
            "setting": dict(self.setting),
            "details": dict(self.details),
            "machine": machine(),
        }


def in_turns(
    sides: Mapping[str, Callable[[int], float]], repeats: int, *, warm_up: int = 1
) -> dict[str, list[float]]:
    """Let sides run one after the other, round by round, the first to begin another each time.

    Args:
        sides: Each takes the number of the round and gives the seconds that count.
        repeats: The rounds that count.
        warm_up: Rounds before them that do not.
    """
    spent: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(repeats + warm_up):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            seconds = sides[name](number)
            counts = "" if number >= warm_up else ", warming up"
            say(f"round {number}, {name}: {seconds:.3f} s{counts}")
            if number >= warm_up:
                spent[name].append(seconds)
    return spent


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Divide round by round, so that a machine that grows slower slows both sides."""
    return [one / other for one, other in zip(over, under, strict=True)]


def lines(
    title: str, named: Mapping[str, Sequence[tuple[float, float]]], *, x: str, y: str
) -> dict[str, Any]:
    """Describe a plot of series for a report's details: points of each line, words for the axes."""
    points = {name: [list(point) for point in line] for name, line in named.items()}
    return {"kind": "lines", "title": title, "x": x, "y": y, "lines": points}


def spread(title: str, values: Sequence[float], *, x: str, fine: int = 8) -> dict[str, Any]:
    """Describe how values are spread, as a histogram for a report's details.

    Args:
        title: What is drawn.
        values: Above 0.
        x: What they are, with their unit.
        fine: Buckets to a factor of ten.
    """
    counts = Counter(math.floor(math.log10(max(value, 1e-6)) * fine) for value in values)
    buckets = [
        [10 ** (one / fine), 10 ** ((one + 1) / fine), counts[one]]
        for one in range(min(counts), max(counts) + 1)
    ]
    return {"kind": "spread", "title": title, "x": x, "buckets": buckets}


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Give the usual ones by name; the largest is ``max``."""
    ordered = sorted(values)
    wanted = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    last = len(ordered) - 1
    return {
        name: ordered[min(last, math.ceil(len(ordered) * share) - 1)]
        for name, share in wanted.items()
    }


def arguments(about: str | None) -> argparse.ArgumentParser:
    """Give the options that every row's script has."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--repeats", type=int, default=5, help="rounds that count")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the report goes")
    return parser


def end_in_order() -> None:
    """Let a request to end close what was started: brokers and runs have groups of their own."""

    def ask(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, ask)


def hand_in(report: Report, file: Path | None) -> None:
    """Print a report, and keep it where a file was asked for."""
    say(f"{report.row}: {report.title}")
    for finding in report.findings:
        say(f"  {finding.told()}")
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """Describe where and when it ran, and on which commit."""
    commit, changed = _git("rev-parse", "--short=12", "HEAD"), _git("status", "--porcelain")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit + ("+" if changed else ""),
    }


def say(line: str) -> None:
    """Tell people how it goes; machines read the file."""
    print(line, file=sys.stderr, flush=True)


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), *words],
        check=False,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()
