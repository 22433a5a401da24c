"""What the recovery tests tried and what came of it, as a table at the end of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# The name of the property under which a test's report travels to whoever prints it.
PROPERTY = "recovery"
_COLUMNS = ("what", "tried", "reached", "refused", "lost", "doubled", "seed")
_WIDTHS = (46, 6, 8, 8, 6, 8, 8)


@dataclass
class Report:
    """What one test found.

    Attributes:
        what: The fault.
        tried: How often it was to happen.
        reached: How often it did.
        refused: How often a command or a run was refused, or stopped by name.
        lost: Records that no table holds and no book counts.
        doubled: Records that are there twice.
        seed: What repeats the run; None where nothing is drawn.
        full: How often it is to be tried at full size; None where that is every step or file.
    """

    what: str
    tried: int = 0
    reached: int = 0
    refused: int = 0
    lost: int = 0
    doubled: int = 0
    seed: int | None = None
    full: int | None = None


def reports_of(results: Iterable[Any]) -> list[Report]:
    """Find the reports among pytest's results."""
    return [
        Report(**value)
        for result in results
        if getattr(result, "when", "") == "call"
        for name, value in result.user_properties
        if name == PROPERTY
    ]


def table(reports: Sequence[Report]) -> list[str]:
    """Draw reports, a line each, in at most a hundred columns."""
    rows = [_COLUMNS, *[tuple(asdict(report)[name] for name in _COLUMNS) for report in reports]]
    return [_line(row) for row in rows]


def _line(row: Sequence[Any]) -> str:
    first, *others = ["" if value is None else str(value) for value in row]
    head, *widths = _WIDTHS
    cells = [text.rjust(width) for text, width in zip(others, widths, strict=True)]
    return "".join([first[: head - 1].ljust(head), *cells]).rstrip()


def add_to(file: Path, reports: Sequence[Report]) -> None:
    """Add reports to a file of them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    everything = [*(read(file) if file.exists() else []), *reports]
    file.write_text(json.dumps([asdict(report) for report in everything], indent=1) + "\n")


def read(file: Path) -> list[Report]:
    """Read a file of reports."""
    return [Report(**report) for report in json.loads(file.read_text())]
