"""Watermark: the slowest active partition leads, and time never runs back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidelake.config import DeltaSource, FilesSource, KafkaSource, RateSource, Source
from tidelake.delta.commit_metadata import SilverNote
from tidelake.delta.positions import Position
from tidelake.runtime import silver
from tidelake.silver.watermark import (
    PartitionProgress,
    advance,
    held_back_by,
    partition_of,
    without_part,
)

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
MICRO = timedelta(microseconds=1)
DELAY = timedelta(minutes=10)
IDLE = timedelta(minutes=5)


def moved(watermark: datetime | None, **partitions: PartitionProgress) -> datetime | None:
    return advance(watermark, partitions, delay=DELAY, idle_after=IDLE)


def at(event_time: datetime | None, arrived: datetime = NOON) -> PartitionProgress:
    return PartitionProgress(max_event_time=event_time, last_ingested_at=arrived)


def test_the_first_watermark_trails_the_largest_event_by_the_delay() -> None:
    assert moved(None, a=at(NOON)) == NOON - DELAY


def test_the_slowest_partition_sets_the_watermark() -> None:
    assert moved(None, a=at(NOON), b=at(NOON - IDLE), c=at(NOON + IDLE)) == NOON - IDLE - DELAY


def test_a_partition_is_idle_only_past_the_limit() -> None:
    slow = NOON - timedelta(hours=1)
    assert moved(None, a=at(NOON), b=at(slow, NOON - IDLE)) == slow - DELAY
    assert moved(None, a=at(NOON), b=at(slow, NOON - IDLE - MICRO)) == NOON - DELAY


def test_idleness_is_measured_from_the_newest_arrival_and_not_from_event_time() -> None:
    newest = NOON + timedelta(days=1)
    assert moved(None, a=at(NOON, newest), b=at(NOON - IDLE, newest)) == NOON - IDLE - DELAY


def test_the_watermark_never_goes_back() -> None:
    assert moved(NOON, a=at(NOON)) == NOON
    assert moved(NOON, a=at(NOON + DELAY)) == NOON
    assert moved(NOON, a=at(NOON + DELAY + MICRO)) == NOON + MICRO


def test_a_partition_that_returns_from_idleness_does_not_pull_the_watermark_back() -> None:
    before = moved(None, a=at(NOON), b=at(NOON - DELAY, NOON - DELAY))
    assert before == NOON - DELAY
    assert moved(before, a=at(NOON), b=at(NOON - DELAY)) == before


def test_an_active_partition_without_accepted_rows_holds_the_watermark() -> None:
    assert moved(None, a=at(NOON), b=at(None)) is None
    assert moved(NOON, a=at(NOON + timedelta(days=1)), b=at(None)) == NOON
    assert moved(None, a=at(None)) is None


def test_an_idle_partition_without_accepted_rows_holds_nothing() -> None:
    assert moved(None, a=at(NOON), b=at(None, NOON - IDLE - MICRO)) == NOON - DELAY


def test_without_partitions_nothing_moves() -> None:
    assert moved(None) is None
    assert moved(NOON) == NOON


def test_the_slowest_active_partition_holds_the_watermark_back() -> None:
    found = held_back_by(
        {"a": at(NOON), "b": at(NOON - MICRO), "c": at(NOON + IDLE)}, idle_after=IDLE
    )
    assert found == ("b", ())


def test_a_partition_that_accepted_nothing_holds_back_more_than_any_that_did() -> None:
    assert held_back_by({"a": at(NOON), "b": at(None)}, idle_after=IDLE) == ("b", ())


def test_an_idle_partition_holds_nothing_back_and_is_named() -> None:
    idle = at(NOON - timedelta(days=1), NOON - IDLE - MICRO)
    partitions = {"a": at(NOON), "z": idle, "b": at(None, NOON - IDLE - MICRO)}
    assert held_back_by(partitions, idle_after=IDLE) == ("a", ("b", "z"))
    assert held_back_by({"a": at(NOON), "z": at(NOON, NOON - IDLE)}, idle_after=IDLE)[1] == ()


def test_without_partitions_nothing_is_held_back() -> None:
    assert held_back_by({}, idle_after=IDLE) == (None, ())


KAFKA = KafkaSource(kind="kafka", bootstrap="h:1", topic="clicks")
ONE = {
    "files": FilesSource(kind="files", path="/in"),
    "delta": DeltaSource(kind="delta", path="/in"),
    "rate": RateSource(kind="rate"),
}


def test_each_kafka_partition_is_one_of_its_own(spark: SparkSession) -> None:
    ids = ["clicks:0:7", "clicks:0:8", "clicks:10:7", "a:b:1:0"]
    rows = spark.createDataFrame([(one,) for one in ids], "record_id string")
    found = rows.select("record_id", partition_of(KAFKA).alias("partition")).collect()
    assert {row["record_id"]: row["partition"] for row in found} == {
        "clicks:0:7": "clicks:0",
        "clicks:0:8": "clicks:0",
        "clicks:10:7": "clicks:10",
        "a:b:1:0": "a:b:1",
    }


@pytest.mark.parametrize("source", ONE.values(), ids=ONE)
def test_any_other_source_is_one_partition(spark: SparkSession, source: Source) -> None:
    rows = spark.createDataFrame([("file:///a.json:1",), ("2:0:3",)], "record_id string")
    found = rows.select(partition_of(source).alias("partition")).distinct().collect()
    assert [row["partition"] for row in found] == ["0"]


@pytest.mark.parametrize(
    ("begun", "until", "version", "has_new", "minute"),
    [
        # It ends with a commit, also at its last file.
        ((3, 0), (4, -1), None, False, 40),
        ((3, 0), (4, 1), 4, False, 40),
        ((3, 0), (4, -1), None, True, 30),
        # Inside a commit: what was read before counts, if that was of earlier commits.
        ((3, 0), (4, 1), None, False, 20),
        ((4, 0), (4, 1), None, False, 10),
        ((3, 0), (4, 1), None, True, 10),
    ],
)
def test_no_row_of_a_commit_moves_the_watermark_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
    begun: Position,
    until: Position,
    version: int | None,
    has_new: bool,
    minute: int,
) -> None:
    monkeypatch.setattr(silver, "version_at", lambda *_: version)
    pipeline = SimpleNamespace(
        name="x", watermark=SimpleNamespace(delay=timedelta(0), idle_after=timedelta(hours=1))
    )
    lake = SimpleNamespace(bronze=lambda _: None)

    def time(minutes: int) -> datetime:
        return NOON + timedelta(minutes=minutes)

    before = SilverNote(
        watermark=time(10),
        partitions={
            "a": PartitionProgress(time(20), time(0)),
            "b": PartitionProgress(time(25), time(0)),
        },
        until={"bronze": begun},
    )
    reached = {"a": PartitionProgress(time(40), time(1)), "b": PartitionProgress(time(45), time(1))}
    reached |= {"c": PartitionProgress(time(30), time(1))} if has_new else {}
    context: Any = SimpleNamespace(
        run=SimpleNamespace(pipeline=pipeline, lake=lake), before=before, until={"bronze": until}
    )
    assert silver._watermark(context, reached) == time(minute)


def test_a_partition_in_the_other_part_of_a_commit_is_not_idle() -> None:
    """It may have read nothing for longer than ``idle_after``, as between two nightly runs."""
    night = timedelta(days=1)
    before = {
        "fast": PartitionProgress(NOON, NOON),
        "slow": PartitionProgress(NOON - timedelta(days=5), NOON),
        "silent": PartitionProgress(NOON - timedelta(days=9), NOON - night),
    }
    reached = before | {"fast": PartitionProgress(NOON + night, NOON + night)}
    found = without_part(before, reached)
    # One that was idle when the earlier commits were read stays so.
    assert advance(None, found, delay=IDLE, idle_after=IDLE) == NOON - timedelta(days=5) - IDLE
    # Read whole, the commit has rows of the slow one.
    reached["slow"] = PartitionProgress(NOON - timedelta(days=4), NOON + night)
    assert advance(None, reached, delay=IDLE, idle_after=IDLE) == NOON - timedelta(days=4) - IDLE
    assert without_part({}, {}) == {}
