"""Say up to when a gold table's rows are final: no ordinary event changes them any more.

Each gold commit carries it, so that a reader needs the table alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tidelake.instants import from_json, to_json
from tidelake.sinks.commits import Commit, last_commit
from tidelake.sinks.notes import SilverNote
from tidelake.sinks.positions import Position, version_at
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


def settled_until(inputs: Iterable[tuple[Table, Position]]) -> datetime | None:
    """Give the instant before which no ordinary event comes any more in what a reader has taken.

    Args:
        inputs: Each table of silver and where the reader stands in it; a batch that was not taken
            whole does not count.

    Returns:
        The earliest of the tables' watermarks less their allowed lateness; None where one has
        none yet.
    """
    marks = []
    for silver, until in inputs:
        version = version_at(silver, until)
        # Inside a commit: the one before it was taken whole.
        up_to = until[0] - 1 if version is None else version
        marks.append(SilverNote.of(last_commit(silver, up_to=up_to)).settled)
    known = [mark for mark in marks if mark is not None]
    return min(known) if known and len(known) == len(marks) else None


def final_note(ends: Ends | None, settled: datetime | None) -> dict[str, Any]:
    """Write the part of a gold commit's note that says which rows are final.

    Args:
        ends: When a row of the table ends; None where rows never do.
        settled: From :func:`settled_until`.
    """
    if ends is None:
        return {}
    until = None if settled is None else settled - ends.after
    return {_KEY: {"column": ends.column, "until": to_json(until)}}
