"""Say what each table and each column means: the pipeline's own words first, then the standard.

Both the tables' comments and the dictionary follow from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidelake.config.gold import (
    EVENTS,
    LAST_PLACE,
    TOTAL,
    VALUES,
    GoldTable,
    Measure,
    SessionWindow,
)
from tidelake.config.model import Documented
from tidelake.config.pipeline import Pipeline
from tidelake.config.standard import COLUMNS, TABLES

_STATE = "Kept to merge the next batch; not for analysis."
_UNKNOWN_FIELD = "A payload field that the schema does not know, as text."
_HOURS = {
    EVENTS: "Number of events.",
    VALUES: "Number of values.",
    TOTAL: "Sum of the values.",
    LAST_PLACE: "The last place, and when.",
}
_MEASURES = {
    "count": "Number of events with a value of {0}.",
    "count_if": "Number of events with {0}.",
    "sum": "Sum of {0}.",
    "min": "Least {0}.",
    "max": "Greatest {0}.",
    "avg": "Mean of {0}.",
    "first": "The first {0}, by event time.",
    "last": "The last {0}, by event time.",
    "approx_count_distinct": "About how many different values of {0}.",
    "approx_percentile": "About the {1:g}th percentile of {0}.",
}


@dataclass(frozen=True)
class Meaning:
    """What a table holds.

    Attributes:
        description: What a row is.
        columns: What the table's own columns mean, empty where nobody said it.
        other: What a column means that nothing else is known of; None: nothing is said.
    """

    description: str
    columns: Mapping[str, str] = field(default_factory=dict)
    other: str | None = None

    def of(self, column: str) -> str | None:
        """Say what a column means, in the standard words too; None where nobody said it."""
        # The pipeline's own column may bear a name that means something else elsewhere.
        if column in self.columns:
            return self.columns[column] or None
        return COLUMNS.get(column, _STATE if column.startswith("_") else self.other)


def standard_meaning(table: str) -> Meaning:
    """Say what one of the tables holds that are the same for every pipeline.

    Args:
        table: The logical name: ``bronze.clickstream__requeue``, ``ops.books``.
    """
    layer, _, name = table.partition(".")
    _, mark, side = name.partition("__")
    return Meaning(TABLES.get(f"{layer}{mark}{side}" if layer != "ops" else table, ""))


def meaning_of(pipeline: Pipeline, table: str) -> Meaning:
    """Say what a table that a pipeline fills holds, by its logical name."""
    told = standard_meaning(table)
    if table in (f"silver.{pipeline.name}", f"silver.{pipeline.name}__late"):
        comments = _silver_comments(pipeline)
        columns = _own(comments, pipeline.defined_columns) | comments
        return Meaning(_joined(pipeline, told.description), columns, _UNKNOWN_FIELD)
    if pipeline.dimension is not None and table in pipeline.gold_names:
        what = "One row a version of a key." if table.endswith("__history") else "One row a key."
        columns = _own(pipeline.comments, pipeline.defined_columns)
        return Meaning(_joined(pipeline, what), columns)
    return dict(_gold_meanings(pipeline)).get(table, told)


def _joined(pipeline: Pipeline, standard: str) -> str:
    return f"{pipeline.description} {standard}" if pipeline.description else standard


def _gold_meanings(pipeline: Pipeline) -> Iterator[tuple[str, Meaning]]:
    inherited = _silver_comments(pipeline)
    for gold in pipeline.gold:
        own = _own(inherited, gold.keys) | {one.name: _measured(one) for one in gold.measures}
        yield f"gold.{gold.name}", _said(gold, _windowed(gold), own)
    for join in pipeline.joins:
        told = "One row a left event, its first match beside it."
        yield f"gold.{join.name}", _said(join, told, _own(inherited, join.columns))
    for detection in pipeline.detections:
        own = _own(inherited, (*detection.keys, *detection.columns))
        told = "One row an event and rule that it broke."
        yield f"gold.{detection.name}", _said(detection, told, own)
        told = f"What the rules of {detection.name} look back at: one row a key and hour."
        yield f"gold.{detection.features}", Meaning(told, own | _HOURS)


def _said(table: Documented, otherwise: str, columns: Mapping[str, str]) -> Meaning:
    return Meaning(table.description or otherwise, {**columns, **table.comments})


def _silver_comments(pipeline: Pipeline) -> dict[str, str]:
    """Take the pipeline's words for silver's columns, and those of the dimensions looked up."""
    found: dict[str, str] = {}
    for enrich in pipeline.enrich:
        known = pipeline.dimensions.get(enrich.dimension)
        told = known.comments if known else {}
        found |= {name: told[name] for name in enrich.columns if name in told}
    return found | dict(pipeline.comments)


def _own(inherited: Mapping[str, str], columns: Sequence[str]) -> dict[str, str]:
    return {name: inherited.get(name, "") for name in columns if not name.startswith("_")}


def _measured(measure: Measure) -> str:
    sql = " ".join(measure.expression.split())
    if sql == "*":
        return "Number of events."
    return _MEASURES[measure.aggregate].format(sql, (measure.p or 0) * 100)


def _windowed(gold: GoldTable) -> str:
    by = f" and {', '.join(gold.keys)}" if gold.keys else ""
    what = "session" if isinstance(gold.window, SessionWindow) else "window"
    return f"One row a {what}{by}." if gold.window.kind != "global" else f"One row a {by[5:]}."
