"""Describe each measure as columns of state that merge, and what analysts are shown of them.

Every state column comes in three forms that must agree: aggregated from events, combined from
several stored states, and merged from one stored and one new state in a MERGE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidelake.config import GoldTable, Measure

_INSTANT = "struct(event_time, event_id)"


@dataclass(frozen=True)
class State:
    """One stored column of a measure, as Spark SQL.

    Attributes:
        name: The column.
        partial: Aggregate over events.
        combine: Aggregate over states.
        merge: Scalar over ``t`` (stored) and ``s`` (new).
    """

    name: str
    partial: str
    combine: str
    merge: str


@dataclass(frozen=True)
class Shown:
    """A column computed from states.

    Attributes:
        name: The column.
        formula: SQL over state columns, each written ``{name}``.
        like: Aggregate over events whose type the column takes.
        states: The state columns it reads.
    """

    name: str
    formula: str
    like: str
    states: tuple[str, ...]

    def over(self, states: dict[str, str]) -> str:
        """Write the formula over the given SQL for each state column."""
        return self.formula.format(**states)


def states_of(table: GoldTable) -> tuple[State, ...]:
    """List the state columns of a table's measures, in order."""
    return tuple(state for measure in table.measures for state in _states(measure))


def shown_of(table: GoldTable) -> tuple[Shown, ...]:
    """List the columns that are computed from states."""
    return tuple(
        _SHOWN[measure.aggregate](measure)
        for measure in table.measures
        if measure.aggregate in _SHOWN
    )


def columns_of(table: GoldTable) -> list[str]:
    """Give the measures' names, then the state columns that analysts do not need."""
    hidden = [state.name for state in states_of(table) if state.name.startswith("_")]
    return [measure.name for measure in table.measures] + hidden


def _states(measure: Measure) -> Sequence[State]:
    name, sql = measure.name, measure.expression
    least = f"least(t.{name}, s.{name})"
    greatest = f"greatest(t.{name}, s.{name})"
    known: dict[str, Callable[[], Sequence[State]]] = {
        "count": lambda: [_count(name, f"count({sql})")],
        "count_if": lambda: [_count(name, f"count_if({sql})")],
        "sum": lambda: [_sum(name, sql)],
        "min": lambda: [State(name, f"min({sql})", f"min({name})", least)],
        "max": lambda: [State(name, f"max({sql})", f"max({name})", greatest)],
        "avg": lambda: [_sum(f"_{name}_sum", sql), _count(f"_{name}_count", f"count({sql})")],
        "first": lambda: _edge(name, sql, pick="min", pick_by="min_by", scalar="least", wins="<"),
        "last": lambda: _edge(name, sql, pick="max", pick_by="max_by", scalar="greatest", wins=">"),
        "approx_count_distinct": lambda: [_sketch(name, _DISTINCT, sql)],
        "approx_percentile": lambda: [_sketch(name, _QUANTILES, sql)],
    }
    return known[measure.aggregate]()


def _count(name: str, partial: str) -> State:
    return State(name, partial, f"sum({name})", f"t.{name} + s.{name}")


def _sum(name: str, sql: str) -> State:
    # A sum over no value is null, and null plus something is something.
    merged = f"coalesce(t.{name} + s.{name}, t.{name}, s.{name})"
    return State(name, f"sum({sql})", f"sum({name})", merged)


def _edge(
    name: str, sql: str, *, pick: str, pick_by: str, scalar: str, wins: str
) -> Sequence[State]:
    """Keep the value beside the instant that it was taken at; equal times go by event id."""
    at = f"_{name}_at"
    return [
        State(
            name,
            f"{pick_by}({sql}, {_INSTANT})",
            f"{pick_by}({name}, {at})",
            f"CASE WHEN s.{at} {wins} t.{at} THEN s.{name} ELSE t.{name} END",
        ),
        State(at, f"{pick}({_INSTANT})", f"{pick}({at})", f"{scalar}(t.{at}, s.{at})"),
    ]


@dataclass(frozen=True)
class _Kind:
    """A kind of sketch: SQL templates to build one, to combine many and to merge two."""

    build: str
    combine: str
    merge: str


# HLL takes no decimals and no instants; as text, equal values are equal.
_DISTINCT = _Kind(
    "hll_sketch_agg(CAST({0} AS STRING))", "hll_union_agg({0})", "hll_union({0}, {1})"
)
_QUANTILES = _Kind(
    "kll_sketch_agg_double(CAST({0} AS DOUBLE))",
    "kll_merge_agg_double({0})",
    "kll_sketch_merge_double({0}, {1})",
)


def _sketch(name: str, kind: _Kind, sql: str) -> State:
    column = f"_{name}_sketch"
    merged = kind.merge.format(f"t.{column}", f"s.{column}")
    return State(column, kind.build.format(sql), kind.combine.format(column), merged)


def _mean(measure: Measure) -> Shown:
    name = measure.name
    return Shown(
        name=name,
        formula=f"try_divide({{_{name}_sum}}, {{_{name}_count}})",
        like=f"avg({measure.expression})",
        states=(f"_{name}_sum", f"_{name}_count"),
    )


def _distinct(measure: Measure) -> Shown:
    column = f"_{measure.name}_sketch"
    built = _DISTINCT.build.format(measure.expression)
    return Shown(
        name=measure.name,
        formula=f"hll_sketch_estimate({{{column}}})",
        like=f"hll_sketch_estimate({built})",
        states=(column,),
    )


def _percentile(measure: Measure) -> Shown:
    column = f"_{measure.name}_sketch"
    # A sketch of no value has no quantile, and Spark stops at the question.
    formula = (
        "CASE WHEN kll_sketch_get_n_double({0}) > 0 "
        f"THEN kll_sketch_get_quantile_double({{0}}, {measure.p}D) END"
    )
    return Shown(
        name=measure.name,
        formula=formula.format(f"{{{column}}}"),
        like=formula.format(_QUANTILES.build.format(measure.expression)),
        states=(column,),
    )


_SHOWN: dict[str, Callable[[Measure], Shown]] = {
    "avg": _mean,
    "approx_count_distinct": _distinct,
    "approx_percentile": _percentile,
}
