"""Find a batch's duplicates and conflicts: against the tables first, then among its own rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from tidelake.config import Dedup
from tidelake.instants import back, from_micros
from tidelake.reuse import reused
from tidelake.runtime.held import Held
from tidelake.silver.classify import ORIGIN, STAGE
from tidelake.silver.dedup import (
    ID,
    IDENTITY,
    LEFTOVER,
    TWIN,
    VERDICT,
    among,
    by_id,
    hash_of_id,
    judge_leftovers,
    match_accepted,
    meeting,
    rank_arrivals,
)
from tidelake.silver.reach import Range, Reach, covered, covered_days, paired, widened
from tidelake.spark.tuning import BROADCAST, HASHES


@dataclass(frozen=True)
class Known:
    """Accepted rows that a batch could meet.

    Attributes:
        rows: From :meth:`tidelake.silver.reach.Reach.within`.
        count: How many rows lie in the files that are read for them; None: they are to be counted,
            which makes each row wide and takes as long again as to look at them.
    """

    rows: DataFrame
    count: int | None


@dataclass(frozen=True)
class Verdicts:
    """What deduplication found.

    Attributes:
        rows: The columns that tell rows apart and ``_verdict`` of each row whose event was
            accepted before it; None when no row is in the running.
        searched: Accepted rows among which the batch's were looked for.
        twins: Whether some of the verdicts are of rows that are equal to a first arrival.
    """

    rows: DataFrame | None
    searched: int
    twins: bool = False


@dataclass(frozen=True)
class Arrived:
    """What is known of the rows in the running before they are compared with any other.

    Attributes:
        rows: How many.
        first: When the first of those arrived that come straight from bronze (UTC); None where
            there are none.
        days: Ranges of their event dates, in days since 1970-01-01.
        returned: Ranges of when the requeued ones arrived, in microseconds since 1970.
    """

    rows: int
    first: datetime | None
    days: tuple[Range, ...]
    returned: tuple[Range, ...] = ()

    def reach(self, dedup: Dedup) -> Reach:
        """Tell which accepted rows they can meet."""
        since = None if self.first is None else back(self.first, dedup.ttl)
        ttl = dedup.ttl // timedelta(microseconds=1)
        days = self.days if dedup.widened else ()
        return Reach(since, widened(self.returned, ttl), days)


def observed(classified: DataFrame, *, hold: Held) -> tuple[DataFrame, Arrived]:
    """Keep rows from :func:`tidelake.silver.classify.classify`; count what arrived meanwhile."""
    told = Observation()
    kept = hold.now(classified.observe(told, *_arriving()))
    found = told.get
    arrived = Arrived(
        found.get("rows", 0),
        from_micros(found.get("first")),
        paired(found.get("days", ())),
        paired(found.get("returned", ())),
    )
    return kept, arrived


@reused
def _arriving() -> list[Column]:
    runs = F.col(STAGE).isNull()
    is_fresh = F.col(ORIGIN) == "bronze"
    came = F.unix_micros("ingested_at")
    return [
        F.count_if(runs).alias("rows"),
        F.min(F.when(runs & is_fresh, came)).alias("first"),
        covered_days(F.when(runs, F.unix_date("event_date"))).alias("days"),
        covered(F.when(runs & ~is_fresh, came)).alias("returned"),
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
    if not arrived.rows:
        return Verdicts(None, 0)
    searched = Observation()
    known, told = None, None
    if read_accepted is not None:
        found = read_accepted(arrived.reach(dedup))
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
    verdicts, count, left, twins = _ranked(judged, dedup, hold)
    if left:
        # Rare: an id that comes back past the TTL on another date within one batch.
        is_left = F.col(VERDICT) == LEFTOVER
        leftovers = new.join(verdicts.where(is_left), on=list(IDENTITY), how="left_semi")
        told_twins = Observation()
        counted = F.count_if(F.col(VERDICT) == TWIN).alias("twins")
        more = hold.now(judge_leftovers(leftovers, dedup).observe(told_twins, counted))
        verdicts = verdicts.where(~is_left).unionByName(more)
        twins += _told(told_twins, "twins")
    # Spark knows no size of what is kept, and would shuffle the wide rows to meet the verdicts.
    fitting = F.broadcast(verdicts) if count <= BROADCAST else verdicts
    if told is None and known is not None:
        told = _told(searched, "rows")
    return Verdicts(fitting, told or 0, twins > 0)


def _hashes(rows: DataFrame) -> DataFrame:
    return rows.select(hash_of_id().alias(ID))


def _counted(rows: DataFrame, hold: Held) -> tuple[DataFrame, int]:
    """Keep rows, and count them in the same job."""
    told = Observation()
    kept = hold.now(rows.observe(told, F.count(F.lit(1)).alias("rows")))
    return kept, _told(told, "rows")


def _ranked(rows: DataFrame, dedup: Dedup, hold: Held) -> tuple[DataFrame, int, int, int]:
    """Rank in one job; count also the verdicts, rows that are left over, and twins."""
    told = Observation()
    kept = hold.now(rank_arrivals(rows, dedup).observe(told, *_ranking()))
    return kept, _told(told, "verdicts"), _told(told, "left"), _told(told, "twins")


@reused
def _ranking() -> list[Column]:
    left, twins = (F.count_if(F.col(VERDICT) == verdict) for verdict in (LEFTOVER, TWIN))
    return [F.count(F.lit(1)).alias("verdicts"), left.alias("left"), twins.alias("twins")]


def _told(observation: Observation, name: str) -> int:
    """Read a count; a plan that adapts leaves out what it finds empty, observation and all."""
    return int(observation.get.get(name, 0))
