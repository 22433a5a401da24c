"""Join events of two sides within a time bound: one row a left event, its first match beside it.

A row follows from silver alone, whichever side came first: a batch names the left events that it
may change, and their rows are computed anew from all of silver that was taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.columns import VALUE, equal, holds, try_eval
from tidelake.config import Join
from tidelake.config.gold import LeftSide, RightSide

LEFT, LEFT_TIME = "_left", "_left_time"
RIGHT, RIGHT_TIME = "_right", "_right_time"
_RIGHT_ID = "_right_id"
_FOUND = "_found"


def left_side(events: DataFrame, join: Join) -> DataFrame:
    """Take the events that give a row each.

    Returns:
        ``_left`` (the event's record id, unique in silver), ``_left_time``, the keys as
        ``_on_<name>`` and the selected columns.
    """
    return _within(events, join.left).select(
        F.col("record_id").alias(LEFT),
        F.col("event_time").alias(LEFT_TIME),
        *_keys(join.on),
        *_values(join.left),
    )


def right_side(events: DataFrame, join: Join) -> DataFrame:
    """Take the events that may match.

    Returns:
        ``_right``, ``_right_time``, ``_right_id``, the keys and the selected columns.
    """
    return _within(events, join.right).select(
        F.col("record_id").alias(RIGHT),
        F.col("event_time").alias(RIGHT_TIME),
        F.col("event_id").alias(_RIGHT_ID),
        *_keys(join.on),
        *_values(join.right),
    )


def failed(side: LeftSide | RightSide) -> Column:
    """Tell the events on which a side's ``where`` or one of its columns fails."""
    broken = reduce(or_, [try_eval(sql).isNull() for sql in side.columns.values()])
    if side.where is None:
        return broken
    return try_eval(side.where, "boolean").isNull() | (holds(side.where) & broken)


def changed_by(
    new_left: DataFrame, new_right: DataFrame, known: DataFrame, join: Join
) -> DataFrame:
    """Find the left events whose rows a batch may change, among ``known`` ones near enough."""
    reached = known.join(new_left.select(LEFT), on=LEFT, how="left_anti")
    candidates = new_right.select(*[_on(name) for name in join.on], RIGHT_TIME)
    on = _matching(join, reached, candidates)
    reached = reached.alias("l").join(candidates.alias("r"), on=on, how="left_semi")
    return new_left.unionByName(reached)


def matched(left: DataFrame, right: DataFrame, join: Join) -> DataFrame:
    """Put its first match beside each left event: the earliest, ties by event id.

    Returns:
        The selected columns of both sides, ``_left``, ``_left_time``, ``_right`` and
        ``_right_time``; without a match no row for an inner join, nulls for a left one.
    """
    brought = [*join.right.columns, RIGHT, RIGHT_TIME]
    pairs = (
        left.select(LEFT, LEFT_TIME, *[_on(name) for name in join.on])
        .alias("l")
        .join(right.alias("r"), on=_matching(join, left, right), how="inner")
    )
    found = F.struct(*[F.col(f"r.{name}").alias(name) for name in brought])
    order = F.struct(f"r.{RIGHT_TIME}", f"r.{_RIGHT_ID}", f"r.{RIGHT}")
    first = pairs.groupBy(f"l.{LEFT}").agg(F.min_by(found, order).alias(_FOUND))
    return left.join(first, on=LEFT, how=join.type).select(
        *join.left.columns,
        *[F.col(_FOUND).getField(name).alias(name) for name in join.right.columns],
        LEFT,
        LEFT_TIME,
        *[F.col(_FOUND).getField(name).alias(name) for name in (RIGHT, RIGHT_TIME)],
    )


def _keys(names: Sequence[str]) -> list[Column]:
    return [F.col(name).alias(_on(name)) for name in names]


def _on(name: str) -> str:
    return f"_on_{name}"


def _within(events: DataFrame, side: LeftSide | RightSide) -> DataFrame:
    return events.where(holds(side.where)) if side.where else events


def _values(side: LeftSide | RightSide) -> list[Column]:
    """Give a side's columns, null where one cannot be computed."""
    return [try_eval(sql).getField(VALUE).alias(name) for name, sql in side.columns.items()]


def _matching(join: Join, left: DataFrame, right: DataFrame) -> Column:
    """Say when ``l`` and ``r`` match; a null key matches nothing."""
    ours, theirs = left.schema, right.schema
    condition = F.col(f"r.{RIGHT_TIME}").between(
        F.col(f"l.{LEFT_TIME}"), F.col(f"l.{LEFT_TIME}") + F.lit(join.within)
    )
    for name in join.on:
        one, other = ours[_on(name)].dataType, theirs[_on(name)].dataType
        same = equal(F.col(f"l.{_on(name)}"), one, F.col(f"r.{_on(name)}"), other)
        condition = same & condition
    return condition
