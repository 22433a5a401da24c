"""Input of the silver benchmarks, generated in Spark: a clickstream of any size with known faults.

An event is a function of its number, so the expected contents of silver are, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

START = datetime(2026, 1, 5, 6, tzinfo=UTC)
# One row in five is a duplicate. Faults: which thousandths of the events have them.
_EVERY = 5
_REFUSED, _FILTERED, _LATE, _MALFORMED = range(5), range(5, 10), range(10, 12), range(12, 13)
_FAULTY = [*_REFUSED, *_FILTERED, *_LATE, *_MALFORMED]
# Behind the watermark by more than the day that the clickstream allows.
_FAR_BACK = timedelta(hours=36) // timedelta(microseconds=1)
# Largest distance of a duplicate to its original in the same batch, in steps of five rows.
_SOON = 20_000
_LINES_A_FILE = 100_000


@dataclass(frozen=True)
class Cut:
    """A range of rows of the stream, in order of arrival.

    Attributes:
        first: Number of the first row.
        end: Number after the last row.
        reach: Largest distance of a duplicate to its original, in rows; 0: no duplicates.
        step: Microseconds between events; the default gives a million an hour.
        together: How many rows arrive at the same instant; 0: all.
    """

    first: int
    end: int
    reach: int = 0
    step: int = 3_600
    together: int = 0

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.end - self.first


def bronze(spark: SparkSession, cut: Cut, files: int) -> DataFrame:
    """Return a cut's rows of bronze, in ``files`` partitions, each one Delta file."""
    rows = _rows(spark, cut, files)
    return rows.select(
        "record_id",
        F.lit(None).cast("binary").alias("key"),
        "payload",
        F.lit(None).cast("array<struct<key: string, value: binary>>").alias("headers"),
        "source",
        F.col("ingested_at").alias("source_timestamp"),
        "ingested_at",
        F.to_date("ingested_at").alias("ingest_date"),
    )


def silver(spark: SparkSession, cut: Cut, files: int) -> DataFrame:
    """Return the silver rows of a cut without duplicates, as the hop would write them."""
    rows = _rows(spark, cut, files).where(~F.col("fault").isin(_FAULTY))
    return rows.select(
        *_event_columns(),
        F.lit(False).alias("is_late"),
        "record_id",
        "ingested_at",
        F.to_date("event_time").alias("event_date"),
        F.xxhash64("payload").alias("_payload_hash"),
        F.xxhash64("event_id").alias("_id_hash"),
        F.lit("g1").alias("_generation"),
        F.lit(0).cast("bigint").alias("_batch"),
    )


def accepted(spark: SparkSession, cuts: Sequence[Cut]) -> DataFrame:
    """Return the events that cuts add to silver, computed from their numbers."""
    first = min(cut.first for cut in cuts)
    found = spark.range(0).select(F.lit(0).alias("event"), F.lit(0).alias("step"))
    for cut in cuts:
        events = spark.range(cut.first, cut.end).select(_event(cut).alias("event"))
        found = found.unionByName(events.withColumn("step", F.lit(cut.step)))
    new = found.where(F.col("event") >= first).distinct()
    return new.where(~_fault().isin(_FAULTY)).select(*_event_columns())


def mark(rows: DataFrame) -> tuple[int, int]:
    """Return the row count and the XOR of the events' hashes."""
    names = ("event_id", "event_time", "user_id", "action", "product_id", "value")
    texts = [F.coalesce(F.col(name).cast("string"), F.lit("-")) for name in names]
    found = rows.agg(F.count("*"), F.bit_xor(F.xxhash64(*texts))).collect()[0]
    return int(found[0]), int(found[1] or 0)


def twin(lake: Path, root: Path) -> None:
    """Copy a lake; data files, which never change, are hard links."""

    def copied(source: str, target: str) -> None:
        (os.link if source.endswith(".parquet") else shutil.copy2)(source, target)

    shutil.copytree(lake, root, copy_function=copied)


def _rows(spark: SparkSession, cut: Cut, files: int) -> DataFrame:
    ids = spark.range(cut.first, cut.end, numPartitions=files)
    rows = ids.select("id", _event(cut).alias("event"), F.lit(cut.step).alias("step"))
    number = F.col("id") % _LINES_A_FILE
    file = F.lpad(F.floor(F.col("id") / _LINES_A_FILE).cast("string"), 6, "0")
    source = F.concat(F.lit("file:///data/clickstream/clickstream-"), file, F.lit(".jsonl"))
    arrived = _start(cut) + (cut.together or cut.rows)
    return (
        rows.withColumn("source", source)
        .withColumn("record_id", F.concat_ws(":", "source", number.cast("string")))
        .withColumn("ingested_at", F.timestamp_micros(_micros(arrived)))
        .withColumn("fault", _fault())
        .withColumns({name: column for name, column in _columns().items()})
        .withColumn("payload", _payload())
    )


def _micros(event: Column) -> Column:
    return F.lit(int(START.timestamp() * 1_000_000)) + event * F.col("step")


def _event(cut: Cut) -> Column:
    """Return the number of a row's event: its own, or for a duplicate that of an earlier row."""
    number = F.col("id")
    if not cut.reach:
        return number
    drawn = F.pmod(F.xxhash64("id"), F.lit(1 << 40))
    # The last of each five rows is a duplicate, never of another duplicate.
    soon = number - 1 - _EVERY * (drawn % _SOON)
    start = _start(cut)
    back = F.floor(F.least(F.lit(cut.reach), start) / _EVERY)
    far = start - _EVERY * (1 + drawn % F.greatest(back, F.lit(1)))
    is_far = (F.floor(number / _EVERY) % 2 == 0) | (soon < start)
    is_copy = (number % _EVERY == _EVERY - 1) & (back > 0)
    chosen = F.when(is_far, far + F.floor(drawn / 7) % (_EVERY - 1)).otherwise(soon)
    return F.when(is_copy, chosen).otherwise(number)


def _start(cut: Cut) -> Column:
    """Return the number of the first row that arrived at the same instant."""
    each = cut.together or cut.rows
    return cut.first + F.floor((F.col("id") - cut.first) / each) * each


def _fault() -> Column:
    return F.pmod(F.xxhash64(F.col("event") + 1), F.lit(1_000))


def _event_columns() -> list[Column]:
    return [column.alias(name) for name, column in _columns().items()]


def _columns() -> dict[str, Column]:
    """Return an event's columns as in silver, if it has no fault."""
    event, fault = F.col("event"), _fault()
    late = F.when(fault.isin([*_LATE]), F.lit(_FAR_BACK)).otherwise(0)
    drawn = F.pmod(F.xxhash64("event"), F.lit(1 << 40))
    actions = F.array(*[F.lit(one) for one in ("view", "view", "click", "add_to_cart", "purchase")])
    action = F.get(actions, (drawn % 5).cast("int"))
    priced = (drawn % 5 >= 3) | fault.isin([*_REFUSED])
    cents = (drawn % 49_900 + 100) * F.when(fault.isin([*_REFUSED]), -1).otherwise(1)
    number = event.cast("string")
    return {
        "event_id": F.concat_ws("-", F.left(F.md5(number), F.lit(8)), F.lpad(number, 10, "0")),
        # In milliseconds, as in the payload.
        "event_time": F.timestamp_millis(F.floor((_micros(event) - late) / 1_000)),
        "user_id": F.format_string("u%05d", drawn % 20_000),
        "action": F.when(~fault.isin([*_FILTERED]), action),
        "product_id": F.format_string("p%04d", drawn % 2_000),
        "value": F.when(priced, (cents.cast("decimal(18,0)") / 100).cast("decimal(18,2)")),
    }


def _payload() -> Column:
    def text(name: str) -> Column:
        return F.coalesce(F.concat(F.lit('"'), F.col(name), F.lit('"')), F.lit("null"))

    time = F.date_format("event_time", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
    line = F.concat(
        *(F.lit('{"event_id":'), text("event_id"), F.lit(',"user_id":'), text("user_id")),
        *(F.lit(',"event_time":"'), time, F.lit('","action":'), text("action")),
        *(F.lit(',"product_id":'), text("product_id"), F.lit(',"value":')),
        *(F.coalesce(F.col("value").cast("string"), F.lit("null")), F.lit("}")),
    )
    cut_off = F.col("fault").isin([*_MALFORMED])
    return F.when(cut_off, F.left(line, F.lit(60))).otherwise(line).cast("binary")
