"""Judge each row by itself: what does not parse, is filtered, breaks the contract or lies ahead.

The order of the tests is the contract's: the first that applies is the row's only fate.
"""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.config import Pipeline
from tidelake.config.names import BRONZE_COLUMNS
from tidelake.silver.parse import BROKEN, PARSED, VALUES, parse, texts_where

STAGE = "_stage"
REASONS = "_reasons"
PAYLOAD_HASH = "_payload_hash"
ROW = "_row"
REQUEUED = "_requeued"
SELECTED = "_selected"

FILTERED = "filtered"


def classify(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Give every row its event and, where it already has one, its fate.

    Args:
        rows: Bronze's columns plus ``reason`` and ``requeued_at``, null unless requeued.
        pipeline: The definition.

    Returns:
        ``record_id``, ``payload``, ``source``, ``ingested_at``, ``event_id``, ``event_time``,
        ``event_date``, ``_selected`` (struct), ``_payload_hash``, ``_row`` (unique),
        ``_requeued``, ``_skip_lateness``, ``_stage`` (null: still in the running) and
        ``_reasons``.
    """
    event = pipeline.event
    scope = payload_scope(parse(rows, event.fields), pipeline)
    wanted = F.expr(event.where) if event.where else F.lit(True)
    selected = F.struct(*[F.expr(sql).alias(name) for name, sql in pipeline.selected.items()])
    judged = scope.select(
        *[F.col(f"_in_{name}").alias(name) for name in ("record_id", "payload", "source")],
        F.col("_in_ingested_at").alias("ingested_at"),
        F.col("_in_requeued_at").alias("requeued_at"),
        F.col("_in_reason").alias("reason"),
        PARSED,
        BROKEN,
        F.coalesce(wanted, F.lit(False)).alias("_wanted"),
        F.expr(event.id).cast("string").alias("event_id"),
        F.expr(event.time).cast("timestamp").alias("event_time"),
        selected.alias(SELECTED),
    )
    judged = judged.withColumn(REASONS, _reasons())
    return judged.select(
        "record_id",
        "payload",
        "source",
        "ingested_at",
        "event_id",
        "event_time",
        F.to_date("event_time").alias("event_date"),
        SELECTED,
        F.xxhash64("payload").alias(PAYLOAD_HASH),
        _row_key().alias(ROW),
        F.col("requeued_at").isNotNull().alias(REQUEUED),
        F.coalesce(F.col("reason") == "late", F.lit(False)).alias("_skip_lateness"),
        _stage(pipeline.watermark.max_future_skew).alias(STAGE),
        REASONS,
    )


def reasons_by_stage() -> Column:
    """Give the texts for a quarantined row: the contract's, or the one its stage implies."""
    return (
        F.when(F.col(STAGE) == "parse", F.array(F.lit("payload: not one JSON object")))
        .when(F.col(STAGE) == "future_event_time", F.array(F.lit("event_time: in the future")))
        .when(
            F.col(STAGE) == "conflicting_duplicate",
            F.array(F.lit("event_id: seen before with another payload")),
        )
        .otherwise(F.col(REASONS))
    )


def payload_scope(parsed: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Put payload fields and bronze columns side by side, for the definition's expressions.

    A payload field hides the bronze column of its name.

    Args:
        parsed: Rows from :func:`tidelake.silver.parse.parse`.
        pipeline: The definition.
    """
    fields = [field.name for field in pipeline.event.fields]
    hidden = {name.lower() for name in fields}
    return parsed.select(
        *[F.col(name).alias(f"_in_{name}") for name in (*BRONZE_COLUMNS, "reason", "requeued_at")],
        *[name for name in BRONZE_COLUMNS if name not in hidden],
        PARSED,
        BROKEN,
        *[F.col(VALUES).getField(name).alias(name) for name in fields],
    )


def _reasons() -> Column:
    """List every way in which a row breaks the contract."""
    missing = [
        (F.coalesce(F.col("event_id"), F.lit("")) == "", "event_id: missing"),
        (F.col("event_time").isNull(), "event_time: missing"),
    ]
    return F.concat(F.col(BROKEN), texts_where(missing))


def _stage(max_future_skew: timedelta) -> Column:
    ahead = F.col("event_time") > F.col("ingested_at") + F.lit(max_future_skew)
    return (
        F.when(~F.col(PARSED), "parse")
        .when(~F.col("_wanted"), FILTERED)
        .when(F.size(REASONS) > 0, "contract")
        .when(ahead, "future_event_time")
    )


def _row_key() -> Column:
    """Tell apart a record and its own return through the requeue."""
    again = F.concat_ws("#", "record_id", F.col("requeued_at").cast("string"))
    return F.when(F.col("requeued_at").isNotNull(), again).otherwise(F.col("record_id"))
