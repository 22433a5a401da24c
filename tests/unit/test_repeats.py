"""Verdicts are the same however many rows there are: what is large is compared in another way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.pipelines import timed
from tests.unit.test_dedup import EDGE, KNOWN_DDL, MONDAY, NOON, TUESDAY, New, classified
from tidelake.config import Dedup
from tidelake.runtime.held import Held
from tidelake.silver import dedup
from tidelake.silver.classify import PAYLOAD_HASH, ROW
from tidelake.silver.dedup import CONFLICT, DUPLICATE, VERDICT, Accepted, Comparison, find_repeats
from tidelake.silver.route import FATE, Fates, decide
from tidelake.silver.scope import Arrivals, DedupScope
from tidelake.silver.summary import arrivals_of

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
    monkeypatch.setattr(dedup, "BROADCAST", broadcast)
    monkeypatch.setattr(dedup, "HASHES", hashes)
    arrived = Arrivals(len(_ROWS), datetime(2024, 1, 1, 12, tzinfo=UTC), ((19_723, 19_724),))
    rules = Dedup(ttl=timedelta(hours=1), beyond_ttl="ignore")
    with Held() as hold:
        found = find_repeats(
            classified(spark, _ROWS),
            arrived,
            lambda reach: Accepted(_known(spark), count),
            Comparison(rules),
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
    # Past the TTL and on another date, an id is accepted again: once, too.
    rows += [
        ("again", "f:8", MONDAY, NOON, 1),
        *[("again", "f:9", TUESDAY, "14:00:00", 1)] * 2,
        ("again", "f:10", TUESDAY, "14:00:00", 2),
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
    arrived = Arrivals(len(rows), datetime(2024, 1, 1, 12, tzinfo=UTC), ((19_723, 19_723),))
    with Held() as hold:
        found = find_repeats(
            new, arrived, lambda reach: Accepted(known, 2), Comparison(Dedup()), hold=hold
        )
        decided = decide(
            new, found.rows, Fates(), watermark=None, allowed=timedelta(0), twins=found.twins
        )
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
        ("f:8", "silver"): 1,
        ("f:9", "silver"): 1,
        ("f:9", "duplicate"): 1,
        ("f:10", "quarantined"): 1,
    }


def _told(spark: SparkSession, rows: list[New], rules: Dedup) -> dict[str, str]:
    """Judge rows among each other."""
    arrived = Arrivals(len(rows), datetime(2024, 1, 1, tzinfo=UTC), ())
    with Held() as hold:
        found = find_repeats(classified(spark, rows), arrived, None, Comparison(rules), hold=hold)
        rows_found = [] if found.rows is None else found.rows.collect()
        return {row[ROW].split("@")[0]: row[VERDICT] for row in rows_found}


def _one_by_one(rows: Sequence[New], rules: Dedup) -> dict[str, str]:
    """Judge rows in the order of their arrival, each by the earliest accepted one in reach."""
    accepted: list[New] = []
    told = {}
    for row in sorted(rows, key=lambda row: (row[3], int(row[1].split(":")[1]))):
        met = [one for one in accepted if one[0] == row[0] and _meet(one, row, rules)]
        if met:
            told[row[1]] = DUPLICATE if met[0][4] == row[4] else CONFLICT
        else:
            accepted.append(row)
    return told


def _meet(one: New, other: New, rules: Dedup) -> bool:
    apart = datetime.fromisoformat(f"{MONDAY}T{one[3]}") - datetime.fromisoformat(
        f"{MONDAY}T{other[3]}"
    )
    return abs(apart) <= rules.ttl or (rules.widened and one[2] == other[2])


@pytest.mark.parametrize("beyond_ttl", ["merge", "ignore"])
def test_ids_that_come_back_again_and_again_are_judged_as_one_by_one(
    spark: SparkSession, beyond_ttl: str
) -> None:
    chance = random.Random(8)
    rules = Dedup.model_validate({"ttl": timedelta(hours=1), "beyond_ttl": beyond_ttl})
    rows: list[New] = [
        (
            chance.choice(["a", "b", "rare"] if number < 9 else ["a", "b"]),
            f"f:{number}",
            f"2024-01-{chance.randint(1, 9):02}",
            f"{chance.randint(0, 23):02}:{chance.choice(['00', '30'])}:00",
            chance.randint(1, 2),
        )
        for number in range(200)
    ]
    told = _told(spark, rows, rules)
    assert told == _one_by_one(rows, rules)
    # Some of each came back: they are neither copies nor conflicts.
    assert 10 < len(rows) - len(told) < 40


def _jobs(spark: SparkSession) -> int:
    newest = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return max(newest.apply(number).jobId() for number in range(newest.size()))


def test_an_id_that_comes_back_often_takes_no_more_jobs_than_one_that_does_twice(
    spark: SparkSession,
) -> None:
    rules = Dedup(ttl=timedelta(minutes=10), beyond_ttl="ignore")
    took = []
    for times in (3, 12):
        rows: list[New] = [("e", f"f:{n}", MONDAY, f"{n:02}:00:00", 1) for n in range(times)]
        before = _jobs(spark)
        assert _told(spark, rows, rules) == {}
        took.append(_jobs(spark) - before)
    assert took[0] == took[1]


def _met(
    spark: SparkSession, rows: DataFrame, table: DataFrame, rules: Dedup
) -> tuple[DedupScope, set[str], dict[str, str]]:
    """Judge rows against a table; give the reach, the table's rows in it, and the verdicts."""
    reaches = []

    def read(reach: DedupScope) -> Accepted:
        reaches.append(reach)
        return Accepted(reach.within(table, is_late_table=False), None)

    with Held() as hold:
        kept = hold(rows)
        arrived = arrivals_of(kept)
        found = find_repeats(kept, arrived, read, Comparison(rules), hold=hold)
        assert found.rows is not None
        told = {row["event_id"]: row[VERDICT] for row in kept.join(found.rows, ROW).collect()}
    (reach,) = reaches
    near = reach.within(table, is_late_table=False).collect()
    return reach, {row["event_id"] for row in near}, told


def test_dates_of_two_thousand_years_are_searched_in_few_ranges_and_none_is_missed(
    spark: SparkSession,
) -> None:
    # One day in 250 from the year 1 on, and all of the last weeks before 2024.
    garbage = spark.range(2_956).select(F.expr("CAST(id * 250 AS INT) - 719162").alias("day"))
    weeks = spark.range(40).select(F.expr("19722 - CAST(id AS INT)").alias("day"))
    dates = garbage.union(weeks).select(
        F.col("day").cast("string").alias("event_id"),
        F.expr("date_from_unix_date(day)").alias("event_date"),
    )
    one = classified(spark, [("-", "f:1", MONDAY, NOON, 1)]).drop("event_id", "event_date", ROW)
    rows = one.crossJoin(dates).withColumn(ROW, F.col("event_id"))
    long_ago = F.lit("2020-01-01 00:00:00").cast("timestamp")
    old = rows.withColumn("ingested_at", long_ago).where(
        F.expr("(int(event_id) + 719162) % 1000 = 0")
    )
    other = old.limit(1).select(
        *[F.lit("x").alias(name) if name == "event_id" else name for name in old.columns]
    )
    # Between the garbage and the last weeks: on a date that no row has.
    unmet = other.withColumn("event_date", F.expr("date_from_unix_date(19640)"))
    rules = Dedup(ttl=timedelta(hours=1), beyond_ttl="merge")
    reach, near, told = _met(spark, rows, old.union(unmet), rules)
    expected = {row["event_id"] for row in old.collect()}
    assert len(expected) == 739
    assert told == dict.fromkeys(expected, DUPLICATE)
    assert len(reach.days) <= 32
    # Ranges are not merged near the newest date.
    assert "x" not in near


def test_a_row_that_was_sent_again_does_not_bring_all_arrivals_since_its_own_into_reach(
    spark: SparkSession,
) -> None:
    fresh = classified(spark, [("new", "f:1", MONDAY, NOON, 1)])
    again = classified(spark, [("late", "f:2", MONDAY, NOON, 1)], origin="late")
    long_ago = F.lit("2020-01-01 00:00:00").cast("timestamp")
    rows = fresh.union(again.withColumn("ingested_at", long_ago).withColumn(ROW, F.lit("late@1")))
    stored = [
        ("new", "2023-12-31 00:00:00", 1),
        ("new", f"{MONDAY} {EDGE}", 1),
        ("late", "2020-01-01 01:00:00", 2),
        ("between", "2022-01-01 00:00:00", 1),
    ]
    table = timed(
        spark,
        [(event, f"s:{n}", TUESDAY, at, h) for n, (event, at, h) in enumerate(stored)],
        "event_id string; record_id string; event_date date; ingested_at timestamp; "
        f"{PAYLOAD_HASH} bigint",
    )
    rules = Dedup(ttl=timedelta(hours=1), beyond_ttl="merge")
    _, near, told = _met(spark, rows, table, rules)
    assert near == {"new", "late"}
    assert told == {"new": DUPLICATE, "late": CONFLICT}
