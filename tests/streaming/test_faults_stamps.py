"""Stamps of all zones and calendars mean the same in every session zone."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.fates import assert_fates
from tests.pipelines import bronze
from tests.running import START, click, read
from tests.worlds import TO_SILVER, world
from tidelake.silver.stages import Judging, classify

_STAMPS = 10_000 if os.environ.get("TIDELAKE_FULL") == "1" else 500
_NOW = START + timedelta(hours=1)
_ZONES = (
    "America/New_York",
    "Europe/Berlin",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "America/St_Johns",
)


def _stamps() -> Iterator[tuple[str, datetime | None]]:
    """Give stamps as producers write them, and the instants that they mean."""
    chance = random.Random(19)
    for zone in _ZONES:
        # Around the changes of the clock, where an hour is missing or comes twice.
        for year in (1950, 2011, 2024, 2026):
            for month in (3, 4, 10, 11):
                local = datetime(year, month, chance.randrange(1, 29), 2, 30, tzinfo=ZoneInfo(zone))
                offset = local.utcoffset() or timedelta()
                if offset.seconds % 60 == 0:
                    yield local.isoformat(), local.astimezone(UTC)
                    yield local.isoformat(sep=" ", timespec="milliseconds"), local.astimezone(UTC)
    for year, leaps in ((2024, True), (2000, True), (1900, False), (2023, False), (2100, False)):
        leap = datetime(year, 2, 28, 12, tzinfo=UTC) + timedelta(days=1)
        yield f"{year}-02-29T12:00:00Z", leap if leaps else None
    yield "2016-12-31T23:59:60Z", None
    yield "2026-03-08T02:30:00", datetime(2026, 3, 8, 2, 30, tzinfo=UTC)
    yield "2026-03-29", datetime(2026, 3, 29, tzinfo=UTC)
    yield "2026-10-25 02:30", datetime(2026, 10, 25, 2, 30, tzinfo=UTC)
    for text in ("2026-01-05T10:15:30 Z", "2026-01-05T10:15:30+25:00", "Jan 5 2026", "now"):
        yield text, None
    while True:
        minutes = chance.choice([-720, -570, -210, 0, 330, 345, 525, 825, 840])
        zone_ = timezone(timedelta(minutes=minutes))
        micros = chance.randrange(-(10**15), 10**15)
        when = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
        yield when.astimezone(zone_).isoformat(), when


def _some_stamps() -> list[tuple[str, datetime | None]]:
    every = _stamps()
    return [next(every) for _ in range(_STAMPS)]


@contextmanager
def _in_zone(spark: SparkSession, zone: str) -> Iterator[None]:
    key = "spark.sql.session.timeZone"
    before = spark.conf.get(key)
    spark.conf.set(key, zone)
    try:
        yield
    finally:
        spark.conf.set(key, str(before))


@pytest.mark.parametrize("zone", _ZONES)
def test_a_stamp_means_the_same_instant_and_date_in_every_session_zone(
    spark: SparkSession, tmp_path: Path, zone: str
) -> None:
    stamps = _some_stamps()
    pipeline = world(spark, tmp_path).pipeline
    payloads = [
        {"record_id": f"f:{number}", "payload": click(number, minute=0, event_time=text)}
        for number, (text, _) in enumerate(stamps)
    ]
    rows = bronze(spark, payloads)
    with _in_zone(spark, zone):
        # Dates as days since 1970: collected ones would pass through the driver's zone.
        found = (
            classify(rows, Judging(pipeline))
            .select("record_id", F.unix_micros("event_time"), F.unix_date("event_date"))
            .collect()
        )
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    expected = {
        f"f:{number}": (None, None)
        if when is None
        else ((when - epoch) // timedelta(microseconds=1), (when.date() - date(1970, 1, 1)).days)
        for number, (_, when) in enumerate(stamps)
    }
    assert {row[0]: (row[1], row[2]) for row in found} == expected


@pytest.mark.long
def test_a_whole_run_in_another_session_zone_fills_the_same_tables(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = [
        click(number, minute=number * 7, event_time=text)
        for number, (text, _) in enumerate(_some_stamps()[:200])
    ]
    lines += [click(number, minute=0, product_id="x") for number in range(0, 200, 10)]
    tables = {}
    for zone in ("UTC", "Pacific/Apia"):
        played = world(spark, tmp_path / zone.replace("/", "-"))
        half = len(lines) // 2
        played.land("a.jsonl", lines[:half])
        played.land("b.jsonl", lines[half:])
        with _in_zone(spark, zone):
            played.run(_NOW, _NOW + timedelta(hours=2), hops=TO_SILVER)
        assert_fates(played.lake)
        columns = "event_id, event_time, event_date, is_late"
        tables[zone] = [
            read(played.lake, table, columns)
            for table in ("silver.clickstream", "silver.clickstream__late")
        ]
        days = read(played.lake, "bronze.clickstream", "ingested_at, ingest_date")
        assert all(at.date() == day for at, day in days)
    assert tables["UTC"] == tables["Pacific/Apia"]
