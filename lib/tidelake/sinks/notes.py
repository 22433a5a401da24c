"""What silver's commit says of its batch: what it took, each fate, and the watermark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from tidelake.fingerprints import EMPTY, Fingerprint, combined
from tidelake.instants import from_json, to_json
from tidelake.silver.watermark import PartitionProgress
from tidelake.sinks.commits import Commit
from tidelake.sinks.positions import BEGINNING, Position

# The order in which people read them.
FATES = ("silver", "duplicate", "quarantined", "late", "filtered")
# Where a row came from: straight from bronze, or through the requeue for a reason.
FRESH = "bronze"


class FateCount(NamedTuple):
    """How many rows of a batch met one fate.

    Attributes:
        fate: One of :data:`FATES`.
        stage: Where a quarantined row failed.
        origin: ``bronze``, or the reason for which the rows were requeued.
        rows: How many.
        fingerprint: Of their record ids: the exclusive or.
        id_sum: Likewise: the sum; None in commits of earlier versions.
    """

    fate: str
    stage: str | None
    origin: str
    rows: int
    fingerprint: int = 0
    id_sum: int | None = None

    @staticmethod
    def of(key: tuple[str, str | None, str], rows: int, mark: Fingerprint) -> FateCount:
        """Count the rows of a fate, a stage and an origin."""
        return FateCount(*key, rows, mark.xor, mark.total)

    @property
    def mark(self) -> Fingerprint:
        """The fingerprint of the rows' record ids."""
        return Fingerprint.of(self.fingerprint, self.id_sum)


class DimensionUse(NamedTuple):
    """What a batch found in a dimension.

    Attributes:
        table: The dimension's table.
        version: At which version; -1 where it was not there yet.
        unmatched: Accepted rows that found nothing, and stay.
    """

    table: str
    version: int
    unmatched: int


@dataclass(frozen=True)
class SilverNote:
    """The books of one silver batch.

    Attributes:
        watermark_in: Before the batch (UTC).
        watermark: After it.
        settled: The watermark less the allowed lateness: no ordinary event comes before it.
        partitions: How far each partition of the source has come.
        counts: Rows by fate, stage and origin.
        taken: Rows by input table (``bronze``, ``requeue``), as Delta's statistics have them.
        until: How far the batch went in each input table.
        warnings: Accepted rows by the rule of severity ``warning`` that they fail.
        searched: Accepted ids among which deduplication looked: on a disk, as many as lie in the
            files that could hold them.
        seconds: What that took.
        prefiltered: Rows that the prefilter held back; None where there is none.
        columns: Payload fields that became columns of silver with this batch.
        dimensions: What was looked up, in the order of ``enrich``.
    """

    watermark_in: datetime | None = None
    watermark: datetime | None = None
    settled: datetime | None = None
    partitions: Mapping[str, PartitionProgress] = field(default_factory=dict)
    counts: tuple[FateCount, ...] = ()
    taken: Mapping[str, int] = field(default_factory=dict)
    until: Mapping[str, Position] = field(default_factory=dict)
    warnings: Mapping[str, int] = field(default_factory=dict)
    searched: int = 0
    seconds: float = 0.0
    prefiltered: int | None = None
    columns: tuple[str, ...] = ()
    dimensions: tuple[DimensionUse, ...] = ()

    @staticmethod
    def of(commit: Commit | None) -> SilverNote:
        """Read a commit's note; an empty one where the commit only made the table."""
        if commit is None or "counts" not in commit.note:
            return SilverNote()
        note = commit.note
        return SilverNote(
            watermark_in=from_json(note["watermark_in"]),
            watermark=from_json(note["watermark"]),
            settled=from_json(note.get("settled")),
            partitions={
                name: PartitionProgress(from_json(newest), datetime.fromisoformat(arrived))
                for name, (newest, arrived) in note["partitions"].items()
            },
            counts=tuple(FateCount(*row) for row in note["counts"]),
            taken=note["taken"],
            until=positions(commit),
            warnings=note["warnings"],
            searched=note["dedup"]["searched"],
            seconds=note["dedup"]["seconds"],
            prefiltered=note["prefiltered"],
            columns=tuple(note["columns"]),
            dimensions=tuple(DimensionUse(*use) for use in note.get("dimensions", [])),
        )

    def to_json(self) -> dict[str, Any]:
        """Write the note."""
        return {
            "watermark_in": to_json(self.watermark_in),
            "watermark": to_json(self.watermark),
            "settled": to_json(self.settled),
            "partitions": {
                name: [to_json(p.max_event_time), to_json(p.last_ingested_at)]
                for name, p in self.partitions.items()
            },
            "counts": [list(count) for count in self.counts],
            "taken": dict(self.taken),
            "until": {name: list(position) for name, position in self.until.items()},
            "warnings": dict(self.warnings),
            "dedup": {"searched": self.searched, "seconds": round(self.seconds, 3)},
            "prefiltered": self.prefiltered,
            "columns": list(self.columns),
            "dimensions": [list(use) for use in self.dimensions],
        }

    def total(self) -> Counter[str]:
        """Add up rows by fate."""
        return add_up(self.counts)


def positions(commit: Commit | None) -> dict[str, Position]:
    """Read how far the batch of a commit went in each of its input tables."""
    until = {} if commit is None else commit.note.get("until", {})
    return {name: (int(version), int(index)) for name, (version, index) in until.items()}


def position(commit: Commit | None, table: str) -> Position:
    """Read how far in one input table; the beginning where no batch was closed yet."""
    return positions(commit).get(table, BEGINNING)


def add_up(counts: Iterable[FateCount]) -> Counter[str]:
    """Sum rows by fate, in the order of :data:`FATES`."""
    total = Counter(dict.fromkeys(FATES, 0))
    for count in counts:
        total[count.fate] += count.rows
    return total


def as_one(counts: Iterable[FateCount]) -> tuple[FateCount, ...]:
    """Add up the counts of several batches, which share no row."""
    found: dict[tuple[str, str | None, str], FateCount] = {}
    for one in counts:
        key = one.fate, one.stage, one.origin
        before = found.get(key, FateCount.of(key, 0, EMPTY))
        found[key] = FateCount.of(key, before.rows + one.rows, before.mark.plus(one.mark))
    return tuple(found.values())


def fingerprint_of(counts: Iterable[FateCount]) -> Fingerprint:
    """Combine the fingerprints of counts that share no row."""
    return combined(count.mark for count in counts)
