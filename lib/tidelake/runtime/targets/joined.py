"""Gold tables that put the first match of a right side beside each left event."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, reduce
from operator import or_
from typing import Any

from pydantic import BaseModel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.columns import holds
from tidelake.config import Join
from tidelake.delta.merge import merge_rows
from tidelake.delta.notes import Ends
from tidelake.gold.joins import (
    LEFT,
    LEFT_TIME,
    RIGHT,
    RIGHT_TIME,
    changed_by,
    failed,
    left_side,
    matched,
    right_side,
)
from tidelake.runtime.held import Held
from tidelake.runtime.targets.target import OWN, Inputs, Target, literal, span, stamped


@dataclass(frozen=True)
class Joined(Target):
    """One row a left event.

    Attributes:
        join: The definition.
        pipeline: Whose silver is the left side.
    """

    join: Join
    pipeline: str

    @property
    def definition(self) -> BaseModel:
        """The join."""
        return self.join

    def eligible(self) -> Column:
        """Tell which events the left side's ``where`` admits."""
        return holds(self.join.left.where) if self.join.left.where else F.lit(True)

    def failed(self, key: str, events: DataFrame) -> Column:
        """Tell where a side's ``where`` or one of its columns fails."""
        return reduce(or_, [column for of, column in self._failures if of == key])

    @cached_property
    def _failures(self) -> list[tuple[str, Column]]:
        return [(OWN, failed(self.join.left)), (self._right, failed(self.join.right))]

    @property
    def ends(self) -> Ends:
        """A row is open as long as a match may come."""
        return Ends(LEFT_TIME, self.join.within)

    @property
    def identity(self) -> tuple[str, ...]:
        """The left event."""
        return (LEFT,)

    @property
    def moment(self) -> str:
        """When it happened."""
        return LEFT_TIME

    @property
    def reach(self) -> timedelta:
        """The time within which a match may come."""
        return self.join.within

    @property
    def inputs(self) -> tuple[str, ...]:
        """Silver of the left side and of the right one, which may be the same."""
        return (OWN,) if self._right == OWN else (OWN, self._right)

    @property
    def _right(self) -> str:
        other = self.join.right.pipeline
        return OWN if other == self.pipeline else f"silver.{other}"

    def expressions(self) -> dict[str, tuple[str, Column]]:
        """Give both sides' conditions, columns and keys."""
        named: dict[str, tuple[str, Column]] = {}
        for name, key, side in (
            ("left", OWN, self.join.left),
            ("right", self._right, self.join.right),
        ):
            if side.where:
                named[f"{name}.where"] = key, F.count_if(F.expr(side.where))
            for column, sql in side.columns.items():
                named[f"{name}.columns.{column}"] = key, F.expr(sql)
        for column in self.join.on:
            named[f"on.{column}"] = self._right, F.col(column)
        return named

    def of_all(self, inputs: Inputs) -> DataFrame:
        """Join all of silver."""
        left = left_side(inputs.whole(OWN), self.join)
        return matched(left, right_side(inputs.whole(self._right), self.join), self.join)

    def merge(self, inputs: Inputs, note: dict[str, Any], hold: Held) -> None:
        """Compute the rows anew that the batch may change, and replace those that it does."""
        join = self.join
        new_left = left_side(inputs.taken[OWN], join)
        new_right = right_side(inputs.taken[self._right], join)
        bounds = self._bounds(new_left, new_right)
        if bounds is None:
            self.close_unchanged(inputs, note)
            return
        first, last = bounds
        known = left_side(inputs.whole(OWN).where(_between(first, last)), join)
        left = hold(changed_by(new_left, new_right, known, join))
        near = inputs.whole(self._right).where(_between(first, last + join.within))
        rows = matched(left, right_side(near, join), join)
        merge_rows(
            hold(stamped(rows, generation=note["generation"], batch=note["batch"])),
            self.table,
            on=(
                f"t.{LEFT} = s.{LEFT} AND t.{LEFT_TIME} >= {literal(first)} "
                f"AND t.{LEFT_TIME} <= {literal(last)}"
            ),
            note=note,
            changed=f"NOT t.{RIGHT} <=> s.{RIGHT}",
        )

    def _bounds(self, left: DataFrame, right: DataFrame) -> tuple[datetime, datetime] | None:
        """Bound the left events that a batch may change."""
        of_left, of_right = span(left, LEFT_TIME, LEFT_TIME), span(right, RIGHT_TIME, RIGHT_TIME)
        if of_right is not None:
            of_right = of_right[0] - self.join.within, of_right[1]
        both = [bounds for bounds in (of_left, of_right) if bounds is not None]
        if not both:
            return None
        return min(first for first, _ in both), max(last for _, last in both)


def _between(first: datetime, last: datetime) -> str:
    return f"event_time >= {literal(first)} AND event_time <= {literal(last)}"
