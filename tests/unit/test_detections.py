"""Where each rule begins to hold, and what it passes over."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from math import inf, nan
from typing import Any

import pytest
from pydantic import ValidationError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.costs import PlannedFrames
from tidelake.config import Detection
from tidelake.gold.detections import (
    Detected,
    Features,
    features_by_key,
    history_by_hour,
    hours_plan,
    judged,
    keyed,
    rule_inputs,
    to_alerts,
    to_fast_alerts,
)
from tidelake.gold.kinds import OWN, GoldBatch, Inputs
from tidelake.gold.merge_plan import GONE
from tidelake.gold.windows import to_partials
from tidelake.replay.compare import COLUMN
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.spark import tuning

_DDL = (
    "record_id string, event_id string, event_time timestamp, card string, "
    "amount decimal(12,2), latitude double, longitude double"
)
_NOON = datetime(2026, 1, 10, 12)
_AMOUNT = {"value": "amount", "times": 5, "history": "2 hours", "at_least": 2}
_TRAVEL = {"latitude": "latitude", "longitude": "longitude", "kmh": 900, "at_least_km": 50}
_PARIS, _LONDON = (48.8566, 2.3522), (51.5074, -0.1278)

Row = tuple[timedelta, str | None, str | None, tuple[float | None, float | None]]


def found(spark: SparkSession, rules: dict[str, Any], *rows: Row) -> list[tuple[int, Any]]:
    """Judge rows; give the number of each that breaks the rule, and why."""
    detection = Detection.model_validate(
        {"name": "alerts", "features": "hours", "keys": ["card"], **rules}
    )
    events = keyed(events_of(spark, *rows), detection)
    hours = hours_plan(detection.hours)
    before = history_by_hour(to_partials(events, hours), detection)
    alerts = to_alerts(judged(rule_inputs(events, detection, hours), before, detection), detection)
    return sorted((int(row["_record"]), json.loads(row["evidence"])) for row in alerts.collect())


def test_a_fast_alert_may_use_the_arrival_and_a_field_that_is_called_sent_at(
    spark: SparkSession,
) -> None:
    columns = {"arrived": "ingested_at", "wait": "concat(sent_at, '!')"}
    detection = Detection.model_validate(
        {
            "name": "alerts",
            "features": "hours",
            "keys": ["card"],
            "columns": columns,
            "unusual_amount": _AMOUNT,
        }
    )
    before = events_of(spark, *[(timedelta(0), "a", "1", _PARIS)] * 3)
    hours = to_partials(keyed(before, detection), hours_plan(detection.hours))
    now = (_NOON + timedelta(hours=1)).replace(tzinfo=UTC)
    known = features_by_key(hours, before, detection, now=now)
    event = events_of(spark, (timedelta(hours=1), "a", "98", _PARIS)).withColumns(
        {"ingested_at": F.col("event_time") + F.lit(timedelta(1)), "sent_at": F.lit("early")}
    )
    [alert] = to_fast_alerts(event, known, detection).collect()
    assert (alert.rule, alert.wait) == ("unusual_amount", "early!")
    assert alert.sent_at == alert.arrived == alert.event_time + timedelta(1)


def events_of(spark: SparkSession, *rows: Row) -> DataFrame:
    """Make events, whose ids are the numbers of the rows."""
    table = ", ".join(
        f"('{n}', '{n:03d}', timestamp'{(_NOON + after).isoformat(sep=' ')}', {_sql(card)}, "
        f"{amount or 'NULL'}, {_number(latitude)}, {_number(longitude)})"
        for n, (after, card, amount, (latitude, longitude)) in enumerate(rows)
    )
    types = [column.strip().split(" ", 1) for column in _DDL.replace("(12,2)", "(12;2)").split(",")]
    events = spark.sql(f"SELECT * FROM VALUES {table}").toDF(*[name for name, _ in types])
    return events.select(
        *[F.col(name).cast(kind.replace(";", ",")).alias(name) for name, kind in types]
    )


def _sql(text: str | None) -> str:
    return "NULL" if text is None else f"'{text}'"


def _number(value: float | None) -> str:
    return "NULL" if value is None else f"CAST('{value}' AS DOUBLE)"


def paid(minutes: float, amount: str | None, card: str | None = "a") -> Row:
    return timedelta(minutes=minutes), card, amount, (None, None)


def at(seconds: float, place: tuple[float | None, float | None]) -> Row:
    return timedelta(seconds=seconds), "a", None, place


def test_an_amount_is_unusual_above_so_many_means_and_not_at_them(spark: SparkSession) -> None:
    rows = [paid(-60, "1.00"), paid(-59, "1.01"), paid(0, "5.02"), paid(1, "5.03")]
    # The mean is 1.005, five times that 5.025.
    assert found(spark, {"unusual_amount": _AMOUNT}, *rows) == [
        (3, {"value": 5.03, "mean": 1.01, "values": 2})
    ]


def test_evidence_is_the_same_after_the_type_of_its_value_was_widened(
    spark: SparkSession,
) -> None:
    detection = Detection.model_validate(
        {"name": "alerts", "features": "hours", "keys": ["card"], "unusual_amount": _AMOUNT}
    )
    kind = Detected("gold.alerts", "detections[0]", detection, "gold.hours")
    (sql,) = kind.tolerances({}).values()
    cases = [
        ("100", "100.00", True),
        ("34.60", "34.6000", True),
        ("-0.01", "-0.010", True),
        ("100", "10", False),
        ("34.60", "34.06", False),
        ("34.60", "34", False),
    ]
    evidence = """named_struct('evidence', '{{"value":{},"mean":1.50,"values":7}}')""".format
    rows = [f"({n}, {evidence(one)}, {evidence(two)})" for n, (one, two, _) in enumerate(cases)]
    sides = spark.sql(f"SELECT * FROM VALUES {', '.join(rows)} AS t(n, e, s)")
    same = sides.select("n", F.expr(COLUMN.sub(r"\1.\2", sql))).collect()
    assert sorted(map(tuple, same)) == [(n, is_same) for n, (*_, is_same) in enumerate(cases)]


def test_an_amount_is_held_against_whole_hours_of_its_own_key(spark: SparkSession) -> None:
    in_its_hour = [paid(-60, "1"), paid(0, "1"), paid(1, "9")]
    too_old = [paid(-121, "1"), paid(-60, "1"), paid(0, "9")]
    of_others = [paid(-60, "1"), paid(-60, "1", "b"), paid(0, "9")]
    without = [paid(-60, "1"), paid(-60, None), paid(0, "9")]
    for rows in (in_its_hour, too_old, of_others, without):
        assert found(spark, {"unusual_amount": _AMOUNT}, *rows) == []
    oldest = [paid(-120, "1"), paid(-1, "1"), paid(59, "9")]
    assert [n for n, _ in found(spark, {"unusual_amount": _AMOUNT}, *oldest)] == [2]


def test_a_burst_counts_the_event_itself_and_ends_where_its_time_does(spark: SparkSession) -> None:
    rules = {"burst": {"events": 3, "within": "1 minute"}}
    second = 1 / 60
    assert found(spark, rules, paid(0, None), paid(0.5, None), paid(1, None)) == []
    rows = [paid(0, None), paid(0.5, None), paid(1 - second / 1000, None)]
    assert found(spark, rules, *rows) == [(2, {"events": 3, "since": "2026-01-10T12:00:00.000Z"})]
    # Events of one instant count for one another, across the hour as well.
    same = [paid(-second, None), paid(0, None), paid(0, None)]
    assert [n for n, _ in found(spark, rules, *same)] == [1, 2]


@pytest.mark.parametrize("minutes", [22, 24])
def test_travel_is_impossible_above_the_speed_alone(spark: SparkSession, minutes: float) -> None:
    # Paris to London is 343.6 km along the great circle: 22 min 54 s at 900 km/h.
    answer = found(spark, {"impossible_travel": _TRAVEL}, at(0, _PARIS), at(60 * minutes, _LONDON))
    why = {
        "km": 344,
        "seconds": 1320,
        "since": "2026-01-10T12:00:00.000Z",
        "latitude": 48.8566,
        "longitude": 2.3522,
    }
    assert answer == ([(1, why)] if minutes == 22 else [])


def test_travel_passes_over_events_without_a_place_and_short_ways(spark: SparkSession) -> None:
    near = (_PARIS[0] + 0.4, _PARIS[1])
    nowhere = [at(0, _PARIS), at(1, (None, 2.0)), at(2, (48.0, None)), at(3, near)]
    assert found(spark, {"impossible_travel": _TRAVEL}, *nowhere) == []
    back = [at(-7200, _PARIS), at(-10, (None, None)), at(0, _LONDON), at(1, _PARIS)]
    assert [n for n, _ in found(spark, {"impossible_travel": _TRAVEL}, *back)] == [3]
    # From one hour into the next, and twice in one instant.
    hours = [at(-1, _PARIS), at(0, _LONDON), at(0, _PARIS)]
    assert [n for n, _ in found(spark, {"impossible_travel": _TRAVEL}, *hours)] == [1, 2]


def test_a_place_that_is_nowhere_hides_no_travel(spark: SparkSession) -> None:
    """Within an hour, and from one into a later one."""
    for nowhere in ((nan, 2.0), (48.0, nan), (inf, 2.0), (48.0, -inf)):
        for gap in (10, 7200):
            rows = [at(0, _PARIS), at(gap / 2, nowhere), at(gap, (-33.8688, 151.2093))]
            answer = found(spark, {"impossible_travel": _TRAVEL}, *rows)
            assert [(n, why["latitude"]) for n, why in answer] == [(2, _PARIS[0])]


def test_features_and_alerts_leave_out_a_place_that_is_nowhere_under_the_same_definition() -> None:
    rules = {"name": "alerts", "features": "hours", "keys": ["card"], "impossible_travel": _TRAVEL}
    detection = Detection.model_validate(rules)
    kind = Features("gold.hours", "detections[0].features", detection.hours)
    alerts = Detected("gold.alerts", "detections[0]", detection, "gold.hours")
    wanted = hours_plan(detection.hours).table
    assert kind.columns.table == alerts._hours.table == wanted != detection.hours
    assert kind.definition == detection.hours


def test_events_without_a_key_break_no_rule(spark: SparkSession) -> None:
    rules = {"burst": {"events": 2, "within": "1 minute"}}
    assert found(spark, rules, paid(0, None, None), paid(0, None, None)) == []


def test_what_a_longest_way_takes_bounds_how_far_back_places_are_looked_for() -> None:
    rules = {"name": "alerts", "features": "hours", "keys": ["card"]}
    travel = Detection.model_validate({**rules, "impossible_travel": _TRAVEL})
    assert travel.lookback == timedelta(hours=24)
    both = Detection.model_validate(
        {**rules, "impossible_travel": _TRAVEL, "unusual_amount": {"value": "amount"}}
    )
    assert both.lookback == timedelta(days=30)


def test_amounts_and_places_on_which_an_expression_fails_break_no_rule(spark: SparkSession) -> None:
    amount = {**_AMOUNT, "value": "amount / (amount - 2)", "at_least": 1}
    rows = [paid(-60, "3"), paid(-59, "2"), paid(0, "2"), paid(1, "2.1")]
    assert [n for n, _ in found(spark, {"unusual_amount": amount}, *rows)] == [3]
    # As an integer, an amount times the number of values, or the mean times five, has no room.
    large = {**_AMOUNT, "value": "CAST(amount * 1e6 AS BIGINT)"}
    rows = [paid(-60 - n, "1") for n in range(5)] + [paid(0, "9000000000.00")]
    assert [n for n, _ in found(spark, {"unusual_amount": large}, *rows)] == [5]
    # Divided by zero, or infinite: an event without a place.
    for latitude in ("latitude / (latitude - 90)", "latitude * 1e308 * 10"):
        travel = {**_TRAVEL, "latitude": latitude}
        rows = [at(-1, (90.0, 0.1)), at(0, (90.0, 0.1))]
        assert found(spark, {"impossible_travel": travel}, *rows) == []
    # One place, named from both sides of a pole: the square of the distance is rounded below zero.
    rows = [at(-1, (45.0, 10.0)), at(0, (135.0, 190.0))]
    assert found(spark, {"impossible_travel": _TRAVEL}, *rows) == []


def test_a_speed_has_a_bound_below_which_the_longest_way_takes_forever() -> None:
    with pytest.raises(ValidationError, match="kmh"):
        Detection.model_validate(
            {
                "name": "alerts",
                "features": "hours",
                "keys": ["card"],
                "impossible_travel": {**_TRAVEL, "kmh": 1e-9},
            }
        )


def _kind(**rules: Any) -> Detected:
    given = {"name": "alerts", "features": "hours", "keys": ["card"], **rules}
    detection = Detection.model_validate(given)
    return Detected("gold.alerts", "detections[0]", detection, "gold.hours")


def _batch(events: DataFrame, eligible: int, frames: Any, **more: Any) -> GoldBatch:
    whole = more.pop("whole", {})
    inputs = Inputs({OWN: events}, whole.__getitem__)
    stored = more.pop("stored", {}).__getitem__
    numbers: dict[str, Any] = {"generation": "g1", "number": 1, "is_first": False, "slots": 1}
    return GoldBatch(inputs, eligible=eligible, stored=stored, frames=frames, **numbers | more)


def test_a_first_batch_reads_no_history_and_has_the_alerts_of_all_events(
    spark: SparkSession,
) -> None:
    kind = _kind(unusual_amount=_AMOUNT, burst={"events": 2, "within": "1 minute"})
    rows = [paid(-60, "1"), paid(-59, "1"), paid(0, "9"), paid(0.5, None), paid(0, "9", None)]
    events = events_of(spark, *rows)
    with CheckpointedFrames(small=True) as frames:
        # Neither silver nor a table of gold can be read.
        plan = kind.plan(_batch(events, 4, frames, is_first=True))
        assert plan is not None
        assert GONE not in plan.rows.columns
        found = plan.rows.drop("_generation", "_batch").collect()
    assert sorted(found) == sorted(kind.of_all(Inputs({}, {OWN: events}.__getitem__)).collect())
    assert {(row["_record"], row["rule"]) for row in found} == {
        ("2", "unusual_amount"),
        ("3", "burst"),
    }


@pytest.mark.parametrize("most", [1, 2])
def test_the_keys_of_a_batch_are_broadcast_if_they_are_few(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(tuning, "BROADCAST", most)
    kind = _kind(burst={"events": 2, "within": "1 minute"})
    events = events_of(spark, paid(0, None), paid(0.5, None), paid(0, None, "b"), paid(1, None))
    silver = {OWN: events}
    hours = Features("gold.hours", "detections[0].features", kind.detection.hours)
    stored = {
        "gold.hours": hours.of_all(Inputs({}, silver.__getitem__)),
        "gold.alerts": kind.of_all(Inputs({}, silver.__getitem__)).limit(0),
    }
    with PlannedFrames() as frames:
        # Two cards; the first event is one of a batch before.
        new = events.where("record_id > 0")
        plan = kind.plan(_batch(new, 3, frames, whole=silver, stored=stored))
        assert plan is not None
        assert sorted(row["_record"] for row in plan.rows.collect()) == ["1", "3"]
    assert (frames.broadcasts > 0) is (most == 2)
