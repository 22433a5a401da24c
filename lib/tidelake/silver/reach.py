"""Bound where a batch's rows can meet accepted ones, in few ranges of arrival and of event date.

A batch may hold any number of dates: a backlog of years, or a few of garbage from the year 1 on. A
literal for each of them would make plans that Spark cannot handle. So dates are covered by a
bounded number of ranges. What lies between two dates may be read for nothing; no row is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.silver.dedup import accepted

# Ranges of dates, and as many of arrivals, to which a batch's are put together at most.
RANGES = 32
_MICROS_A_DAY = 86_400_000_000

# The first and the last of consecutive whole numbers.
Range = tuple[int, int]


@dataclass(frozen=True)
class Reach:
    """Which accepted rows a batch's rows can meet.

    Attributes:
        since: Rows that arrived from this instant on (UTC): the first arrival of the rows that
            come straight from bronze, less the TTL. None where there are none.
        returned: Rows that arrived in these ranges, in microseconds since 1970: around the
            arrivals of requeued rows, which may be long ago.
        days: Rows with an event date in these ranges, in days since 1970-01-01, however old their
            arrival is; empty unless the dedup rules merge beyond the TTL.
    """

    since: datetime | None
    returned: tuple[Range, ...] = ()
    days: tuple[Range, ...] = ()

    def within(self, table: DataFrame, *, is_late_table: bool) -> DataFrame:
        """Cut silver or late to the rows in reach."""
        return accepted(table, in_reach=self._condition(), is_late_table=is_late_table)

    def _condition(self) -> Column:
        """Write it with literals, so that files are skipped by their statistics."""
        # Numbers, since Python has no date before the year 1.
        parts = [
            *_between("ingested_at", "timestamp_micros", self.returned),
            *_between("event_date", "date_from_unix_date", self.days),
        ]
        ranges = F.expr(" OR ".join(parts) or "false")
        return ranges if self.since is None else (F.col("ingested_at") >= self.since) | ranges

    def holds(self, other: Reach) -> bool:
        """Tell whether every row in another's reach is in this one's."""
        starts_later = other.since is not None and (self.since is None or self.since > other.since)
        return (
            not starts_later
            and _cover(self.returned, other.returned)
            and _cover(self.days, other.days)
        )

    def is_far_beyond(self, other: Reach, *, days: int) -> bool:
        """Tell whether it goes further than another by more than so many days.

        In arrivals, in event dates, or by arrivals of requeued rows that are far from the other's.
        """
        spare = days * _MICROS_A_DAY
        more = None if other.since is None or self.since is None else other.since - self.since
        return (
            (more is not None and more.days >= days)
            or _length(self.returned) > _length(other.returned) + spare
            or len(self.returned) > len(other.returned)
            or _length(self.days) > _length(other.days) + days
        )

    def with_days(self, days: Sequence[Range]) -> Reach:
        """Widen it by event dates."""
        return replace(self, days=united((*self.days, *days)))


def covered(
    values: Column, gap: Callable[[Column, Column, Column], Column] | None = None
) -> Column:
    """Aggregate whole numbers into at most :data:`RANGES` ranges that hold all of them.

    The widest gaps between the numbers are left out.

    Args:
        values: The numbers; null for rows that do not count.
        gap: The width of a gap, of its two ends and the greatest number; by default the difference.

    Returns:
        An array of the ranges' first and last numbers, ascending; read by :func:`paired`.
    """

    def ends(ordered: Column) -> Column:
        greatest = F.array_max(ordered)

        def between(one: Column, following: Column) -> Column:
            width = gap(one, following, greatest) if gap else following - one
            return F.struct(width.alias("width"), one.alias("to"), following.alias("from"))

        gaps = F.zip_with(ordered, F.slice(ordered, 2, F.size(ordered)), between)
        real = F.filter(gaps, lambda one: one["from"] - one["to"] > 1)
        widest = F.slice(F.sort_array(real, asc=False), 1, RANGES - 1)
        inner = F.flatten(F.transform(widest, lambda one: F.array(one["to"], one["from"])))
        outer = F.array(F.array_min(ordered), greatest)
        return F.sort_array(F.filter(F.concat(outer, inner), lambda one: one.isNotNull()))

    # Bound to a name, or the aggregate would be computed as often as it is read.
    once = F.array(F.sort_array(F.collect_set(values)))
    return F.transform(once, ends)[0]


def covered_days(days: Column) -> Column:
    """Aggregate dates into ranges; a gap counts the more, the nearer it is to the newest date.

    Stored rows are recent ones mostly: a year between two dates of garbage costs nothing to read.
    """
    return covered(
        days, lambda one, following, newest: (newest - one + 1) / (newest - following + 1)
    )


def paired(ends: Sequence[int]) -> tuple[Range, ...]:
    """Read the ranges from :func:`covered`."""
    return tuple(zip(ends[::2], ends[1::2], strict=True))


def widened(ranges: Iterable[Range], by: int) -> tuple[Range, ...]:
    """Widen ranges on both sides."""
    return united((first - by, last + by) for first, last in ranges)


def united(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Put ranges together that overlap or follow each other."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


def _between(column: str, literal: str, ranges: Sequence[Range]) -> list[str]:
    return [f"{column} BETWEEN {literal}({a}) AND {literal}({b})" for a, b in ranges]


def _cover(ours: Sequence[Range], theirs: Sequence[Range]) -> bool:
    return all(any(a <= first and last <= b for a, b in ours) for first, last in theirs)


def _length(ranges: Sequence[Range]) -> int:
    return sum(last - first + 1 for first, last in ranges)
