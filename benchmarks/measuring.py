"""Shared by all benchmark rows: alternating rounds, goals, and the report as JSON."""

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
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Seconds = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Goal:
    """A limit for one figure.

    Attributes:
        what: Description of the figure.
        limit: The least or largest value that meets the goal.
        at_least: Whether the figure must be at least the limit; else at most.
        unit: Of figure and limit; ``x`` for a ratio.
    """

    what: str
    limit: float
    at_least: bool
    unit: str = "x"

    def met_by(self, value: float) -> bool:
        """Return whether a value meets the goal."""
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True)
class Finding:
    """A measured figure and its goal.

    Attributes:
        goal: The goal.
        value: Median of the rounds.
        low: Least of the rounds.
        high: Largest of the rounds.
    """

    goal: Goal
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, goal: Goal, values: Sequence[float]) -> Finding:
        """Summarize the values of the rounds."""
        return cls(goal, statistics.median(values), min(values), max(values))

    def line(self) -> str:
        """Return the finding as one line of text."""
        sign = "≥" if self.goal.at_least else "≤"
        verdict = "met" if self.goal.met_by(self.value) else "NOT MET"
        return (
            f"{self.goal.what}: {self.value:,.2f} {self.goal.unit} "
            f"({self.low:,.2f} to {self.high:,.2f}), goal {sign} {self.goal.limit:g}: {verdict}"
        )


@dataclass(frozen=True)
class Report:
    """The results of a row's script.

    Attributes:
        row: Name of the row, such as ``P7``.
        title: Description of the comparison.
        findings: The measured figures.
        seconds: Seconds of each side, by round.
        checked: Which outputs were compared and found equal.
        setting: Sizes and settings needed to repeat the measurement.
        details: More figures: ``durationMs``, metrics of a MERGE, times of stages. Entries under
            ``plots`` are drawn: see :func:`lines` and :func:`spread`.
    """

    row: str
    title: str
    findings: Sequence[Finding]
    seconds: Seconds
    checked: str
    setting: Mapping[str, Any]
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, with the machine and the commit."""
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
    """Run the sides in alternating rounds, each round starting with the next side.

    Args:
        sides: Called with the number of the round; return the seconds to count.
        repeats: Number of counted rounds.
        warm_up: Number of rounds before them that do not count.
    """
    spent: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(repeats + warm_up):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            seconds = sides[name](number)
            suffix = "" if number >= warm_up else ", warm-up"
            say(f"round {number}, {name}: {seconds:.3f} s{suffix}")
            if number >= warm_up:
                spent[name].append(seconds)
    return spent


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Divide round by round, so that changes of the machine's speed affect both sides."""
    return [above / below for above, below in zip(over, under, strict=True)]


def lines(
    title: str, named: Mapping[str, Sequence[tuple[float, float]]], *, x: str, y: str
) -> dict[str, Any]:
    """Describe a line plot for a report's details: points of each line, labels of the axes."""
    points = {name: [list(point) for point in line] for name, line in named.items()}
    return {"kind": "lines", "title": title, "x": x, "y": y, "lines": points}


def spread(title: str, values: Sequence[float], *, x: str, fine: int = 8) -> dict[str, Any]:
    """Describe a histogram with logarithmic buckets for a report's details.

    Args:
        title: Title of the plot.
        values: Values above 0.
        x: Label of the axis, with the unit.
        fine: Buckets in a factor of ten.
    """
    counts = Counter(math.floor(math.log10(max(value, 1e-6)) * fine) for value in values)
    buckets = [
        [10 ** (one / fine), 10 ** ((one + 1) / fine), counts[one]]
        for one in range(min(counts), max(counts) + 1)
    ]
    return {"kind": "spread", "title": title, "x": x, "buckets": buckets}


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return the usual quantiles by name; the largest value is ``max``."""
    ordered = sorted(values)
    wanted = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    last = len(ordered) - 1
    return {
        name: ordered[min(last, math.ceil(len(ordered) * share) - 1)]
        for name, share in wanted.items()
    }


def arguments(about: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every row's script."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--repeats", type=int, default=5, help="counted rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report to this file")
    return parser


@contextmanager
def in_thread(work: Callable[[], None], ends: threading.Event) -> Iterator[None]:
    """Run ``work`` in a thread; when the block ends, set ``ends`` and wait for its return."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def end_in_order() -> None:
    """Exit on SIGTERM, so that brokers and runs (with their own process groups) are stopped."""

    def ask(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, ask)


def hand_in(report: Report, file: Path | None) -> None:
    """Print a report, and write it to a file if one is given."""
    say(f"{report.row}: {report.title}")
    for finding in report.findings:
        say(f"  {finding.line()}")
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """Return the machine, the time and the commit; ``+`` marks uncommitted changes."""
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
    """Print progress to stderr."""
    print(line, file=sys.stderr, flush=True)


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), *words],
        check=False,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()
