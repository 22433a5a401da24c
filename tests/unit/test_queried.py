"""Queries over rows on which WHERE or HAVING fails: they keep nothing, and are counted."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.costs import PlannedFrames
from tidelake.config import GoldTable
from tidelake.config.queries import Query
from tidelake.gold.kinds import OWN, GoldBatch, Inputs
from tidelake.gold.merge_plan import GONE
from tidelake.gold.queried import Queried
from tidelake.gold.windows import Windowed
from tidelake.runtime.gold_tables import Target, count_contributions
from tidelake.spark import tuning

pytestmark = pytest.mark.usefixtures("interpreted")

_NOON = datetime(2026, 1, 5, 12)
_COUNTED = GoldTable.model_validate(
    {
        "name": "counted",
        "window": {"kind": "tumbling", "size": "1 minute"},
        "keys": ["who"],
        "measures": {"events": {"count": "*"}, "most": {"max": "n"}},
    }
)
# WHERE fails on 2 events of one person in a minute, HAVING on one person.
_OVER_GOLD = """
    SELECT window_start, count(*) AS people, count(DISTINCT who) AS names, sum(events) AS events,
           max(most) AS most
    FROM counted WHERE 10 / (events - 2) > 0
    GROUP BY window_start HAVING 6 / (count(*) - 1) > 2
"""
_OVER_SILVER = """
    SELECT date_trunc('minute', event_time) AS minute, count(*) AS events, sum(n) AS n
    FROM silver.shop WHERE 10 / (n - 2) > 0 GROUP BY ALL
"""
# How many events each person has, by minute.
_MINUTES = [
    {"a": 5, "b": 2, "c": 6},
    {"a": 2},
    {"a": 5},
    {"a": 1},
    {"a": 5, "b": 5, "c": 5, "d": 5},
    {"a": 5, "b": 5},
]


def minute(number: int) -> datetime:
    return _NOON + timedelta(minutes=number)


def query(sql: str, source: Windowed | None = None) -> Queried:
    asked = Query.model_validate({"name": "asked", "sql": sql})
    return Queried("gold.asked", "queries[0]", asked, source)


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> DataFrame:
    """Make the events of all minutes; ``n`` counts those of one person in one minute."""
    rows = [
        f"({60 * number}L, '{who}', {count})"
        for number, minute in enumerate(_MINUTES)
        for who, count in minute.items()
    ]
    made = spark.sql(f"SELECT * FROM VALUES {', '.join(rows)} AS t(after, who, count)")
    made = made.withColumn("n", F.explode(F.sequence(F.lit(1), "count")))
    at = f"TIMESTAMP'{_NOON.isoformat(sep=' ')}Z' + make_dt_interval(0, 0, 0, after)"
    return made.select(
        F.expr(at).alias("event_time"),
        F.concat_ws(" ", "after", "who", "n").alias("event_id"),
        "who",
        "n",
    )


@pytest.mark.parametrize("most", [5, 6])
def test_groups_that_where_or_having_leaves_out_because_it_fails_are_counted(
    spark: SparkSession, events: DataFrame, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(tuning, "BROADCAST", most)
    source = Windowed("gold.counted", "gold[0]", _COUNTED)
    kind, silver = query(_OVER_GOLD, source), {OWN: events}
    inputs = Inputs(silver, silver.__getitem__)
    kept = [(_NOON, 2, 2, 11, 6), (minute(5), 2, 2, 10, 5)]
    assert _rows(kind.of_all(inputs)) == kept

    # What an earlier batch wrote: a row that is to be deleted, and one that stays.
    zone = "TIMESTAMP'{}Z'"
    stored = spark.sql(
        f"SELECT {zone.format(minute(1))} AS window_start, 9L AS people, 9L AS names, "
        f"CAST(9 AS DECIMAL(38,0)) AS events, 9 AS most "
        f"UNION ALL SELECT {zone.format(minute(5))}, 2L, 2L, CAST(10 AS DECIMAL(38,0)), 5"
    )
    tables = {"gold.counted": source.of_all(inputs), "gold.asked": stored}
    with PlannedFrames() as frames:
        batch = GoldBatch(
            inputs,
            eligible=events.count(),
            stored=tables.__getitem__,
            generation="g1",
            number=1,
            is_first=False,
            slots=1,
            frames=frames,
        )
        plan = kind.plan(batch)
        assert plan is not None
        changed = {row["window_start"]: row[GONE] for row in _in_utc(plan.rows).collect()}
    # Not the fourth minute, which WHERE leaves out, nor the fifth, which HAVING leaves out.
    assert changed == {_NOON: False, minute(1): True, minute(2): True}
    assert plan.failed == 3
    assert (frames.broadcasts > 0) is (most == 6)


def test_events_on_which_where_fails_are_counted_where_silver_is_read(events: DataFrame) -> None:
    kind, silver = query(_OVER_SILVER), {OWN: events}
    target: Any = Target(None, kind)  # type: ignore[arg-type]
    seconds = sum(count > 1 for minute in _MINUTES for count in minute.values())
    (counted,) = count_contributions(silver, [target])
    assert counted == {
        "rows": events.count(),
        "eligible": events.where("n > 2").count(),
        "failed": seconds,
    }
    # Once: they leave no mark in the rows of the query.
    found = kind.answer(events)
    assert found.where(F.col("_failed") | F.col(GONE)).isEmpty()
    assert _rows(found.select("minute", "events"))[0] == (_NOON, 7)


def test_a_query_over_gold_counts_no_event_on_which_its_where_fails(events: DataFrame) -> None:
    target: Any = Target(None, query(_OVER_GOLD, Windowed("gold.counted", "g", _COUNTED)))  # type: ignore[arg-type]
    (counted,) = count_contributions({OWN: events}, [target])
    assert counted["failed"] == 0


def _in_utc(rows: DataFrame) -> DataFrame:
    """Make instants readable without the driver's time zone."""
    times = [name for name, kind in rows.dtypes if kind == "timestamp"]
    return rows.withColumns(
        {name: F.to_timestamp_ntz(F.date_format(name, "yyyy-MM-dd HH:mm:ss")) for name in times}
    )


def _rows(found: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in _in_utc(found).collect())
