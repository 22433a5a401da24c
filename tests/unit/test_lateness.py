"""Lateness: the verdict at the very microsecond of each bound."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.pipelines import timed
from tidelake.silver.fates import lateness, marked
from tidelake.silver.stages import PAYLOAD_HASH

WATERMARK = datetime(2024, 1, 2, 12, tzinfo=UTC)
ROWS = [
    ("2024-01-02 12:00:00.000001", "on_time"),
    ("2024-01-02 12:00:00.000000", "on_time"),
    ("2024-01-02 11:59:59.999999", "late"),
    ("2024-01-02 11:00:00.000001", "late"),
    ("2024-01-02 11:00:00.000000", "late"),
    ("2024-01-02 10:59:59.999999", "too_late"),
    ("1969-12-31 23:59:59.999999", "too_late"),
]
DDL = "event_time timestamp; expected string"


def hashed(spark: SparkSession) -> DataFrame:
    return timed(spark, ROWS, DDL).withColumn(PAYLOAD_HASH, F.xxhash64("expected"))


def test_both_bounds_belong_to_the_milder_verdict(spark: SparkSession) -> None:
    events = hashed(spark)
    verdict = lateness(marked(WATERMARK), timedelta(hours=1)).alias("verdict")
    judged = events.select("event_time", "expected", verdict)
    expected = events.select("event_time", "expected", events.expected.alias("verdict"))
    assert_df_equality(judged, expected, ignore_nullable=True)


def test_before_the_first_watermark_and_without_allowance_no_event_is_late(
    spark: SparkSession,
) -> None:
    strict = ["too_late" if verdict == "late" else verdict for _, verdict in ROWS]
    events = hashed(spark)
    judged = events.select(
        lateness(marked(None), timedelta(0)).alias("first"),
        lateness(marked(WATERMARK), timedelta(0)).alias("strict"),
    ).collect()
    assert [row["first"] for row in judged] == ["on_time"] * len(ROWS)
    assert [row["strict"] for row in judged] == strict
