"""Say up to when a gold table's rows are final: no ordinary event changes them any more.

Each gold commit carries it, so that a reader needs the table alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tidelake.config import GlobalWindow, GoldTable, SessionWindow
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


def consumed_watermark(silver: Table, until: Position) -> datetime | None:
    """Give the watermark of the last batch of silver that a reader took whole.

    Args:
        silver: The table that is read.
        until: Where the reader stands in it.
    """
    whole = (commit for commit in commits(silver) if commit.version < until[0])
    return SilverNote.of(next(whole, None)).watermark


def final_note(
    gold: GoldTable, watermark: datetime | None, allowed_lateness: timedelta
) -> dict[str, Any]:
    """Write the part of a gold commit's note that says which rows are final.

    Args:
        gold: The table's definition.
        watermark: Of the silver that the table holds.
        allowed_lateness: The pipeline's.
    """
    if isinstance(gold.window, GlobalWindow):
        return {}
    is_session = isinstance(gold.window, SessionWindow)
    # A session may go on for its gap.
    after = gold.window.gap if isinstance(gold.window, SessionWindow) else timedelta(0)
    until = None if watermark is None else watermark - allowed_lateness - after
    column = "session_end" if is_session else "window_end"
    return {_KEY: {"column": column, "until": to_json(until)}}
