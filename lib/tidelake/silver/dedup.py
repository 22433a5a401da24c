"""Find the rows whose event was already accepted, and tell copies from conflicts.

A row is compared with the earliest accepted row of its id that arrived within a TTL of it
or, widened, bears the same event date: same payload, a duplicate; another, a conflict. Accepted
are rows of silver and late, and then the first arrivals of the batch itself. Only ids and hashes
are shuffled; the verdicts go back to the wide rows.
"""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidelake.config.event import Dedup
from tidelake.reuse import reused
from tidelake.silver.classify import ORIGIN, PAYLOAD_HASH, REQUEUED_AT, ROW, STAGE

VERDICT = "_verdict"
DUPLICATE = "duplicate"
CONFLICT = "conflict"
# Comes after the first arrival of its id, which is out of its reach: judged among its like.
LEFTOVER = "leftover"
# A first arrival stands in the batch more than once, alike in every column that tells rows apart:
# one of these rows is accepted, the others are its duplicates.
TWIN = "twin"
# What tells the rows of a batch apart. Bronze may hold a record twice where two writers appended
# the same batch; rows that are alike in all of these are equal.
IDENTITY = (ROW, "ingested_at", PAYLOAD_HASH)

# The hash of an event id.
ID = "_id"

_ORDER = "_order"
_KNOWN = "_known"
_KNOWN_ID = "_known_id"
_ACCEPTED_COLUMNS = ("event_id", "record_id", "event_date", "ingested_at", PAYLOAD_HASH)
_PLAIN = (ROW, ORIGIN, *_ACCEPTED_COLUMNS)


def arrivals(classified: DataFrame) -> DataFrame:
    """Take what dedup needs of the rows still in the running, without their payload.

    Returns:
        ``_row``, ``_origin``, the columns to compare, the order of arrival, and ``_verdict``:
        null, since nothing is settled yet.
    """
    return classified.where(F.col(STAGE).isNull()).select(*_compared())


@reused
def _compared() -> list[Column]:
    # A row that failed arrived, for those that did not, when it was sent again.
    replayed = F.col(ORIGIN) == "quarantine"
    order = F.struct(
        F.when(replayed, F.col(REQUEUED_AT)).otherwise(F.col("ingested_at")).alias("arrived"),
        F.col("ingested_at"),
        "source",
        *_position(),
        ROW,
        PAYLOAD_HASH,
    )
    return [
        *[F.col(name) for name in _PLAIN],
        order.alias(_ORDER),
        F.lit(None).cast("string").alias(VERDICT),
    ]


def _position() -> list[Column]:
    """Split a record id into the text before its last number, and that number."""
    tail = F.substring_index("record_id", ":", -1)
    return [
        F.left("record_id", F.length("record_id") - F.length(tail)).alias("place"),
        tail.try_cast("bigint").alias("position"),
    ]


def accepted(table: DataFrame, *, in_reach: Column, is_late_table: bool) -> DataFrame:
    """Narrow silver or late to the rows that the batch could meet.

    Args:
        table: Silver or late as the last closed batch left it.
        in_reach: Holds for these rows, by their arrival and event date.
        is_late_table: Whether the rows are late ones, which a requeued row may match itself.
    """
    # Only a late row needs its name, and of silver's columns none is longer. Two rows of silver
    # never share an id and an instant: each lies within the TTL of the other.
    names = F.col("record_id") if is_late_table else F.lit(None).cast("string")
    columns = [names.alias(name) if name == "record_id" else name for name in _ACCEPTED_COLUMNS]
    return table.where(in_reach).select(*columns, F.lit(is_late_table).alias("_late"))


def by_id(known: DataFrame) -> DataFrame:
    """Put the accepted rows of an id into one, so that no row of a batch meets two.

    Args:
        known: From :func:`accepted`.
    """
    of_id, theirs = _together()
    return known.groupBy(of_id).agg(theirs)


@reused
def _together() -> tuple[Column, Column]:
    # In the order of arrival, so that the least is the earliest. Tables hold no source; a record
    # id begins with it.
    source = F.regexp_replace("record_id", F.lit("(:[0-9]+)+$"), F.lit("")).alias("source")
    arrival: list[Column | str] = ["ingested_at", source, *_position()]
    own = [*arrival, PAYLOAD_HASH, "event_date", "_late", "record_id"]
    return F.col("event_id").alias(_KNOWN_ID), F.collect_list(F.struct(*own)).alias(_KNOWN)


def match_accepted(new: DataFrame, known: DataFrame, rules: Dedup) -> DataFrame:
    """Judge rows whose event silver or late already holds.

    Args:
        new: From :func:`arrivals`.
        known: From :func:`by_id`.
        rules: The pipeline's.

    Returns:
        ``new``; ``_verdict`` is set for the rows that match.
    """
    same_id, columns = _matched(rules)
    return new.join(known, on=same_id, how="left").select(*columns)


@reused
def _matched(rules: Dedup) -> tuple[Column, list[Column]]:
    def meets(one: Column) -> Column:
        in_reach = _matches(one["ingested_at"], one["event_date"], rules)
        itself = one["_late"] & (one["record_id"] == F.col("record_id"))
        return in_reach & ~((F.col(ORIGIN) != "bronze") & itself)

    earliest = F.array_min(F.filter(_KNOWN, meets))
    verdict = F.when(earliest.isNotNull(), _verdict(F.col(PAYLOAD_HASH) == earliest[PAYLOAD_HASH]))
    same_id = F.col("event_id") == F.col(_KNOWN_ID)
    return same_id, [*[F.col(name) for name in (*_PLAIN, _ORDER)], verdict.alias(VERDICT)]


def meeting(new: DataFrame, known: DataFrame | None) -> DataFrame:
    """Find the ids that could meet another row: few do, and only they need be compared.

    Ids are told apart by their hashes here. To bring all wide rows together by their ids, only to
    find most of them alone, costs far more than to count numbers; two ids with one hash are told
    apart where they are compared.

    Args:
        new: From :func:`arrivals`.
        known: Accepted rows; None: there are none.

    Returns:
        ``_id``, the hashes of ids that are twice in ``new``, or both in ``new`` and ``known``.
    """
    hashes = new.select(hash_of_id().alias(ID), F.lit(True).alias("_new"))
    if known is not None:
        theirs = known.select(hash_of_id().alias(ID), F.lit(False).alias("_new"))
        hashes = hashes.unionByName(theirs)
    counted = hashes.groupBy(ID).agg(F.count("*").alias("_rows"), F.max("_new").alias("_new"))
    return counted.where((F.col("_rows") > 1) & F.col("_new")).select(ID)


def among(rows: DataFrame, ids: DataFrame) -> DataFrame:
    """Keep the rows whose id has one of some hashes."""
    return rows.join(ids, on=_has_hash(), how="left_semi")


@reused
def hash_of_id() -> Column:
    """Give the number that stands for an id until it is compared."""
    return F.xxhash64("event_id")


@reused
def _has_hash() -> Column:
    return hash_of_id() == F.col(ID)


def rank_arrivals(new: DataFrame, rules: Dedup) -> DataFrame:
    """Judge rows against the first arrival of their id in the same frame.

    Args:
        new: Rows from :func:`arrivals`; one with a verdict is out of the running.
        rules: The pipeline's.

    Returns:
        The columns of :data:`IDENTITY` and ``_verdict`` of the rows that are settled or not
        first, one row for all that are equal; ``_verdict`` is :data:`TWIN` where a first row has
        equal ones.
    """
    firsts, is_told, told = _ranks(rules)
    return new.select("*", *firsts).where(is_told).select(*told)


@reused
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
    in_reach = _matches(F.col("first_ingested_at"), F.col("first_event_date"), rules)
    verdict = F.when(in_reach, _verdict(F.col(PAYLOAD_HASH) == F.col("first_hash"))).otherwise(
        F.lit(LEFTOVER)
    )
    is_open = F.col(VERDICT).isNull()
    is_twin = F.col("_equal") & is_open & (F.col("_rank") == 2)
    is_told = is_twin | (~F.col("_equal") & (~is_open | (F.col("_rank") > 1)))
    found = F.when(is_twin, F.lit(TWIN)).otherwise(F.coalesce(VERDICT, verdict))
    return firsts, is_told, [*[F.col(name) for name in IDENTITY], found.alias(VERDICT)]


def judge_leftovers(leftovers: DataFrame, rules: Dedup) -> DataFrame:
    """Judge rows of ids that come back past the reach of their first arrival, however often.

    In the order of arrival a row is compared with the rows accepted so far, and accepted if none
    is in its reach. Rows of an id that arrived at one instant and bear one date have the same rows
    in reach: only the first of them can be accepted, and the pass over an id sees no other. The
    time grows with the square of how often an id is accepted: for a thousand times it is seconds.

    Args:
        leftovers: Rows from :func:`arrivals` that :func:`rank_arrivals` gave that verdict.
        rules: The pipeline's.

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
        in_reach = F.filter("_accepted", lambda other: meets(other, one))
        return F.struct(one["at"], one["event_date"], F.array_min(in_reach).alias("_earliest"))

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
    # Both ways: a row that was sent again comes after rows that arrived later than it did.
    span = F.lit(rules.ttl)
    within = arrived.between(F.col("ingested_at") - span, F.col("ingested_at") + span)
    return within | (day == F.col("event_date")) if rules.widened else within


def _verdict(same_payload: Column) -> Column:
    return F.when(same_payload, F.lit(DUPLICATE)).otherwise(F.lit(CONFLICT))
