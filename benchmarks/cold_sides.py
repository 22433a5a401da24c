"""Peers of a cold run: a process that only starts Spark, and a hand-written program.

Usage: python -m benchmarks.cold_sides start|by_hand LANDING ROOT
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidelake.config import load_environment
from tidelake.spark.session import build_session

_SCHEMA = T.StructType(
    [
        T.StructField("event_id", T.StringType()),
        T.StructField("user_id", T.StringType()),
        T.StructField("event_time", T.TimestampType()),
        T.StructField("action", T.StringType()),
        T.StructField("product_id", T.StringType()),
        T.StructField("value", T.DecimalType(18, 2)),
    ]
)


def start(spark: SparkSession, landing: Path, root: Path) -> None:
    """Write and read one small Delta table: the minimum for a started session."""
    del landing
    path = str(root / "table")
    spark.range(10).write.format("delta").save(path)
    spark.read.format("delta").load(path).count()


def by_hand(spark: SparkSession, landing: Path, root: Path) -> None:
    """Fill the same tables with three streams, each until its source is exhausted."""
    bronze, silver = str(root / "bronze"), str(root / "silver")
    lines = spark.readStream.text(str(landing))
    _run(root, "bronze", lines.withColumn("ingested_at", F.current_timestamp()), _append_to(bronze))
    _create_empty(
        spark,
        silver,
        "event_id STRING, user_id STRING, event_time TIMESTAMP, action STRING, "
        "product_id STRING, value DECIMAL(18,2)",
    )
    stored = spark.readStream.format("delta").load(bronze)
    events = stored.select(F.from_json("value", _SCHEMA).alias("e")).select("e.*")
    kept = events.where("event_id IS NOT NULL AND event_time IS NOT NULL AND action IS NOT NULL")
    _run(root, "silver", kept.withColumn("action", F.lower("action")), _deduplicate_into(silver))
    clean = spark.readStream.format("delta").load(silver)
    minutes, products = (
        str(root / "gold" / "user_activity_1m"),
        str(root / "gold" / "product_totals"),
    )
    _create_empty(
        spark,
        minutes,
        "window_start TIMESTAMP, user_id STRING, events BIGINT, clicks BIGINT, "
        "total_value DECIMAL(38,2)",
    )
    _create_empty(
        spark,
        products,
        "product_id STRING, events BIGINT, revenue DECIMAL(38,2), cheapest DECIMAL(18,2)",
    )
    _run(root, "gold", clean, _aggregate_into(minutes, products))


def _run(root: Path, hop: str, rows: DataFrame, write: Callable[[DataFrame, int], None]) -> None:
    writer = rows.writeStream.option("checkpointLocation", str(root / "checkpoints" / hop))
    query = writer.trigger(availableNow=True).foreachBatch(write).start()
    query.awaitTermination()


def _create_empty(spark: SparkSession, path: str, columns: str) -> None:
    spark.createDataFrame([], columns).write.format("delta").save(path)


def _append_to(path: str) -> Callable[[DataFrame, int], None]:
    def write(rows: DataFrame, batch: int) -> None:
        rows.write.format("delta").mode("append").save(path)

    return write


def _deduplicate_into(path: str) -> Callable[[DataFrame, int], None]:
    def write(rows: DataFrame, batch: int) -> None:
        target = DeltaTable.forPath(rows.sparkSession, path).alias("t")
        first = rows.dropDuplicates(["event_id"]).alias("s")
        merge = target.merge(first, "t.event_id = s.event_id").whenNotMatchedInsertAll()
        merge.execute()

    return write


def _aggregate_into(minutes: str, products: str) -> Callable[[DataFrame, int], None]:
    def write(rows: DataFrame, batch: int) -> None:
        spark = rows.sparkSession
        rows.persist()
        people = rows.where("action <> 'bot'")
        window = F.window("event_time", "1 minute")["start"].alias("window_start")
        by_minute = people.groupBy(window, "user_id").agg(
            F.count("*").alias("events"),
            F.count_if(F.col("action") == "click").alias("clicks"),
            F.sum("value").cast("decimal(38,2)").alias("total_value"),
        )
        _merge(
            *(spark, minutes, by_minute),
            "t.window_start = s.window_start AND t.user_id <=> s.user_id",
            {
                "events": "t.events + s.events",
                "clicks": "t.clicks + s.clicks",
                "total_value": "coalesce(t.total_value + s.total_value, t.total_value, "
                "s.total_value)",
            },
        )
        paid = F.when(F.col("action") == "purchase", F.col("value"))
        by_product = rows.groupBy("product_id").agg(
            F.count("*").alias("events"),
            F.sum(paid).cast("decimal(38,2)").alias("revenue"),
            F.min("value").alias("cheapest"),
        )
        _merge(
            *(spark, products, by_product),
            "t.product_id <=> s.product_id",
            {
                "events": "t.events + s.events",
                "revenue": "coalesce(t.revenue + s.revenue, t.revenue, s.revenue)",
                "cheapest": "least(t.cheapest, s.cheapest)",
            },
        )
        rows.unpersist()

    return write


def _merge(
    spark: SparkSession, path: str, rows: DataFrame, on: str, changed: dict[str, str]
) -> None:
    target = DeltaTable.forPath(spark, path).alias("t")
    merge = target.merge(rows.alias("s"), on).whenMatchedUpdate(set=changed)  # type: ignore[arg-type]  # dicts are invariant
    merge.whenNotMatchedInsertAll().execute()


def main() -> None:
    """Start the session of a run, and do the work of one side."""
    side, landing, root = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    spark = build_session(load_environment("local", root=str(root)), use="brief")
    try:
        {"start": start, "by_hand": by_hand}[side](spark, landing, root)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
