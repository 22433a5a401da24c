"""Backfill and verification against a plain batch Spark job for the same tables.

One warm session, alternating rounds, medians. The live path runs once, in batches of 1,000 rows.

Usage: python benchmarks/replay.py [EVENTS] [REPEATS]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.cli.render import print_table
from tidelake.config import Limits, Pipeline, load_environment, load_pipeline
from tidelake.config.locations import find_file
from tidelake.delta.tables import HOPS, Hop, Lake
from tidelake.examples import generate
from tidelake.ledger.query import ask
from tidelake.replay.backfill import build
from tidelake.replay.backfill_state import folder_of, green_lake
from tidelake.replay.verify import verify
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.session import build_session

_DDL = (
    "event_id STRING, user_id STRING, event_time TIMESTAMP, action STRING, "
    "product_id STRING, value DECIMAL(18,2)"
)
_GOLD = ("user_activity_1m", "action_activity_5m", "user_sessions", "product_totals")
_LIVE_ROWS, _LIVE_BATCHES = 1_000, 20


def main(events: int = 1_000_000, repeats: int = 3) -> None:
    """Time each side, and print medians and ratios."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = build_session(load_environment("local", root=name))
        try:
            live = _live_rate(spark, folder / "live")
            filled = _run(spark, folder / "filled", events, Limits(silver_bytes="1g"))
            _run_to_end(filled, HOPS)
            times = _in_turns(
                {
                    "backfill from bronze": lambda: _backfill(filled),
                    "batch job, tables written": lambda: _batch(filled, folder / "batch"),
                    "verify": lambda: _verified(filled),
                    "batch job, nothing written": lambda: _batch(filled, None),
                },
                repeats,
            )
            _print_counts(filled, folder / "batch")
        finally:
            spark.stop()
    rows = [[side, found, events / found] for side, found in times.items()]
    print_table(
        ["side", "median s", "events a second"],
        [["live path, 1,000 rows a batch", None, live], *rows],
        title=f"{events:,} events, {repeats} repeats",
    )
    backfill, batch, judged, computed = times.values()
    print(f"backfill / live path: {events / backfill / live:.1f} times as fast")
    print(f"backfill / batch job: {batch / backfill:.2f} of its speed")
    print(f"verify / batch recomputation: {judged / computed:.2f} times its time")


def _live_rate(spark: SparkSession, folder: Path) -> float:
    """Return the rows a second of the live path, from the file to gold."""
    run = _run(
        spark,
        folder,
        _LIVE_ROWS * _LIVE_BATCHES,
        Limits(silver_bytes="1k", gold_bytes="1k"),
        files=_LIVE_BATCHES,
    )
    began = time.monotonic()
    _run_to_end(run, HOPS)
    return _LIVE_ROWS * _LIVE_BATCHES / (time.monotonic() - began)


def _run(spark: SparkSession, folder: Path, events: int, limits: Limits, *, files: int = 0) -> Run:
    """Create a root with a landed stream, in ``files`` files of one batch each."""
    landing = folder / "landing"
    generate("clickstream", folder / "made", events=events, seed=1)
    lines = [line for file in sorted((folder / "made").iterdir()) for line in file.open("rb")]
    size = -(-len(lines) // (files or 8))
    landing.mkdir()
    for number, start in enumerate(range(0, len(lines), size)):
        (landing / f"{number:04d}.jsonl").write_bytes(b"".join(lines[start : start + size]))
    environment = load_environment("local", root=str(folder / "lake"))
    environment = environment.model_copy(update={"limits": limits})
    pipeline = _definition(folder, landing, per_batch=1 if files else 8)
    return Run(spark, pipeline, Lake(folder / "lake"), environment, Progress(lambda _: None))


def _definition(folder: Path, landing: Path, *, per_batch: int) -> Pipeline:
    """Write the demo's pipeline reduced to what the batch job also computes."""
    content = yaml.safe_load(find_file("clickstream", "pipeline").read_text())
    kept = {key: content[key] for key in ("name", "event", "watermark", "dedup")}
    kept["source"] = {**content["source"], "max_files_per_trigger": per_batch}
    kept["gold"] = [table for table in content["gold"] if table["name"] in _GOLD]
    file = folder / "clickstream.yml"
    file.write_text(yaml.safe_dump(kept))
    environment = load_environment("local", root=str(folder / "lake"))
    return load_pipeline(str(file), environment, source=str(landing))


def _run_to_end(run: Run, hops: tuple[Hop, ...]) -> None:
    run_hops(run, hops, parse_trigger(AVAILABLE_NOW))


def _in_turns(sides: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Time the sides in alternating rounds; the first round warms up."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(repeats + 1):
        for side, work in sides.items():
            began = time.monotonic()
            work()
            if turn:
                times[side].append(time.monotonic() - began)
    return {side: median(found) for side, found in times.items()}


def _backfill(filled: Run) -> None:
    shutil.rmtree(str(folder_of(filled.lake, filled.pipeline)), ignore_errors=True)
    build(replace(filled), "bronze")


def _verified(filled: Run) -> None:
    if not verify(filled).equal:
        raise SystemExit("verify found tables that differ")


def _batch(filled: Run, root: Path | None) -> None:
    """Run the hand-written job: parse, deduplicate by first arrival, aggregate."""
    spark = filled.spark
    stored = spark.read.format("delta").load(str(filled.lake.bronze("clickstream").path))
    parsed = stored.select(
        "record_id", F.from_json(F.col("payload").cast("string"), _DDL).alias("e")
    )
    events = parsed.select("record_id", "e.*").where(
        "event_id IS NOT NULL AND event_time IS NOT NULL AND action IS NOT NULL"
    )
    events = events.where("event_time < '2090-01-01'").withColumn("action", F.lower("action"))
    first = events.groupBy("event_id").agg(F.min_by(F.struct("*"), "record_id").alias("one"))
    silver = _kept(first.select("one.*"), root, "silver")
    tumbling = silver.where("action <> 'bot'").groupBy(
        F.window("event_time", "1 minute"), "user_id"
    )
    hopping = silver.groupBy(F.window("event_time", "5 minutes", "1 minute"), "action")
    session = silver.groupBy(F.session_window("event_time", "30 minutes"), "user_id")
    count = F.count("*").alias("events")
    first_action, last_action = F.min_by("action", "event_time"), F.max_by("action", "event_time")
    for name, table in {
        "user_activity_1m": tumbling.agg(
            count, F.count_if(F.col("action") == "click"), F.sum("value")
        ),
        "action_activity_5m": hopping.agg(count, F.max("value"), F.avg("value")),
        "user_sessions": session.agg(count, F.sum("value"), first_action, last_action),
        "product_totals": silver.groupBy("product_id").agg(count, F.sum("value"), F.min("value")),
    }.items():
        named = [F.col(old).alias(f"_{n}") for n, old in enumerate(table.columns)]
        _kept(table.select(*named), root, name)
    spark.catalog.clearCache()


def _kept(rows: DataFrame, root: Path | None, name: str) -> DataFrame:
    """Write rows as a table and read it back; without a root, only compute them."""
    if root is None:
        kept = rows.persist()
        kept.write.format("noop").mode("overwrite").save()
        return kept
    path = str(root / name)
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
    return rows.sparkSession.read.format("delta").load(path)


def _print_counts(filled: Run, batch: Path) -> None:
    """Print the event counts of both sides, which differ by the rows that Tidelake quarantines."""
    green = green_lake(filled.lake, filled.pipeline, "bronze")
    tidelake = ask(green.live, "SELECT sum(events) FROM gold.product_totals").rows[0][0]
    path = str(batch / "product_totals")
    batch_job = filled.spark.read.format("delta").load(path).agg(F.sum("_1")).collect()[0][0]
    print(f"events counted: Tidelake {tidelake:,}, the lenient batch job {batch_job:,}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
