"""Windows: a start belongs, an end does not, and the clock is UTC's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.pipelines import gold, timed
from tidelake.gold.measures import GoldPlan
from tidelake.gold.windows import to_partials

DDL = "event_id string; event_time timestamp; user_id string; value int"
EVENTS = [
    ("e1", "2024-01-01 12:00:00", "u", 1),
    ("e2", "2024-01-01 12:00:59.999999", "u", 2),
    ("e3", "2024-01-01 12:01:00", "u", 4),
    ("e4", "2024-01-01 12:00:30", None, 8),
    ("e5", "2024-01-01 12:00:31", None, 16),
    ("e6", "1969-12-31 23:59:59.999999", "u", 32),
]
WINDOWED_DDL = "window_start timestamp; window_end timestamp; user_id string; events bigint"


def partials(spark: SparkSession, folder: Path, window: dict[str, str], **keys: Any) -> DataFrame:
    return to_partials(timed(spark, EVENTS, DDL), GoldPlan(gold(folder, window=window, **keys)))


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (
            {"kind": "tumbling", "size": "1 minute"},
            [
                ("2024-01-01 12:00:00", "2024-01-01 12:01:00", "u", 2),
                ("2024-01-01 12:01:00", "2024-01-01 12:02:00", "u", 1),
                ("2024-01-01 12:00:00", "2024-01-01 12:01:00", None, 2),
                ("1969-12-31 23:59:00", "1970-01-01 00:00:00", "u", 1),
            ],
        ),
        (
            {"kind": "tumbling", "size": "1 day", "offset": "6 hours"},
            [
                ("2024-01-01 06:00:00", "2024-01-02 06:00:00", "u", 3),
                ("2024-01-01 06:00:00", "2024-01-02 06:00:00", None, 2),
                ("1969-12-31 06:00:00", "1970-01-01 06:00:00", "u", 1),
            ],
        ),
        (
            {"kind": "hopping", "size": "2 minutes", "slide": "1 minute"},
            [
                ("2024-01-01 11:59:00", "2024-01-01 12:01:00", "u", 2),
                ("2024-01-01 12:00:00", "2024-01-01 12:02:00", "u", 3),
                ("2024-01-01 12:01:00", "2024-01-01 12:03:00", "u", 1),
                ("2024-01-01 11:59:00", "2024-01-01 12:01:00", None, 2),
                ("2024-01-01 12:00:00", "2024-01-01 12:02:00", None, 2),
                ("1969-12-31 23:58:00", "1970-01-01 00:00:00", "u", 1),
                ("1969-12-31 23:59:00", "1970-01-01 00:01:00", "u", 1),
            ],
        ),
        (
            {"kind": "hopping", "size": "1 minute", "slide": "30 seconds", "offset": "15 seconds"},
            [
                ("2024-01-01 11:59:15", "2024-01-01 12:00:15", "u", 1),
                ("2024-01-01 11:59:45", "2024-01-01 12:00:45", "u", 1),
                ("2024-01-01 12:00:15", "2024-01-01 12:01:15", "u", 2),
                ("2024-01-01 12:00:45", "2024-01-01 12:01:45", "u", 2),
                ("2024-01-01 11:59:45", "2024-01-01 12:00:45", None, 2),
                ("2024-01-01 12:00:15", "2024-01-01 12:01:15", None, 2),
                ("1969-12-31 23:59:15", "1970-01-01 00:00:15", "u", 1),
                ("1969-12-31 23:59:45", "1970-01-01 00:00:45", "u", 1),
            ],
        ),
    ],
    ids=["tumbling", "tumbling with an offset", "hopping", "hopping with an offset"],
)
def test_events_are_counted_once_in_each_window_that_holds_them(
    spark: SparkSession,
    tmp_path: Path,
    window: dict[str, str],
    expected: list[tuple[str, str, str | None, int]],
) -> None:
    found = partials(spark, tmp_path, window)
    assert_df_equality(
        found, timed(spark, expected, WINDOWED_DDL), ignore_row_order=True, ignore_nullable=True
    )


def test_an_event_may_be_in_a_thousand_windows(spark: SparkSession, tmp_path: Path) -> None:
    window = {"kind": "hopping", "size": "1001 minutes", "slide": "2 minutes", "offset": "1 minute"}
    found = partials(spark, tmp_path, window).where("window_end <= '1970-01-02'")
    bounds = found.groupBy().agg(
        *[F.expr(f"CAST({sql} AS STRING)") for sql in ("min(window_start)", "max(window_start)")],
        F.sum("events"),
    )
    # Of the event of 23:59:59 on the last day of 1969: size is no multiple of slide.
    assert tuple(bounds.first() or ()) == ("1969-12-31 07:19:00", "1969-12-31 23:59:00", 501)


def test_a_global_table_has_a_row_for_each_key_the_null_one_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = partials(spark, tmp_path, {"kind": "global"}, measures={"total": {"sum": "value"}})
    expected = timed(spark, [("u", 39), (None, 24)], "user_id string; total bigint")
    assert_df_equality(found, expected, ignore_row_order=True, ignore_nullable=True)


def test_the_columns_are_bounds_keys_states_and_what_is_shown(
    spark: SparkSession, tmp_path: Path
) -> None:
    measures = {"mean": {"avg": "value"}, "events": {"count": "*"}}
    window = {"kind": "tumbling", "size": "1 minute"}
    found = partials(spark, tmp_path, window, measures=measures)
    bounds = ["window_start", "window_end"]
    states = ["_mean_sum", "_mean_count", "events"]
    assert found.columns == [*bounds, "user_id", *states, "mean"]
