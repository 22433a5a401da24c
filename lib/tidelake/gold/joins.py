"""Join events of two sides within a time bound: one row per left event with its first match.

Rows depend on silver alone, whichever side arrives first: a batch selects the left events that it
may affect, and their rows are recomputed from all of silver up to the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.columns import VALUE, between, equal, failed_within, holds, in_pairs, try_eval
from tidelake.config import Join
from tidelake.config.gold_definitions import FinalAfter, LeftSide, RightSide
from tidelake.gold.kinds import OWN, Expression, GoldBatch, GoldKind, Inputs
from tidelake.gold.merge_plan import MergePlan, span
from tidelake.names import logical_name

LEFT, LEFT_TIME = "_left", "_left_time"
RIGHT, RIGHT_TIME = "_right", "_right_time"
_RIGHT_ID = "_right_id"
_FOUND = "_found"


class Joined(GoldKind):
    """One row per left event of the pipeline's own silver, open while a match may still arrive."""

    moment = LEFT_TIME
    identity = (LEFT,)

    def __init__(self, name: str, place: str, join: Join, pipeline: str) -> None:
        """Resolve the right side's input; ``pipeline`` is the left side's and may be both."""
        self.name, self.place, self.definition, self.join = name, place, join, join
        other = join.right.pipeline
        self._right = OWN if other == pipeline else logical_name("silver", other)
        self.ends, self.reach = FinalAfter.after_last(LEFT_TIME, join.within), join.within
        self.sources = (OWN,) if self._right == OWN else (OWN, self._right)

    def expressions(self) -> dict[str, Expression]:
        """Return both sides' conditions, columns and keys."""
        named: dict[str, Expression] = {}
        sides = (("left", OWN, self.join.left), ("right", self._right, self.join.right))
        for name, key, side in sides:
            if side.where:
                named[f"{name}.where"] = Expression(key, side.where, is_condition=True)
            for column, sql in side.columns.items():
                named[f"{name}.columns.{column}"] = Expression(key, sql)
        for column in self.join.on:
            named[f"on.{column}"] = Expression(self._right, f"`{column}`")
        return named

    def eligible(self) -> Column:
        """Return the left side's ``where``."""
        return holds(self.join.left.where) if self.join.left.where else F.lit(True)

    def failed(self, key: str, events: DataFrame) -> Column:
        """Return the events on which a side's ``where`` or one of its columns fails."""
        failures = []
        for of, side in ((OWN, self.join.left), (self._right, self.join.right)):
            if of == key:
                broken = in_pairs(or_, [try_eval(sql).isNull() for sql in side.columns.values()])
                failures.append(failed_within(side.where, broken))
        return reduce(or_, failures)

    def type_problems(self, inputs: Mapping[str, DataFrame]) -> Mapping[str, str]:
        """Return why the keys of the two sides cannot be compared."""
        try:
            _ = self.of_all(Inputs(inputs, inputs.__getitem__)).schema
        except AnalysisException as error:
            return {"on": str(error).strip().splitlines()[0]}
        return {}

    def of_all(self, inputs: Inputs) -> DataFrame:
        """Join all of silver."""
        left = left_side(inputs.whole(OWN), self.join)
        return matched(left, right_side(inputs.whole(self._right), self.join), self.join)

    def plan(self, batch: GoldBatch) -> MergePlan | None:
        """Recompute the rows that the batch may affect, and replace those that differ."""
        join, inputs = self.join, batch.inputs
        new_left = left_side(batch.events, join)
        new_right = right_side(inputs.taken[self._right], join)
        if batch.is_first:
            return MergePlan(batch.stamped(matched(new_left, new_right, join)), on="")
        # Time bounds of the left events that the batch may affect.
        of_left, of_right = span(new_left, LEFT_TIME), span(new_right, RIGHT_TIME)
        bounds = [of_left] if of_left else []
        if of_right:
            bounds.append((of_right[0] - join.within, of_right[1]))
        if not bounds:
            return None
        first, last = min(low for low, _ in bounds), max(high for _, high in bounds)
        known = left_side(inputs.whole(OWN).where(between("event_time", (first, last))), join)
        left = batch.frames.checkpoint(changed_by(new_left, new_right, known, join))
        near = inputs.whole(self._right).where(between("event_time", (first, last + join.within)))
        return MergePlan(
            batch.frames.checkpoint(batch.stamped(matched(left, right_side(near, join), join))),
            on=f"t.{LEFT} = s.{LEFT} AND {between(f't.{LEFT_TIME}', (first, last))}",
            changed=f"NOT t.{RIGHT} <=> s.{RIGHT}",
        )


def left_side(events: DataFrame, join: Join) -> DataFrame:
    """Select the left events; each becomes one row.

    Returns:
        ``_left`` (the event's record id, unique in silver), ``_left_time``, the keys as
        ``_on_<name>`` and the selected columns.
    """
    return _side(events, join, join.left, {"record_id": LEFT, "event_time": LEFT_TIME})


def right_side(events: DataFrame, join: Join) -> DataFrame:
    """Select the right events, which may match.

    Returns:
        ``_right``, ``_right_time``, ``_right_id``, the keys and the selected columns.
    """
    names = {"record_id": RIGHT, "event_time": RIGHT_TIME, "event_id": _RIGHT_ID}
    return _side(events, join, join.right, names)


def _side(
    events: DataFrame, join: Join, side: LeftSide | RightSide, names: Mapping[str, str]
) -> DataFrame:
    rows = events.where(holds(side.where)) if side.where else events
    return rows.select(
        *[F.col(column).alias(name) for column, name in names.items()],
        *[F.col(name).alias(_on(name)) for name in join.on],
        # Null if the expression fails.
        *[try_eval(sql).getField(VALUE).alias(name) for name, sql in side.columns.items()],
    )


def changed_by(
    new_left: DataFrame, new_right: DataFrame, known: DataFrame, join: Join
) -> DataFrame:
    """Return the left events whose rows a batch may affect: its own, and matches in ``known``."""
    reached = known.join(new_left.select(LEFT), on=LEFT, how="left_anti")
    candidates = new_right.select(*[_on(name) for name in join.on], RIGHT_TIME)
    on = _matching(join, reached, candidates)
    reached = reached.alias("l").join(candidates.alias("r"), on=on, how="left_semi")
    return new_left.unionByName(reached)


def matched(left: DataFrame, right: DataFrame, join: Join) -> DataFrame:
    """Join each left event with its earliest match; ties are broken by event id.

    Returns:
        The selected columns of both sides, ``_left``, ``_left_time``, ``_right`` and
        ``_right_time``; without a match no row for an inner join, nulls for a left one.
    """
    selected = [*join.right.columns, RIGHT, RIGHT_TIME]
    pairs = (
        left.select(LEFT, LEFT_TIME, *[_on(name) for name in join.on])
        .alias("l")
        .join(right.alias("r"), on=_matching(join, left, right), how="inner")
    )
    found = F.struct(*[F.col(f"r.{name}").alias(name) for name in selected])
    order = F.struct(f"r.{RIGHT_TIME}", f"r.{_RIGHT_ID}", f"r.{RIGHT}")
    first = pairs.groupBy(f"l.{LEFT}").agg(F.min_by(found, order).alias(_FOUND))
    return left.join(first, on=LEFT, how=join.type).select(
        *join.left.columns,
        *[F.col(_FOUND).getField(name).alias(name) for name in join.right.columns],
        LEFT,
        LEFT_TIME,
        *[F.col(_FOUND).getField(name).alias(name) for name in (RIGHT, RIGHT_TIME)],
    )


def _on(name: str) -> str:
    return f"_on_{name}"


def _matching(join: Join, left: DataFrame, right: DataFrame) -> Column:
    """Return the match condition of ``l`` and ``r``; null keys match nothing."""
    left_schema, right_schema = left.schema, right.schema
    condition = F.col(f"r.{RIGHT_TIME}").between(
        F.col(f"l.{LEFT_TIME}"), F.col(f"l.{LEFT_TIME}") + F.lit(join.within)
    )
    for name in map(_on, join.on):
        left_type, right_type = left_schema[name].dataType, right_schema[name].dataType
        same = equal(F.col(f"l.{name}"), left_type, F.col(f"r.{name}"), right_type)
        condition = same & condition
    return condition
