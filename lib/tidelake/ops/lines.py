"""Roll silver's batches up, for people who look for the one that went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from tidelake.ops.balance import Batch


@dataclass(frozen=True)
class BooksLine:
    """The books of a batch, or of all batches that were closed on one day (UTC).

    Attributes:
        name: ``batch 3``, or the day.
        taken: Rows taken from bronze.
        returned: Rows taken from the requeue.
        fates: Rows by fate.
        conflicts: Rows whose id another payload had.
        closed_at: When the last batch was closed.
    """

    name: str
    taken: int
    returned: int
    fates: Counter[str]
    conflicts: int
    closed_at: datetime

    def to_json(self) -> dict[str, Any]:
        """Give the terms by the names that the whole ledger has for them."""
        return {
            "name": self.name,
            "taken": self.taken,
            "returned": self.returned,
            "silver": self.fates["silver"],
            "duplicates": self.fates["duplicate"],
            "quarantined": self.fates["quarantined"],
            "conflicts": self.conflicts,
            "late": self.fates["late"],
            "filtered": self.fates["filtered"],
            "closed_at": self.closed_at.isoformat(),
        }


def books_by(batches: Sequence[Batch], by: Literal["batch", "day"]) -> list[BooksLine]:
    """Roll silver's batches up.

    Args:
        batches: Oldest first.
        by: One line a batch, or one a day.
    """
    lines: dict[str, BooksLine] = {}
    for batch in batches:
        name = f"batch {batch.number}" if by == "batch" else f"{batch.closed_at:%Y-%m-%d}"
        before = lines.get(name, BooksLine(name, 0, 0, Counter(), 0, batch.closed_at))
        lines[name] = BooksLine(
            name,
            before.taken + batch.taken,
            before.returned + batch.returned,
            before.fates + batch.fates,
            before.conflicts + batch.conflicts,
            batch.closed_at,
        )
    return list(lines.values())
