"""Deduplication: the first arrival wins, within the TTL or on the same date."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.pipelines import timed
from tidelake.config.pipeline import Dedup
from tidelake.names import ID_HASH
from tidelake.silver.dedup import (
    IDENTITY,
    LEFTOVER,
    VERDICT,
    Comparison,
    colliding_ids,
    group_accepted,
    having,
    match_accepted,
    rank_arrivals,
    undecided_rows,
)
from tidelake.silver.driver_dedup import CONFLICT, DUPLICATE
from tidelake.silver.search_bounds import DedupScope
from tidelake.silver.stages import ORIGIN, PAYLOAD_HASH, REQUEUED_AT, ROW, STAGE, hash_of_id

TTL = timedelta(hours=1)
MERGE, IGNORE = Dedup(ttl=TTL, beyond_ttl="merge"), Dedup(ttl=TTL, beyond_ttl="ignore")
MONDAY, TUESDAY = "2024-01-01", "2024-01-02"
# An hour before noon, one microsecond to each side.
PAST, EDGE, WITHIN = "10:59:59.999999", "11:00:00", "11:00:00.000001"
NOON = "12:00:00"
NEW_DDL = (
    f"{ROW} string; event_id string; record_id string; source string; event_date date; "
    f"ingested_at timestamp; {PAYLOAD_HASH} bigint; {ORIGIN} string; {STAGE} string; "
    f"{REQUEUED_AT} timestamp"
)
KNOWN_DDL = (
    f"event_id string; record_id string; event_date date; ingested_at timestamp; "
    f"{PAYLOAD_HASH} bigint; _late boolean"
)

New = tuple[str, str, str, str, int]


def classified(spark: SparkSession, rows: list[New], *, origin: str = "bronze") -> DataFrame:
    """Make rows in the running: event id, record id, event date, clock of arrival, hash."""
    full = [
        (f"{place}@{n}", event, place, place.rsplit(":", 1)[0], day, f"{MONDAY} {clock}", hash_)
        for n, (event, place, day, clock, hash_) in enumerate(rows)
    ]
    made = timed(spark, [(*row, origin, None, None) for row in full], NEW_DDL)
    return made.withColumn(ID_HASH, hash_of_id())


def verdicts(frame: DataFrame) -> dict[str, str]:
    return {row[ROW].split("@")[0]: row[VERDICT] for row in frame.collect() if row[VERDICT]}


def test_the_first_arrival_wins_by_instant_then_source_then_numeric_position(
    spark: SparkSession,
) -> None:
    new = undecided_rows(
        classified(
            spark,
            [
                ("instant", "a:2", MONDAY, "12:00:00.000001", 1),
                ("instant", "b:1", MONDAY, NOON, 2),
                ("source", "b:3", MONDAY, NOON, 1),
                ("source", "a:4", MONDAY, NOON, 1),
                ("position", "f:10", MONDAY, NOON, 1),
                ("position", "f:9", MONDAY, NOON, 1),
                ("offset", "topic:7:100", MONDAY, NOON, 1),
                ("offset", "topic:7:99", MONDAY, NOON, 2),
                ("alone", "f:11", MONDAY, NOON, 1),
            ],
        ),
        Comparison(MERGE),
    )
    assert verdicts(rank_arrivals(new, Comparison(IGNORE))) == {
        "a:2": CONFLICT,
        "b:3": DUPLICATE,
        "f:10": DUPLICATE,
        "topic:7:100": CONFLICT,
    }


def test_an_id_that_meets_no_other_row_is_not_compared(spark: SparkSession) -> None:
    rows: list[New] = [
        ("twice", "f:1", MONDAY, NOON, 1),
        ("twice", "f:2", MONDAY, NOON, 1),
        *[(f"once {n}", f"f:{n}", MONDAY, NOON, 1) for n in range(3, 9)],
    ]
    new = undecided_rows(classified(spark, rows), Comparison(MERGE))
    again = having(new, colliding_ids(new, None))
    assert again.columns == new.columns
    assert sorted(row["event_id"] for row in again.collect()) == ["twice", "twice"]
    assert verdicts(rank_arrivals(again, Comparison(IGNORE))) == {"f:2": DUPLICATE}
    old = [(one, f"old:{n}") for n, one in enumerate(("once 5", "gone", "gone"))]
    known = timed(spark, [(*one, MONDAY, f"{MONDAY} {NOON}", 1, False) for one in old], KNOWN_DDL)
    known = known.withColumn(ID_HASH, hash_of_id())
    found = having(new, colliding_ids(new, known)).select("event_id").collect()
    assert sorted(row["event_id"] for row in found) == ["once 5", "twice", "twice"]


def test_rows_that_have_a_fate_already_take_no_part(spark: SparkSession) -> None:
    rows = classified(spark, [("e", "f:1", MONDAY, NOON, 1), ("e", "f:2", MONDAY, NOON, 1)])
    staged = rows.withColumn(STAGE, F.when(F.col("record_id") == "f:1", "future_event_time"))
    taken = undecided_rows(staged, Comparison(MERGE))
    assert [row[ROW] for row in taken.collect()] == ["f:2@1"]
    assert "payload" not in taken.columns


@pytest.mark.parametrize("widened", [True, False])
def test_a_later_arrival_of_the_batch_is_matched_up_to_the_ttl(
    spark: SparkSession, widened: bool
) -> None:
    cases = {
        f"{clock} {day}": (clock, day)
        for clock in (PAST, EDGE, WITHIN)
        for day in (MONDAY, TUESDAY)
    }
    rows: list[New] = []
    for n, (event, (clock, day)) in enumerate(cases.items()):
        rows += [(event, f"first:{n}", day, clock, 1), (event, f"next:{n}", MONDAY, NOON, n % 2)]
    found = verdicts(
        rank_arrivals(
            undecided_rows(classified(spark, rows), Comparison(MERGE)),
            Comparison(MERGE if widened else IGNORE),
        )
    )
    assert found == {
        "next:0": CONFLICT if widened else LEFTOVER,
        "next:1": LEFTOVER,
        "next:2": CONFLICT,
        "next:3": DUPLICATE,
        "next:4": CONFLICT,
        "next:5": DUPLICATE,
    }


@pytest.mark.parametrize("widened", [True, False])
def test_an_accepted_row_is_matched_up_to_the_ttl_either_way_or_on_its_date(
    spark: SparkSession, widened: bool
) -> None:
    clocks = [PAST, EDGE, WITHIN, "23:00:00"]
    cases = [(clock, day) for clock in clocks for day in (MONDAY, TUESDAY)]
    new = undecided_rows(
        classified(spark, [(str(n), f"f:{n}", MONDAY, NOON, n % 2) for n in range(len(cases))]),
        Comparison(MERGE),
    )
    known = timed(
        spark,
        [
            (str(n), f"old:{n}", day, f"{MONDAY} {clock}", 1, False)
            for n, (clock, day) in enumerate(cases)
        ]
        + [("other", "old:x", MONDAY, f"{MONDAY} {NOON}", 1, False)],
        KNOWN_DDL,
    )
    found = verdicts(
        match_accepted(
            new,
            group_accepted(known, Comparison(MERGE)),
            Comparison(MERGE if widened else IGNORE),
        )
    )
    # An arrival long after the row's own is as far away: the row was sent again.
    beyond = {"f:0": CONFLICT, "f:6": CONFLICT} if widened else {}
    within = {f"f:{n}": DUPLICATE if n % 2 else CONFLICT for n in range(2, 6)}
    assert found == beyond | within


def test_the_earliest_accepted_row_in_reach_decides(spark: SparkSession) -> None:
    new = undecided_rows(
        classified(spark, [("a", "f:1", MONDAY, NOON, 1), ("b", "f:2", MONDAY, NOON, 1)]),
        Comparison(MERGE),
    )
    known = timed(
        spark,
        [
            ("a", "old:1", TUESDAY, f"{MONDAY} 09:00:00", 1, False),
            ("a", "old:2", TUESDAY, f"{MONDAY} 11:30:00", 2, True),
            ("a", "old:3", TUESDAY, f"{MONDAY} 11:40:00", 1, False),
            ("b", "old:4", TUESDAY, f"{MONDAY} 11:40:00", 2, False),
            ("b", "old:5", TUESDAY, f"{MONDAY} 11:30:00", 1, False),
        ],
        KNOWN_DDL,
    )
    assert verdicts(
        match_accepted(new, group_accepted(known, Comparison(MERGE)), Comparison(MERGE))
    ) == {
        "f:1": CONFLICT,
        "f:2": DUPLICATE,
    }


def test_of_accepted_rows_of_one_instant_the_first_is_so_by_source_then_numeric_position(
    spark: SparkSession,
) -> None:
    cases = {
        "position": ("file:///a.json:10", "file:///a.json:9"),
        "source": ("file:///a.json.1:0", "file:///a.json:1"),
        "offset": ("topic:7:100", "topic:7:99"),
        "topic": ("topic-b:0:0", "topic:0:1"),
    }
    new = [(event, f"new:{n}", MONDAY, NOON, 1) for n, event in enumerate(cases)]
    known = [
        (event, place, MONDAY, f"{MONDAY} 11:30:00", hash_, True)
        for event, places in cases.items()
        # The first to come has another payload than the new row.
        for hash_, place in enumerate(places, start=1)
    ]
    found = match_accepted(
        undecided_rows(classified(spark, new), Comparison(MERGE)),
        group_accepted(timed(spark, known, KNOWN_DDL), Comparison(MERGE)),
        Comparison(MERGE),
    )
    assert verdicts(found) == dict.fromkeys([f"new:{n}" for n in range(4)], CONFLICT)


@pytest.mark.parametrize("origin", ["late", "quarantine"])
def test_a_requeued_row_does_not_match_itself_in_late_but_others_do(
    spark: SparkSession, origin: str
) -> None:
    again: list[New] = [
        ("own", "f:1", MONDAY, NOON, 1),
        ("in silver", "f:2", MONDAY, NOON, 1),
        ("another late", "f:3", MONDAY, NOON, 1),
    ]
    known = timed(
        spark,
        [
            ("own", "f:1", MONDAY, f"{MONDAY} {NOON}", 1, True),
            ("in silver", "f:2", MONDAY, f"{MONDAY} {NOON}", 1, True),
            ("in silver", "f:2", MONDAY, f"{MONDAY} {NOON}", 1, False),
            ("another late", "f:9", MONDAY, f"{MONDAY} {NOON}", 1, True),
        ],
        KNOWN_DDL,
    )
    returned = undecided_rows(classified(spark, again, origin=origin), Comparison(MERGE))
    fresh = undecided_rows(classified(spark, [("own", "f:1", MONDAY, NOON, 1)]), Comparison(MERGE))
    assert verdicts(
        match_accepted(returned, group_accepted(known, Comparison(MERGE)), Comparison(MERGE))
    ) == {
        "f:2": DUPLICATE,
        "f:3": DUPLICATE,
    }
    assert verdicts(
        match_accepted(fresh, group_accepted(known, Comparison(MERGE)), Comparison(MERGE))
    ) == {"f:1": DUPLICATE}


def test_leftovers_are_ranked_again_among_their_like(spark: SparkSession) -> None:
    rows: list[New] = [
        ("e", "f:1", MONDAY, "09:00:00", 1),
        ("e", "f:2", TUESDAY, NOON, 1),
        ("e", "f:3", TUESDAY, NOON, 2),
    ]
    new = undecided_rows(classified(spark, rows), Comparison(MERGE))
    first = rank_arrivals(new, Comparison(MERGE))
    assert verdicts(first) == {"f:2": LEFTOVER, "f:3": LEFTOVER}
    left = new.join(first, on=list(IDENTITY), how="left_semi")
    assert verdicts(rank_arrivals(left, Comparison(MERGE))) == {"f:3": CONFLICT}


@pytest.mark.parametrize(
    ("widened", "kept"),
    [(False, ["at", "after"]), (True, ["at", "after", "old but of the date"])],
)
def test_accepted_rows_are_narrowed_to_the_reach_of_the_batch(
    spark: SparkSession, widened: bool, kept: list[str]
) -> None:
    table = timed(
        spark,
        [
            ("before", "r:0", TUESDAY, f"{MONDAY} {PAST}", 1, "ignored"),
            ("at", "r:1", TUESDAY, f"{MONDAY} {EDGE}", 1, "ignored"),
            ("after", "r:2", TUESDAY, f"{MONDAY} {WITHIN}", 1, "ignored"),
            ("old but of the date", "r:3", MONDAY, f"{MONDAY} {PAST}", 1, "ignored"),
        ],
        f"event_id string; record_id string; event_date date; ingested_at timestamp; "
        f"{PAYLOAD_HASH} bigint; value string",
    )
    day = (date(2024, 1, 1) - date(1970, 1, 1)).days
    reach = DedupScope(datetime(2024, 1, 1, 11, tzinfo=UTC), days=((day, day),) if widened else ())
    narrowed = reach.within(table, is_late_table=True)
    rows = narrowed.collect()
    assert [row["event_id"] for row in rows] == kept
    assert all(row["_late"] for row in rows)
    assert "value" not in narrowed.columns
