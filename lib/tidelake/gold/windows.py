"""Aggregate a batch of events per window and key, for windows whose bounds the clock gives.

Windows lie on event time, aligned to the epoch in UTC and shifted by their offset; a start
belongs to its window, an end does not.
"""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.config import GlobalWindow, GoldTable, HoppingWindow, TumblingWindow
from tidelake.gold.measures import shown_of, states_of

BOUNDS = ("window_start", "window_end")


def to_partials(events: DataFrame, table: GoldTable) -> DataFrame:
    """Aggregate events into one row per window and key.

    Args:
        events: Silver rows, already filtered by the table's ``where``.
        table: A tumbling, hopping or global table.

    Returns:
        The window's bounds (none for a global table), the keys, the state columns and the
        columns shown from them.
    """
    bounds = [] if isinstance(table.window, GlobalWindow) else list(BOUNDS)
    grouping = [F.col(key) for key in table.keys]
    if bounds:
        grouping.insert(0, _window(table.window).alias("_window"))
    states = [F.expr(state.partial).alias(state.name) for state in states_of(table)]
    likes = [F.expr(shown.like).alias(shown.name) for shown in shown_of(table)]
    grouped = events.groupBy(*grouping).agg(*states, *likes)
    if bounds:
        grouped = grouped.withColumns(
            {"window_start": F.col("_window.start"), "window_end": F.col("_window.end")}
        )
    return grouped.select(
        *bounds,
        *table.keys,
        *[state.name for state in states_of(table)],
        *[shown.name for shown in shown_of(table)],
    )


def _window(window: object) -> Column:
    if isinstance(window, TumblingWindow):
        return F.window("event_time", _interval(window.size), startTime=_interval(window.offset))
    if isinstance(window, HoppingWindow):
        return F.window(
            "event_time",
            _interval(window.size),
            _interval(window.slide),
            _interval(window.offset),
        )
    raise TypeError(f"{window!r} has no bounds")


def _interval(length: timedelta) -> str:
    return f"{length // timedelta(microseconds=1)} microseconds"
