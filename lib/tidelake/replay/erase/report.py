"""What an erasure did, and what of the subject is left, where and until when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from tidelake.instants import to_json


@dataclass(frozen=True)
class Remains:
    """Something that is left, or that an erasure cannot reach.

    Attributes:
        what: It.
        where: The table, file or pipeline.
        until: When it goes (UTC); None where it does not go by itself.
        remedy: What makes it go, or what to do about it.
    """

    what: str
    where: str
    until: datetime | None
    remedy: str


@dataclass(frozen=True)
class Report:
    """What an erasure did.

    Attributes:
        pipeline: Whose tables.
        column: The subject's column; its value is nowhere.
        rows: Rows erased, by the table's logical name; none where the subject had none.
        sent_again: Neighbours whose event an erased row had taken, and that were decided anew.
        rollback_given_up: Whether the tables of a backfill were removed, with its rollback.
        remains: What is left.
    """

    pipeline: str
    column: str
    rows: Mapping[str, int]
    sent_again: int
    rollback_given_up: bool
    remains: tuple[Remains, ...]

    def to_json(self) -> dict[str, Any]:
        """Give it for machines."""
        return {
            "pipeline": self.pipeline,
            "column": self.column,
            "erased": dict(self.rows),
            "sent_again": self.sent_again,
            "rollback_given_up": self.rollback_given_up,
            "remains": [asdict(one) | {"until": to_json(one.until)} for one in self.remains],
        }
