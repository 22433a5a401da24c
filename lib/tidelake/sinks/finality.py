"""Say up to when a gold table's rows are final: no ordinary event changes them any more.

Each gold commit carries it, so that a reader needs the table alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tidelake.instants import from_json, to_json
from tidelake.sinks.commits import Commit, Position, commits
from tidelake.sinks.notes import SilverNote
from tidelake.tables import Table

_KEY = "final"


@dataclass(frozen=True)
class Final:
    """Which rows are final.

    Attributes:
        column: Where a row's time ends.
        until: The largest such time that is final (UTC); None while none is.
    """

    column: str
    until: datetime | None

    @staticmethod
    def of(commit: Commit | None) -> Final | None:
        """Read a gold commit's note; None where rows never end, or it does not say."""
        told = commit.note.get(_KEY) if commit else None
        return Final(told["column"], from_json(told["until"])) if told else None

    def condition(self) -> str:
        """Write the condition on the table's rows; for DuckDB."""
        if self.until is None:
            return "false"
        return f"\"{self.column}\" <= TIMESTAMPTZ '{self.until.isoformat()}'"


@dataclass(frozen=True)
class Ends:
    """How long a gold table's rows may change by events that come in time.

    Attributes:
        column: Where a row's time ends.
        after: How long after that an event may still belong to it.
    """

    column: str
    after: timedelta = timedelta(0)


def consumed_watermark(inputs: Iterable[tuple[Table, Position]]) -> datetime | None:
    """Give the watermark up to which all that a reader follows has come.

    Args:
        inputs: Each table of silver and where the reader stands in it; only batches that were
            taken whole count.
    """
    marks = []
    for silver, until in inputs:
        whole = (commit for commit in commits(silver) if commit.version < until[0])
        marks.append(SilverNote.of(next(whole, None)).watermark)
    known = [mark for mark in marks if mark is not None]
    return min(known) if known and len(known) == len(marks) else None


def final_note(
    ends: Ends | None, watermark: datetime | None, allowed_lateness: timedelta
) -> dict[str, Any]:
    """Write the part of a gold commit's note that says which rows are final.

    Args:
        ends: When a row of the table ends; None where rows never do.
        watermark: Of the silver that the table holds.
        allowed_lateness: The pipeline's.
    """
    if ends is None:
        return {}
    until = None if watermark is None else watermark - allowed_lateness - ends.after
    return {_KEY: {"column": ends.column, "until": to_json(until)}}
