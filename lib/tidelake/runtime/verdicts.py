"""Find a batch's duplicates and conflicts: against the tables first, then among its own rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.config import Dedup
from tidelake.instants import from_micros
from tidelake.silver.classify import ROW
from tidelake.silver.dedup import LEFTOVER, VERDICT, accepted, match_accepted, rank_arrivals


@dataclass(frozen=True)
class Reach:
    """How far back the batch's rows can meet an accepted one.

    Attributes:
        since: The first arrival less the TTL (UTC).
        days: The batch's event dates, in days since 1970-01-01.
        widened: Whether rows of those dates count however old their arrival is.
    """

    since: datetime
    days: tuple[int, ...]
    widened: bool

    def within(self, table: DataFrame, *, is_late_table: bool) -> DataFrame:
        """Cut silver or late to the rows in reach."""
        return accepted(
            table,
            since=self.since,
            days=self.days,
            widened=self.widened,
            is_late_table=is_late_table,
        )


@dataclass(frozen=True)
class Verdicts:
    """What deduplication found.

    Attributes:
        rows: ``_row`` and ``_verdict`` of each row whose event was accepted before it; None
            when no row is in the running.
        searched: Accepted rows that the batch could meet.
    """

    rows: DataFrame | None
    searched: int


def find_verdicts(
    new: DataFrame,
    read_accepted: Callable[[Reach], DataFrame],
    dedup: Dedup,
    *,
    hold: Callable[[DataFrame], DataFrame],
) -> Verdicts:
    """Judge every row whose event was accepted before it.

    Args:
        new: From :func:`tidelake.silver.dedup.arrivals`.
        read_accepted: Gives the accepted rows in reach.
        dedup: The pipeline's rules.
        hold: Keeps a frame that is read more than once until the batch ends.
    """
    widened = dedup.beyond_ttl == "merge"
    found = new.agg(
        F.min(F.unix_micros("ingested_at")).alias("first"),
        F.collect_set(F.unix_date("event_date")).alias("days"),
    ).collect()[0]
    first = from_micros(found["first"])
    if first is None:
        return Verdicts(None, 0)
    known = read_accepted(Reach(first - dedup.ttl, tuple(found["days"]), widened))
    searched = known.count()
    settled = hold(match_accepted(new, known, ttl=dedup.ttl, widened=widened))
    # Counted, not asked whether it is empty: read whole, the cache knows its size, and the join
    # of the verdicts to the wide rows becomes a broadcast.
    fresh = new if settled.count() == 0 else new.join(settled, on=ROW, how="left_anti")
    while True:
        ranked = hold(rank_arrivals(fresh, ttl=dedup.ttl, widened=widened))
        lost = F.col(VERDICT) == LEFTOVER
        settled = settled.unionByName(ranked.where(~lost))
        left = ranked.where(lost)
        # Rare: an id that comes back past the TTL on another date within one batch.
        if left.count() == 0:
            return Verdicts(settled, searched)
        fresh = fresh.join(left, on=ROW, how="left_semi")
