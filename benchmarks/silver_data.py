"""Bronze for the rows about silver, made in Spark: the clickstream at any size, its faults known.

Each event follows from its number alone, so what silver must hold follows from the numbers too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.bronze import BRONZE_DDL, REQUEUE_DDL
from tidelake.config import Environment, Limits, Pipeline, load_environment, load_pipeline
from tidelake.config.places import conf_dir, find_file
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.schemas import from_ddl
from tidelake.runtime.silver_hop import SilverHop
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.sinks.append import append, ensure_table
from tidelake.sinks.commits import Commit, commits
from tidelake.sinks.positions import BEGINNING, bytes_between
from tidelake.tables import Lake

NAME = "clickstream"
START = datetime(2026, 1, 5, 6, tzinfo=UTC)
# One million events an hour.
STEP_MICROS = 3_600
NOW = parse_trigger(AVAILABLE_NOW).options
# One row in five came before; the share of each fault is in thousandths of the events.
EVERY = 5
_REFUSED, _FILTERED, _LATE, _MALFORMED = range(5), range(5, 10), range(10, 12), range(12, 13)
_FAR_BACK = timedelta(days=3) // timedelta(microseconds=1)
# How far behind in its batch a copy comes at most, in fives.
_SOON = 20_000


class Cut(NamedTuple):
    """Some rows of the stream, in the order in which they arrive.

    Attributes:
        first: The number of the first one.
        end: The number behind the last one.
        copies: Whether one in five is a copy of a row before it; otherwise all are new.
    """

    first: int
    end: int
    copies: bool


def defined(root: Path, *, ttl: str = "1 hour") -> Pipeline:
    """Load the clickstream without its dimension: a lookup is no part of the rows about silver."""
    content = yaml.safe_load(find_file(NAME, "pipeline").read_text(encoding="utf-8"))
    content["dedup"]["ttl"] = ttl
    content["quality"]["suite"] = str(conf_dir() / "expectations" / f"{NAME}.yml")
    content["gold"] = [one for one in content["gold"] if one["keys"] != ["category"]]
    content.pop("enrich")
    root.mkdir(parents=True, exist_ok=True)
    file = root / f"{NAME}.yml"
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    landing = root / "landing"
    landing.mkdir(exist_ok=True)
    environment = load_environment("local", root=str(root))
    return load_pipeline(str(file), environment, source=str(landing))


def context(spark: SparkSession, root: Path, *, batch_bytes: int, ttl: str = "1 hour") -> Run:
    """Give what a hop works with."""
    environment: Environment = load_environment("local", root=str(root)).model_copy(
        update={"limits": Limits(silver_bytes=f"{batch_bytes}b")}
    )
    pipeline = defined(root, ttl=ttl)
    return Run(spark, pipeline, Lake(root), environment, Progress(lambda line: None))


def create_bronze(run: Run) -> None:
    """Create the tables that silver follows."""
    for table, ddl in (
        (run.lake.bronze(NAME), BRONZE_DDL),
        (run.lake.requeue(NAME), REQUEUE_DDL),
    ):
        ensure_table(run.spark, table, from_ddl(run.spark, ddl), _note(-1))


def land(run: Run, number: int, cut: Cut, *, files: int = 2) -> None:
    """Append a cut of the stream to bronze in one commit, as the bronze hop would."""
    ids = run.spark.range(cut.first, cut.end, numPartitions=files)
    append(_bronze(ids, cut), run.lake.bronze(NAME), _note(number))


def silver_to_the_end(run: Run) -> None:
    """Let the silver hop take in all that bronze holds."""
    hop = SilverHop(run)
    hop.finish(hop.start(NOW))


def batch_bytes(run: Run, commits_a_batch: int = 1, files: int = 2) -> int:
    """Give the limit with which a batch takes so many whole commits of bronze.

    Delta takes files until the limit is passed: half a file below the whole lets the last in.
    """
    bronze = run.lake.bronze(NAME)
    total = bytes_between(bronze, BEGINNING)
    count = sum(1 for one in commits(bronze) if one.batch >= 0) * files
    return int(total / count * (commits_a_batch * files - 0.5))


def silver_commits(run: Run, after: int = -1) -> list[Commit]:
    """List silver's batches, oldest first."""
    found = [one for one in commits(run.lake.silver(NAME)) if one.batch > after]
    return found[::-1]


def accepted(spark: SparkSession, cuts: Sequence[Cut]) -> DataFrame:
    """Give what some cuts bring that is new to silver, by their numbers alone."""
    events = spark.range(0).select(F.col("id").alias("event"))
    for cut in cuts:
        ids = spark.range(cut.first, cut.end)
        events = events.unionByName(ids.select(_event(cut).alias("event")))
    good = ~_fault().isin([*_REFUSED, *_FILTERED, *_LATE, *_MALFORMED])
    new = F.col("event") >= min(cut.first for cut in cuts)
    return events.where(new).distinct().where(good).select(*_columns())


def mark(rows: DataFrame) -> tuple[int, int]:
    """Count rows, and combine the hashes of their events."""
    names = ("event_id", "event_time", "user_id", "action", "product_id", "value")
    texts = [F.coalesce(F.col(name).cast("string"), F.lit("-")) for name in names]
    found = rows.agg(F.count("*"), F.bit_xor(F.xxhash64(*texts))).collect()[0]
    return int(found[0]), int(found[1] or 0)


def _event(cut: Cut) -> Column:
    """Give the number of the event that a row holds: its own, or that of one before it."""
    if not cut.copies:
        return F.col("id")
    drawn = F.pmod(F.xxhash64("id"), F.lit(1 << 40))
    # The row before a copy is never one, nor are the first of each five.
    soon = F.col("id") - 1 - EVERY * (drawn % _SOON)
    far = EVERY * (drawn % (cut.first // EVERY)) + drawn % (EVERY - 1)
    is_far = (F.floor(F.col("id") / EVERY) % 2 == 0) | (soon < cut.first)
    is_copy = F.col("id") % EVERY == EVERY - 1
    return F.when(is_copy, F.when(is_far, far).otherwise(soon)).otherwise(F.col("id"))


def _fault() -> Column:
    return F.pmod(F.xxhash64(F.col("event") + 1), F.lit(1_000))


def _columns() -> list[Column]:
    """Give an event's columns, as silver has them where it has no fault."""
    event, fault = F.col("event"), _fault()
    micros = F.lit(int(START.timestamp() * 1_000_000)) + event * STEP_MICROS
    late = F.when(fault.isin([*_LATE]), F.lit(_FAR_BACK)).otherwise(0)
    # To the millisecond, as the text has it.
    instant = F.timestamp_millis(F.floor((micros - late) / 1_000))
    drawn = F.pmod(F.xxhash64("event"), F.lit(1 << 40))
    actions = F.array(*[F.lit(one) for one in ("view", "view", "click", "add_to_cart", "purchase")])
    action = F.get(actions, (drawn % 5).cast("int"))
    priced = (drawn % 5 >= 3) | fault.isin([*_REFUSED])
    amount = (drawn % 49_900 + 100) * F.when(fault.isin([*_REFUSED]), -1).otherwise(1)
    value = F.when(priced, (amount / F.lit(100).cast("decimal(5,0)")).cast("decimal(18,2)"))
    return [
        F.concat_ws(
            "-", F.left(F.md5(event.cast("string")), F.lit(8)), F.lpad(event.cast("string"), 10, "0")
        ).alias("event_id"),
        instant.alias("event_time"),
        F.format_string("u%05d", drawn % 20_000).alias("user_id"),
        F.when(~fault.isin([*_FILTERED]), action).alias("action"),
        F.format_string("p%04d", drawn % 2_000).alias("product_id"),
        value.alias("value"),
    ]


def _bronze(ids: DataFrame, cut: Cut) -> DataFrame:
    events = ids.select("id", _event(cut).alias("event"))
    rows = events.select("id", _fault().alias("fault"), *_columns())

    def text(name: str) -> Column:
        quoted = F.concat(F.lit('"'), F.col(name), F.lit('"'))
        return F.coalesce(quoted, F.lit("null"))

    time = F.date_format("event_time", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
    line = F.concat(
        F.lit('{"event_id":'), text("event_id"), F.lit(',"user_id":'), text("user_id"),
        F.lit(',"event_time":"'), time, F.lit('","action":'), text("action"),
        F.lit(',"product_id":'), text("product_id"), F.lit(',"value":'),
        F.coalesce(F.col("value").cast("string"), F.lit("null")), F.lit("}"),
    )  # fmt: skip
    cut_off = F.when(F.col("fault").isin([*_MALFORMED]), F.left(line, F.lit(60))).otherwise(line)
    arrived = START + timedelta(microseconds=STEP_MICROS * cut.end)
    source = F.concat(
        F.lit("file:///data/landing/clickstream/clickstream-"),
        F.lpad(F.floor(F.col("id") / 100_000).cast("string"), 6, "0"),
        F.lit(".jsonl"),
    )
    return rows.select(
        F.concat_ws(":", source, (F.col("id") % 100_000).cast("string")).alias("record_id"),
        F.lit(None).cast("binary").alias("key"),
        cut_off.cast("binary").alias("payload"),
        F.lit(None).cast("array<struct<key: string, value: binary>>").alias("headers"),
        source.alias("source"),
        F.lit(arrived).alias("source_timestamp"),
        F.lit(arrived).alias("ingested_at"),
        F.lit(arrived.date()).alias("ingest_date"),
    )


def _note(batch: int) -> dict[str, Any]:
    return {"pipeline": NAME, "hop": "bronze", "generation": "g1", "batch": batch}
