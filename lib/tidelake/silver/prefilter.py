"""Hold back copies with Spark's stateful deduplication, in front of the ordinary one.

The operator is quick to see a copy, and no more than that: among copies it keeps any one, and it
drops what arrives behind its own watermark, or bears another payload of the same 64-bit hash. So
nothing rests on it. What it held back is compared with the batch as bronze has it, and each row
either proves to be a copy of an accepted event, by its id and its payload's hash, or goes the
ordinary way.
"""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.config import Pipeline
from tidelake.silver.classify import PAYLOAD_HASH
from tidelake.silver.glance import glance

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
    """Keep the missing rows that are copies of an event accepted in an earlier batch.

    Whatever else the row could be, the accepted twin would have been it too. The id is read
    quickly and loosely: a row whose id that gets wrong, and any Avro record, goes the ordinary way.

    Args:
        missing: From :func:`held_back`.
        accepted: Rows of silver and late, with ``event_id``, ``_payload_hash`` and ``ingested_at``.
        pipeline: The definition; a twin counts when it arrived at most a TTL before.
    """
    if pipeline.reads_avro:
        return missing.limit(0)
    twins = accepted.groupBy(
        F.col("event_id").alias("twin_id"), F.col(PAYLOAD_HASH).alias("twin_hash")
    ).agg(F.max("ingested_at").alias("twin_ingested_at"))
    within = F.col("twin_ingested_at") >= F.col("ingested_at") - F.lit(pipeline.dedup.ttl)
    same = F.col(PAYLOAD_HASH) == F.col("twin_hash")
    candidates = missing.join(twins, on=same & within, how="inner")
    ids = glance(missing, pipeline, ()).select("record_id", "event_id")
    sure = candidates.join(ids, on="record_id").where(F.col("event_id") == F.col("twin_id"))
    return missing.join(sure.select("record_id"), on="record_id", how="left_semi")
