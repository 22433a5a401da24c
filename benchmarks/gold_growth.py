"""What a gold batch costs as its table grows: files read and rewritten, rows copied, seconds.

Batches of events in the order of their time, one in a hundred of them up to a day late.

Usage: python benchmarks/gold_growth.py [BATCHES] [EVENTS_A_BATCH]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.config import GoldTable, load_environment
from tidelake.runtime.held import Held
from tidelake.runtime.small_batches import fitted
from tidelake.runtime.targets import OWN, Inputs, Target, stamped
from tidelake.runtime.targets.aggregated import Aggregated
from tidelake.session import build_session
from tidelake.sinks.append import ensure_table
from tidelake.sinks.compaction import compact, has_vectors, is_due, relieve
from tidelake.tables import Lake

_MEASURES = {"events": {"count": "*"}, "total": {"sum": "value"}, "last": {"last": "value"}}
_WINDOWS: dict[str, dict[str, Any]] = {
    "tumbling": {"kind": "tumbling", "size": "1 minute"},
    "session": {"kind": "session", "gap": "30 minutes"},
    "global": {"kind": "global"},
}


def main(batches: int = 300, events: int = 5_000) -> None:
    """Merge batch after batch, and print medians of each sixth of them."""
    with tempfile.TemporaryDirectory() as folder:
        spark = build_session(load_environment("local", root=folder))
        try:
            lake = Lake(Path(folder))
            for name, window in _WINDOWS.items():
                raw = {"name": name, "window": window, "keys": ["user_id"], "measures": _MEASURES}
                gold = GoldTable.model_validate(yaml.safe_load(yaml.safe_dump(raw)))
                _grow(spark, Aggregated(lake.gold(name), "gold[0]", gold), batches, events)
        finally:
            spark.stop()


def _grow(spark: SparkSession, target: Target, batches: int, events: int) -> None:
    none = _events(spark, 0, 0)
    schema = stamped(
        target.of_all(Inputs({OWN: none}, lambda _: none)), generation="", batch=0
    ).schema
    stamp = {"pipeline": "growth", "hop": "gold", "generation": "g1"}
    ensure_table(spark, target.table, schema, {**stamp, "batch": -1})
    seconds = []
    for batch in range(batches):
        rows = _events(spark, batch, events)
        note = {**stamp, "batch": batch, "eligible": events}
        began = time.monotonic()
        with fitted(spark, events), Held() as hold:
            target.merge(Inputs({OWN: hold(rows)}, lambda _: none), note, hold)
        relieve(spark, target.table)
        if is_due(batch) and has_vectors(spark, target.table):
            compact(spark, target.table)
        seconds.append(time.monotonic() - began)
    history = DeltaTable.forPath(spark, str(target.table.path)).history().collect()
    merges = [row["operationMetrics"] for row in history if row["operation"] == "MERGE"][::-1]
    detail = DeltaTable.forPath(spark, str(target.table.path)).detail().collect()[0]
    rows_now = spark.read.format("delta").load(str(target.table.path)).count()
    print(f"{target.table.name}: {rows_now:,} rows in {detail['numFiles']} files at the end")
    print("  batches        seconds   rewritten files   copied rows   rewritten bytes")
    part = max(1, batches // 6)
    for first in range(0, batches, part):
        some = merges[first : first + part]
        removed = median(int(one["numTargetFilesRemoved"]) for one in some)
        copied = median(int(one["numTargetRowsCopied"]) for one in some)
        written = median(int(one["numTargetBytesRemoved"]) for one in some)
        spent = median(seconds[first : first + part])
        print(
            f"  {first:>4} to {first + part - 1:>4} {spent:>9.2f} {removed:>17} "
            f"{copied:>13,.0f} {written:>17,.0f}"
        )


def _events(spark: SparkSession, batch: int, count: int) -> DataFrame:
    """Give ten minutes of events of 2,000 users."""
    rows = spark.range(batch * count, (batch + 1) * count, numPartitions=1)
    late = F.when(F.rand(batch) < 0.01, F.rand(batch + 1) * 86_400).otherwise(0)
    second = F.lit(1_767_571_200 + batch * 600) + F.rand(batch + 2) * 600 - late
    return rows.select(
        F.col("id").cast("string").alias("event_id"),
        F.concat(F.lit("u"), (F.rand(batch + 3) * 2_000).cast("int")).alias("user_id"),
        F.timestamp_micros((second * 1_000_000).cast("bigint")).alias("event_time"),
        F.lit(1).cast("decimal(18,2)").alias("value"),
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
