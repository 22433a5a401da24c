"""Gold tables: a window, keys and measures that merge."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, PrivateAttr

from tidelake.config.described import Described
from tidelake.config.durations import Duration, PositiveDuration
from tidelake.config.model import Model, suggestion
from tidelake.config.names import ColumnName, TableName

Aggregate = Literal[
    "count",
    "count_if",
    "sum",
    "min",
    "max",
    "avg",
    "first",
    "last",
    "approx_count_distinct",
    "approx_percentile",
]
AGGREGATES: tuple[str, ...] = get_args(Aggregate)


class TumblingWindow(Model):
    """Windows side by side.

    Attributes:
        kind: ``tumbling``.
        size: How long each is.
        offset: Shifts all of them; they are aligned to the epoch in UTC.
    """

    kind: Literal["tumbling"]
    size: PositiveDuration
    offset: Duration = timedelta(0)


class HoppingWindow(Model):
    """Windows that overlap: one begins every ``slide``.

    Attributes:
        kind: ``hopping``.
        size: How long each is.
        slide: From the beginning of one to that of the next.
        offset: Shifts all of them.
    """

    kind: Literal["hopping"]
    size: PositiveDuration
    slide: PositiveDuration
    offset: Duration = timedelta(0)


class SessionWindow(Model):
    """Windows that last as long as events follow within ``gap``.

    Attributes:
        kind: ``session``.
        gap: The longest time between two events of one session.
    """

    kind: Literal["session"]
    gap: PositiveDuration


class GlobalWindow(Model):
    """No window: one row a key for all time.

    Attributes:
        kind: ``global``.
    """

    kind: Literal["global"]


Window = Annotated[
    TumblingWindow | HoppingWindow | SessionWindow | GlobalWindow, Field(discriminator="kind")
]


class Measure(Model):
    """One aggregate of one SQL expression over silver.

    Attributes:
        name: The column in gold.
        aggregate: How values merge.
        expression: SQL; ``*`` only for ``count``.
        p: The percentile, 0 to 1; only for ``approx_percentile``.
    """

    name: ColumnName
    aggregate: Aggregate
    expression: str
    p: float | None = None

    _value_type: str | None = PrivateAttr(default=None)

    @property
    def value_type(self) -> str | None:
        """Spark's type of the expression over silver; None as long as nobody asked Spark."""
        return self._value_type

    def typed(self, value_type: str) -> Measure:
        """Give the measure with the type of its expression, which the file does not say."""
        measure = self.model_copy()
        measure._value_type = value_type
        return measure


def _measure(name: object, body: object) -> Measure | dict[str, Any]:
    if isinstance(body, Measure):
        return body
    if not isinstance(body, Mapping):
        raise ValueError("write one aggregate and its SQL, such as {sum: value}")
    rest = dict(body)
    p = rest.pop("p", None)
    if len(rest) != 1:
        raise ValueError(f"needs exactly one aggregate of: {', '.join(AGGREGATES)}")
    aggregate, expression = next(iter(rest.items()))
    if aggregate not in AGGREGATES:
        hint = suggestion(str(aggregate), AGGREGATES)
        raise ValueError(f"unknown aggregate {aggregate}{hint} (known: {', '.join(AGGREGATES)})")
    if aggregate == "approx_percentile":
        expression, p = _percentile(expression, p)
    elif p is not None:
        raise ValueError("p goes with approx_percentile only")
    if not isinstance(expression, str):
        raise ValueError(f"{aggregate} takes SQL as text; put it in quotes")
    return {"name": name, "aggregate": aggregate, "expression": expression, "p": p}


def _percentile(expression: object, p: object) -> tuple[object, float]:
    if isinstance(expression, Mapping):
        unknown = expression.keys() - {"expression", "p"}
        if unknown or "expression" not in expression or (p is not None and "p" in expression):
            raise ValueError("write {approx_percentile: {expression: value, p: 0.95}}")
        p = expression.get("p", p)
        expression = expression["expression"]
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
        raise ValueError("approx_percentile needs p, a number from 0 to 1")
    return expression, float(p)


class _Item:
    """Marks one measure until its own validation, so that each reports its own problem."""

    def __init__(self, name: object, body: object) -> None:
        self.name = name
        self.body = body


def _items(value: object) -> object:
    if isinstance(value, Mapping):
        return [_Item(name, body) for name, body in value.items()]
    if isinstance(value, tuple) and all(isinstance(item, Measure) for item in value):
        return value
    raise ValueError("write a mapping of names to measures, such as {events: {count: '*'}}")


def _opened(value: object) -> object:
    return _measure(value.name, value.body) if isinstance(value, _Item) else value


Measures = Annotated[
    tuple[Annotated[Measure, BeforeValidator(_opened)], ...],
    BeforeValidator(_items),
    Field(min_length=1),
]


class GoldTable(Described):
    """One gold table.

    Attributes:
        name: Its name, after ``gold.``.
        window: How events are cut by time.
        where: SQL over silver; only such events count.
        keys: Columns of silver to group by.
        measures: Column to one aggregate of one SQL expression, ``{total: {sum: value}}``.
    """

    name: TableName
    window: Window
    where: str | None = None
    keys: tuple[str, ...] = ()
    measures: Measures

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that analysts read, in order."""
        bounds = {
            "tumbling": ("window_start", "window_end"),
            "hopping": ("window_start", "window_end"),
            "session": ("session_id", "session_start", "session_end"),
            "global": (),
        }[self.window.kind]
        return (*bounds, *self.keys, *(measure.name for measure in self.measures))
