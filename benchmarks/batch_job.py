"""The batch job of P5 and P13: hand-written Spark code that fills the same tables once.

It reads the landing folder, stores the lines in bronze, parses and deduplicates them into silver,
and aggregates gold from silver. It has no rules, no lateness, no ledger and no second run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.spark.engine import with_settings

# Gold tables, with the columns by which their rows are compared.
TABLES: dict[str, tuple[str, ...]] = {
    "user_activity_1m": (
        "window_start",
        "window_end",
        "user_id",
        "events",
        "clicks",
        "total_value",
    ),
    "action_activity_5m": (
        "window_start",
        "window_end",
        "action",
        "events",
        "largest",
        "mean_value",
    ),
    "user_sessions": (
        "user_id",
        "session_start",
        "session_end",
        "events",
        "total_value",
        "first_action",
        "last_action",
    ),
    "product_totals": ("product_id", "events", "revenue", "cheapest"),
    "click_to_purchase": ("clicked_at", "user_id", "product_id", "bought_at", "value"),
}
_SCHEMA = (
    "event_id STRING, user_id STRING, event_time TIMESTAMP, action STRING, product_id STRING, "
    "value DECIMAL(18,2)"
)
# Spark's default. Tidelake's session turns it off, which would slow down the batch job.
_SETTINGS = {"spark.sql.adaptive.enabled": "true"}


def run_batch_job(
    spark: SparkSession, landing: Path, root: Path, golds: Collection[str] = TABLES
) -> dict[str, float]:
    """Fill bronze, silver and some gold tables; return the seconds of each."""
    spent: dict[str, float] = {}
    with with_settings(spark, _SETTINGS):
        lines = spark.read.text(str(landing)).select(
            "value",
            F.col("_metadata.file_path").alias("source"),
            F.col("_metadata.file_modification_time").alias("source_timestamp"),
            F.current_timestamp().alias("ingested_at"),
        )
        bronze = _written(lines, root / "bronze" / "clickstream", spent)
        event = F.from_json("value", _SCHEMA).alias("e")
        events = bronze.select(event, "source", "ingested_at").select(
            "e.*", "source", "ingested_at"
        )
        known = "event_id IS NOT NULL AND event_time IS NOT NULL AND action IS NOT NULL"
        kept = events.where(known).withColumn("action", F.lower("action"))
        first = kept.dropDuplicates(["event_id"])
        silver = _written(first, root / "silver" / "clickstream", spent)
        for name in golds:
            rows = _GOLD[name](silver).toDF(*TABLES[name])
            _written(rows, root / "gold" / name, spent)
    return spent


def _written(rows: DataFrame, table: Path, spent: dict[str, float]) -> DataFrame:
    began = time.monotonic()
    rows.write.format("delta").save(str(table))
    spent[f"{table.parent.name}.{table.name}"] = time.monotonic() - began
    return rows.sparkSession.read.format("delta").load(str(table))


_EVENTS = "count(*)"
_IN_ORDER = "struct(event_time, event_id)"


def _minutes(silver: DataFrame) -> DataFrame:
    window = F.window("event_time", "1 minute")
    grouped = silver.where("action <> 'bot'").groupBy(window, "user_id")
    clicks = F.count_if(F.col("action") == "click")
    found = grouped.agg(F.expr(_EVENTS).alias("n"), clicks.alias("c"), F.sum("value").alias("v"))
    return found.select("window.start", "window.end", "user_id", "n", "c", "v")


def _actions(silver: DataFrame) -> DataFrame:
    grouped = silver.groupBy(F.window("event_time", "5 minutes", "1 minute"), "action")
    found = grouped.agg(
        F.expr(_EVENTS).alias("n"), F.max("value").alias("x"), F.avg("value").alias("a")
    )
    return found.select("window.start", "window.end", "action", "n", "x", "a")


def _sessions(silver: DataFrame) -> DataFrame:
    grouped = silver.groupBy(F.session_window("event_time", "30 minutes").alias("s"), "user_id")
    found = grouped.agg(
        F.expr(_EVENTS).alias("n"),
        F.sum("value").alias("v"),
        F.expr(f"min_by(action, {_IN_ORDER})").alias("f"),
        F.expr(f"max_by(action, {_IN_ORDER})").alias("l"),
    )
    end = F.col("s.end") - F.expr("INTERVAL 30 MINUTES")
    return found.select("user_id", "s.start", end.alias("e"), "n", "v", "f", "l")


def _products(silver: DataFrame) -> DataFrame:
    revenue = F.sum(F.expr("CASE WHEN action = 'purchase' THEN value END"))
    return silver.groupBy("product_id").agg(F.expr(_EVENTS), revenue, F.min("value"))


def _purchases(silver: DataFrame) -> DataFrame:
    """Join each click with its first purchase within 30 minutes."""
    keys = ["user_id", "product_id"]
    clicks = silver.where("action = 'click'").select("event_id", "event_time", *keys)
    bought = silver.where("action = 'purchase'").select(
        *keys,
        F.struct(F.col("event_time").alias("at"), F.col("event_id").alias("id"), "value").alias(
            "p"
        ),
    )
    soon = F.expr("p.at BETWEEN event_time AND event_time + INTERVAL 30 MINUTES")
    pairs = clicks.join(bought, on=keys, how="inner").where(soon)
    first = pairs.groupBy("event_id").agg(F.min("p").alias("p"))
    rows = clicks.join(first, on="event_id", how="left")
    return rows.select("event_time", *keys, "p.at", "p.value")


_GOLD: dict[str, Callable[[DataFrame], DataFrame]] = {
    "user_activity_1m": _minutes,
    "action_activity_5m": _actions,
    "user_sessions": _sessions,
    "product_totals": _products,
    "click_to_purchase": _purchases,
}
