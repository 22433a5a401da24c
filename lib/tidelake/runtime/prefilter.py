"""Hold back copies with Spark's stateful deduplication, before the ordinary one, and count them.

The operator is quick to see a copy, and no more than that: among copies it keeps any one, and it
drops what arrives behind its own watermark, or bears another payload of the same 64-bit hash. So
nothing rests on it. What it held back is compared with the batch as bronze has it: each row is
either counted as a copy of an accepted event, by its id and its payload's hash, or goes back into
the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.bronze import as_never_requeued
from tidelake.config import Pipeline
from tidelake.delta.access import rows_that_came
from tidelake.delta.log import last_commit
from tidelake.delta.notes import FRESH, SilverNote
from tidelake.delta.positions import Position
from tidelake.delta.tables import Table
from tidelake.errors import GenerationError, UsageError
from tidelake.fingerprints import fingerprint
from tidelake.instants import from_micros
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.checkpoints import Fence
from tidelake.runtime.hop import Run
from tidelake.silver.classify import ORIGIN, PAYLOAD_HASH, STAGE
from tidelake.silver.driver_dedup import DUPLICATE
from tidelake.silver.lenient_parse import lenient_parse
from tidelake.silver.route import FATE
from tidelake.silver.watermark import partition_of
from tidelake.spark.engine import REFUSED, runs_batches_here
from tidelake.spark.tuning import STATE_SETTINGS

_KEY = "_prefilter_key"


def hold_back_copies(rows: DataFrame, *, ttl: timedelta) -> DataFrame:
    """Drop rows of a stream whose payload came within the TTL before, by arrival.

    Equal payloads have equal ids: with a prefilter, no expression may name a bronze column.
    """
    delay = f"{ttl // timedelta(milliseconds=1)} milliseconds"
    return (
        rows.withColumn(_KEY, F.xxhash64("payload"))
        .withWatermark("ingested_at", delay)
        .dropDuplicatesWithinWatermark([_KEY])
        .drop(_KEY)
    )


def held_back(taken: DataFrame, survivors: DataFrame) -> DataFrame:
    """Find the batch's rows that the operator dropped.

    Returns:
        Rows of ``taken`` plus ``_payload_hash``.
    """
    missing = taken.join(survivors.select("record_id"), on="record_id", how="left_anti")
    return missing.withColumn(PAYLOAD_HASH, F.xxhash64("payload"))


def copies_of(missing: DataFrame, accepted: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Keep the missing rows that are copies of an event accepted before, within the TTL.

    Whatever else the row could be, the accepted twin would have been it too. The id is read quickly
    and loosely: a row whose id that gets wrong, and any Avro record, goes the ordinary way.
    ``accepted`` has ``event_id``, ``_payload_hash`` and ``ingested_at``.
    """
    if pipeline.reads_avro:
        return missing.limit(0)
    twins = accepted.groupBy(
        F.col("event_id").alias("twin_id"), F.col(PAYLOAD_HASH).alias("twin_hash")
    ).agg(F.max("ingested_at").alias("twin_ingested_at"))
    within = F.col("twin_ingested_at") >= F.col("ingested_at") - F.lit(pipeline.dedup.ttl)
    same = F.col(PAYLOAD_HASH) == F.col("twin_hash")
    candidates = missing.join(twins, on=same & within, how="inner")
    ids = lenient_parse(missing, pipeline, ()).select("record_id", "event_id")
    sure = candidates.join(ids, on="record_id").where(F.col("event_id") == F.col("twin_id"))
    return missing.join(sure.select("record_id"), on="record_id", how="left_semi")


def refuse_other_prefilter(table: Table, fence: Fence, *, wanted: bool) -> None:
    """Stop where the checkpoint holds the prefilter's state and needs none, or the reverse."""
    last = last_commit(table)
    if last is None or last.batch < 0:
        return
    had = SilverNote.of(last).prefiltered is not None
    if had == wanted:
        return
    if wanted:
        raise GenerationError(
            "dedup.prefilter is operator now, and was none in the batches of the checkpoint",
            "Set it back to none, or begin with it on a new --root.",
        )
    raise fence.refusal(
        "dedup.prefilter is none now, and was operator in the batches of the checkpoint"
    )


def prepare_state(spark: SparkSession) -> None:
    """Give the session the settings that the operator's state needs; a UsageError if refused."""
    refused = UsageError(
        "dedup.prefilter: operator needs settings of the session that this compute refuses. "
        "Set it to none."
    )
    if not runs_batches_here():
        raise refused
    try:
        for key, value in STATE_SETTINGS.items():
            spark.conf.set(key, value)
    except REFUSED as error:
        raise refused from error


@dataclass(frozen=True)
class PrefilteredBatch:
    """A batch with what its prefilter held back.

    Attributes:
        rows: What goes the ordinary way: survivors, and held back rows that are no sure copies.
        copies: Counts of the sure copies, in the shape of a count by fate.
        held_back: How many rows the operator dropped; None where there is none.
        judged: Whether the rows come from :func:`tidelake.silver.classify.classify`.
    """

    rows: DataFrame
    copies: list[dict[str, Any]]
    held_back: int | None
    judged: bool = False


def recover(
    run: Run,
    survivors: DataFrame,
    accepted: DataFrame,
    between: tuple[Position, Position],
    frames: CheckpointedFrames,
) -> PrefilteredBatch:
    """Find out what became of each row of bronze that the batch took.

    ``survivors`` is the batch as the stream gives it, checkpointed, since it must not run twice;
    ``between`` are the batch's positions in bronze.
    """
    pipeline = run.pipeline
    bronze = run.lake.bronze(pipeline.name)
    taken = rows_that_came(survivors.sparkSession, bronze, *between)
    if taken is None:
        return PrefilteredBatch(survivors, [], 0)
    missing = frames.checkpoint(held_back(taken, survivors.where(F.col("requeued_at").isNull())))
    reach = missing.agg(F.count("*"), F.min(F.unix_micros("ingested_at"))).collect()[0]
    first = from_micros(reach[1])
    if first is None:
        return PrefilteredBatch(survivors, [], 0)
    since = F.lit(first - pipeline.dedup.ttl)
    known = accepted.where(F.col("ingested_at") >= since)
    known = known.select("event_id", PAYLOAD_HASH, "ingested_at")
    copies = frames.checkpoint(copies_of(missing, known, pipeline))
    groups = (
        copies.groupBy(partition_of(pipeline.source).alias("partition"))
        .agg(
            F.count("*").alias("rows"),
            fingerprint().alias("fingerprint"),
            F.max(F.unix_micros("ingested_at")).alias("last"),
        )
        .collect()
    )
    counted = [
        {**row.asDict(), FATE: DUPLICATE, STAGE: None, ORIGIN: FRESH, "newest": None}
        for row in groups
    ]
    back = missing.join(copies.select("record_id"), on="record_id", how="left_anti")
    ordinary = as_never_requeued(back.select(*taken.columns))
    return PrefilteredBatch(survivors.unionByName(ordinary), counted, int(reach[0]))
