"""Expectations that a sample meets: what a reader would be surprised to see otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from tidelake.scaffold.columns import Column
from tidelake.scaffold.gold import kinds_of
from tidelake.scaffold.words import is_money, words_of

_RANGES = (
    ({"lat", "latitude"}, -90, 90),
    ({"lon", "lng", "long", "longitude"}, -180, 180),
    ({"percent", "percentage", "pct"}, 0, 100),
    ({"port"}, 0, 65_535),
)
_NOT_NEGATIVE = frozenset(
    [
        "age",
        "bytes",
        "count",
        "duration",
        "elapsed",
        "height",
        "items",
        "latency",
        "length",
        "ms",
        "qty",
        "quantity",
        "seconds",
        "size",
        "speed",
        "weight",
        "width",
    ]
)
_PLAIN = frozenset(["string", "boolean", "bigint", "double", "decimal"])


@dataclass(frozen=True)
class Rule:
    """An expectation in Great Expectations' words.

    Attributes:
        type: Its type.
        column: What it speaks of.
        arguments: Beside the column.
        severity: ``critical`` quarantines a row, ``warning`` counts it.
    """

    type: str
    column: str
    arguments: dict[str, Any] = field(default_factory=dict)
    severity: str = "warning"


def rules_of(columns: Sequence[Column]) -> list[Rule]:
    """Give the rules over silver; all but the id and the time warn only."""
    rules = [
        Rule("expect_column_values_to_not_be_null", "event_id", severity="critical"),
        Rule("expect_column_values_to_not_be_null", "event_time", severity="critical"),
        Rule("expect_column_values_to_be_unique", "event_id", severity="critical"),
    ]
    for column in columns:
        rules += _of(column)
    return rules


def _of(column: Column) -> Iterator[Rule]:
    if column.clock is None and column.type.kind not in _PLAIN:
        return
    if all(value is not None for value in column.values):
        yield Rule("expect_column_values_to_not_be_null", column.name)
    kinds = kinds_of(column)
    if kinds is not None and column.type.kind == "string":
        yield Rule("expect_column_values_to_be_in_set", column.name, {"value_set": kinds})
    bounds = _bounds(column)
    if bounds:
        yield Rule("expect_column_values_to_be_between", column.name, bounds)


def _bounds(column: Column) -> dict[str, int]:
    if column.clock is not None or column.type.kind not in ("bigint", "double", "decimal"):
        return {}
    held = [
        Decimal(value)
        for value in column.values
        if isinstance(value, int | Decimal) and not isinstance(value, bool)
    ]
    words = set(words_of(column.path[-1]))
    for names, low, high in _RANGES:
        if words & names and held and low <= min(held) and max(held) <= high:
            return {"min_value": low, "max_value": high}
    counted = is_money(column.path[-1]) or bool(words & _NOT_NEGATIVE)
    return {"min_value": 0} if counted and held and min(held) >= 0 else {}
