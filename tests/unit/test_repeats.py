"""Verdicts are the same however many rows there are: what is large is compared in another way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, ClassVar

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.collisions import colliding
from tests.costs import newest_job
from tests.pipelines import timed
from tests.unit.test_dedup import (
    EDGE,
    KNOWN_DDL,
    MONDAY,
    NEW_DDL,
    NOON,
    TUESDAY,
    New,
    classified,
)
from tidelake.config.pipeline import Dedup
from tidelake.names import ID_HASH
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.silver import dedup, driver_dedup
from tidelake.silver.dedup import (
    VERDICT,
    Accepted,
    AcceptedMatches,
    Comparison,
    find_repeats,
)
from tidelake.silver.driver_dedup import ACCEPTED, CONFLICT, DUPLICATE, Numbers
from tidelake.silver.fates import FATE, Fates, decide, with_verdicts
from tidelake.silver.search_bounds import DedupScope
from tidelake.silver.stages import PAYLOAD_HASH, ROW, hash_of_id

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
    return timed(spark, rows, KNOWN_DDL).withColumn(ID_HASH, hash_of_id())


@dataclass
class _Accepted:
    """Accepted rows, or none."""

    rows: DataFrame | None = None
    count: int | None = None
    table: DataFrame | None = None
    scopes: list[DedupScope] = field(default_factory=list)
    searched: int = 0
    too_many: ClassVar[int] = 0

    def within(self, scope: DedupScope) -> Accepted:
        self.scopes.append(scope)
        rows = self.rows
        if self.table is not None:
            rows = scope.within(self.table, is_late_table=False)
        return Accepted(None, 0) if rows is None else Accepted(rows, self.count)

    def with_hashes(self, scope: DedupScope, hashes: Numbers) -> AcceptedMatches | None:
        found = self.within(scope)
        if self.too_many:
            return None
        if found.rows is None:
            return AcceptedMatches(ACCEPTED.empty_table(), 0)
        rows = found.rows.select(*ACCEPTED.names).toArrow().cast(ACCEPTED)
        return AcceptedMatches(rows, rows.num_rows)


def _told(
    judged: DataFrame,
    search: _Accepted,
    rules: Dedup,
    *,
    numbered: bool,
    small: bool = False,
    key: str = "record_id",
) -> dict[str, str]:
    """Judge rows; give the verdicts."""
    with CheckpointedFrames(small=small, rows=0 if numbered else None) as frames:
        kept = frames.checkpoint_batch(judged)
        assert kept.numbered == numbered
        repeats = find_repeats(kept, search, Comparison(rules), checkpoint=frames.checkpoint_now)
        search.searched = repeats.searched
        told = (
            with_verdicts(kept.rows, repeats, Fates()).where(F.col(VERDICT).isNotNull()).collect()
        )
        return {row[key]: row[VERDICT] for row in told}


_BOTH = pytest.mark.parametrize("numbered", [True, False])


_RULES = Dedup(ttl=timedelta(hours=1), beyond_ttl="ignore")


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
    search = _Accepted(_known(spark), count)
    assert _told(classified(spark, _ROWS), search, _RULES, numbered=False) == _EXPECTED
    assert search.searched == len(_OLD)


@pytest.mark.parametrize("small", [True, False])
def test_the_driver_compares_rows_and_asks_spark_for_no_more(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    monkeypatch.setattr(dedup, "_by_shuffle", None)
    search = _Accepted(_known(spark))
    told = _told(classified(spark, _ROWS), search, _RULES, numbered=True, small=small)
    assert told == _EXPECTED
    assert search.searched == len(_OLD)


@pytest.mark.parametrize(
    ("module", "limit"),
    [(dedup, "COMPARED_ROWS"), (driver_dedup, "MOST_PAIRS"), (_Accepted, "too_many")],
)
def test_spark_compares_what_is_too_much_for_the_driver(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, module: Any, limit: str
) -> None:
    asked: list[bool] = []
    real = dedup._by_shuffle
    monkeypatch.setattr(dedup, "_by_shuffle", lambda *args: asked.append(True) or real(*args))
    monkeypatch.setattr(module, limit, 1)
    search = _Accepted(_known(spark))
    assert _told(classified(spark, _ROWS), search, _RULES, numbered=True) == _EXPECTED
    assert asked == [True]


@_BOTH
def test_ids_of_one_hash_are_told_apart(spark: SparkSession, numbered: bool) -> None:
    pairs = [colliding("", "", seed=n) for n in range(5)]
    known = timed(
        spark,
        [(one, f"k:{n}", MONDAY, f"{MONDAY} {NOON}", 7, False) for n, (one, _) in enumerate(pairs)],
        KNOWN_DDL,
    ).withColumn(ID_HASH, hash_of_id())
    rows: list[New] = [
        (event, f"{side}:{n}", MONDAY, NOON, 7)
        for n, pair in enumerate(pairs)
        for side, event in zip("ab", pair, strict=True)
    ]
    told = _told(classified(spark, rows), _Accepted(known), Dedup(), numbered=numbered)
    assert told == {f"a:{n}": DUPLICATE for n in range(5)}


@_BOTH
def test_of_a_row_that_stands_in_a_batch_more_than_once_exactly_one_is_accepted(
    spark: SparkSession, numbered: bool
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
    ).withColumn(ID_HASH, hash_of_id())
    new = classified(spark, rows).withColumn(ROW, F.col("record_id"))
    new = new.withColumn("event_time", F.col("ingested_at"))
    with CheckpointedFrames(rows=0 if numbered else None) as frames:
        kept = frames.checkpoint_batch(new)
        found = find_repeats(
            kept, _Accepted(known, 2), Comparison(Dedup()), checkpoint=frames.checkpoint_now
        )
        decided = decide(kept.rows, found, Fates(), watermark=None, allowed=timedelta(0))
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


@_BOTH
@pytest.mark.parametrize("beyond_ttl", ["merge", "ignore"])
def test_ids_that_come_back_again_and_again_are_judged_as_one_by_one(
    spark: SparkSession, beyond_ttl: str, numbered: bool
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
    told = _told(classified(spark, rows), _Accepted(), rules, numbered=numbered)
    assert told == _one_by_one(rows, rules)
    # Some of each came back: they are neither copies nor conflicts.
    assert 10 < len(rows) - len(told) < 40


@_BOTH
def test_an_id_that_comes_back_often_takes_no_more_jobs_than_one_that_does_twice(
    spark: SparkSession, numbered: bool
) -> None:
    rules = Dedup(ttl=timedelta(minutes=10), beyond_ttl="ignore")
    took = []
    for times in (3, 12):
        rows: list[New] = [("e", f"f:{n}", MONDAY, f"{n:02}:00:00", 1) for n in range(times)]
        before = newest_job(spark)
        assert _told(classified(spark, rows), _Accepted(), rules, numbered=numbered) == {}
        took.append(newest_job(spark) - before)
    assert took[0] == took[1]


def _met(
    rows: DataFrame, table: DataFrame, rules: Dedup, *, numbered: bool
) -> tuple[DedupScope, set[str], dict[str, str]]:
    """Judge rows against a table; give the scope, the table's rows in it, and the verdicts."""
    search = _Accepted(table=table)
    told = _told(rows.withColumn("record_id", F.col("event_id")), search, rules, numbered=numbered)
    (scope,) = search.scopes
    near = scope.within(table, is_late_table=False).collect()
    return scope, {row["event_id"] for row in near}, told


@_BOTH
def test_dates_of_two_thousand_years_are_searched_in_few_ranges_and_none_is_missed(
    spark: SparkSession, numbered: bool
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
    rows = rows.withColumn(ID_HASH, hash_of_id())
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
    reach, near, told = _met(rows, old.union(unmet), rules, numbered=numbered)
    expected = {row["event_id"] for row in old.collect()}
    assert len(expected) == 739
    assert told == dict.fromkeys(expected, DUPLICATE)
    assert len(reach.days) <= 32
    # Ranges are not merged near the newest date.
    assert "x" not in near


@_BOTH
def test_a_row_that_was_sent_again_does_not_bring_all_arrivals_since_its_own_into_reach(
    spark: SparkSession, numbered: bool
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
    _, near, told = _met(rows, table, rules, numbered=numbered)
    assert near == {"new", "late"}
    assert told == {"new": DUPLICATE, "late": CONFLICT}


_CLOCKS = ("00:00:00", "00:59:00", "09:00:00", "10:00:00", "10:00:01", "12:00:00")
_PLACES = [f"{source}:{place}" for source in ("b", "a", "b:a") for place in (9, 10, "x", "010")]


def _some_event(chance: random.Random) -> tuple[str, str, str, str, int]:
    day, date = (chance.choice([MONDAY, TUESDAY]) for _ in range(2))
    clock, event = chance.choice(_CLOCKS), f"e{chance.randint(0, 60)}"
    return event, chance.choice(_PLACES), date, f"{day} {clock}", chance.randint(1, 2)


_NEW_ROWS = 400


def _some_rows(seed: int) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Make new and accepted rows, of ids that no other seed has."""
    chance = random.Random(seed)
    new, known = [], []
    for number in range(_NEW_ROWS):
        event, place, date, at, payload = _some_event(chance)
        origin = chance.choice(["bronze", "bronze", "quarantine", "late"])
        again = None if origin == "bronze" else f"2024-01-03 0{chance.randint(1, 3)}:00:00"
        source, row = place.rpartition(":")[0], f"{place}#{seed}#{number}"
        event = f"{event}#{seed}"
        new.append((row, event, place, source, date, at, payload, origin, None, again))
    for late in [True] * 60 + [False] * 40:
        event, place, *others = _some_event(chance)
        known.append((f"{event}#{seed}", place if late else None, *others, late))
    return new, known


@pytest.mark.parametrize("beyond_ttl", ["merge", "ignore"])
def test_the_driver_and_spark_judge_alike(spark: SparkSession, beyond_ttl: str) -> None:
    """Rows that were sent again, copies of each other, of late rows and of themselves."""
    seeds = (1, 2, 3)
    made = [_some_rows(seed) for seed in seeds]
    new, known = (list(chain.from_iterable(parts)) for parts in zip(*made, strict=True))
    accepted = timed(spark, known, KNOWN_DDL).dropDuplicates(["event_id", "ingested_at"])
    rows, accepted = (
        frame.withColumn(ID_HASH, hash_of_id()) for frame in (timed(spark, new, NEW_DDL), accepted)
    )
    rules = Dedup.model_validate({"ttl": timedelta(hours=1), "beyond_ttl": beyond_ttl})
    search = _Accepted(accepted.localCheckpoint())
    by_spark, *by_driver = (
        _told(rows, search, rules, numbered=numbered, small=small, key=ROW)
        for numbered, small in ((False, False), (True, False), (True, True))
    )
    assert by_driver == [by_spark, by_spark]
    for seed in seeds:
        verdicts = [one for row, one in by_spark.items() if row.split("#")[1] == str(seed)]
        assert set(verdicts) == {DUPLICATE, CONFLICT}
        assert _NEW_ROWS // 4 < len(verdicts) < _NEW_ROWS - 10
