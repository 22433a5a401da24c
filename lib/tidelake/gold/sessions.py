"""Group events into sessions, and regroup them with the sessions that gold already holds.

The next event belongs while ``event_time - session_end <= gap``. A late event may extend a
session, bridge two or start one; stored sessions that are absorbed are named for deletion.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidelake.config import GoldTable, SessionWindow
from tidelake.gold import GONE
from tidelake.gold.measures import GoldPlan, shown_of, states_of, to_values

_SALT = "_salt"
_Form = Literal["partial", "combine"]


def gap_of(table: GoldTable) -> timedelta:
    """Give a session table's gap."""
    if not isinstance(table.window, SessionWindow):
        raise TypeError(f"{table.name} has no session window")
    return table.window.gap


def to_sessions(events: DataFrame, plan: GoldPlan, *, salt: timedelta | None = None) -> DataFrame:
    """Group a batch's events into sessions.

    ``salt`` is the length of the stretches of event time into which each key is cut first; None:
    one task orders the events of a key, however many they are.

    Returns:
        The keys, ``session_start``, ``session_end``, the state columns and the columns shown.
    """
    typed = plan.typed(events)
    table, values = typed.table, to_values(events, typed)
    instants = values.withColumns(
        {"session_start": F.col("event_time"), "session_end": F.col("event_time")}
    )
    if salt is None:
        return _group(instants, table, form="partial")
    stretch = F.floor(F.unix_micros("event_time") / (salt // timedelta(microseconds=1)))
    cut = instants.withColumn(_SALT, stretch)
    # Sessions of a stretch are pieces of the key's: what lies within the gap joins again.
    return _group(_group(cut, table, form="partial", salt=_SALT), table, form="combine")


def regroup(partials: DataFrame, stored: DataFrame, table: GoldTable) -> DataFrame:
    """Join a batch's sessions with the stored ones that they touch.

    Stored sessions of a key lie more than a gap apart, so only those that touch a new session
    directly can take part in a merge.

    Returns:
        The rows to write: ``session_id``, keys, bounds and states, with ``_gone`` true for
        stored sessions that exist no more.
    """
    touched = _touched(stored, partials, table)
    columns = [*table.keys, "session_start", "session_end"]
    states = [state.name for state in states_of(table)]
    together = partials.select(*columns, *states).unionByName(touched.select(*columns, *states))
    alive = _group(together, table, form="combine").withColumn("session_id", session_id(table))
    gone = touched.join(alive.select("session_id"), on="session_id", how="left_anti")
    written = ["session_id", *columns, *states, *[shown.name for shown in shown_of(table)]]
    return (
        alive.select(*written)
        .withColumn(GONE, F.lit(False))
        .unionByName(gone.select(*written).withColumn(GONE, F.lit(True)))
    )


def session_id(table: GoldTable) -> Column:
    """Hash the keys and the start: the same session has the same id wherever it is computed."""
    start = F.unix_micros("session_start").alias("session_start")
    return F.md5(F.to_json(F.struct(*table.keys, start)))


def _touched(stored: DataFrame, partials: DataFrame, table: GoldTable) -> DataFrame:
    gap = F.lit(gap_of(table))
    new = partials.select(
        *[F.col(key).alias(f"new_{key}") for key in table.keys],
        F.col("session_start").alias("new_start"),
        F.col("session_end").alias("new_end"),
    )
    near = (F.col("session_start") <= F.col("new_end") + gap) & (
        F.col("new_start") <= F.col("session_end") + gap
    )
    same = [F.col(key).eqNullSafe(F.col(f"new_{key}")) for key in table.keys]
    return stored.join(new, on=[*same, near], how="left_semi")


def _group(rows: DataFrame, table: GoldTable, *, form: _Form, salt: str | None = None) -> DataFrame:
    """Number the sessions of each key by the gaps before them, then aggregate each."""
    gap = F.lit(gap_of(table))
    keys = [*table.keys, *([salt] if salt else [])]
    by_start = Window.partitionBy(*keys).orderBy("session_start")
    before = by_start.rowsBetween(Window.unboundedPreceding, -1)
    reached = F.max("session_end").over(before)
    starts = F.when(F.col("session_start") <= reached + gap, 0).otherwise(1)
    numbered = rows.withColumn("_starts", starts).withColumn(
        "_session", F.sum("_starts").over(by_start.rowsBetween(Window.unboundedPreceding, 0))
    )
    grouped = numbered.groupBy(*keys, "_session").agg(
        F.min("session_start").alias("session_start"),
        F.max("session_end").alias("session_end"),
        *_aggregates(table, form),
    )
    if form == "combine":
        shown = {
            column.name: F.expr(column.over({name: name for name in column.states}))
            for column in shown_of(table)
        }
        grouped = grouped.withColumns(shown) if shown else grouped
    return grouped.drop("_session")


def _aggregates(table: GoldTable, form: _Form) -> Sequence[Column]:
    states = [F.expr(getattr(state, form)).alias(state.name) for state in states_of(table)]
    if form == "combine":
        return states
    return [*states, *[F.expr(shown.like).alias(shown.name) for shown in shown_of(table)]]
