"""Verdicts are the same however many rows there are: what is large is compared in another way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.pipelines import timed
from tests.unit.test_dedup import KNOWN_DDL, MONDAY, NOON, TUESDAY, New, classified
from tidelake.config import Dedup
from tidelake.runtime import verdicts
from tidelake.runtime.held import Held
from tidelake.runtime.verdicts import Arrived, Known, find_verdicts
from tidelake.silver.classify import ROW
from tidelake.silver.dedup import CONFLICT, DUPLICATE, VERDICT, arrivals

_ROWS: list[New] = [
    ("new", "f:1", MONDAY, NOON, 1),
    ("twice", "f:2", MONDAY, NOON, 1),
    ("twice", "f:3", MONDAY, NOON, 1),
    ("twice", "f:4", MONDAY, NOON, 2),
    ("old", "f:5", MONDAY, NOON, 1),
    ("old", "f:6", MONDAY, NOON, 9),
    ("old twice", "f:7", MONDAY, NOON, 2),
    ("past", "f:8", MONDAY, NOON, 1),
    ("past", "f:9", MONDAY, NOON, 1),
    ("back", "f:10", TUESDAY, NOON, 1),
    ("back", "f:11", MONDAY, NOON, 2),
    ("back", "f:12", MONDAY, NOON, 2),
]
_OLD = [
    ("old", "old:1", "11:30:00", 1),
    ("old twice", "old:2", "11:40:00", 1),
    ("old twice", "old:3", "11:20:00", 2),
    ("past", "old:4", "09:00:00", 1),
    ("never again", "old:5", "11:50:00", 1),
]
_EXPECTED = {
    "f:3": DUPLICATE,
    "f:4": CONFLICT,
    "f:5": DUPLICATE,
    "f:6": CONFLICT,
    "f:7": DUPLICATE,
    "f:9": DUPLICATE,
    "f:11": CONFLICT,
    "f:12": CONFLICT,
}


def _known(spark: SparkSession) -> DataFrame:
    rows = [
        (event, place, TUESDAY, f"{MONDAY} {clock}", hash_, False)
        for event, place, clock, hash_ in _OLD
    ]
    return timed(spark, rows, KNOWN_DDL)


@pytest.mark.parametrize("count", [len(_OLD), None])
@pytest.mark.parametrize(("broadcast", "hashes"), [(100, 100), (0, 100), (0, 0)])
def test_a_row_s_verdict_does_not_depend_on_how_many_there_are(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    broadcast: int,
    hashes: int,
    count: int | None,
) -> None:
    monkeypatch.setattr(verdicts, "BROADCAST", broadcast)
    monkeypatch.setattr(verdicts, "HASHES", hashes)
    arrived = Arrived(len(_ROWS), datetime(2024, 1, 1, 12, tzinfo=UTC), (19_723, 19_724))
    rules = Dedup(ttl=timedelta(hours=1), beyond_ttl="ignore")
    with Held() as hold:
        found = find_verdicts(
            arrivals(classified(spark, _ROWS)),
            arrived,
            lambda reach: Known(_known(spark), count),
            rules,
            hold=hold,
        )
        assert found.rows is not None
        told = {row[ROW].split("@")[0]: row[VERDICT] for row in found.rows.collect()}
    assert told == _EXPECTED
    assert found.searched == len(_OLD)
