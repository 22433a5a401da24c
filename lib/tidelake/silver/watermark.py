"""Compute the watermark: the minimum over the source's active partitions.

The watermark is the largest event time accepted from the slowest active partition, minus the delay.
It is committed with each batch, so a retry uses the same watermark as the first attempt. Which rows
are late is decided in :mod:`tidelake.silver.fates`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidelake.config import Source
from tidelake.instants import BEGINNING


class PartitionProgress(NamedTuple):
    """One source partition's largest accepted event time and last arrival (UTC)."""

    max_event_time: datetime | None
    last_ingested_at: datetime


def advance(
    watermark: datetime | None,
    partitions: Mapping[str, PartitionProgress],
    *,
    delay: timedelta,
    idle_after: timedelta,
) -> datetime | None:
    """Advance the watermark to the slowest active partition; never move it back.

    It trails that partition's largest event time by ``delay``. A partition is idle, and ignored, if
    its last row arrived more than ``idle_after`` before the newest row of all. The watermark stays
    unchanged while an active partition has no accepted rows.
    """
    active = _active(partitions, idle_after).values()
    times = [p.max_event_time for p in active if p.max_event_time is not None]
    if not times or len(times) < len(active):
        return watermark
    reached = min(times) - delay
    return reached if watermark is None else max(watermark, reached)


def without_part(
    before: Mapping[str, PartitionProgress], after: Mapping[str, PartitionProgress]
) -> dict[str, PartitionProgress]:
    """Return the progress after a batch that ends inside a commit, without that commit.

    Event times are those ``before`` the batch. A partition that it has seen for the first time has
    none, so that the watermark stays. No arrival is that of the commit: a partition whose rows are
    in the part that is still to be read would be idle by it.
    """
    times = {name: one.max_event_time for name, one in before.items()}
    arrivals = {one.last_ingested_at for one in (*before.values(), *after.values())}
    # The commit arrived last.
    last = max(sorted(arrivals)[:-1], default=BEGINNING)
    return {
        name: PartitionProgress(times.get(name), min(one.last_ingested_at, last))
        for name, one in after.items()
    }


def held_back_by(
    partitions: Mapping[str, PartitionProgress], *, idle_after: timedelta
) -> tuple[str | None, tuple[str, ...]]:
    """Return the partition that holds the watermark back, and the idle partitions."""
    active = _active(partitions, idle_after)
    # A partition without accepted rows sorts first: it blocks the watermark.
    slowest = min(active, key=lambda name: active[name].max_event_time or BEGINNING, default=None)
    return slowest, tuple(sorted(partitions.keys() - active.keys()))


def partition_of(source: Source) -> Column:
    """Return a bronze row's source partition: its Kafka partition; other sources have only one."""
    if source.kind != "kafka":
        return F.lit("0")
    offset = F.substring_index("record_id", ":", -1)
    return F.left("record_id", F.length("record_id") - F.length(offset) - 1)


def _active(
    partitions: Mapping[str, PartitionProgress], idle_after: timedelta
) -> dict[str, PartitionProgress]:
    newest = max((one.last_ingested_at for one in partitions.values()), default=BEGINNING)
    return {
        name: progress
        for name, progress in partitions.items()
        if newest - progress.last_ingested_at <= idle_after
    }
