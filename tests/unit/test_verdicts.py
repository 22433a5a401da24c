"""Verdicts are the same however many rows there are: what is large is compared in another way."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.pipelines import timed
from tests.unit.test_dedup import KNOWN_DDL, MONDAY, NOON, TUESDAY, New, classified
from tidelake.config import Dedup
from tidelake.runtime import verdicts
from tidelake.runtime.held import Held
from tidelake.runtime.verdicts import Arrived, Known, find_verdicts
from tidelake.silver.classify import ROW
from tidelake.silver.dedup import CONFLICT, DUPLICATE, VERDICT, arrivals
from tidelake.silver.route import FATE, decide

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


def test_of_a_row_that_stands_in_a_batch_more_than_once_exactly_one_is_accepted(
    spark: SparkSession,
) -> None:
    """Two writers appended the same batch of bronze: in one instant, or one after the other."""
    clicks = [
        ("alone", "f:0", NOON, 1),
        *[("equal", "f:1", NOON, 1)] * 3,
        ("later", "f:2", NOON, 1),
        *[("later", "f:2", "12:00:01", 1)] * 2,
        *[("conflict", "f:4", NOON, 2)] * 2,
        ("conflict", "f:3", NOON, 1),
        *[("old", "f:5", NOON, 1)] * 2,
        *[("back", "f:6", NOON, 1)] * 2,
        ("back", "f:7", NOON, 1),
    ]
    rows: list[New] = [
        (event, place, MONDAY, clock, hash_) for event, place, clock, hash_ in clicks
    ]
    known = timed(
        spark,
        [
            ("old", "old:1", MONDAY, f"{MONDAY} 11:30:00", 1, False),
            ("never again", "old:2", MONDAY, f"{MONDAY} 11:30:00", 1, False),
        ],
        KNOWN_DDL,
    )
    new = classified(spark, rows).withColumn(ROW, F.col("record_id"))
    new = new.withColumn("event_time", F.col("ingested_at"))
    arrived = Arrived(len(rows), datetime(2024, 1, 1, 12, tzinfo=UTC), (19_723,))
    with Held() as hold:
        found = find_verdicts(
            arrivals(new), arrived, lambda reach: Known(known, 2), Dedup(), hold=hold
        )
        decided = decide(new, found.rows, watermark=None, allowed=timedelta(0), twins=found.twins)
        told = Counter((row["record_id"], row[FATE]) for row in decided.collect())
    assert told == {
        ("f:0", "silver"): 1,
        ("f:1", "silver"): 1,
        ("f:1", "duplicate"): 2,
        ("f:2", "silver"): 1,
        ("f:2", "duplicate"): 2,
        ("f:3", "silver"): 1,
        ("f:4", "quarantined"): 2,
        ("f:5", "duplicate"): 2,
        ("f:6", "silver"): 1,
        ("f:6", "duplicate"): 1,
        ("f:7", "duplicate"): 1,
    }
