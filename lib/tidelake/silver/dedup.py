"""Deduplicate a batch: find the duplicates and conflicting duplicates of accepted events.

:func:`find_repeats` has the rules. Only rows whose id hash occurs twice need comparing. The driver
finds and compares them (:mod:`tidelake.silver.driver_dedup`). If they are too many for the driver,
Spark compares them (second half of this module): only ids, hashes and positions are shuffled.
:mod:`tidelake.silver.fates` joins the verdicts to the wide rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce
from operator import and_
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as F

from tidelake.config.pipeline import Dedup
from tidelake.names import ID_HASH
from tidelake.silver.driver_dedup import (
    CONFLICT,
    DUPLICATE,
    NUMBER,
    Numbers,
    compared_columns,
    has_number,
    judge_arrivals,
    members,
)
from tidelake.silver.search_bounds import (
    ACCEPTED_COLUMNS,
    DedupScope,
    arrival_columns,
    arrival_order,
    scope_in_driver,
    scope_in_spark,
    split_record_id,
)
from tidelake.silver.stages import ORIGIN, PAYLOAD_HASH, ROW, STAGE
from tidelake.spark.tuning import BROADCAST, COMPARED_ROWS, HASHES

VERDICT = "_verdict"
# A row that is not the first arrival of its id and out of that row's scope: compared again by
# judge_leftovers.
LEFTOVER = "leftover"
# The batch holds several copies of a first arrival, equal in all identity columns: one of them is
# accepted, the others are duplicates.
TWIN = "twin"
# Identify a row within a batch. Bronze may hold a record twice if two writers appended the same
# batch; rows equal in all of these columns are copies.
IDENTITY = (ROW, "ingested_at", PAYLOAD_HASH)

_ID, _ORDER = "_id", "_order"
_ACCEPTED, _ACCEPTED_ID = "_accepted_rows", "_accepted_id"
_COMPARED = (ROW, ORIGIN, *ACCEPTED_COLUMNS, ID_HASH)

# Checkpoints a frame eagerly, for the rest of the batch, and computes aggregates over it, by name;
# for some empty inputs there are none. The arguments are the frame and the aggregates.
Checkpoint = Callable[..., tuple[DataFrame, Mapping[str, Any]]]


class Accepted(NamedTuple):
    """Accepted rows in the scope of a batch, None if there are none.

    ``searched`` is the number of rows in the files that were read; None if not known yet.
    """

    rows: DataFrame | None
    searched: int | None

    def counted(self) -> tuple[DataFrame | None, Callable[[], int]]:
        """Observe the row count if it is not known, which doubles the time of the scan.

        Returns:
            The rows, and a function that returns their count after an action has read them.
        """
        known = self.searched
        if self.rows is None or known is not None:
            return self.rows, lambda: known or 0
        observation = Observation()
        return self.rows.observe(observation, _row_count()), lambda: observation.get.get("rows", 0)


class AcceptedMatches(NamedTuple):
    """Accepted rows in the driver, and the number of rows that were searched for them."""

    rows: pa.Table
    searched: int


class Search(Protocol):
    """Finds rows that were accepted before a batch."""

    def within(self, scope: DedupScope) -> Accepted:
        """Return the accepted rows in a scope."""

    def with_hashes(self, scope: DedupScope, hashes: Numbers) -> AcceptedMatches | None:
        """Return the accepted rows in a scope whose id hash is given; None if too many.

        ``hashes`` are ascending and distinct.
        """


@dataclass(frozen=True)
class Repeats:
    """Result of deduplication.

    Attributes:
        rows: The :data:`IDENTITY` columns and ``_verdict`` of each repeat; None if there are none
            or ``numbers`` holds them.
        searched: Number of accepted rows that were searched.
        twins: Whether ``rows`` holds :data:`TWIN` verdicts.
        numbers: The row numbers (``_number``) of the repeats, by verdict.
        batch: All rows of the batch with the compared and the extra columns; None if no extra
            columns were requested or Spark compared the rows.
    """

    rows: DataFrame | None
    searched: int
    twins: bool = False
    numbers: Mapping[str, Numbers] = field(default_factory=dict)
    batch: pa.Table | None = None


class CheckpointedBatch(NamedTuple):
    """A batch's classified rows, checkpointed because they are read several times.

    They are ``numbered`` if each has a stable ``_number``, and in the driver if ``is_small``.
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
    """Find the rows of a batch that repeat the event id of an accepted row in scope.

    Accepted rows are those of silver and late, and earlier rows of the batch that are no repeats
    themselves. An accepted row is in scope if it arrived within the TTL, before or after the row,
    or, if the rules are widened, has the same event date. A late row is not compared with the row
    that was requeued from it. The earliest accepted row in scope decides: an equal payload makes
    the row a duplicate, a different one a conflict. Rows with a stage (filtered or quarantined) are
    neither judged nor compared with.

    The driver looks up the id hashes with ``search`` and compares the rows that share one. If the
    rows have no row numbers, or the driver would have too many rows or pairs
    (:data:`~tidelake.spark.tuning.COMPARED_ROWS`), Spark looks up and compares instead. The driver
    also collects the columns ``also``, of all rows, for
    :func:`~tidelake.silver.summary.summarize_in_driver`; Spark does not.

    Returns:
        The verdicts, in ``numbers`` if the driver compared, in ``rows`` if Spark did;
        :func:`~tidelake.silver.fates.with_verdicts` joins either to the rows.
    """
    found = _by_number(kept, search, comparison, also) if kept.numbered else None
    return _by_shuffle(kept.rows, search, comparison, checkpoint) if found is None else found


def _by_number(
    kept: CheckpointedBatch, search: Search, comparison: Comparison, also: Sequence[Column]
) -> Repeats | None:
    """Compare rows in the driver; return None if they are too many."""
    running = kept.rows.where(F.col(STAGE).isNull())
    taken = comparison.in_driver if kept.is_small else comparison.looked_up
    batch = kept.rows.select(*taken, F.col(STAGE), *also).toArrow() if also else None
    if batch is None:
        rows = running.select(*taken).toArrow()
    else:
        rows = batch.filter(pc.is_null(batch[STAGE]))
    numbers, hashes = rows[NUMBER].to_numpy(), rows[ID_HASH].to_numpy()
    if not numbers.size:
        return Repeats(None, 0, batch=batch)
    ascending = np.sort(hashes)
    is_first = np.diff(ascending, prepend=~ascending[0]) != 0
    scope = scope_in_driver(rows, comparison.rules)
    met = search.with_hashes(scope, ascending[is_first])
    if met is None:
        return None
    repeated = np.concatenate((ascending[~is_first], met.rows[ID_HASH].to_numpy()))
    is_candidate = members(hashes, np.sort(repeated))
    if not is_candidate.any():
        return Repeats(None, met.searched, batch=batch)
    if kept.is_small:
        rows = rows.filter(pa.array(is_candidate))
    elif is_candidate.sum() > COMPARED_ROWS:
        return None
    else:
        chosen = has_number(running.sparkSession, NUMBER, numbers[is_candidate])
        rows = running.where(chosen).select(*comparison.in_driver).toArrow()
    found = judge_arrivals(rows, met.rows, comparison.rules)
    return None if found is None else Repeats(None, met.searched, numbers=found, batch=batch)


def _by_shuffle(
    judged: DataFrame, search: Search, comparison: Comparison, checkpoint: Checkpoint
) -> Repeats:
    rows, scope = scope_in_spark(judged, comparison.rules)
    if not rows:
        return Repeats(None, 0)
    new = undecided_rows(judged, comparison)
    found = search.within(scope)
    accepted, searched = found.counted()
    if accepted is not None and found.searched is not None and found.searched <= BROADCAST:
        # Few enough for one task, which avoids a shuffle.
        accepted = accepted.coalesce(1)
    if accepted is not None and rows <= BROADCAST:
        accepted = having(accepted, F.broadcast(_hashes(new)))
        accepted = F.broadcast(group_accepted(accepted, comparison))
    else:
        if accepted is not None and rows <= HASHES:
            # Few rows remain; without a checkpoint they would be scanned twice.
            accepted, _ = checkpoint(having(accepted, F.broadcast(_hashes(new))))
        ids, counts = _counted(checkpoint(colliding_ids(new, accepted), _row_count()))
        ids = F.broadcast(ids) if counts["rows"] <= HASHES else ids.hint("shuffle_hash")
        new = having(new, ids)
        if accepted is not None:
            accepted = group_accepted(having(accepted, ids), comparison)
            accepted = F.broadcast(accepted) if counts["rows"] <= BROADCAST else accepted
    compared = new if accepted is None else match_accepted(new, accepted, comparison)
    ranked = rank_arrivals(compared, comparison)
    verdicts, counts = _counted(checkpoint(ranked, *comparison.ranking))
    repeats, twins = counts["rows"], counts["twins"]
    if counts["left"]:
        is_left = F.col(VERDICT) == LEFTOVER
        leftovers = new.join(verdicts.where(is_left), on=list(IDENTITY), how="left_semi")
        judged_leftovers = judge_leftovers(leftovers, comparison.rules)
        more, counts = _counted(checkpoint(judged_leftovers, *comparison.ranking))
        verdicts = verdicts.where(~is_left).unionByName(more)
        twins += counts["twins"]
    if not repeats:
        return Repeats(None, searched())
    # Spark has no size estimate of a checkpointed frame and would shuffle the wide rows.
    fitting = F.broadcast(verdicts) if repeats <= BROADCAST else verdicts
    return Repeats(fitting, searched(), twins > 0)


def _hashes(rows: DataFrame) -> DataFrame:
    return rows.select(F.col(ID_HASH).alias(_ID))


def _counted(
    checkpointed: tuple[DataFrame, Mapping[str, Any]],
) -> tuple[DataFrame, Counter[str]]:
    """Return checkpointed rows with their counts: 0 for those of empty inputs that Spark drops."""
    rows, counts = checkpointed
    return rows, Counter(counts)


def _row_count() -> Column:
    return F.count(F.lit(1)).alias("rows")


class Comparison:
    """The columns that compare rows under a pipeline's dedup rules, built once.

    The driver collects ``looked_up`` for every numbered row, and ``in_driver`` for the rows that it
    compares. The other columns are those of the functions below, where Spark compares.
    """

    def __init__(self, rules: Dedup) -> None:
        """Build the columns."""
        self.rules = rules
        self.looked_up = [F.col(NUMBER), F.col(ID_HASH), *arrival_columns()]
        self.in_driver = [*self.looked_up, *compared_columns()]
        columns = [F.col(name) for name in _COMPARED]
        no_verdict = F.lit(None).cast("string").alias(VERDICT)
        self.compared = [*columns, F.struct(*arrival_order()).alias(_ORDER), no_verdict]
        self.grouping = _grouping()
        self.matched = _matched(rules)
        self.ranks = _ranks(rules)
        left, twins = (F.count_if(F.col(VERDICT) == verdict) for verdict in (LEFTOVER, TWIN))
        self.ranking = [_row_count(), left.alias("left"), twins.alias("twins")]


def undecided_rows(judged: DataFrame, comparison: Comparison) -> DataFrame:
    """Select the compared columns and a null ``_verdict`` of rows that have no stage yet."""
    return judged.where(F.col(STAGE).isNull()).select(*comparison.compared)


def having(rows: DataFrame, ids: DataFrame) -> DataFrame:
    """Keep the rows whose id hash is in ``ids``, a frame with the column ``_id``."""
    return rows.join(ids, on=F.col(ID_HASH) == F.col(_ID), how="left_semi")


def colliding_ids(new: DataFrame, accepted: DataFrame | None) -> DataFrame:
    """Return the id hashes (``_id``) that occur twice in ``new`` or in both inputs.

    Only these few ids need comparing, and counting hashes is far cheaper than shuffling all wide
    rows by id. Hash collisions are resolved in the comparison.
    """
    hashes = _hashes(new).withColumn("_new", F.lit(True))
    if accepted is not None:
        hashes = hashes.unionByName(_hashes(accepted).withColumn("_new", F.lit(False)))
    counted = hashes.groupBy(_ID).agg(F.count("*").alias("_rows"), F.max("_new").alias("_new"))
    return counted.where((F.col("_rows") > 1) & F.col("_new")).select(_ID)


def group_accepted(accepted: DataFrame, comparison: Comparison) -> DataFrame:
    """Group accepted rows by id into an array, so that a join keeps one row per new row."""
    of_id, rows = comparison.grouping
    return accepted.groupBy(of_id).agg(rows)


def _grouping() -> tuple[Column, Column]:
    # Sort fields come first, so that array_min is the earliest. The tables have no source column;
    # the record id begins with the source.
    source = F.regexp_replace("record_id", F.lit("(:[0-9]+)+$"), F.lit("")).alias("source")
    arrival: list[Column | str] = ["ingested_at", source, *split_record_id()]
    own = [*arrival, PAYLOAD_HASH, "event_date", "_late", "record_id"]
    return F.col("event_id").alias(_ACCEPTED_ID), F.collect_list(F.struct(*own)).alias(_ACCEPTED)


def match_accepted(new: DataFrame, accepted: DataFrame, comparison: Comparison) -> DataFrame:
    """Compare rows with accepted rows of silver and late; set ``_verdict`` of those that match."""
    same_id, columns = comparison.matched
    return new.join(accepted, on=same_id, how="left").select(*columns)


def _matched(rules: Dedup) -> tuple[Column, list[Column]]:
    def meets(accepted_row: Column) -> Column:
        in_scope = _matches(accepted_row["ingested_at"], accepted_row["event_date"], rules)
        itself = accepted_row["_late"] & (accepted_row["record_id"] == F.col("record_id"))
        return in_scope & ~((F.col(ORIGIN) != "bronze") & itself)

    earliest = F.array_min(F.filter(_ACCEPTED, meets))
    verdict = F.when(earliest.isNotNull(), _verdict(F.col(PAYLOAD_HASH) == earliest[PAYLOAD_HASH]))
    same_id = F.col("event_id") == F.col(_ACCEPTED_ID)
    return same_id, [*[F.col(name) for name in (*_COMPARED, _ORDER)], verdict.alias(VERDICT)]


def rank_arrivals(new: DataFrame, comparison: Comparison) -> DataFrame:
    """Compare rows without a verdict with the first arrival of their id in the same frame.

    Returns:
        The :data:`IDENTITY` columns and ``_verdict`` of all rows but accepted first arrivals, one
        row per set of copies. ``_verdict`` is :data:`TWIN` if a first arrival has copies.
    """
    firsts, has_verdict, output = comparison.ranks
    return new.select("*", *firsts).where(has_verdict).select(*output)


def _ranks(rules: Dedup) -> tuple[list[Column], Column, list[Column]]:
    by_arrival = Window.partitionBy("event_id", F.isnull(VERDICT)).orderBy(_ORDER)
    # Copies are adjacent in arrival order.
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
    has_verdict = is_twin | (~F.col("_equal") & (~is_open | (F.col("_rank") > 1)))
    found = F.when(is_twin, F.lit(TWIN)).otherwise(F.coalesce(VERDICT, verdict))
    return firsts, has_verdict, [*[F.col(name) for name in IDENTITY], found.alias(VERDICT)]


def judge_leftovers(leftovers: DataFrame, rules: Dedup) -> DataFrame:
    """Deduplicate rows that are out of the scope of their id's first arrival.

    In arrival order, each row is compared with the rows accepted so far and accepted if none is
    in its scope. Rows of an id with the same arrival instant and event date have the same scope,
    so only the first of them can be accepted and only that one enters the pass. Time is quadratic
    in the accepted rows per id: a thousand take seconds.

    Returns:
        Verdicts as from :func:`rank_arrivals`, for rows that are not accepted or have copies.
    """
    # Microseconds as numbers: these expressions are interpreted, for up to every pair of an id.
    span = F.lit(rules.ttl // timedelta(microseconds=1))

    def meets(row: Column, other: Column) -> Column:
        within = F.abs(row["at"] - other["at"]) <= span
        return within | (row["event_date"] == other["event_date"]) if rules.widened else within

    def accept(accepted: Column, row: Column) -> Column:
        # Newest first: most rows match the newest one.
        grown = F.concat(F.array(row), accepted)
        is_met = F.exists(accepted, lambda other: meets(other, row))
        return F.when(is_met, accepted).otherwise(grown)

    def met(row: Column) -> Column:
        in_scope = F.filter("_accepted", lambda other: meets(other, row))
        return F.struct(row["at"], row["event_date"], F.array_min(in_scope).alias("_earliest"))

    group_columns = ["event_id", "at", "event_date"]
    timed = leftovers.withColumn("at", F.unix_micros("ingested_at"))
    first = F.min(F.struct(_ORDER, "at", "event_date", PAYLOAD_HASH)).alias("_first")
    of_id = (
        timed.groupBy(*group_columns)
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
        timed.join(earliest, on=group_columns, how="inner")
        .groupBy(*IDENTITY, verdict.alias(VERDICT))
        .agg(F.count("*").alias("_rows"))
        .where((F.col(VERDICT) != TWIN) | (F.col("_rows") > 1))
        .drop("_rows")
    )


def _matches(arrived: Column, day: Column, rules: Dedup) -> Column:
    # In both directions: a requeued row may follow rows that arrived after it.
    span = F.lit(rules.ttl)
    within = arrived.between(F.col("ingested_at") - span, F.col("ingested_at") + span)
    return within | (day == F.col("event_date")) if rules.widened else within


def _verdict(same_payload: Column) -> Column:
    return F.when(same_payload, F.lit(DUPLICATE)).otherwise(F.lit(CONFLICT))
