"""What silver's commit says of its batch: counts by fate, and the watermark before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tidelake.instants import from_json, to_json
from tidelake.silver.watermark import PartitionProgress
from tidelake.sinks.commits import Commit

# The order in which people read them.
FATES = ("silver", "duplicate", "quarantined", "late", "filtered")


@dataclass(frozen=True)
class FateCount:
    """How many rows of a batch met one fate.

    Attributes:
        fate: One of :data:`FATES`.
        stage: Where a quarantined row failed.
        requeued: Whether the rows came through the requeue.
        rows: How many.
    """

    fate: str
    stage: str | None
    requeued: bool
    rows: int


@dataclass(frozen=True)
class SilverNote:
    """The books of one silver batch."""

    watermark_in: datetime | None = None
    watermark: datetime | None = None
    partitions: Mapping[str, PartitionProgress] = field(default_factory=dict)
    counts: tuple[FateCount, ...] = ()

    @staticmethod
    def of(commit: Commit | None) -> SilverNote:
        """Read a commit's note; an empty one where the commit only made the table."""
        if commit is None or "counts" not in commit.note:
            return SilverNote()
        note = commit.note
        return SilverNote(
            watermark_in=from_json(note["watermark_in"]),
            watermark=from_json(note["watermark"]),
            partitions={
                name: _progress(newest, arrived)
                for name, (newest, arrived) in note["partitions"].items()
            },
            counts=tuple(FateCount(*row) for row in note["counts"]),
        )

    def to_json(self) -> dict[str, Any]:
        """Write the note."""
        return {
            "watermark_in": to_json(self.watermark_in),
            "watermark": to_json(self.watermark),
            "partitions": {
                name: [to_json(p.max_event_time), to_json(p.last_ingested_at)]
                for name, p in self.partitions.items()
            },
            "counts": [[c.fate, c.stage, c.requeued, c.rows] for c in self.counts],
        }

    def total(self, *, requeued: bool | None = None) -> Counter[str]:
        """Add up rows by fate, all or only those of one origin."""
        return add_up(
            count for count in self.counts if requeued is None or count.requeued == requeued
        )


def add_up(counts: Iterable[FateCount]) -> Counter[str]:
    """Sum rows by fate, in the order of :data:`FATES`."""
    total = Counter(dict.fromkeys(FATES, 0))
    for count in counts:
        total[count.fate] += count.rows
    return total


def _progress(newest: str | None, arrived: str) -> PartitionProgress:
    return PartitionProgress(from_json(newest), datetime.fromisoformat(arrived))
