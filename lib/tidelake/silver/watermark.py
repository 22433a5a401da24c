"""Advance the watermark: the least of what the source's active partitions have reached.

W is what the slowest partition has accepted, less the delay; it is recorded with each batch, so a
retry sees the one that the first try saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta


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

    Args:
        watermark: Before the batch.
        partitions: Each source partition with the batch included.
        delay: How far the watermark trails the largest event time.
        idle_after: A partition whose last row trails the newest by more than this is left out.

    Returns:
        The watermark after the batch; unchanged while an active partition accepted nothing yet.
    """
    if not partitions:
        return watermark
    newest = max(progress.last_ingested_at for progress in partitions.values())
    active = [p for p in partitions.values() if newest - p.last_ingested_at <= idle_after]
    times = [p.max_event_time for p in active if p.max_event_time is not None]
    if len(times) < len(active):
        return watermark
    reached = min(times) - delay
    return reached if watermark is None else max(watermark, reached)
