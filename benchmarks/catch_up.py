"""Available-now catch-up through all hops against one plain batch Spark job for the same tables.

Both sides run in one warm session, interleaved. Their gold is printed side by side, not asserted
equal: the batch job parses leniently and so keeps some hundred rows that Tidelake quarantines.
Prints a table, or JSON with ``--json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidelake.config import Limits, load_environment, load_pipeline
from tidelake.generators import generate
from tidelake.ops.query import ask
from tidelake.runtime.hop import Run
from tidelake.runtime.pipeline import run_hops
from tidelake.runtime.progress import Progress
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.session import build_session
from tidelake.tables import HOPS, Lake

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
_COMPARED = "SELECT count(*), sum(events) FROM gold.user_activity_1m"


def pipeline_run(spark: SparkSession, landing: Path, root: Path, silver_bytes: str) -> float:
    """Time `tidelake run` in a warm session."""
    environment = load_environment("local", root=str(root)).model_copy(
        update={"limits": Limits(silver_bytes=silver_bytes, gold_bytes="1g")}
    )
    pipeline = load_pipeline("clickstream", environment, source=str(landing))
    quiet = Progress(lambda line: None)
    began = time.monotonic()
    run = Run(spark, pipeline, Lake(root), environment, quiet)
    run_hops(run, HOPS, parse_trigger(AVAILABLE_NOW))
    return time.monotonic() - began


def batch_job(spark: SparkSession, landing: Path, root: Path) -> float:
    """Time what one would write by hand: read, parse, deduplicate, aggregate, four tables."""
    began = time.monotonic()
    lines = spark.read.text(str(landing))
    bronze = str(root / "bronze" / "clickstream")
    lines.write.format("delta").save(bronze)
    stored = spark.read.format("delta").load(bronze)
    events = stored.select(F.from_json("value", _SCHEMA).alias("e")).select("e.*")
    kept = events.where("event_id IS NOT NULL AND event_time IS NOT NULL AND action IS NOT NULL")
    kept = kept.where("event_time < '2090-01-01'").withColumn("action", F.lower("action"))
    silver = str(root / "silver" / "clickstream")
    kept.dropDuplicates(["event_id"]).write.format("delta").save(silver)
    clean = spark.read.format("delta").load(silver)
    minute = clean.where("action <> 'bot'").groupBy(F.window("event_time", "1 minute"), "user_id")
    hopping = clean.groupBy(F.window("event_time", "5 minutes", "1 minute"), "action")
    session = clean.groupBy(F.session_window("event_time", "30 minutes"), "user_id")
    everything = clean.groupBy("product_id")
    events_ = F.count("*").alias("events")
    tables = {
        "user_activity_1m": minute.agg(events_, F.sum("value")),
        "action_activity_5m": hopping.agg(events_, F.max("value"), F.avg("value")),
        "user_sessions": session.agg(
            events_,
            F.sum("value"),
            F.min_by("action", "event_time"),
            F.max_by("action", "event_time"),
        ),
        "product_totals": everything.agg(events_, F.sum("value"), F.min("value")),
    }
    for name, table in tables.items():
        named = table.toDF(*[f"c{i}" if c != "events" else c for i, c in enumerate(table.columns)])
        named.write.format("delta").save(str(root / "gold" / name))
    return time.monotonic() - began


def main() -> None:
    """Run both sides and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--silver-bytes", default="1g")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        generate("clickstream", base / "landing", events=options.events, seed=1)
        spark = build_session(load_environment("local", root=str(base / "spark")))
        try:
            pairs = []
            # The first pair warms the JVM and does not count.
            for repeat in range(options.repeats + 1):
                ours, theirs = base / f"ours{repeat}", base / f"theirs{repeat}"
                pair = (
                    pipeline_run(spark, base / "landing", ours, options.silver_bytes),
                    batch_job(spark, base / "landing", theirs),
                )
                print(f"tidelake {pair[0]:.1f} s, batch {pair[1]:.1f} s", file=sys.stderr)
                pairs.append(pair)
                told = [ask(Lake(side), _COMPARED).rows[0] for side in (ours, theirs)]
                print(f"user_activity_1m: {told[0]} against {told[1]}", file=sys.stderr)
        finally:
            spark.stop()
    counted = pairs[1:]
    result = {
        "events": options.events,
        "tidelake_s": statistics.median(pair[0] for pair in counted),
        "batch_s": statistics.median(pair[1] for pair in counted),
        "ratio": statistics.median(pair[1] / pair[0] for pair in counted),
    }
    print(json.dumps(result) if options.json else "\n".join(f"{k}: {v}" for k, v in result.items()))


if __name__ == "__main__":
    main()
