"""The pipeline in Structured Streaming's template pattern: Spark state in both queries.

Raw lines to silver through `dropDuplicatesWithinWatermark`, silver to gold through windows in
update mode and a MERGE on the key. The session has the same jars, memory
and Java options as Tidelake's.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.peers.rounds import Pipeline, drive, landed
from tidelake.config import load_environment
from tidelake.spark.session import build_session

FILES_A_BATCH, BYTES_A_BATCH = 5, "20m"
_SCHEMA = (
    "event_id STRING, user_id STRING, event_time TIMESTAMP, action STRING, "
    "product_id STRING, value DECIMAL(18,2)"
)
_STATE = "spark.sql.streaming.stateStore"
_SETTINGS = {
    f"{_STATE}.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE}.rocksdb.trackTotalNumberOfRows": "false",
    # Otherwise a run ends with an empty batch that only evicts state.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


def start() -> Pipeline:
    """Start Spark."""
    root = tempfile.mkdtemp(prefix="template-")
    spark = build_session(load_environment("local", root=root), use="bulk")
    for key, value in _SETTINGS.items():
        spark.conf.set(key, value)

    def pipeline(files: list[Path], out: Path) -> Mapping[str, Any]:
        return _run(spark, landed(files, out), out)

    return pipeline


def _run(spark: SparkSession, landing: Path, out: Path) -> Mapping[str, Any]:
    began = time.monotonic()
    lines = spark.readStream.option("maxFilesPerTrigger", FILES_A_BATCH).text(str(landing))
    events = (
        lines.select(F.from_json("value", _SCHEMA).alias("event"))
        .select("event.*")
        .withColumn("action", F.lower("action"))
        .withWatermark("event_time", "10 minutes")
        .dropDuplicatesWithinWatermark(["event_id"])
    )
    silver = (
        events.writeStream.format("delta")
        .option("checkpointLocation", str(out / "checkpoints" / "silver"))
        .trigger(availableNow=True)
        .start(str(out / "silver"))
    )
    silver.awaitTermination()
    halfway = time.monotonic()
    accepted = (
        spark.readStream.format("delta")
        # Read commits in order: an initial snapshot has no order.
        .option("startingVersion", 0)
        .option("maxBytesPerTrigger", BYTES_A_BATCH)
        .load(str(out / "silver"))
    )
    minutes = (
        accepted.withWatermark("event_time", "10 minutes")
        .groupBy(F.window("event_time", "1 minute"), "user_id")
        .agg(F.count("*").alias("events"), F.sum("value").alias("total"))
        .select(F.col("window.start").alias("window_start"), "user_id", "events", "total")
    )
    table = str(out / "gold")
    spark.createDataFrame([], minutes.schema).write.format("delta").save(table)
    gold = (
        minutes.writeStream.outputMode("update")
        .foreachBatch(lambda rows, _: _merge(rows, table))
        .option("checkpointLocation", str(out / "checkpoints" / "gold"))
        .trigger(availableNow=True)
        .start()
    )
    gold.awaitTermination()
    ended = time.monotonic()
    return {
        "spent": {"silver": halfway - began, "gold": ended - halfway},
        "batches": {
            name: [_summary(one) for one in query.recentProgress]
            for name, query in (("silver", silver), ("gold", gold))
        },
    }


def _merge(rows: DataFrame, table: str) -> None:
    target = DeltaTable.forPath(rows.sparkSession, table).alias("t")
    on = "t.window_start = s.window_start AND t.user_id = s.user_id"
    merge = target.merge(rows.alias("s"), on)
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def _summary(progress: Any) -> dict[str, Any]:
    operators = progress.stateOperators
    return {
        "rows": progress.numInputRows,
        "durationMs": dict(progress.durationMs),
        "dropped": sum(one.numRowsDroppedByWatermark for one in operators),
        "state_commit_ms": sum(one.commitTimeMs for one in operators),
        "state_update_ms": sum(one.allUpdatesTimeMs for one in operators),
    }


if __name__ == "__main__":
    drive(__doc__, start)
