"""Compile measures into mergeable state columns and the result columns computed from them.

A measure's expression is first evaluated per event into a separate column; if it fails, the event
contributes null. Each state column has three forms that must agree: aggregated from those values,
combined from several stored states, and merged from one stored and one new state in a MERGE.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.columns import VALUE, failed_within, holds, in_pairs, try_eval
from tidelake.config import GoldTable, Measure
from tidelake.config.expressions import as_operand
from tidelake.config.types import is_comparable
from tidelake.names import quoted

_INSTANT = "struct(event_time, event_id)"
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
# Spark's sum of decimals has ten digits more than its terms, up to 38.
_SUMMED_DIGITS, _MOST_DIGITS = 28, 38
# Spark rounds results of more than 38 digits, to no fewer digits after the point than these.
_LEAST_SCALE = 6
# A sum of this many digits has a quotient with 18 more after the point.
_FINE_DIGITS = 20
# A mean has this many digits after the point more than its terms.
_MORE_SCALE = 4
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
# Of each sketch: build one, combine many, merge two.
_SKETCHES = {
    "approx_count_distinct": (
        "hll_sketch_agg({0})",
        "hll_union_agg({0})",
        "hll_union(t.{0}, s.{0})",
    ),
    "approx_percentile": (
        "kll_sketch_agg_double(CAST({0} AS DOUBLE))",
        "kll_merge_agg_double({0})",
        "kll_sketch_merge_double(t.{0}, s.{0})",
    ),
}
_INEXACT = ("double", "float")


@dataclass(frozen=True)
class MeasureState:
    """A stored column of a measure, as Spark SQL.

    ``partial`` aggregates events, ``combine`` states; ``merge`` is a scalar expression over ``t``
    (stored) and ``s`` (new).
    """

    name: str
    partial: str
    combine: str
    merge: str


@dataclass(frozen=True)
class Shown:
    """A result column computed from states.

    ``formula`` is SQL over the columns ``states``, each written ``{name}``; ``like`` is the
    equivalent aggregate over events, which also determines the column's type.
    """

    name: str
    formula: str
    like: str
    states: tuple[str, ...]

    def over(self, states: dict[str, str]) -> str:
        """Return the formula with the given SQL for each state column."""
        return self.formula.format(**states)


@dataclass
class TypedTable:
    """A gold table with the types of its measures' expressions; its columns are built once."""

    table: GoldTable
    steps: tuple[list[Column], list[Column], list[Column]] | None = None

    @cached_property
    def values(self) -> tuple[Column | None, list[Column]]:
        """The ``where`` filter (None without one) and the columns selected from events."""
        table = self.table
        names = {name.lower(): name for name in ("event_time", "event_id", *table.keys)}
        valued = [measure for measure in table.measures if not _counts_rows(measure)]
        values = [value_of(measure).alias(_value(measure)) for measure in valued]
        within = None if table.where is None else holds(table.where)
        return within, [*[F.col(name) for name in names.values()], *values]

    @cached_property
    def failed(self) -> Column:
        """Whether at least one expression fails on an event."""
        tried = [
            tried_of(measure).isNull()
            for measure in self.table.measures
            if not _counts_rows(measure)
        ]
        return failed_within(self.table.where, in_pairs(or_, tried or [F.lit(False)]))


@dataclass
class GoldPlan:
    """A gold table's columns, kept for all batches of a query."""

    table: GoldTable
    _typed: dict[str, TypedTable] = field(default_factory=dict, init=False)

    def typed(self, events: DataFrame) -> TypedTable:
        """Return the table typed for the schema of ``events``, cached by schema."""
        valued = [measure for measure in self.table.measures if not _counts_rows(measure)]
        schema = events.schema.simpleString() if valued else ""
        if schema not in self._typed:
            values = [F.expr(measure.expression).alias(measure.name) for measure in valued]
            types = dict(events.select(*values).dtypes)
            measures = tuple(
                measure.typed(types[measure.name]) if measure.name in types else measure
                for measure in self.table.measures
            )
            self._typed[schema] = TypedTable(self.table.model_copy(update={"measures": measures}))
        return self._typed[schema]


def to_values(events: DataFrame, table: TypedTable) -> DataFrame:
    """Filter events by the table's ``where`` and evaluate the measures' expressions.

    Returns:
        ``event_time``, ``event_id``, the keys and one value column per measure, null if the
        expression fails.
    """
    within, columns = table.values
    return (events if within is None else events.where(within)).select(*columns)


def _counts_rows(measure: Measure) -> bool:
    return measure.aggregate == "count" and measure.expression.strip() == "*"


def _value(measure: Measure) -> str:
    return f"_value_{measure.name}"


def value_of(measure: Measure) -> Column:
    """Return a measure's value for an event, null if its expression fails."""
    return tried_of(measure).getField(VALUE)


def tried_of(measure: Measure) -> Column:
    """Return a measure's value for an event as by ``try_eval``, null if its expression fails."""
    return try_eval(measure.expression, _cast_of(measure))


def _cast_of(measure: Measure) -> str | None:
    """Return the type to cast values to inside ``try_eval``; None for no cast.

    An implicit cast in the aggregate would raise uncaught errors. Terms of a sum must leave room
    for it: integers are summed as decimals, and a term of more than 28 digits fails.
    """
    kind = measure.value_type or ""
    wanted = {"count_if": "boolean", "approx_percentile": "double"}.get(measure.aggregate)
    if measure.aggregate in ("sum", "avg"):
        if kind == "string":
            return "double"
        if kind == "bigint":
            return f"decimal({_SUMMED_DIGITS},0)"
        found = _DECIMAL.fullmatch(kind)
        if found and int(found[1]) > _SUMMED_DIGITS >= int(found[2]):
            return f"decimal({_SUMMED_DIGITS},{found[2]})"
    return None if kind == wanted else wanted


def _summed_type(measure: Measure) -> tuple[int, int] | None:
    """Return how many digits, and digits after the point, a sum of decimals has, else None."""
    found = _DECIMAL.fullmatch(_cast_of(measure) or measure.value_type or "")
    if found is None or int(found[2]) > _SUMMED_DIGITS:
        return None
    return min(int(found[1]) + 10, _MOST_DIGITS), int(found[2])


def sum_problems(table: GoldTable) -> dict[str, str]:
    """Return why measures of a typed table cannot be summed, by name.

    Their sums would not have ten digits more than their terms, so that a few large ones overflow.
    """
    found = {}
    for measure in table.measures:
        decimals = _DECIMAL.fullmatch(measure.value_type or "")
        is_summed = measure.aggregate in ("sum", "avg")
        if is_summed and decimals and int(decimals[2]) > _SUMMED_DIGITS:
            found[measure.name] = (
                f"is {decimals[0].upper()}, whose sum may overflow; cast it to a DECIMAL with at "
                f"most {_SUMMED_DIGITS} digits after the point, such as DECIMAL(38,18)"
            )
    return found


def states_of(table: GoldTable) -> tuple[MeasureState, ...]:
    """Return the state columns of a table's measures, in order."""
    return tuple(state for measure in table.measures for state in _states(measure, _value(measure)))


def aggregates_of(table: GoldTable) -> dict[str, str]:
    """Return an aggregate over events of each measure, with the definition's expression."""
    return {
        measure.name: _states(measure, as_operand(measure.expression))[0].partial
        for measure in table.measures
    }


def shown_of(table: GoldTable) -> tuple[Shown, ...]:
    """Return the result columns that are computed from states."""
    return tuple(_shown(measure) for measure in table.measures if measure.aggregate in _FORMULAS)


def columns_of(table: GoldTable) -> list[str]:
    """Return the measures' names, the derived columns, then the internal state columns."""
    shown = [measure.name for measure in table.measures]
    states = [state.name for state in states_of(table) if state.name not in shown]
    return [*shown, *table.derive, *states]


def with_shown(states: DataFrame, table: GoldTable) -> DataFrame:
    """Compute the result columns of combined states."""
    columns = {
        one.name: F.expr(one.over({name: quoted(name) for name in one.states}))
        for one in shown_of(table)
    }
    return states.withColumns(columns) if columns else states


def _states(measure: Measure, sql: str) -> list[MeasureState]:
    """Return a measure's states; ``sql`` is its value."""
    name, sketch = measure.name, _sketch_of(measure)
    match measure.aggregate:
        case "count" | "count_if":
            counted = "*" if _counts_rows(measure) else sql
            return [_count(name, f"{measure.aggregate}({counted})")]
        case "sum":
            return [_sum(name, sql, _summed_type(measure))]
        case "avg":
            total = _sum(f"_{name}_sum", sql, _summed_type(measure))
            return [total, _count(f"_{name}_count", f"count({sql})")]
        case "min" | "max":
            return [_extreme(name, sql, measure.aggregate)]
        case "first" | "last":
            pick, wins, at = "min", "<", f"_{name}_at"
            if measure.aggregate == "last":
                pick, wins = "max", ">"
            # Ties are broken by event id.
            partial, combine, same = _INSTANT, at, f"t.{name}"
            if measure.value_type is not None and is_comparable(measure.value_type):
                # An id that came back past the TTL may be in silver twice at one instant: then by
                # value, as a struct orders it, with null as the least. Maps have no order.
                partial, combine = f"struct({partial}, {sql})", f"struct({at}, {quoted(name)})"
                same = f"greatest(s.{name}, t.{name})"
                if pick == "min":
                    both = f"s.{name} IS NOT NULL AND t.{name} IS NOT NULL"
                    same = f"CASE WHEN {both} THEN least(s.{name}, t.{name}) END"
            merge = (
                f"CASE WHEN s.{at} {wins} t.{at} THEN s.{name} "
                f"WHEN s.{at} = t.{at} THEN {same} ELSE t.{name} END"
            )
            by = f"{pick}_by({{0}}, {{1}})".format
            state = MeasureState(name, by(sql, partial), by(quoted(name), combine), merge)
            return [state, _extreme(at, _INSTANT, pick)]
        case "approx_count_distinct" | "approx_percentile":
            partial, combine, merge = _SKETCHES[measure.aggregate]
            merge = merge.format(sketch)
            if measure.aggregate == "approx_count_distinct":
                sql = _distinct_text(sql, measure.value_type)
            return [MeasureState(sketch, partial.format(sql), combine.format(sketch), merge)]


def _sketch_of(measure: Measure) -> str:
    return f"_{measure.name}_sketch"


def _distinct_text(sql: str, kind: str | None) -> str:
    """Return the text of a value that a sketch of distinct values counts.

    HLL accepts neither decimals nor timestamps, and does not count an empty text.
    """
    text = f"CAST({sql} AS STRING)"
    zero = f"WHEN {sql} = 0 THEN '0.0' " if kind in _INEXACT else ""
    return f"CASE {zero}WHEN {text} = '' THEN '\\u0000' ELSE {text} END"


def _count(name: str, partial: str) -> MeasureState:
    return MeasureState(name, partial, f"sum({quoted(name)})", f"t.{name} + s.{name}")


def _sum(name: str, sql: str, summed: tuple[int, int] | None) -> MeasureState:
    added = f"try_add(t.{name}, s.{name})"
    if summed is not None and summed[0] == _MOST_DIGITS and summed[1] > _LEAST_SCALE:
        # Two of 38 digits would be rounded; the sum of two of 37 digits is exact. Sums that do not
        # fit 37 are those of more than 10^9 of the largest values.
        scale = summed[1]
        t, s = (f"try_cast({side}.{name} AS DECIMAL({_MOST_DIGITS - 1},{scale}))" for side in "ts")
        rounded = f"try_cast({added} AS DECIMAL({_MOST_DIGITS},{scale}))"
        added = f"coalesce(try_add({t}, {s}), {rounded})"
    # The sum of no values is null; merging null with a value must give the value.
    merged = (
        f"CASE WHEN t.{name} IS NULL OR s.{name} IS NULL THEN coalesce(t.{name}, s.{name}) "
        f"ELSE {added} END"
    )
    return MeasureState(name, f"try_sum({sql})", f"try_sum({quoted(name)})", merged)


def _extreme(name: str, sql: str, pick: str) -> MeasureState:
    scalar = "least" if pick == "min" else "greatest"
    merge = f"{scalar}(t.{name}, s.{name})"
    return MeasureState(name, f"{pick}({sql})", f"{pick}({quoted(name)})", merge)


# The results that are computed from states, with the states as positions.
_FORMULAS = {
    "avg": "try_divide({0}, {1})",
    "approx_count_distinct": "hll_sketch_estimate({0})",
    # Spark raises an error for a quantile of an empty sketch.
    "approx_percentile": (
        "CASE WHEN kll_sketch_get_n_double({0}) > 0 "
        "THEN kll_sketch_get_quantile_double({0}, {p}D) END"
    ),
}


def _shown(measure: Measure) -> Shown:
    formula, states = _FORMULAS[measure.aggregate], _states(measure, _value(measure))
    summed = _summed_type(measure) if measure.aggregate == "avg" else None
    # The mean of integers is a double; dividing their decimal sum would give a decimal.
    if measure.aggregate == "avg" and measure.value_type == "bigint":
        formula, summed = "try_divide(CAST({0} AS DOUBLE), {1})", None
    elif summed is not None:
        formula = _mean_of(summed)
    like = formula.format(*[state.partial for state in states], p=measure.p)
    if summed is not None:
        # The type of Spark's avg, but the value of the formula, which rounds large sums otherwise.
        like = f"CAST({like} AS DECIMAL({summed[0] - 6},{summed[1] + _MORE_SCALE}))"
    elif measure.aggregate == "avg" and measure.value_type != "bigint":
        like = f"avg({_value(measure)})"
    formula = formula.format(*[f"{{{state.name}}}" for state in states], p=measure.p)
    return Shown(measure.name, formula, like, tuple(state.name for state in states))


def _mean_of(summed: tuple[int, int]) -> str:
    """Return the quotient of a sum of decimals and a count.

    Spark's quotient has fewer digits after the point, the more the sum has, and these depend on how
    the sum was computed. Of a sum of 34 digits it has all of the mean's. Sums that do not fit are
    those of more than 10^6 of the largest values.
    """
    scale, most = summed[1], _MOST_DIGITS
    narrow = f"try_divide(try_cast({{0}} AS DECIMAL({most - _MORE_SCALE},{scale})), {{1}})"
    wide = f"try_divide(CAST({{0}} AS DECIMAL({most},{scale})), {{1}})"
    # The same type, or coalesce would round both.
    shown = f"DECIMAL({most},{max(scale + _MORE_SCALE, _LEAST_SCALE)})"
    found = f"coalesce({narrow}, try_cast({wide} AS {shown}))"
    if scale + _MORE_SCALE >= _LEAST_SCALE:
        return found
    # Of a quotient with six digits after the point the last ones would be rounded twice. This one
    # has 18 more than its sum.
    fine = f"try_divide(try_cast({{0}} AS DECIMAL({_FINE_DIGITS},{scale})), {{1}})"
    rounded = f"try_cast({fine} AS DECIMAL({most},{scale + _MORE_SCALE}))"
    return f"coalesce(try_cast({rounded} AS {shown}), {found})"


def with_terms(table: GoldTable, types: Mapping[str, str]) -> GoldTable:
    """Add a sum of absolute values for each sum of doubles, which :func:`tolerances` reads."""
    measures = list(table.measures)
    for measure in table.measures:
        if _summed_in(measure, types) is not None:
            absolute = f"abs(CAST({as_operand(measure.expression)} AS DOUBLE))"
            terms = {"name": _terms(measure), "aggregate": "sum", "expression": absolute}
            measures.append(measure.model_copy(update=terms))
    return table.model_copy(update={"measures": tuple(measures)})


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
        if measure.aggregate in _SKETCHES:
            found[name] = _sketch_tolerance(shown[name], measure)
        else:
            terms = f"{{e.{_terms(measure)}}}" if _terms(measure) in names else "1D"
            total = _summed_in(measure, types)
            if total is not None:
                found[total] = _CLOSE.format(total, terms)
            if measure.aggregate == "avg":
                found[name] = _CLOSE.format(name, terms) + _rounded(measure, types)
    return found


def _rounded(measure: Measure, types: Mapping[str, str]) -> str:
    """Return the condition for a mean of decimals as earlier versions rounded it, else nothing.

    It was the plain quotient of the sum and the count; of sums, Spark's sum has ten digits more.
    """
    found = _DECIMAL.fullmatch(types.get(measure.name) or "")
    if found is None:
        return ""
    name, scale = measure.name, int(found[2])
    summed = min(int(found[1]) - _MORE_SCALE + 20, _MOST_DIGITS)
    shown = max(_MOST_DIGITS - summed + scale - _MORE_SCALE, _LEAST_SCALE)
    return f" OR abs({{e.{name}}} - {{s.{name}}}) <= 1e-{min(shown, scale)}BD"


def _summed_in(measure: Measure, types: Mapping[str, str]) -> str | None:
    """Return the stored column in which a measure sums doubles, or None."""
    column = {"sum": measure.name, "avg": f"_{measure.name}_sum"}.get(measure.aggregate)
    return column if types.get(column or "") in _INEXACT else None


def _terms(measure: Measure) -> str:
    return f"_{measure.name}_terms"


def merges_at_random(table: GoldTable) -> bool:
    """Return whether merging the same states twice may give different ones, as of KLL sketches."""
    return any(measure.aggregate == "approx_percentile" for measure in table.measures)


def unhashed_of(table: GoldTable) -> frozenset[str]:
    """Return the columns read only by :func:`tolerances`: sketches and sums of absolute values."""
    names = {measure.name for measure in table.measures}
    sketches = {_sketch_of(one) for one in table.measures if one.aggregate in _SKETCHES}
    return frozenset(sketches | (names & {_terms(measure) for measure in table.measures}))


def _sketch_tolerance(shown: Shown, measure: Measure) -> str:
    name, sketch = shown.name, _sketch_of(measure)
    is_computed = f"{{s.{name}}} <=> {shown.over({sketch: f'{{s.{sketch}}}'})}"
    if measure.aggregate == "approx_count_distinct":
        return (
            f"{is_computed} AND abs({{e.{name}}} - {{s.{name}}}) "
            f"<= {_DISTINCT_ERROR}D * {{e.{name}}} + 1"
        )
    # The stored value must lie between the quantiles slightly below and above.
    counts = " = ".join(f"kll_sketch_get_n_double({{{side}.{sketch}}})" for side in "es")
    rank = float(measure.p or 0)
    bounds = " AND ".join(
        f"kll_sketch_get_quantile_double({{e.{sketch}}}, {near}D)"
        for near in (max(rank - _RANK_ERROR, 0.0), min(rank + _RANK_ERROR, 1.0))
    )
    return (
        f"{is_computed} AND {counts} AND "
        f"CASE WHEN {{e.{name}}} IS NULL THEN {{s.{name}}} IS NULL "
        f"ELSE {{s.{name}}} BETWEEN {bounds} END"
    )
