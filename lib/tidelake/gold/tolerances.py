"""Say how far two computations of one gold row may differ, and where they may not at all.

A sum of doubles depends on the order of its terms, a sketch on what was merged with what.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelake.config import GoldTable, Measure
from tidelake.gold.measures import Shown, shown_of

# Relative, with room for what lies near zero. Whether a sum of doubles overflows on the way depends
# on the order of its terms too.
_CLOSE = (
    "{{e.{0}}} <=> {{s.{0}}} OR abs({{e.{0}}} - {{s.{0}}}) "
    "<= 1e-9D * greatest(abs({{e.{0}}}), abs({{s.{0}}}), 1D) "
    "OR isnan({{e.{0}}} - {{e.{0}}}) OR isnan({{s.{0}}} - {{s.{0}}})"
)
# Three times the error that the sketches promise with the sizes that Spark gives them.
_DISTINCT_ERROR, _RANK_ERROR = 0.05, 0.04
_SKETCHED = ("approx_count_distinct", "approx_percentile")
_INEXACT = ("double", "float")


def tolerances(table: GoldTable, types: Mapping[str, str]) -> dict[str, str]:
    """Give by column when a stored value agrees with one computed anew.

    Args:
        table: The definition.
        types: The columns' types.

    Returns:
        SQL over ``{e.name}``, computed anew, and ``{s.name}``, stored; columns that it does not
        name are equal or wrong.
    """
    shown = {one.name: one for one in shown_of(table)}
    found = {}
    for measure in table.measures:
        name = measure.name
        if measure.aggregate == "approx_count_distinct":
            found[name] = _distinct(shown[name])
        elif measure.aggregate == "approx_percentile":
            found[name] = _percentile(shown[name], measure)
        elif measure.aggregate == "avg":
            found[name] = _CLOSE.format(name)
            total = shown[name].states[0]
            if types[total] in _INEXACT:
                found[total] = _CLOSE.format(total)
        elif measure.aggregate == "sum" and types[name] in _INEXACT:
            found[name] = _CLOSE.format(name)
    return found


def sketches_of(table: GoldTable) -> frozenset[str]:
    """Name the columns whose bytes are not compared: what is shown of them is."""
    sketched = {measure.name for measure in table.measures if measure.aggregate in _SKETCHED}
    return frozenset(
        state for shown in shown_of(table) if shown.name in sketched for state in shown.states
    )


def _distinct(shown: Shown) -> str:
    name = shown.name
    told = shown.over({state: f"{{s.{state}}}" for state in shown.states})
    return (
        f"{{s.{name}}} <=> {told} AND abs({{e.{name}}} - {{s.{name}}}) "
        f"<= {_DISTINCT_ERROR}D * {{e.{name}}} + 1"
    )


def _percentile(shown: Shown, measure: Measure) -> str:
    """Want the value between the quantiles a little below and a little above."""
    name, sketch = shown.name, shown.states[0]
    told = shown.over({sketch: f"{{s.{sketch}}}"})
    counts = " = ".join(f"kll_sketch_get_n_double({{{side}.{sketch}}})" for side in "es")
    rank = float(measure.p or 0)
    bounds = " AND ".join(
        f"kll_sketch_get_quantile_double({{e.{sketch}}}, {near}D)"
        for near in (max(rank - _RANK_ERROR, 0.0), min(rank + _RANK_ERROR, 1.0))
    )
    return (
        f"{{s.{name}}} <=> {told} AND {counts} AND "
        f"CASE WHEN {{e.{name}}} IS NULL THEN {{s.{name}}} IS NULL "
        f"ELSE {{s.{name}}} BETWEEN {bounds} END"
    )
