"""Silver tables with a large history, a million ids a day, written without the pipelines.

Tidelake's table is filled by one run on a few events, then by one commit that streaming readers
skip like a compaction, so that gold does not process the history. Later runs use both tables
through hard links.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.measuring import say
from benchmarks.peers.definition import NAME, run_in
from benchmarks.peers.events import START, Stream
from tidelake.delta.commit_metadata import SilverNote
from tidelake.delta.log import commits
from tidelake.delta.tables import HOPS, Lake
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.engine import with_settings

IDS_A_DAY = 1_000_000
# Spark's INT96 timestamps have no statistics, and few readers support them.
_READABLE = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
_DONE = "_DONE"
# Selects rows of the history by event time: all events of the streams are later.
CONDITION = f"epoch_us(event_time) < epoch_us(TIMESTAMP '{START:%Y-%m-%d}')"
SEED = Stream(1_000, files=1, seed=99)


def prepare(spark: SparkSession, folder: Path, ids: int) -> list[Path]:
    """Create both histories, unless they exist.

    Args:
        spark: A session of Tidelake.
        folder: Parent of the folders ``tidelake`` and ``polars``.
        ids: Number of ids.

    Returns:
        The files of the few events that Tidelake's tables also hold.
    """
    seed = SEED.land(folder.parent / "events", 0)
    done = folder / _DONE
    if done.exists():
        return seed
    shutil.rmtree(folder, ignore_errors=True)
    root, silver = folder / "tidelake", folder / "polars" / "silver"
    landing = root / "landing"
    landing.mkdir(parents=True)
    for file in seed:
        os.link(file, landing / file.name)
    run = run_in(spark, root)
    run_hops(run, HOPS, parse_trigger(AVAILABLE_NOW))
    table = run.lake.silver(NAME)
    stored = spark.read.format("delta").load(str(table.path)).schema
    rows = _rows(spark, ids)
    say(f"writing {ids:,} ids of history")
    columns = [
        (F.col(field.name) if field.name in rows.columns else F.lit(None))
        .cast(field.dataType)
        .alias(field.name)
        for field in stored.fields
    ]
    # dataChange=false, so that gold's stream skips the commit.
    rows.select(*columns).write.format("delta").mode("append").option("dataChange", "false").save(
        str(table.path)
    )
    polars_rows = rows.select("event_id", "user_id", "event_time", "action", "product_id", "value")
    with with_settings(spark, _READABLE):
        polars_rows.write.format("delta").save(str(silver))
    done.touch()
    return seed


def reaching(folder: Path, days: int) -> str:
    """Return the TTL that covers ``days`` days of a history, whatever its age."""
    age = time.time() - (folder / _DONE).stat().st_mtime
    return f"{days * 24 * 60 + math.ceil(age / 60)} minutes"


def searched(root: Path) -> list[int]:
    """Return how many accepted ids Tidelake searched for each batch, newest first."""
    notes = [SilverNote.of(one) for one in commits(Lake(root).silver(NAME)) if one.batch >= 0]
    return [note.searched for note in notes]


def link_tables(folder: Path, to: Path) -> None:
    """Copy tables as hard links: Delta never changes a data file."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to, copy_function=os.link)


def _rows(spark: SparkSession, ids: int) -> DataFrame:
    """Generate the rows, one partition a day, with arrival at event time."""
    days = -(-ids // IDS_A_DAY)
    began = (START - timedelta(days=days)).isoformat() + "Z"
    second = F.unix_seconds(F.lit(began).cast("timestamp")) + F.col("id") * 86_400 / IDS_A_DAY
    # The newest arrived just before the first batch.
    arrived = F.current_timestamp() - F.make_dt_interval(
        secs=((ids - F.col("id")) * 86_400 / IDS_A_DAY).cast("decimal(18,6)")
    )
    return spark.range(0, ids, numPartitions=days).select(
        F.md5(F.col("id").cast("string")).alias("event_id"),
        F.concat(F.lit("u"), F.col("id") % 25_000).alias("user_id"),
        F.timestamp_micros((second * 1_000_000).cast("bigint")).alias("event_time"),
        F.timestamp_micros((second * 1_000_000).cast("bigint")).cast("date").alias("event_date"),
        F.lit("view").alias("action"),
        F.concat(F.lit("p"), F.col("id") % 400).alias("product_id"),
        F.lit(None).cast("decimal(18,2)").alias("value"),
        arrived.alias("ingested_at"),
        F.concat(F.lit("history:"), F.col("id")).alias("record_id"),
        F.lit(False).alias("is_late"),
        F.xxhash64("id").alias("_payload_hash"),
        F.xxhash64(F.md5(F.col("id").cast("string"))).alias("_id_hash"),
        F.lit("history").alias("_generation"),
        F.lit(-1).alias("_batch"),
    )
