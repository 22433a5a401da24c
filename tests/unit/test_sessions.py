"""Sessions: in whatever batches events come, the same sessions stand in the end."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tests.pipelines import gold, timed
from tidelake.config import GoldTable
from tidelake.gold.measures import GoldPlan
from tidelake.gold.merge_plan import GONE
from tidelake.gold.sessions import Sessions, gap_of, matches, regroup, session_id, to_sessions
from tidelake.spark import tuning

MEASURES = {
    # Named like the key of a batch's new rows.
    "new_user_id": {"count": "*"},
    "events": {"count": "*"},
    "total": {"sum": "value"},
    "mean": {"avg": "value"},
    "opening": {"first": "value"},
    "closing": {"last": "value"},
}
START = datetime(2024, 1, 1, tzinfo=UTC)
GAP = timedelta(minutes=30)

Event = tuple[str | None, str]
Shown = tuple[str | None, str, str, int]


def sessions_table(folder: Path, **keys: Any) -> GoldTable:
    window = {"kind": "session", "gap": "30 minutes"}
    return gold(folder, **{"window": window, "measures": MEASURES, **keys})


def events_of(spark: SparkSession, events: list[Event]) -> DataFrame:
    """Make events from a user and a clock on one day; each is worth 1."""
    rows = [(f"e{n}", user, f"2024-01-01 {clock}", 1) for n, (user, clock) in enumerate(events)]
    return timed(spark, rows, "event_id string; user_id string; event_time timestamp; value int")


def stored_of(spark: SparkSession, table: GoldTable, events: list[Event]) -> DataFrame:
    """Make a table's rows as if the events had come in one batch."""
    return to_sessions(events_of(spark, events), GoldPlan(table)).withColumn(
        "session_id", session_id(table)
    )


def shown(frame: DataFrame) -> list[Shown]:
    rows = frame.select(
        "user_id",
        F.date_format("session_start", "HH:mm:ss.SSSSSS"),
        F.date_format("session_end", "HH:mm:ss.SSSSSS"),
        "events",
    ).collect()
    return sorted((tuple(row) for row in rows), key=repr)


def test_a_gap_that_is_exactly_equal_merges_and_a_microsecond_more_does_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    events: list[Event] = [
        ("equal", "12:00:00"),
        ("equal", "12:30:00"),
        ("equal", "13:00:00"),
        ("more", "12:00:00"),
        ("more", "12:30:00.000001"),
        (None, "12:00:00"),
        (None, "12:10:00"),
    ]
    assert shown(to_sessions(events_of(spark, events), GoldPlan(sessions_table(tmp_path)))) == [
        ("equal", "12:00:00.000000", "13:00:00.000000", 3),
        ("more", "12:00:00.000000", "12:00:00.000000", 1),
        ("more", "12:30:00.000001", "12:30:00.000001", 1),
        (None, "12:00:00.000000", "12:10:00.000000", 2),
    ]


def test_late_events_extend_bridge_and_start_sessions(spark: SparkSession, tmp_path: Path) -> None:
    table = sessions_table(tmp_path)
    stored = stored_of(
        spark,
        table,
        [
            ("bridged", "12:00:00"),
            ("bridged", "13:00:00"),
            ("after", "12:00:00"),
            ("before", "12:30:00"),
            ("inside", "12:00:00"),
            ("inside", "12:20:00"),
            ("apart", "12:00:00"),
            ("far", "12:00:00"),
            ("far", "20:00:00"),
            (None, "12:00:00"),
        ],
    )
    late = events_of(
        spark,
        [
            ("bridged", "12:30:00"),
            ("after", "12:30:00"),
            ("before", "12:00:00"),
            ("inside", "12:10:00"),
            ("apart", "12:30:00.000001"),
            ("far", "12:10:00"),
            (None, "11:30:00"),
        ],
    )
    found = regroup(to_sessions(late, GoldPlan(table)), stored, table).localCheckpoint()
    assert shown(found.where(~F.col(GONE))) == [
        ("after", "12:00:00.000000", "12:30:00.000000", 2),
        ("apart", "12:30:00.000001", "12:30:00.000001", 1),
        ("before", "12:00:00.000000", "12:30:00.000000", 2),
        ("bridged", "12:00:00.000000", "13:00:00.000000", 3),
        ("far", "12:00:00.000000", "12:10:00.000000", 2),
        ("inside", "12:00:00.000000", "12:20:00.000000", 3),
        (None, "11:30:00.000000", "12:00:00.000000", 2),
    ]
    assert shown(found.where(GONE)) == [
        ("before", "12:30:00.000000", "12:30:00.000000", 1),
        ("bridged", "13:00:00.000000", "13:00:00.000000", 1),
        (None, "12:00:00.000000", "12:00:00.000000", 1),
    ]
    known = {row["session_id"] for row in stored.collect()}
    kept = {row["user_id"] for row in found.collect() if row["session_id"] in known}
    moved = {
        row["user_id"]
        for row in found.where(~F.col(GONE)).collect()
        if row["session_id"] not in known
    }
    # Those in both have the same id for what is absorbed only.
    assert kept == {"bridged", "after", "before", "inside", "far", None}
    assert moved == {"apart", "before", None}


@pytest.mark.parametrize("minutes", [1, 7, 30, 600])
def test_a_salt_changes_no_session(spark: SparkSession, tmp_path: Path, minutes: int) -> None:
    chance = random.Random(minutes)
    table = sessions_table(tmp_path)
    events: list[Event] = [
        (chance.choice(["hot"] * 9 + ["cold", None]), f"{h:02}:{m:02}:{s:02}")
        for h, m, s in (
            (chance.randrange(24), chance.choice([0, 15, 30, 59]), chance.randrange(3))
            for _ in range(120)
        )
    ]
    rows = events_of(spark, events)
    plain = to_sessions(rows, GoldPlan(table))
    salted = to_sessions(rows, GoldPlan(table), salt=timedelta(minutes=minutes))
    assert_df_equality(
        salted.select(*plain.columns), plain, ignore_row_order=True, ignore_nullable=True
    )


def test_only_a_key_that_would_keep_a_slot_busy_alone_is_salted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = Sessions("gold.counted", "gold[0]", sessions_table(tmp_path))
    slots = spark.sparkContext.defaultParallelism
    monkeypatch.setattr(tuning, "SPLIT_EVENTS", 10)
    monkeypatch.setattr(tuning, "SPLIT_COST", 2 * 0.1 * slots)
    even: list[Event] = [(f"u{n}", f"{n:02}:00:00") for n in range(20)]
    one: list[Event] = [("hot", f"{n:02}:00:00") for n in range(20)]
    assert kind.salt(events_of(spark, even), 20, slots) is None
    assert kind.salt(events_of(spark, one), 20, slots) is not None
    assert kind.salt(events_of(spark, one), 9, slots) is None


def test_ids_tell_keys_and_starts_apart_to_the_microsecond(
    spark: SparkSession, tmp_path: Path
) -> None:
    events: list[Event] = [
        ("a", "12:00:00"),
        ("a", "20:00:00.000001"),
        ("b", "12:00:00"),
        (None, "12:00:00"),
        ("null", "12:00:00"),
    ]
    ids = [
        row["session_id"] for row in stored_of(spark, sessions_table(tmp_path), events).collect()
    ]
    assert len(set(ids)) == len(events)


def test_the_keys_are_written_into_the_ids(tmp_path: Path) -> None:
    table = sessions_table(tmp_path)
    assert Sessions("gold.visits", "gold[0]", table).alike == (*table.keys, "mean")
    assert table.keys == ("user_id",)


def test_sessions_whose_keys_differ_by_a_microsecond_share_an_id_and_are_kept_apart(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = sessions_table(tmp_path).model_copy(update={"keys": ("booted_at",)})

    def sessions_of(*events: tuple[str, str]) -> DataFrame:
        rows = [
            (f"e{n}", f"2024-01-01 00:00:00.00000{key}", f"2024-01-01 {clock}", 1)
            for n, (key, clock) in enumerate(events)
        ]
        ddl = "event_id string; booted_at timestamp; event_time timestamp; value int"
        found = to_sessions(timed(spark, rows, ddl), GoldPlan(table))
        return found.withColumn("session_id", session_id(table))

    def known(rows: DataFrame) -> list[tuple[str, str, int]]:
        key, start = F.date_format("booted_at", "SSSSSS"), F.date_format("session_start", "HH:mm")
        return sorted(map(tuple, rows.select(key, start, "events").collect()))

    stored = sessions_of(("1", "12:00:00"), ("2", "12:00:00"))
    # One begins earlier, and so has another id; the other one is extended.
    late = sessions_of(("1", "11:50:00"), ("2", "12:10:00"))
    changed = regroup(late, stored, table).localCheckpoint()
    assert len({row["session_id"] for row in stored.collect()}) == 1
    assert known(changed.where(~F.col(GONE))) == [("000001", "11:50", 2), ("000002", "12:00", 2)]
    assert known(changed.where(GONE)) == [("000001", "12:00", 1)]
    # What the MERGE deletes and updates.
    matched = stored.alias("t").join(changed.alias("s"), on=F.expr(matches(table)), how="inner")
    found = matched.select("t.booted_at", "t.session_start", "s.events", GONE)
    assert known(found.where(GONE)) == [("000001", "12:00", 1)]
    assert known(found.where(~F.col(GONE))) == [("000002", "12:00", 2)]


def test_a_table_without_a_session_window_has_no_gap(tmp_path: Path) -> None:
    assert gap_of(sessions_table(tmp_path)) == GAP
    with pytest.raises(TypeError, match="counted has no session window"):
        gap_of(gold(tmp_path))


def test_random_arrival_in_random_batches_equals_one_pass(
    spark: SparkSession, tmp_path: Path
) -> None:
    # The mean of so many digits is no plain quotient.
    fine = {"fine": {"avg": "CAST(value AS DECIMAL(38,6))"}}
    table = sessions_table(tmp_path, measures=MEASURES | fine)
    batches: list[list[tuple[str, str, datetime, int]]] = [[], [], []]
    ends: dict[str, list[datetime]] = {}
    for seed in range(3):
        dice = random.Random(seed)
        for n in range(20):
            at = START + dice.randrange(40) * GAP / 2 + timedelta(microseconds=dice.randrange(2))
            event = (f"e{n:02}", f"seed {seed}", at, dice.randrange(1, 100))
            dice.choice(batches).append(event)
            ends.setdefault(event[1], []).append(at)
    ddl = "event_id string, user_id string, event_time timestamp, value int"
    whole = to_sessions(
        spark.createDataFrame([event for batch in batches for event in batch], ddl), GoldPlan(table)
    )
    whole = whole.withColumn("session_id", session_id(table))

    standing: dict[str, Row] = {}
    for batch in batches:
        stored = spark.createDataFrame(list(standing.values()), whole.schema)
        events = spark.createDataFrame(batch, ddl)
        partials = to_sessions(events, GoldPlan(table))
        changed = regroup(partials, stored, GoldPlan(table).typed(events).table)
        kept = changed.select(
            *[F.col(f.name).cast(f.dataType) for f in whole.schema], GONE
        ).collect()
        for row in kept:
            if row[GONE]:
                del standing[row["session_id"]]
        for row in kept:
            if not row[GONE]:
                standing[row["session_id"]] = row[:-1]

    found = spark.createDataFrame(list(standing.values()), whole.schema)
    assert_df_equality(found, whole, ignore_row_order=True, ignore_nullable=True)
    assert len(standing) == sum(_count(times) for times in ends.values())


def _count(times: list[datetime]) -> int:
    times = sorted(times)
    return 1 + sum(b - a > GAP for a, b in pairwise(times))
