"""Classify events by lateness, before anything downstream could drop them.

Spark's own late filter drops rows without a trace; here every row leaves with a verdict. The
watermark is the one before the batch: a batch never makes its own rows late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as F

Lateness = Literal["on_time", "late", "too_late"]


def lateness(watermark: datetime | None, allowed: timedelta) -> Column:
    """Give the lateness verdict of ``event_time``.

    Args:
        watermark: Committed with the previous batch (UTC); None before the first.
        allowed: How far behind the watermark an event may still change gold.
    """
    if watermark is None:
        return F.lit("on_time")
    event_time = F.col("event_time")
    return (
        F.when(event_time >= F.lit(watermark), "on_time")
        .when(event_time >= F.lit(watermark - allowed), "late")
        .otherwise("too_late")
    )


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
