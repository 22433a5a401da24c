"""Watermark: the slowest active partition leads, and time never runs back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tidelake.silver.watermark import PartitionProgress, advance

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
