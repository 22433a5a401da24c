"""Prefilter copies with Spark's stateful deduplication, before the exact one, and count them.

The operator is fast but inexact: of several copies it keeps an arbitrary one, and it drops rows
behind its own watermark and rows whose different payload has the same 64-bit hash. So no result
depends on it. The rows that it dropped are found by comparing with bronze: each is either counted
as a copy of an accepted event, by its id and its payload's hash, or goes back into the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.bronze.records import with_requeue_columns
from tidelake.config import Pipeline
from tidelake.delta.access import read_between
from tidelake.delta.commit_metadata import FRESH, SilverNote, changed_parts
from tidelake.delta.log import Commit, last_commit
from tidelake.delta.positions import Position
from tidelake.delta.tables import Table
from tidelake.errors import GenerationError, UsageError
from tidelake.fingerprints import fingerprint
from tidelake.instants import from_micros
from tidelake.runtime.accepted_rows import AcceptedRows
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.fence import Fence
from tidelake.silver.driver_dedup import DUPLICATE
from tidelake.silver.fates import FATE
from tidelake.silver.lenient_parse import lenient_parse
from tidelake.silver.stages import ORIGIN, PAYLOAD_HASH, STAGE
from tidelake.silver.watermark import partition_of
from tidelake.spark.engine import REFUSED, runs_in_process
from tidelake.spark.tuning import STATE_SETTINGS

_KEY = "_prefilter_key"
_ROW = ("record_id", "ingested_at")
_COPY_COLUMNS = ("event_id", PAYLOAD_HASH, "ingested_at")
# Key of the metadata of a commit: the first batch that today's rules decided.
RULES_SINCE = "rules_since"


def hold_back_copies(rows: DataFrame, *, ttl: timedelta) -> DataFrame:
    """Drop rows of a stream whose payload arrived within the previous TTL already.

    Equal payloads must have equal ids: with a prefilter, no expression may use a bronze column.
    """
    delay = f"{ttl // timedelta(milliseconds=1)} milliseconds"
    keyed = rows.withColumn(_KEY, F.xxhash64("payload")).withWatermark("ingested_at", delay)
    return keyed.dropDuplicatesWithinWatermark([_KEY]).drop(_KEY)


def held_back(taken: DataFrame, survivors: DataFrame) -> DataFrame:
    """Return the rows of ``taken`` that the operator dropped, plus ``_payload_hash``.

    If two writers appended the same batch, bronze has each record twice, and only ``ingested_at``,
    from each writer's clock, tells its rows apart. Numbering them would also do so for rows of one
    instant, but shuffles and sorts the payloads of every batch.
    """
    same = [F.col(f"t.{name}").eqNullSafe(F.col(f"s.{name}")) for name in _ROW]
    missing = taken.alias("t").join(survivors.select(*_ROW).alias("s"), on=same, how="left_anti")
    return missing.withColumn(PAYLOAD_HASH, F.xxhash64("payload"))


def copies_of(missing: DataFrame, accepted: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Return the missing rows that are copies of an event accepted within the TTL.

    Such a row has no other possible fate if its accepted twin, which has the same payload, was
    decided by the same rules: see :func:`rules_since`. Ids are read by the lenient parser: a row
    whose id it misreads, and any Avro or CSV record, goes through exact deduplication. ``accepted``
    has ``event_id``, ``_payload_hash`` and ``ingested_at``.
    """
    if pipeline.reads_avro or pipeline.csv:
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


def rules_since(last: Commit | None, pipeline: Pipeline) -> int:
    """Return the first of silver's batches that today's rules decided; ``last`` is the newest."""
    if last is None or last.batch < 0:
        return 0
    if changed_parts(last, pipeline).rules:
        return last.batch + 1
    return int(last.note.get(RULES_SINCE, 0))


def refuse_other_prefilter(table: Table, fence: Fence, *, wanted: bool) -> None:
    """Raise a GenerationError if ``dedup.prefilter`` changed since the checkpoint's batches."""
    last = last_commit(table)
    if last is None or last.batch < 0 or wanted == (SilverNote.of(last).prefiltered is not None):
        return
    if wanted:
        raise GenerationError(
            "dedup.prefilter is operator now, and was none in the batches of the checkpoint",
            "Set it back to none, or use it with a new --root.",
        )
    raise fence.refusal(
        "dedup.prefilter is none now, and was operator in the batches of the checkpoint"
    )


def prepare_state(spark: SparkSession) -> None:
    """Set the session settings that the operator's state needs; a UsageError if refused."""
    refused = UsageError(
        "dedup.prefilter: operator needs session settings that this compute refuses. "
        "Set it to none."
    )
    if not runs_in_process():
        raise refused
    try:
        for key, value in STATE_SETTINGS.items():
            spark.conf.set(key, value)
    except REFUSED as error:
        raise refused from error


@dataclass(frozen=True)
class PrefilteredBatch:
    """Rows for exact deduplication: the operator's survivors, and rows that may not be copies.

    ``copies`` counts the sure copies, in the shape of a count by fate; ``held_back`` all rows that
    the operator dropped, None without a prefilter. ``judged`` rows are classified already.
    """

    rows: DataFrame
    copies: list[dict[str, Any]]
    held_back: int | None
    judged: bool = False


def recover(
    survivors: DataFrame,
    accepted: AcceptedRows,
    between: tuple[Position, Position],
    frames: CheckpointedFrames,
    since_batch: int,
) -> PrefilteredBatch:
    """Return the batch with the dropped rows that may not be copies, and count the copies.

    ``survivors`` is the stream's batch, checkpointed because it must not be computed twice;
    ``between`` are the batch's start and end in bronze. Only rows accepted from ``since_batch`` on
    have copies without a doubt.
    """
    pipeline = accepted.pipeline
    bronze = accepted.lake.bronze(pipeline.name)
    taken = read_between(survivors.sparkSession, bronze, *between)
    if taken is None:
        return PrefilteredBatch(survivors, [], 0)
    missing = frames.checkpoint(held_back(taken, survivors.where(F.col("requeued_at").isNull())))
    count, earliest = missing.agg(F.count("*"), F.min(F.unix_micros("ingested_at"))).collect()[0]
    first = from_micros(earliest)
    if first is None:
        return PrefilteredBatch(survivors, [], 0)
    by_these = F.col("_batch") >= since_batch
    silver, late = (table.where(by_these).select(*_COPY_COLUMNS) for table in accepted.read())
    since = F.lit(first - pipeline.dedup.ttl)
    known = silver.unionByName(late).where(F.col("ingested_at") >= since)
    copies = frames.checkpoint(copies_of(missing, known, pipeline))
    groups = copies.groupBy(partition_of(pipeline.source).alias("partition")).agg(
        F.count("*").alias("rows"),
        fingerprint().alias("fingerprint"),
        F.max(F.unix_micros("ingested_at")).alias("last"),
    )
    fate = {FATE: DUPLICATE, STAGE: None, ORIGIN: FRESH, "newest": None}
    counted = [{**row.asDict(), **fate} for row in groups.collect()]
    back = missing.join(copies.select("record_id"), on="record_id", how="left_anti")
    ordinary = with_requeue_columns(back.select(*taken.columns))
    return PrefilteredBatch(survivors.unionByName(ordinary), counted, int(count))
