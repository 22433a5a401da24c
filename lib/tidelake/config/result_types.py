"""Say of which type a column of silver or gold is, from the definition alone.

Spark says so too, and is the one that is right: where this cannot know, it says nothing.
"""

from __future__ import annotations

from sqlglot import exp

from tidelake.config.event import Event
from tidelake.config.expressions import Types, type_of
from tidelake.config.gold import GoldTable, Measure
from tidelake.config.names import BRONZE_COLUMNS
from tidelake.config.pipeline import Pipeline, selected_columns

_DIALECT = "databricks"
_WHOLE = frozenset(["TINYINT", "SMALLINT", "INT", "BIGINT"])
_FRACTIONS = frozenset(["FLOAT", "DOUBLE"])
_MOST_DIGITS = 38
_FIXED = {
    "count": "BIGINT",
    "count_if": "BIGINT",
    "approx_count_distinct": "BIGINT",
    "approx_percentile": "DOUBLE",
}
# Silver's own columns, and those of its side tables.
STANDARD = {
    "record_id": "STRING",
    "key": "BINARY",
    "payload": "BINARY",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "source": "STRING",
    "source_timestamp": "TIMESTAMP",
    "ingested_at": "TIMESTAMP",
    "ingest_date": "DATE",
    "event_id": "STRING",
    "event_time": "TIMESTAMP",
    "event_date": "DATE",
    "is_late": "BOOLEAN",
    "watermark": "TIMESTAMP",
    "lateness_seconds": "DOUBLE",
    "reasons": "ARRAY<STRING>",
    "stage": "STRING",
    "window_start": "TIMESTAMP",
    "window_end": "TIMESTAMP",
    "session_id": "STRING",
    "session_start": "TIMESTAMP",
    "session_end": "TIMESTAMP",
    "rule": "STRING",
    "evidence": "STRING",
    "valid_from": "TIMESTAMP",
    "valid_to": "TIMESTAMP",
    "is_current": "BOOLEAN",
}
_SILVER = ("event_id", "event_time", "is_late", "record_id", "ingested_at", "event_date")


def payload_types(event: Event) -> dict[str, str | None]:
    """Give the types of what an event's expressions may use: the payload's fields, and bronze's."""
    payload = {field.name: field.type.sql for field in event.fields}
    return {**payload, **{name: STANDARD[name] for name in BRONZE_COLUMNS if name not in payload}}


def event_types(event: Event) -> dict[str, str | None]:
    """Give the types of the columns that an event selects; None where only Spark knows."""
    scope = payload_types(event)
    return {name: type_of(sql, scope) for name, sql in selected_columns(event).items()}


def silver_types(pipeline: Pipeline) -> dict[str, str | None]:
    """Give the types of silver's columns by name; None where only Spark knows."""
    scope = payload_types(pipeline.event)
    found: dict[str, str | None] = {name: STANDARD[name] for name in _SILVER}
    found |= {name: type_of(sql, scope) for name, sql in pipeline.selected.items()}
    for enrich in pipeline.enrich:
        known = pipeline.dimensions.get(enrich.dimension)
        theirs = silver_types(known) if known else {}
        found |= {name: theirs.get(name) for name in enrich.columns}
    return found


def gold_types(gold: GoldTable, silver: Types) -> dict[str, str | None]:
    """Give the types of a gold table's columns."""
    found: dict[str, str | None] = {
        name: silver.get(name) if name in gold.keys else STANDARD.get(name) for name in gold.columns
    }
    return found | {measure.name: measured_type(measure, silver) for measure in gold.measures}


def measured_type(measure: Measure, silver: Types) -> str | None:
    """Give the type of a measure: that of Spark's aggregate, but for a sum of BIGINT."""
    if measure.aggregate in _FIXED:
        return _FIXED[measure.aggregate]
    of = type_of(measure.expression, silver)
    if of is None or measure.aggregate not in ("sum", "avg"):
        return of
    if measure.aggregate == "sum" and of == "BIGINT":
        return f"DECIMAL({_MOST_DIGITS},0)"
    if of in _FRACTIONS or of in _WHOLE:
        return "BIGINT" if of in _WHOLE and measure.aggregate == "sum" else "DOUBLE"
    return _wider_decimal(of, *((10, 0) if measure.aggregate == "sum" else (4, 4)))


def _wider_decimal(kind: str, more: int, finer: int) -> str | None:
    digits = exp.DataType.build(kind, dialect=_DIALECT).expressions
    if not kind.startswith("DECIMAL") or len(digits) != 2:
        return None
    precision, scale = (int(digit.name) for digit in digits)
    return f"DECIMAL({min(precision + more, _MOST_DIGITS)},{scale + finer})"
