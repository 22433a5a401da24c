"""Compile measures into mergeable state columns and the result columns computed from them.

A measure's expression is first evaluated per event into a separate column; if it fails, the event
contributes null. Each state column has three forms that must agree: aggregated from those values,
combined from several stored states, and merged from one stored and one new state in a MERGE.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.columns import VALUE, failed_within, holds, is_plain_name, try_eval
from tidelake.config import GoldTable, Measure

_INSTANT = "struct(event_time, event_id)"
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
# Spark's sum of decimals has ten digits more than its terms, up to 38.
_SUMMED_DIGITS = 28
# Tolerance relative to the value or, if known, to the sum of the terms' absolute values ({1}), as
# terms that cancel leave rounding errors of their own size. Without it, 1 allows for values near
# zero. Infinity and NaN are accepted: whether a sum overflows depends on the order of its terms.
_CLOSE = (
    "{{e.{0}}} <=> {{s.{0}}} OR abs({{e.{0}}} - {{s.{0}}}) "
    "<= 1e-9D * greatest(abs({{e.{0}}}), abs({{s.{0}}}), {1}) "
    "OR isnan({{e.{0}}} - {{e.{0}}}) OR isnan({{s.{0}}} - {{s.{0}}})"
)
# Three times the sketches' nominal error at Spark's default sizes.
_DISTINCT_ERROR, _RANK_ERROR = 0.05, 0.04
_SKETCHED = ("approx_count_distinct", "approx_percentile")
_INEXACT = ("double", "float")


@dataclass(frozen=True)
class MeasureState:
    """A stored column of a measure, as Spark SQL.

    Attributes:
        name: The column.
        partial: Aggregate over events.
        combine: Aggregate over states.
        merge: Scalar expression over ``t`` (stored) and ``s`` (new).
    """

    name: str
    partial: str
    combine: str
    merge: str


@dataclass(frozen=True)
class Shown:
    """A result column computed from states.

    Attributes:
        name: The column.
        formula: SQL over state columns, each written ``{name}``.
        like: Equivalent aggregate over events, which also determines the column's type.
        states: The state columns that it reads.
    """

    name: str
    formula: str
    like: str
    states: tuple[str, ...]

    def over(self, states: dict[str, str]) -> str:
        """Return the formula with the given SQL for each state column."""
        return self.formula.format(**states)


class TypedTable:
    """A gold table with the types of its measures' expressions; its columns are built once."""

    def __init__(self, table: GoldTable) -> None:
        """Store the table; nothing is built yet."""
        self.table = table
        self.steps: tuple[list[Column], list[Column], list[Column]] | None = None

    @cached_property
    def values(self) -> tuple[Column | None, list[Column]]:
        """The ``where`` filter (None without one) and the columns selected from events."""
        return _value_columns(self.table)

    @cached_property
    def failed(self) -> Column:
        """Whether at least one expression fails on an event."""
        return _failed(self.table)


class GoldPlan:
    """A gold table's columns, kept for all batches of a query."""

    def __init__(self, table: GoldTable) -> None:
        """Store the table; nothing is built yet."""
        self.table = table
        self._typed: dict[str, TypedTable] = {}

    def typed(self, events: DataFrame) -> TypedTable:
        """Return the table typed for the schema of ``events``, cached by schema."""
        table, kind = self.table, ""
        valued = [measure for measure in table.measures if not _counts_rows(measure)]
        if not all(measure.value_type for measure in valued):
            kind = events.schema.simpleString()
        if kind not in self._typed:
            if kind:
                values = events.select(
                    *[F.expr(measure.expression).alias(measure.name) for measure in valued]
                )
                types = {field.name: field.dataType.simpleString() for field in values.schema}
                measures = tuple(
                    measure.typed(types[measure.name]) if measure.name in types else measure
                    for measure in table.measures
                )
                table = table.model_copy(update={"measures": measures})
            self._typed[kind] = TypedTable(table)
        return self._typed[kind]


def to_values(events: DataFrame, table: TypedTable) -> DataFrame:
    """Filter events by the table's ``where`` and evaluate the measures' expressions.

    Returns:
        ``event_time``, ``event_id``, the keys and one value column per measure, null if the
        expression fails.
    """
    within, columns = table.values
    return (events if within is None else events.where(within)).select(*columns)


def _value_columns(table: GoldTable) -> tuple[Column | None, list[Column]]:
    within = None if table.where is None else holds(table.where)
    names = {name.lower(): name for name in ("event_time", "event_id", *table.keys)}
    values = [
        value_of(measure).alias(_value(measure))
        for measure in table.measures
        if not _counts_rows(measure)
    ]
    return within, [*[F.col(name) for name in names.values()], *values]


def _failed(table: GoldTable) -> Column:
    tried = [
        _tried(measure).isNull()
        for measure in table.measures
        if not (_counts_rows(measure) or _is_safe(measure))
    ]
    return failed_within(table.where, reduce(or_, tried, F.lit(False)))


def _counts_rows(measure: Measure) -> bool:
    return measure.aggregate == "count" and measure.expression.strip() == "*"


def _value(measure: Measure) -> str:
    return f"_value_{measure.name}"


def value_of(measure: Measure) -> Column:
    """Return a measure's value for an event, null if its expression fails."""
    return _tried(measure).getField(VALUE)


def _tried(measure: Measure) -> Column:
    return try_eval(measure.expression, _cast_of(measure))


def _is_safe(measure: Measure) -> bool:
    """Return whether the expression cannot fail on any row."""
    return is_plain_name(measure.expression) and _cast_of(measure) is None


def _cast_of(measure: Measure) -> str | None:
    """Return the type to cast values to inside ``try_eval``; None for no cast.

    An implicit cast in the aggregate would raise uncaught errors. Terms of a sum must leave room
    for it: integers are summed as decimals, and a term of more than 28 digits fails.
    """
    kind = measure.value_type or ""
    if measure.aggregate == "count_if":
        return "boolean" if kind != "boolean" else None
    if measure.aggregate == "approx_percentile":
        return "double" if kind != "double" else None
    if measure.aggregate in ("sum", "avg"):
        if kind == "string":
            return "double"
        if kind == "bigint":
            return f"decimal({_SUMMED_DIGITS},0)"
        found = _DECIMAL.fullmatch(kind)
        if found and int(found[1]) > _SUMMED_DIGITS >= int(found[2]):
            return f"decimal({_SUMMED_DIGITS},{found[2]})"
    return None


def states_of(table: GoldTable) -> tuple[MeasureState, ...]:
    """Return the state columns of a table's measures, in order."""
    return tuple(state for measure in table.measures for state in _states(measure, _value(measure)))


def aggregates_of(table: GoldTable) -> dict[str, str]:
    """Return each state column's aggregate over events, with the definition's expression."""
    return {
        state.name: state.partial
        for measure in table.measures
        for state in _states(measure, measure.expression)
    }


def shown_of(table: GoldTable) -> tuple[Shown, ...]:
    """Return the result columns that are computed from states."""
    return tuple(
        _SHOWN[measure.aggregate](measure)
        for measure in table.measures
        if measure.aggregate in _SHOWN
    )


def columns_of(table: GoldTable) -> list[str]:
    """Return the measures' names, then the internal state columns."""
    shown = [measure.name for measure in table.measures]
    return shown + [state.name for state in states_of(table) if state.name not in shown]


def _states(measure: Measure, sql: str) -> Sequence[MeasureState]:
    name = measure.name
    if _counts_rows(measure):
        return [_count(name, "count(*)")]
    least = f"least(t.{name}, s.{name})"
    greatest = f"greatest(t.{name}, s.{name})"
    known: dict[str, Callable[[], Sequence[MeasureState]]] = {
        "count": lambda: [_count(name, f"count({sql})")],
        "count_if": lambda: [_count(name, f"count_if({sql})")],
        "sum": lambda: [_sum(name, sql)],
        "min": lambda: [MeasureState(name, f"min({sql})", f"min({name})", least)],
        "max": lambda: [MeasureState(name, f"max({sql})", f"max({name})", greatest)],
        "avg": lambda: [_sum(f"_{name}_sum", sql), _count(f"_{name}_count", f"count({sql})")],
        "first": lambda: _edge(name, sql, pick="min", pick_by="min_by", scalar="least", wins="<"),
        "last": lambda: _edge(name, sql, pick="max", pick_by="max_by", scalar="greatest", wins=">"),
        "approx_count_distinct": lambda: [_sketch(name, _DISTINCT, sql)],
        "approx_percentile": lambda: [_sketch(name, _QUANTILES, sql)],
    }
    return known[measure.aggregate]()


def _count(name: str, partial: str) -> MeasureState:
    return MeasureState(name, partial, f"sum({name})", f"t.{name} + s.{name}")


def _sum(name: str, sql: str) -> MeasureState:
    # The sum of no values is null; merging null with a value must give the value.
    merged = (
        f"CASE WHEN t.{name} IS NULL OR s.{name} IS NULL THEN coalesce(t.{name}, s.{name}) "
        f"ELSE try_add(t.{name}, s.{name}) END"
    )
    return MeasureState(name, f"try_sum({sql})", f"try_sum({name})", merged)


def _edge(
    name: str, sql: str, *, pick: str, pick_by: str, scalar: str, wins: str
) -> Sequence[MeasureState]:
    """Return the first or last value and its event time; ties are broken by event id."""
    at = f"_{name}_at"
    return [
        MeasureState(
            name,
            f"{pick_by}({sql}, {_INSTANT})",
            f"{pick_by}({name}, {at})",
            f"CASE WHEN s.{at} {wins} t.{at} THEN s.{name} ELSE t.{name} END",
        ),
        MeasureState(at, f"{pick}({_INSTANT})", f"{pick}({at})", f"{scalar}(t.{at}, s.{at})"),
    ]


@dataclass(frozen=True)
class _Kind:
    """SQL templates of a sketch: build one, combine many, merge two."""

    build: str
    combine: str
    merge: str


# HLL does not accept decimals or timestamps; cast to string, equal values stay equal.
_DISTINCT = _Kind(
    "hll_sketch_agg(CAST({0} AS STRING))", "hll_union_agg({0})", "hll_union({0}, {1})"
)
_QUANTILES = _Kind(
    "kll_sketch_agg_double(CAST({0} AS DOUBLE))",
    "kll_merge_agg_double({0})",
    "kll_sketch_merge_double({0}, {1})",
)


def _sketch(name: str, kind: _Kind, sql: str) -> MeasureState:
    column = f"_{name}_sketch"
    merged = kind.merge.format(f"t.{column}", f"s.{column}")
    return MeasureState(column, kind.build.format(sql), kind.combine.format(column), merged)


def _mean(measure: Measure) -> Shown:
    name = measure.name
    # The mean of integers is a double; dividing their decimal sum would give a decimal.
    value = _value(measure)
    formula, like = f"try_divide({{_{name}_sum}}, {{_{name}_count}})", f"avg({value})"
    if measure.value_type == "bigint":
        formula = f"try_divide(CAST({{_{name}_sum}} AS DOUBLE), {{_{name}_count}})"
        like = f"try_divide(CAST(try_sum({value}) AS DOUBLE), count({value}))"
    return Shown(name=name, formula=formula, like=like, states=(f"_{name}_sum", f"_{name}_count"))


def _distinct(measure: Measure) -> Shown:
    column = f"_{measure.name}_sketch"
    built = _DISTINCT.build.format(_value(measure))
    return Shown(
        name=measure.name,
        formula=f"hll_sketch_estimate({{{column}}})",
        like=f"hll_sketch_estimate({built})",
        states=(column,),
    )


def _percentile(measure: Measure) -> Shown:
    column = f"_{measure.name}_sketch"
    # Spark raises an error for a quantile of an empty sketch.
    formula = (
        "CASE WHEN kll_sketch_get_n_double({0}) > 0 "
        f"THEN kll_sketch_get_quantile_double({{0}}, {measure.p}D) END"
    )
    return Shown(
        name=measure.name,
        formula=formula.format(f"{{{column}}}"),
        like=formula.format(_QUANTILES.build.format(_value(measure))),
        states=(column,),
    )


_SHOWN: dict[str, Callable[[Measure], Shown]] = {
    "avg": _mean,
    "approx_count_distinct": _distinct,
    "approx_percentile": _percentile,
}


def with_terms(table: GoldTable, types: Mapping[str, str]) -> GoldTable:
    """Add a sum of absolute values for each sum of doubles, which :func:`tolerances` reads."""
    amounts = [
        measure.model_copy(
            update={
                "name": _terms(measure),
                "aggregate": "sum",
                "expression": f"abs(CAST({measure.expression} AS DOUBLE))",
            }
        )
        for measure in table.measures
        if _summed_in(measure, types) is not None
    ]
    return table.model_copy(update={"measures": (*table.measures, *amounts)})


def tolerances(table: GoldTable, types: Mapping[str, str]) -> dict[str, str]:
    """Return the conditions for inexact columns under which stored and recomputed values agree.

    A sum of doubles depends on the order of its terms, a sketch on the order of its merges.

    Args:
        table: The table; with the sums that :func:`with_terms` adds, tolerances are relative to
            the terms.
        types: The types of its stored columns.

    Returns:
        By column, SQL over ``{e.name}`` (recomputed) and ``{s.name}`` (stored).
    """
    shown = {column.name: column for column in shown_of(table)}
    names = {measure.name for measure in table.measures}
    found = {}
    for measure in table.measures:
        name = measure.name
        if measure.aggregate == "approx_count_distinct":
            found[name] = _distinct_tolerance(shown[name])
        elif measure.aggregate == "approx_percentile":
            found[name] = _percentile_tolerance(shown[name], measure)
        else:
            terms = f"{{e.{_terms(measure)}}}" if _terms(measure) in names else "1D"
            total = _summed_in(measure, types)
            if total is not None:
                found[total] = _CLOSE.format(total, terms)
            if measure.aggregate == "avg":
                found[name] = _CLOSE.format(name, terms)
    return found


def _summed_in(measure: Measure, types: Mapping[str, str]) -> str | None:
    """Return the stored column in which a measure sums doubles, or None."""
    column = {"sum": measure.name, "avg": f"_{measure.name}_sum"}.get(measure.aggregate)
    return column if types.get(column or "") in _INEXACT else None


def _terms(measure: Measure) -> str:
    return f"_{measure.name}_terms"


def unhashed_of(table: GoldTable) -> frozenset[str]:
    """Return the columns read only by :func:`tolerances`: sketches and sums of absolute values."""
    sketched = {measure.name for measure in table.measures if measure.aggregate in _SKETCHED}
    names = {measure.name for measure in table.measures}
    return frozenset(
        state for shown in shown_of(table) if shown.name in sketched for state in shown.states
    ) | {_terms(measure) for measure in table.measures if _terms(measure) in names}


def _distinct_tolerance(shown: Shown) -> str:
    name = shown.name
    computed = shown.over({state: f"{{s.{state}}}" for state in shown.states})
    return (
        f"{{s.{name}}} <=> {computed} AND abs({{e.{name}}} - {{s.{name}}}) "
        f"<= {_DISTINCT_ERROR}D * {{e.{name}}} + 1"
    )


def _percentile_tolerance(shown: Shown, measure: Measure) -> str:
    """Require the stored value to lie between the quantiles slightly below and above."""
    name, sketch = shown.name, shown.states[0]
    computed = shown.over({sketch: f"{{s.{sketch}}}"})
    counts = " = ".join(f"kll_sketch_get_n_double({{{side}.{sketch}}})" for side in "es")
    rank = float(measure.p or 0)
    bounds = " AND ".join(
        f"kll_sketch_get_quantile_double({{e.{sketch}}}, {near}D)"
        for near in (max(rank - _RANK_ERROR, 0.0), min(rank + _RANK_ERROR, 1.0))
    )
    return (
        f"{{s.{name}}} <=> {computed} AND {counts} AND "
        f"CASE WHEN {{e.{name}}} IS NULL THEN {{s.{name}}} IS NULL "
        f"ELSE {{s.{name}}} BETWEEN {bounds} END"
    )
