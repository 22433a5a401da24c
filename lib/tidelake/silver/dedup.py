"""Find a batch's repeats: rows whose event was accepted before, and copies from conflicts.

A row is compared with the earliest accepted row of its id that arrived within a TTL of it or,
widened, bears the same event date: same payload, a duplicate; another, a conflict. Accepted are
rows of silver and late, and then the first arrivals of the batch itself.

Few rows can meet another: those whose id's hash occurs twice. The driver finds and compares them
(:mod:`tidelake.silver.driver_dedup`). What is too much for it Spark compares, by the second half of
this module: only ids, hashes and positions are shuffled, and the verdicts go back to the wide rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce
from operator import and_
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as F

from tidelake.config.names import ID_HASH
from tidelake.config.pipeline import Dedup
from tidelake.silver.classify import ORIGIN, PAYLOAD_HASH, ROW, STAGE
from tidelake.silver.driver_dedup import (
    CONFLICT,
    DUPLICATE,
    NUMBER,
    compared_columns,
    judge_arrivals,
)
from tidelake.silver.row_sets import Numbers, has_number, members
from tidelake.silver.scope import (
    ACCEPTED_COLUMNS,
    Arrivals,
    DedupScope,
    arrival_columns,
    arrival_order,
    position,
)
from tidelake.spark.tuning import BROADCAST, COMPARED_ROWS, HASHES

VERDICT = "_verdict"
# Arrives after the first row of its id, outside of its scope: judged among its like.
LEFTOVER = "leftover"
# A first arrival stands in the batch more than once, alike in every column that tells rows apart:
# one of these rows is accepted, the others are its duplicates.
TWIN = "twin"
# What tells the rows of a batch apart. Bronze may hold a record twice where two writers appended
# the same batch; rows that are alike in all of these are equal.
IDENTITY = (ROW, "ingested_at", PAYLOAD_HASH)

_ID = "_id"
_ORDER = "_order"
_ACCEPTED = "_accepted_rows"
_ACCEPTED_ID = "_accepted_id"
_COMPARED = (ROW, ORIGIN, *ACCEPTED_COLUMNS, ID_HASH)


# Checkpoints a frame at once, until the batch ends.
Checkpoint = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Accepted:
    """Accepted rows that a batch could meet.

    Attributes:
        rows: From :meth:`DedupScope.within`; None: there are none.
        searched: How many rows lie in the files that were read for them; None: they are to be
            counted.
    """

    rows: DataFrame | None
    searched: int | None

    def counted(self) -> tuple[DataFrame | None, Callable[[], int]]:
        """Count the rows with the first action that reads them, where nobody knows how many.

        That makes each row wide and takes as long again as to look at them.

        Returns:
            The rows, and what tells their count once they were read.
        """
        known = self.searched
        if self.rows is None or known is not None:
            return self.rows, lambda: known or 0
        told = Observation()
        rows = self.rows.observe(told, F.count(F.lit(1)).alias("rows"))
        return rows, lambda: _observed(told, "rows")


class Search(Protocol):
    """Looks for rows that were accepted before a batch."""

    def within(self, scope: DedupScope) -> Accepted:
        """Give the rows in a scope."""
        ...

    def meeting(self, scope: DedupScope, hashes: Numbers) -> Met | None:
        """Give those of them whose id has one of some hashes; None for too many.

        Args:
            scope: Of the batch.
            hashes: Ascending, each once.
        """
        ...


class Met(NamedTuple):
    """Accepted rows in the driver."""

    rows: pa.Table
    searched: int


@dataclass(frozen=True)
class Repeats:
    """What deduplication found.

    Attributes:
        rows: The columns that tell rows apart and ``_verdict`` of each row whose event was
            accepted before it; None where ``numbers`` tells them.
        searched: Accepted rows among which the batch's were looked for.
        twins: Whether some of the verdicts are of rows that are equal to a first arrival.
        numbers: The numbers of such rows by verdict.
        batch: All rows, with the columns that were asked for beside the compared ones; None where
            none were, or where Spark compared the rows.
    """

    rows: DataFrame | None
    searched: int
    twins: bool = False
    numbers: Mapping[str, Numbers] = field(default_factory=dict)
    batch: pa.Table | None = None


class CheckpointedBatch(NamedTuple):
    """A batch's rows with their stage, kept: they are read several times.

    Attributes:
        rows: The rows.
        numbered: Whether each has a ``_number`` that stays as it is.
        is_small: Whether they are in the driver.
    """

    rows: DataFrame
    numbered: bool
    is_small: bool


def find_repeats(
    kept: CheckpointedBatch,
    search: Search,
    comparison: Comparison,
    *,
    checkpoint: Checkpoint,
    also: Sequence[Column] = (),
) -> Repeats:
    """Judge every row whose event was accepted before it.

    The driver finds the rows that may repeat others, by the hashes of their ids, and compares
    those. Spark compares rows without a number, and such as are too many for the driver. Columns
    named by ``also`` come to the driver with all rows, those out of the running included.
    """
    found = _by_number(kept, search, comparison, also) if kept.numbered else None
    return _by_shuffle(kept.rows, search, comparison, checkpoint) if found is None else found


def _by_number(
    kept: CheckpointedBatch, search: Search, comparison: Comparison, also: Sequence[Column]
) -> Repeats | None:
    """Compare rows in the driver; None where they are too many for it."""
    running = kept.rows.where(F.col(STAGE).isNull())
    taken = comparison.in_driver if kept.is_small else comparison.looked_up
    batch = None
    if also:
        batch = kept.rows.select(*taken, F.col(STAGE), *also).toArrow()
        rows = batch.filter(pc.is_null(batch[STAGE]))
    else:
        rows = running.select(*taken).toArrow()
    numbers, hashes = rows[NUMBER].to_numpy(), rows[ID_HASH].to_numpy()
    if not numbers.size:
        return Repeats(None, 0, batch=batch)
    ascending = np.sort(hashes)
    is_first = np.diff(ascending, prepend=~ascending[0]) != 0
    scope = Arrivals.of(rows).scope(comparison.rules)
    met = search.meeting(scope, ascending[is_first])
    if met is None:
        return None
    again = np.concatenate((ascending[~is_first], met.rows[ID_HASH].to_numpy()))
    collide = members(hashes, np.sort(again))
    if not collide.any():
        return Repeats(None, met.searched, batch=batch)
    if kept.is_small:
        rows = rows.filter(pa.array(collide))
    elif collide.sum() > COMPARED_ROWS:
        return None
    else:
        chosen = has_number(running.sparkSession, NUMBER, numbers[collide])
        rows = running.where(chosen).select(*comparison.in_driver).toArrow()
    found = judge_arrivals(rows, met.rows, comparison.rules)
    return None if found is None else Repeats(None, met.searched, numbers=found, batch=batch)


def _by_shuffle(
    judged: DataFrame, search: Search, comparison: Comparison, checkpoint: Checkpoint
) -> Repeats:
    arrivals = Arrivals.of_running(judged)
    if not arrivals.rows:
        return Repeats(None, 0)
    new = in_the_running(judged, comparison)
    found = search.within(arrivals.scope(comparison.rules))
    accepted, searched = found.counted()
    if accepted is not None and found.searched is not None and found.searched <= BROADCAST:
        # One task reads them soon enough, and then nothing need be shuffled.
        accepted = accepted.coalesce(1)
    if accepted is not None and arrivals.rows <= BROADCAST:
        accepted = having(accepted, F.broadcast(_hashes(new)))
        accepted = F.broadcast(group_accepted(accepted, comparison))
    else:
        if accepted is not None and arrivals.rows <= HASHES:
            # What is left of them is few, and is not looked for twice.
            accepted = checkpoint(having(accepted, F.broadcast(_hashes(new))))
        ids, found_ids = _counted(colliding_ids(new, accepted), checkpoint)
        ids = F.broadcast(ids) if found_ids <= HASHES else ids.hint("shuffle_hash")
        new = having(new, ids)
        if accepted is not None:
            accepted = group_accepted(having(accepted, ids), comparison)
            accepted = F.broadcast(accepted) if found_ids <= BROADCAST else accepted
    compared = new if accepted is None else match_accepted(new, accepted, comparison)
    verdicts, repeats, left, twins = _ranked(compared, comparison, checkpoint)
    if left:
        is_left = F.col(VERDICT) == LEFTOVER
        leftovers = new.join(verdicts.where(is_left), on=list(IDENTITY), how="left_semi")
        told = Observation()
        counted = F.count_if(F.col(VERDICT) == TWIN).alias("twins")
        more = checkpoint(judge_leftovers(leftovers, comparison.rules).observe(told, counted))
        verdicts = verdicts.where(~is_left).unionByName(more)
        twins += _observed(told, "twins")
    if not repeats:
        return Repeats(None, searched())
    # Spark knows no size of what is kept, and would shuffle the wide rows to meet the verdicts.
    fitting = F.broadcast(verdicts) if repeats <= BROADCAST else verdicts
    return Repeats(fitting, searched(), twins > 0)


def _hashes(rows: DataFrame) -> DataFrame:
    return rows.select(F.col(ID_HASH).alias(_ID))


def _counted(rows: DataFrame, checkpoint: Checkpoint) -> tuple[DataFrame, int]:
    """Keep rows, and count them in the same job."""
    told = Observation()
    kept = checkpoint(rows.observe(told, F.count(F.lit(1)).alias("rows")))
    return kept, _observed(told, "rows")


def _ranked(
    rows: DataFrame, comparison: Comparison, checkpoint: Checkpoint
) -> tuple[DataFrame, int, int, int]:
    """Rank in one job; count also the verdicts, rows that are left over, and twins."""
    told = Observation()
    kept = checkpoint(rank_arrivals(rows, comparison).observe(told, *comparison.ranking))
    return kept, _observed(told, "verdicts"), _observed(told, "left"), _observed(told, "twins")


def _ranking() -> list[Column]:
    left, twins = (F.count_if(F.col(VERDICT) == verdict) for verdict in (LEFTOVER, TWIN))
    return [F.count(F.lit(1)).alias("verdicts"), left.alias("left"), twins.alias("twins")]


def _observed(observation: Observation, name: str) -> int:
    """Read a count; a plan that adapts leaves out what it finds empty, observation and all."""
    return int(observation.get.get(name, 0))


# The comparisons.


class Comparison:
    """The columns by which rows are compared under a pipeline's rules, built once.

    Attributes:
        looked_up: What the driver takes of each row with a number.
        in_driver: What it takes of those that it compares.
        compared: What Spark compares of a row.
        ranks: Positions in the order of arrival, which rows get a verdict, and which.
    """

    def __init__(self, rules: Dedup) -> None:
        """Build them."""
        self.rules = rules
        self.looked_up = [F.col(NUMBER), F.col(ID_HASH), *arrival_columns()]
        self.in_driver = [*self.looked_up, *compared_columns()]
        self.compared = _compared()
        self.grouping = _grouping()
        self.matched = _matched(rules)
        self.ranks = _ranks(rules)
        self.ranking = _ranking()


def in_the_running(judged: DataFrame, comparison: Comparison) -> DataFrame:
    """Take what is compared of the rows that have no fate yet, without their payload.

    Returns:
        ``_row``, ``_origin``, the columns to compare, the order of arrival, and ``_verdict``:
        null, since nothing is settled yet.
    """
    return judged.where(F.col(STAGE).isNull()).select(*comparison.compared)


def _compared() -> list[Column]:
    order = F.struct(*arrival_order()).alias(_ORDER)
    return [*[F.col(name) for name in _COMPARED], order, F.lit(None).cast("string").alias(VERDICT)]


def having(rows: DataFrame, ids: DataFrame) -> DataFrame:
    """Keep the rows whose id has one of some hashes."""
    return rows.join(ids, on=F.col(ID_HASH) == F.col(_ID), how="left_semi")


def colliding_ids(new: DataFrame, accepted: DataFrame | None) -> DataFrame:
    """Find the ids that occur twice in ``new``, or also in ``accepted``: hashes in ``_id``.

    Few do, and only they need be compared. Bringing all wide rows together by their ids costs far
    more than counting numbers. Two ids with one hash are told apart where they are compared.
    """
    hashes = _hashes(new).withColumn("_new", F.lit(True))
    if accepted is not None:
        hashes = hashes.unionByName(_hashes(accepted).withColumn("_new", F.lit(False)))
    counted = hashes.groupBy(_ID).agg(F.count("*").alias("_rows"), F.max("_new").alias("_new"))
    return counted.where((F.col("_rows") > 1) & F.col("_new")).select(_ID)


def group_accepted(accepted: DataFrame, comparison: Comparison) -> DataFrame:
    """Put the accepted rows of an id into one, so that no row of a batch meets two."""
    of_id, rows = comparison.grouping
    return accepted.groupBy(of_id).agg(rows)


def _grouping() -> tuple[Column, Column]:
    # In the order of arrival, so that the least is the earliest. Tables hold no source; a record
    # id begins with it.
    source = F.regexp_replace("record_id", F.lit("(:[0-9]+)+$"), F.lit("")).alias("source")
    arrival: list[Column | str] = ["ingested_at", source, *position()]
    own = [*arrival, PAYLOAD_HASH, "event_date", "_late", "record_id"]
    return F.col("event_id").alias(_ACCEPTED_ID), F.collect_list(F.struct(*own)).alias(_ACCEPTED)


def match_accepted(new: DataFrame, accepted: DataFrame, comparison: Comparison) -> DataFrame:
    """Judge rows whose event silver or late already holds.

    Returns:
        ``new``; ``_verdict`` is set for the rows that match.
    """
    same_id, columns = comparison.matched
    return new.join(accepted, on=same_id, how="left").select(*columns)


def _matched(rules: Dedup) -> tuple[Column, list[Column]]:
    def meets(one: Column) -> Column:
        in_scope = _matches(one["ingested_at"], one["event_date"], rules)
        itself = one["_late"] & (one["record_id"] == F.col("record_id"))
        return in_scope & ~((F.col(ORIGIN) != "bronze") & itself)

    earliest = F.array_min(F.filter(_ACCEPTED, meets))
    verdict = F.when(earliest.isNotNull(), _verdict(F.col(PAYLOAD_HASH) == earliest[PAYLOAD_HASH]))
    same_id = F.col("event_id") == F.col(_ACCEPTED_ID)
    return same_id, [*[F.col(name) for name in (*_COMPARED, _ORDER)], verdict.alias(VERDICT)]


def rank_arrivals(new: DataFrame, comparison: Comparison) -> DataFrame:
    """Judge rows against the first arrival of their id in the same frame.

    Args:
        new: Rows from :func:`in_the_running`; one with a verdict is out of the running.
        comparison: The columns of the pipeline's rules.

    Returns:
        The columns of :data:`IDENTITY` and ``_verdict`` of the rows that are
        settled or not first, one row for all that are equal; ``_verdict`` is :data:`TWIN` where a
        first row has equal ones.
    """
    firsts, is_told, told = comparison.ranks
    return new.select("*", *firsts).where(is_told).select(*told)


def _ranks(rules: Dedup) -> tuple[list[Column], Column, list[Column]]:
    by_arrival = Window.partitionBy("event_id", F.isnull(VERDICT)).orderBy(_ORDER)
    # Equal rows follow each other in the order of arrival.
    is_equal = [F.lag(name).over(by_arrival) == F.col(name) for name in IDENTITY]
    firsts = [
        F.row_number().over(by_arrival).alias("_rank"),
        F.coalesce(reduce(and_, is_equal), F.lit(False)).alias("_equal"),
        F.first("ingested_at").over(by_arrival).alias("first_ingested_at"),
        F.first("event_date").over(by_arrival).alias("first_event_date"),
        F.first(PAYLOAD_HASH).over(by_arrival).alias("first_hash"),
    ]
    in_scope = _matches(F.col("first_ingested_at"), F.col("first_event_date"), rules)
    verdict = F.when(in_scope, _verdict(F.col(PAYLOAD_HASH) == F.col("first_hash"))).otherwise(
        F.lit(LEFTOVER)
    )
    is_open = F.col(VERDICT).isNull()
    is_twin = F.col("_equal") & is_open & (F.col("_rank") == 2)
    is_told = is_twin | (~F.col("_equal") & (~is_open | (F.col("_rank") > 1)))
    found = F.when(is_twin, F.lit(TWIN)).otherwise(F.coalesce(VERDICT, verdict))
    return firsts, is_told, [*[F.col(name) for name in IDENTITY], found.alias(VERDICT)]


def judge_leftovers(leftovers: DataFrame, rules: Dedup) -> DataFrame:
    """Judge rows of ids that come back outside of the scope of their first arrival, repeatedly.

    In the order of arrival a row is compared with the rows accepted so far, and accepted if none
    is in its scope. Rows of an id that arrived at one instant and bear one date have the same rows
    in scope: only the first of them can be accepted, and the pass over an id sees no other. The
    time grows with the square of how often an id is accepted: for a thousand times it is seconds.

    Returns:
        As :func:`rank_arrivals` does, of the rows that are not accepted, and of those that have
        an equal one.
    """
    # Plain numbers: each pair of an id's rows may be compared, by expressions that are interpreted.
    span = F.lit(rules.ttl // timedelta(microseconds=1))

    def meets(one: Column, other: Column) -> Column:
        within = F.abs(one["at"] - other["at"]) <= span
        return within | (one["event_date"] == other["event_date"]) if rules.widened else within

    def accept(accepted: Column, one: Column) -> Column:
        # The newest comes first, since that is the one that most rows meet.
        grown = F.concat(F.array(one), accepted)
        is_met = F.exists(accepted, lambda other: meets(other, one))
        return F.when(is_met, accepted).otherwise(grown)

    def met(one: Column) -> Column:
        in_scope = F.filter("_accepted", lambda other: meets(other, one))
        return F.struct(one["at"], one["event_date"], F.array_min(in_scope).alias("_earliest"))

    alike = ["event_id", "at", "event_date"]
    timed = leftovers.withColumn("at", F.unix_micros("ingested_at"))
    first = F.min(F.struct(_ORDER, "at", "event_date", PAYLOAD_HASH)).alias("_first")
    of_id = (
        timed.groupBy(*alike)
        .agg(first)
        .groupBy("event_id")
        .agg(F.array_sort(F.collect_list("_first")).alias("_firsts"))
    )
    nothing = F.slice("_firsts", 1, 0)
    judged = of_id.withColumn("_accepted", F.aggregate("_firsts", nothing, accept))
    earliest = judged.select("event_id", F.inline(F.transform("_firsts", met)))
    earliest_one = F.col("_earliest")
    same_payload = F.col(PAYLOAD_HASH) == earliest_one[PAYLOAD_HASH]
    is_accepted = (F.col(_ORDER) == earliest_one[_ORDER]) & same_payload
    verdict = F.when(is_accepted, F.lit(TWIN)).otherwise(_verdict(same_payload))
    return (
        timed.join(earliest, on=alike, how="inner")
        .groupBy(*IDENTITY, verdict.alias(VERDICT))
        .agg(F.count("*").alias("_rows"))
        .where((F.col(VERDICT) != TWIN) | (F.col("_rows") > 1))
        .drop("_rows")
    )


def _matches(arrived: Column, day: Column, rules: Dedup) -> Column:
    # Both ways: a requeued row comes after rows that arrived later than it did.
    span = F.lit(rules.ttl)
    within = arrived.between(F.col("ingested_at") - span, F.col("ingested_at") + span)
    return within | (day == F.col("event_date")) if rules.widened else within


def _verdict(same_payload: Column) -> Column:
    return F.when(same_payload, F.lit(DUPLICATE)).otherwise(F.lit(CONFLICT))
