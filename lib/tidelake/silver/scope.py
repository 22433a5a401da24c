"""Bound where a batch's rows can meet accepted ones, by what is known of their arrivals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.config.names import ID_HASH
from tidelake.config.pipeline import Dedup
from tidelake.instants import back, from_micros
from tidelake.silver.classify import ORIGIN, PAYLOAD_HASH, REQUEUED_AT, ROW, STAGE, hash_of_id

# Ranges of dates, and as many of arrivals, to which a batch's are merged at most. A literal for
# each date of a backlog of years would make plans that Spark cannot handle.
RANGES = 32
ACCEPTED_COLUMNS = ("event_id", "record_id", "event_date", "ingested_at", PAYLOAD_HASH)
_MICROS_A_DAY = 86_400_000_000
DAY, ARRIVED_AT, _FRESH = "_day", "_arrived_at", "_fresh"

# The first and the last of consecutive whole numbers.
Range = tuple[int, int]


@dataclass(frozen=True)
class Arrivals:
    """What is known of the rows in the running before they are compared with any other.

    Attributes:
        rows: How many.
        first: When the first of those arrived that come straight from bronze (UTC); None where
            there are none.
        days: Ranges of their event dates, in days since 1970-01-01.
        requeued: Ranges of when the requeued ones arrived, in microseconds since 1970.
    """

    rows: int
    first: datetime | None
    days: tuple[Range, ...] = ()
    requeued: tuple[Range, ...] = ()

    @staticmethod
    def of(table: pa.Table) -> Arrivals:
        """Summarize the rows themselves."""
        days, arrived = (table[name].to_numpy() for name in (DAY, ARRIVED_AT))
        fresh = table[_FRESH].to_numpy(zero_copy_only=False)
        again = np.sort(arrived[~fresh])
        # Requeued rows may have arrived long ago, each at another time.
        starts = np.flatnonzero(np.diff(again // _MICROS_A_DAY, prepend=np.iinfo(np.int64).min))
        ends = np.append(starts[1:], again.size) - 1
        first = int(arrived[fresh].min()) if fresh.any() else None
        return Arrivals._of(
            table.num_rows,
            first,
            np.unique(days).tolist(),
            zip(again[starts].tolist(), again[ends].tolist(), strict=True) if again.size else (),
        )

    @staticmethod
    def of_running(judged: DataFrame) -> Arrivals:
        """Let Spark summarize rows that are too many for the driver."""
        arrived, is_fresh = F.unix_micros("ingested_at"), F.col(ORIGIN) == "bronze"
        again = F.when(~is_fresh, F.floor(arrived / _MICROS_A_DAY)).alias("again")
        groups = (
            judged.where(F.col(STAGE).isNull())
            .groupBy(F.unix_date("event_date").alias("day"), again)
            .agg(
                F.count("*").alias("rows"),
                F.min(arrived).alias("first"),
                F.max(arrived).alias("last"),
            )
            .collect()
        )
        return Arrivals._of(
            sum(group["rows"] for group in groups),
            min((group["first"] for group in groups if group["again"] is None), default=None),
            {group["day"] for group in groups},
            [(group["first"], group["last"]) for group in groups if group["again"] is not None],
        )

    @staticmethod
    def _of(
        rows: int, first: int | None, days: Iterable[int], requeued: Iterable[Range]
    ) -> Arrivals:
        found = fewer(united((day, day) for day in days), _recent_gap)
        return Arrivals(rows, from_micros(first), found, fewer(united(requeued)))

    def scope(self, rules: Dedup) -> DedupScope:
        """Tell which accepted rows they can meet."""
        since = None if self.first is None else back(self.first, rules.ttl)
        ttl = rules.ttl // timedelta(microseconds=1)
        requeued = united((first - ttl, last + ttl) for first, last in self.requeued)
        return DedupScope(since, requeued, self.days if rules.widened else ())


def arrival_columns() -> list[Column]:
    """Give what :meth:`Arrivals.of` needs to know of a row."""
    return [
        F.unix_date("event_date").alias(DAY),
        F.unix_micros("ingested_at").alias(ARRIVED_AT),
        (F.col(ORIGIN) == "bronze").alias(_FRESH),
    ]


def arrival_order() -> list[Column]:
    """Give the columns by which rows are in the order of their arrival, the first one first."""
    # A row that failed arrived, for those that did not, when it was requeued.
    replayed = F.col(ORIGIN) == "quarantine"
    return [
        F.when(replayed, F.col(REQUEUED_AT)).otherwise(F.col("ingested_at")).alias("arrived"),
        F.col("ingested_at"),
        F.col("source"),
        *position(),
        F.col(ROW),
        F.col(PAYLOAD_HASH),
    ]


def position() -> list[Column]:
    """Split a record id into the text before its last number, and that number."""
    tail = F.substring_index("record_id", ":", -1)
    return [
        F.left("record_id", F.length("record_id") - F.length(tail)).alias("place"),
        tail.try_cast("bigint").alias("position"),
    ]


@dataclass(frozen=True)
class DedupScope:
    """Which accepted rows a batch's rows can meet, in few ranges of arrival and of event date.

    What lies between two dates may be read for nothing; no row is missed.

    Attributes:
        since: Rows that arrived from this instant on (UTC): the first arrival of the rows that
            come straight from bronze, less the TTL. None where there are none.
        requeued: Rows that arrived in these ranges, in microseconds since 1970: around the
            arrivals of requeued rows.
        days: Rows with an event date in these ranges, in days since 1970-01-01, however old their
            arrival is; empty unless the dedup rules merge beyond the TTL.
    """

    since: datetime | None
    requeued: tuple[Range, ...] = ()
    days: tuple[Range, ...] = ()

    def within(self, table: DataFrame, *, is_late_table: bool) -> DataFrame:
        """Cut silver or late to the rows in scope, and to the columns that are compared.

        Args:
            table: Silver or late as the last closed batch left them.
            is_late_table: Whether the rows are late ones, which a requeued row may match itself.
        """
        # Only a late row needs its name, and of silver's columns none is longer. Two rows of
        # silver never share an id and an instant: each lies within the TTL of the other.
        names = F.col("record_id") if is_late_table else F.lit(None).cast("string")
        columns = [names.alias(name) if name == "record_id" else name for name in ACCEPTED_COLUMNS]
        rows = with_id_hash(table.where(self._condition()))
        return rows.select(*columns, ID_HASH, F.lit(is_late_table).alias("_late"))

    def _condition(self) -> Column:
        """Write it with literals, so that files are skipped by their statistics."""
        # Numbers, since Python has no date before the year 1.
        parts = [
            *_between("ingested_at", "timestamp_micros", self.requeued),
            *_between("event_date", "date_from_unix_date", self.days),
        ]
        ranges = F.expr(" OR ".join(parts) or "false")
        return ranges if self.since is None else (F.col("ingested_at") >= self.since) | ranges

    def holds(self, other: DedupScope) -> bool:
        """Tell whether every row in another's scope is in this one's."""
        starts_later = other.since is not None and (self.since is None or self.since > other.since)
        return (
            not starts_later
            and _cover(self.requeued, other.requeued)
            and _cover(self.days, other.days)
        )

    def is_far_beyond(self, other: DedupScope, *, days: int) -> bool:
        """Tell whether it goes further than another by more than so many days.

        In arrivals, in event dates, or by arrivals of requeued rows that are far from the other's.
        """
        spare = days * _MICROS_A_DAY
        more = None if other.since is None or self.since is None else other.since - self.since
        return (
            (more is not None and more.days >= days)
            or _length(self.requeued) > _length(other.requeued) + spare
            or len(self.requeued) > len(other.requeued)
            or _length(self.days) > _length(other.days) + days
        )

    def with_days(self, days: Sequence[Range]) -> DedupScope:
        """Widen it by event dates."""
        return replace(self, days=united((*self.days, *days)))


def with_id_hash(table: DataFrame) -> DataFrame:
    """Fill in the hashes of ids that rows of silver or late lack which an earlier version wrote."""
    stored = [F.col(ID_HASH)] if ID_HASH in table.columns else []
    return table.withColumn(ID_HASH, F.coalesce(*stored, hash_of_id()))


def united(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Merge ranges that overlap or follow each other."""
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
    """Merge ranges across the narrowest gaps until at most :data:`RANGES` are left.

    Args:
        ranges: Ascending, apart from each other.
        width: Of a gap, by its two ends and the greatest number; by default the difference.
    """
    if len(ranges) <= RANGES:
        return tuple(ranges)
    greatest = ranges[-1][1]
    gaps = [(one[1], other[0]) for one, other in pairwise(ranges)]
    widths = [width(low, high, greatest) if width else high - low for low, high in gaps]
    widest = sorted(range(len(gaps)), key=widths.__getitem__)[1 - RANGES :]
    inner = sorted(gaps[number] for number in widest)
    ends = [ranges[0][0], *[end for gap in inner for end in gap], greatest]
    return tuple(zip(ends[::2], ends[1::2], strict=True))


def _recent_gap(low: int, high: int, newest: int) -> float:
    """Weigh a gap between two dates the more, the nearer it is to the newest date.

    Stored rows are recent ones mostly: a year between two dates of garbage costs nothing to read.
    """
    return (newest - low + 1) / (newest - high + 1)


def _between(column: str, literal: str, ranges: Sequence[Range]) -> list[str]:
    return [f"{column} BETWEEN {literal}({a}) AND {literal}({b})" for a, b in ranges]


def _cover(ours: Sequence[Range], theirs: Sequence[Range]) -> bool:
    return all(any(a <= first and last <= b for a, b in ours) for first, last in theirs)


def _length(ranges: Sequence[Range]) -> int:
    return sum(last - first + 1 for first, last in ranges)
