"""Aggregate a batch of events per window and key, for windows whose bounds the clock gives.

Windows lie on event time, aligned to the epoch in UTC and shifted by their offset; a start
belongs to its window, an end does not.
"""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.config import GlobalWindow, GoldTable, HoppingWindow, TumblingWindow
from tidelake.gold.measures import GoldPlan, shown_of, states_of, to_values

BOUNDS = ("window_start", "window_end")


def to_partials(events: DataFrame, plan: GoldPlan) -> DataFrame:
    """Aggregate events into one row per window and key.

    Returns:
        The window's bounds (none for a global table), the keys, the state columns and the
        columns shown from them.
    """
    table = plan.typed(events)
    if table.steps is None:
        table.steps = _steps(table.table)
    keys, states, columns = table.steps
    return to_values(events, table).groupBy(*keys).agg(*states).select(*columns)


def _steps(table: GoldTable) -> tuple[list[Column], list[Column], list[Column]]:
    """Give what events are grouped by, what is aggregated, and the columns of the outcome."""
    has_bounds = not isinstance(table.window, GlobalWindow)
    grouping = [F.col(key) for key in table.keys]
    if has_bounds:
        grouping.insert(0, _window(table.window).alias("_window"))
    states = [F.expr(state.partial).alias(state.name) for state in states_of(table)]
    likes = [F.expr(shown.like).alias(shown.name) for shown in shown_of(table)]
    ends = zip(BOUNDS, ("_window.start", "_window.end"), strict=True)
    bounds = [F.col(end).alias(name) for name, end in ends] if has_bounds else []
    aggregated = [state.name for state in states_of(table)]
    aggregated += [shown.name for shown in shown_of(table)]
    columns = [*bounds, *[F.col(name) for name in (*table.keys, *aggregated)]]
    return grouping, [*states, *likes], columns


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
