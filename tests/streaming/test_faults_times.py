"""Events on the edges of lateness and of the future, and from absurd years."""

from __future__ import annotations

import os
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.batches import closed
from tests.fates import assert_books, assert_fates
from tests.running import START, click, read
from tests.worlds import TO_SILVER, World, world
from tidelake.ledger.terms import read_ledger

_FULL = os.environ.get("TIDELAKE_FULL") == "1"
_DAY = 24 * 60
_NOON = START + timedelta(days=10, hours=12)
_MILLI = timedelta(milliseconds=1)


def _stamp(when: datetime) -> str:
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")


@pytest.fixture(scope="module")
def edges(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Let events lie on both sides of every edge in time, some of them absurd."""
    played = world(spark, tmp_path_factory.mktemp("edges"))
    played.land("a.jsonl", [click(1, minute=0, event_time=_stamp(_NOON))])
    mark = _NOON - timedelta(minutes=10)
    times = {
        f"{name} {step}": at + step * _MILLI
        for name, at in (
            ("watermark", mark),
            ("allowed", mark - timedelta(days=1)),
            ("future", _NOON + timedelta(minutes=6)),
        )
        for step in (-1, -0.001, 0, 0.001, 1)
    }
    lines = [
        click(number, minute=0, event_id=name, event_time=_stamp(at))
        for number, (name, at) in enumerate(times.items())
    ]
    absurd = [
        click(number, minute=0, event_id=f"{year}-{number}", event_time=f"{year}-01-01T00:00:00Z")
        for number in range(1_000 if _FULL else 3)
        for year in ("1900", "2099", "9999")
    ]
    played.land("b.jsonl", [*lines, *absurd])
    again = click(2, minute=0, event_time=_stamp(_NOON - timedelta(minutes=9)))
    # A copy of a row that came too late is a copy.
    played.land("c.jsonl", [again, *lines[:8]])
    minute = timedelta(minutes=1)
    played.run(_NOON, _NOON + minute, _NOON + 2 * minute, hops=TO_SILVER)
    return played


def test_an_event_on_an_edge_is_in_exactly_one_table(edges: World) -> None:
    late = dict(read(edges.lake, "silver.clickstream", "event_id, is_late"))
    beyond = {row[0] for row in read(edges.lake, "silver.clickstream__late", "event_id")}
    ahead = {row[0] for row in read(edges.lake, "silver.clickstream__quarantine", "event_id")}
    for step in (-1, -0.001, 0, 0.001, 1):
        assert late.get(f"watermark {step}") is (step < 0)
        assert late.get(f"allowed {step}") is (None if step < 0 else True)
        assert (f"allowed {step}" in beyond) is (step < 0)
        assert (f"future {step}" in ahead) is (step > 0)
        assert late.get(f"future {step}") is (None if step > 0 else False)
    assert not late.keys() & beyond


def test_the_edges_are_where_the_oracle_has_them(edges: World) -> None:
    assert_books(edges.lake, edges.pipeline, assert_fates(edges.lake))


def test_an_absurd_time_moves_no_watermark_and_harms_nobody(edges: World) -> None:
    marks = [commit.note["watermark"] for commit in closed(edges.lake.silver("clickstream"))]
    # The last event that was not refused lay at the future's edge.
    assert marks[1] == marks[2] == (_NOON - timedelta(minutes=4)).isoformat()
    assert ("e2", True) in read(edges.lake, "silver.clickstream", "event_id, is_late")
    rows = read(edges.lake, "silver.clickstream__quarantine", "event_id, stage")
    future = Counter(name[:4] for name, stage in rows if stage == "future_event_time")
    assert future["2099"] == future["9999"] > 0
    old = Counter(row[0][:4] for row in read(edges.lake, "silver.clickstream__late", "event_id"))
    assert old["1900"] == future["2099"]


@pytest.mark.long
def test_an_event_older_than_the_calendar_of_most_tools_does_not_stop_the_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = world(spark, tmp_path)
    played.land("a.jsonl", [click(1, minute=10 * _DAY)])
    stamps = {"old": "0999-12-31T00:00:00Z", "oldest": "0001-01-01T00:00:00+18:00"}
    ancient = [click(2, minute=0, event_id=n, event_time=stamp) for n, stamp in stamps.items()]
    played.land("b.jsonl", [*ancient, click(3, minute=10 * _DAY)])
    played.run(_NOON, hops=TO_SILVER)
    told = read_ledger(played.lake, played.pipeline).to_json()
    assert (told["silver"], told["late"] + told["quarantined"]) == (2, 2)
    assert told["problems"] == []
    assert read(played.lake, "silver.clickstream", "event_id") == [("e1",), ("e3",)]
