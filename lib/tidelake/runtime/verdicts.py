"""Find a batch's duplicates and conflicts: against the tables first, then among its own rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from tidelake.config import Dedup
from tidelake.instants import from_micros
from tidelake.reuse import reused
from tidelake.runtime.held import Held
from tidelake.silver.classify import ROW, STAGE
from tidelake.silver.dedup import (
    ID,
    LEFTOVER,
    VERDICT,
    accepted,
    among,
    by_id,
    hash_of_id,
    judge_leftovers,
    match_accepted,
    meeting,
    rank_arrivals,
)

# Rows that every task may have for itself, and numbers that it may.
BROADCAST = 200_000
HASHES = 1_000_000


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

    def holds(self, other: Reach) -> bool:
        """Tell whether every row in another's reach is in this one's."""
        days = not other.widened or set(other.days) <= set(self.days)
        return days and other.since >= self.since and other.widened <= self.widened

    def with_days_of(self, other: Reach) -> Reach:
        """Widen it by another's event dates."""
        return replace(self, days=tuple(sorted({*self.days, *other.days})))

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
class Known:
    """Accepted rows that a batch could meet.

    Attributes:
        rows: From :func:`tidelake.silver.dedup.accepted`.
        count: How many rows lie in the files that are read for them; None: they are to be counted,
            which makes each row wide and takes as long again as to look at them.
    """

    rows: DataFrame
    count: int | None


@dataclass(frozen=True)
class Verdicts:
    """What deduplication found.

    Attributes:
        rows: ``_row`` and ``_verdict`` of each row whose event was accepted before it; None
            when no row is in the running.
        searched: Accepted rows among which the batch's were looked for.
    """

    rows: DataFrame | None
    searched: int


@dataclass(frozen=True)
class Arrived:
    """What is known of the rows in the running before they are compared with any other.

    Attributes:
        rows: How many.
        first: When the first of them arrived (UTC); None where there are none.
        days: Their event dates, in days since 1970-01-01.
    """

    rows: int
    first: datetime | None
    days: tuple[int, ...]


def observed(classified: DataFrame, *, hold: Held) -> tuple[DataFrame, Arrived]:
    """Keep rows from :func:`tidelake.silver.classify.classify`; count what arrived meanwhile."""
    told = Observation()
    kept = hold.now(classified.observe(told, *_arriving()))
    found = told.get
    arrived = Arrived(
        found.get("rows", 0), from_micros(found.get("first")), tuple(found.get("days", ()))
    )
    return kept, arrived


@reused
def _arriving() -> list[Column]:
    runs = F.col(STAGE).isNull()
    return [
        F.count_if(runs).alias("rows"),
        F.min(F.when(runs, F.unix_micros("ingested_at"))).alias("first"),
        F.collect_set(F.when(runs, F.unix_date("event_date"))).alias("days"),
    ]


def find_verdicts(
    new: DataFrame,
    arrived: Arrived,
    read_accepted: Callable[[Reach], Known] | None,
    dedup: Dedup,
    *,
    hold: Held,
) -> Verdicts:
    """Judge every row whose event was accepted before it.

    Args:
        new: From :func:`tidelake.silver.dedup.arrivals`.
        arrived: What is known of them.
        read_accepted: Gives the accepted rows in reach; None: there are none.
        dedup: The pipeline's rules.
        hold: Keeps what is read more than once until the batch ends.
    """
    if arrived.first is None:
        return Verdicts(None, 0)
    searched = Observation()
    known, told = None, None
    if read_accepted is not None:
        found = read_accepted(Reach(arrived.first - dedup.ttl, arrived.days, dedup.widened))
        known, told = found.rows, found.count
        if told is None:
            known = known.observe(searched, F.count(F.lit(1)).alias("rows"))
        elif told <= BROADCAST:
            # One task reads them soon enough, and then nothing need be shuffled.
            known = known.coalesce(1)
    if known is not None and arrived.rows <= BROADCAST:
        known = F.broadcast(by_id(among(known, F.broadcast(_hashes(new)))))
    else:
        if known is not None and arrived.rows <= HASHES:
            # What is left of them is few, and is not looked for twice.
            known = hold.now(among(known, F.broadcast(_hashes(new))))
        ids, count = _counted(meeting(new, known), hold)
        few = count <= HASHES
        ids = F.broadcast(ids) if few else ids.hint("shuffle_hash")
        new = among(new, ids)
        if known is not None:
            known = by_id(among(known, ids))
            known = F.broadcast(known) if count <= BROADCAST else known
    judged = new if known is None else match_accepted(new, known, dedup)
    verdicts, count, left = _ranked(judged, dedup, hold)
    if left:
        # Rare: an id that comes back past the TTL on another date within one batch.
        is_left = F.col(VERDICT) == LEFTOVER
        leftovers = new.join(verdicts.where(is_left).select(ROW), on=ROW, how="left_semi")
        more = hold.now(judge_leftovers(leftovers, dedup))
        verdicts = verdicts.where(~is_left).unionByName(more)
    # Spark knows no size of what is kept, and would shuffle the wide rows to meet the verdicts.
    fitting = F.broadcast(verdicts) if count <= BROADCAST else verdicts
    if told is None and known is not None:
        told = _told(searched, "rows")
    return Verdicts(fitting, told or 0)


def _hashes(rows: DataFrame) -> DataFrame:
    return rows.select(hash_of_id().alias(ID))


def _counted(rows: DataFrame, hold: Held) -> tuple[DataFrame, int]:
    """Keep rows, and count them in the same job."""
    told = Observation()
    kept = hold.now(rows.observe(told, F.count(F.lit(1)).alias("rows")))
    return kept, _told(told, "rows")


def _ranked(rows: DataFrame, dedup: Dedup, hold: Held) -> tuple[DataFrame, int, int]:
    """Rank in one job; count also the verdicts, and the rows that are left over."""
    told = Observation()
    kept = hold.now(rank_arrivals(rows, dedup).observe(told, *_ranking()))
    return kept, _told(told, "verdicts"), _told(told, "left")


@reused
def _ranking() -> list[Column]:
    left = F.count_if(F.col(VERDICT) == LEFTOVER)
    return [F.count(F.lit(1)).alias("verdicts"), left.alias("left")]


def _told(observation: Observation, name: str) -> int:
    """Read a count; a plan that adapts leaves out what it finds empty, observation and all."""
    return int(observation.get.get(name, 0))
