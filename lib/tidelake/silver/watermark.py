"""Advance the watermark: the least of what the source's active partitions have reached.

W is what the slowest partition has accepted, less the delay; it is recorded with each batch, so a
retry sees the one that the first try saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidelake.config import Source

ONLY_PARTITION = "0"


@dataclass(frozen=True)
class PartitionProgress:
    """How far one source partition has come.

    Attributes:
        max_event_time: The largest event time accepted from it (UTC).
        last_ingested_at: When its last row arrived (UTC).
    """

    max_event_time: datetime | None
    last_ingested_at: datetime


def advance(
    watermark: datetime | None,
    partitions: Mapping[str, PartitionProgress],
    *,
    delay: timedelta,
    idle_after: timedelta,
) -> datetime | None:
    """Move the watermark to the slowest partition that is not idle; never back.

    It trails the largest event time by ``delay``. A partition whose last row trails the newest by
    more than ``idle_after`` is left out. Unchanged while an active partition accepted nothing yet.
    """
    if not partitions:
        return watermark
    active = _active(partitions, idle_after).values()
    times = [p.max_event_time for p in active if p.max_event_time is not None]
    if len(times) < len(active):
        return watermark
    reached = min(times) - delay
    return reached if watermark is None else max(watermark, reached)


def held_back_by(
    partitions: Mapping[str, PartitionProgress], *, idle_after: timedelta
) -> tuple[str | None, tuple[str, ...]]:
    """Name the partition that the watermark waits for, and those left out as idle."""
    if not partitions:
        return None, ()
    active = _active(partitions, idle_after)
    # One that accepted nothing yet holds back more than any that did.
    slowest = min(active, key=lambda name: _reached(active[name]))
    return slowest, tuple(sorted(partitions.keys() - active.keys()))


def partition_of(source: Source) -> Column:
    """Name the source partition of a bronze row: its Kafka partition; other sources have one."""
    if source.kind != "kafka":
        return F.lit(ONLY_PARTITION)
    offset = F.substring_index("record_id", ":", -1)
    return F.left("record_id", F.length("record_id") - F.length(offset) - 1)


def _active(
    partitions: Mapping[str, PartitionProgress], idle_after: timedelta
) -> dict[str, PartitionProgress]:
    newest = max(progress.last_ingested_at for progress in partitions.values())
    return {
        name: progress
        for name, progress in partitions.items()
        if newest - progress.last_ingested_at <= idle_after
    }


def _reached(progress: PartitionProgress) -> datetime:
    return progress.max_event_time or datetime.min.replace(tzinfo=UTC)
