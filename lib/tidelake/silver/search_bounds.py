"""Bound the accepted rows that a batch must be compared with, by arrival and event date."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.config.pipeline import Dedup
from tidelake.instants import back, from_micros, to_micros
from tidelake.names import ID_HASH
from tidelake.silver.stages import ORIGIN, PAYLOAD_HASH, REQUEUED_AT, ROW, STAGE, hash_of_id

# Maximum number of date ranges and of arrival ranges in a scope. One literal per date of a backlog
# of years would make plans that Spark cannot handle.
RANGES = 32
ACCEPTED_COLUMNS = ("event_id", "record_id", "event_date", "ingested_at", PAYLOAD_HASH)
_MICROS_A_DAY = 86_400_000_000
DAY, ARRIVED_AT, _FRESH = "_day", "_arrived_at", "_fresh"

# First and last of a range of integers, both included.
Range = tuple[int, int]


def scope_in_driver(rows: pa.Table, rules: Dedup) -> DedupScope:
    """Return which accepted rows to search, of rows with :func:`arrival_columns`."""
    days, arrived = (rows[name].to_numpy() for name in (DAY, ARRIVED_AT))
    fresh = rows[_FRESH].to_numpy(zero_copy_only=False)
    requeued = np.sort(arrived[~fresh])
    # One range per day of arrival: requeued rows may have arrived long ago, at distant times.
    starts = np.flatnonzero(np.diff(requeued // _MICROS_A_DAY, prepend=np.iinfo(np.int64).min))
    ends = np.append(starts, requeued.size)[1:] - 1
    first = int(arrived[fresh].min()) if fresh.any() else None
    ranges = zip(requeued[starts].tolist(), requeued[ends].tolist(), strict=True)
    return _scope(first, np.unique(days).tolist(), ranges, rules)


def scope_in_spark(judged: DataFrame, rules: Dedup) -> tuple[int, DedupScope]:
    """Count the rows without a stage, and find which accepted rows to search; runs a Spark job."""
    arrived, is_fresh = F.unix_micros("ingested_at"), F.col(ORIGIN) == "bronze"
    requeued_day = F.when(~is_fresh, F.floor(arrived / _MICROS_A_DAY)).alias("requeued_day")
    groups = (
        judged.where(F.col(STAGE).isNull())
        .groupBy(F.unix_date("event_date").alias("day"), requeued_day)
        .agg(
            F.count("*").alias("rows"), F.min(arrived).alias("first"), F.max(arrived).alias("last")
        )
        .collect()
    )
    first = min((one["first"] for one in groups if one["requeued_day"] is None), default=None)
    days = {one["day"] for one in groups}
    requeued = [(one["first"], one["last"]) for one in groups if one["requeued_day"] is not None]
    return sum(one["rows"] for one in groups), _scope(first, days, requeued, rules)


def _scope(
    first: int | None, days: Iterable[int], requeued: Iterable[Range], rules: Dedup
) -> DedupScope:
    """Return a scope from the first arrival from bronze, event dates and requeued arrivals."""
    first_arrival, ttl = from_micros(first), rules.ttl // timedelta(microseconds=1)
    since = None if first_arrival is None else back(first_arrival, rules.ttl)
    extended = united((low - ttl, high + ttl) for low, high in fewer(united(requeued)))
    dates = fewer(united((day, day) for day in days), _recent_gap) if rules.widened else ()
    return DedupScope(since, extended, dates)


def arrival_columns() -> list[Column]:
    """Return the columns that :func:`scope_in_driver` reads."""
    return [
        F.unix_date("event_date").alias(DAY),
        F.unix_micros("ingested_at").alias(ARRIVED_AT),
        (F.col(ORIGIN) == "bronze").alias(_FRESH),
    ]


def arrival_order() -> list[Column]:
    """Return the sort columns of arrival order, earliest first."""
    # A row replayed from quarantine counts as arrived when it was requeued.
    replayed, ingested_at = F.col(ORIGIN) == "quarantine", F.col("ingested_at")
    arrived = F.when(replayed, F.col(REQUEUED_AT)).otherwise(ingested_at).alias("arrived")
    copies = [F.col(name) for name in (ROW, PAYLOAD_HASH)]
    return [arrived, ingested_at, F.col("source"), *split_record_id(), *copies]


def split_record_id() -> list[Column]:
    """Split a record id into the text before its last number, and that number."""
    tail = F.substring_index("record_id", ":", -1)
    return [
        F.left("record_id", F.length("record_id") - F.length(tail)).alias("place"),
        tail.try_cast("bigint").alias("position"),
    ]


@dataclass(frozen=True)
class DedupScope:
    """The accepted rows to compare a batch with, as a few ranges of arrival and event date.

    Merged ranges may include rows that are not needed, but none is missed. A row is in scope if
    any of the attributes includes it.

    Attributes:
        since: Arrivals from this instant on (UTC), a TTL before the first of bronze; None if no
            row comes from bronze.
        requeued: Ranges of arrival, in microseconds since 1970: a TTL around requeued rows.
        days: Ranges of event dates, in days since 1970-01-01, whatever the arrival; empty unless
            the dedup rules are widened beyond the TTL.
    """

    since: datetime | None
    requeued: tuple[Range, ...] = ()
    days: tuple[Range, ...] = ()

    def within(self, table: DataFrame, *, is_late_table: bool) -> DataFrame:
        """Select the rows of silver or late in scope, with the compared columns.

        In late, a requeued row may find itself.
        """
        rows = with_id_hash(table.where(self._condition()))
        if not is_late_table:
            # The longest column of silver, and only late rows need it: two rows of silver never
            # share an id and an arrival, since they would be within each other's TTL.
            rows = rows.withColumn("record_id", F.lit(None).cast("string"))
        return rows.select(*ACCEPTED_COLUMNS, ID_HASH, F.lit(is_late_table).alias("_late"))

    def _condition(self) -> Column:
        """Return the filter, with literals so that Delta skips files by their statistics."""
        # Literals are built from numbers: Python has no dates before the year 1.
        parts = [
            f"{column} BETWEEN {literal}({first}) AND {literal}({last})"
            for column, literal, ranges in (
                ("ingested_at", "timestamp_micros", self.requeued),
                ("event_date", "date_from_unix_date", self.days),
            )
            for first, last in ranges
        ]
        ranges = F.expr(" OR ".join(parts) or "false")
        return ranges if self.since is None else (F.col("ingested_at") >= self.since) | ranges

    def may_include(self, arrived: Range, days: Range) -> bool:
        """Return whether a row may be in scope.

        Args:
            arrived: The range of its arrival, in microseconds since 1970.
            days: The range of its event date, in days since 1970-01-01.
        """
        is_recent = self.since is not None and to_micros(self.since) <= arrived[1]
        return is_recent or _overlap(self.requeued, arrived) or _overlap(self.days, days)


def with_id_hash(table: DataFrame) -> DataFrame:
    """Compute missing id hashes, for rows of silver or late written by an earlier version."""
    stored = [F.col(ID_HASH)] if ID_HASH in table.columns else []
    return table.withColumn(ID_HASH, F.coalesce(*stored, hash_of_id()))


def united(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Merge overlapping and adjacent ranges."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


def fewer(
    ranges: Sequence[Range], width: Callable[[int, int, int], float] | None = None
) -> tuple[Range, ...]:
    """Merge ascending, disjoint ranges across the narrowest gaps until :data:`RANGES` remain.

    ``width`` weighs a gap, from its two ends and the greatest end; by default by its length.
    """
    if len(ranges) <= RANGES:
        return tuple(ranges)
    greatest = ranges[-1][1]
    gaps = [(before[1], after[0]) for before, after in pairwise(ranges)]
    widths = [width(low, high, greatest) if width else high - low for low, high in gaps]
    widest = sorted(range(len(gaps)), key=widths.__getitem__)[1 - RANGES :]
    inner = sorted(gaps[number] for number in widest)
    ends = [ranges[0][0], *[end for gap in inner for end in gap], greatest]
    return tuple(zip(ends[::2], ends[1::2], strict=True))


def _recent_gap(low: int, high: int, newest: int) -> float:
    """Return the weight of a gap between two dates, higher near the newest date.

    Most stored rows are recent: reading a year between two implausible dates costs nothing.
    """
    return (newest - low + 1) / (newest - high + 1)


def _overlap(ranges: Sequence[Range], other: Range) -> bool:
    return any(first <= other[1] and other[0] <= last for first, last in ranges)
