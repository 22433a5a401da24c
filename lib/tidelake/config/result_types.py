"""Say of which type a column of silver or gold is, from the definition alone.

Spark says so too, and is the one that is right: where this cannot know, it says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from tidelake.config.gold import GoldTable, Measure
from tidelake.config.pipeline import Pipeline

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
_BRONZE = ("record_id", "key", "payload", "source", "source_timestamp", "ingested_at")

Types = Mapping[str, str | None]


def silver_types(pipeline: Pipeline) -> dict[str, str | None]:
    """Give the types of silver's columns by name; None where only Spark knows."""
    payload = {field.name: field.type.sql for field in pipeline.event.fields}
    scope = {name: STANDARD[name] for name in _BRONZE} | payload
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


def type_of(sql: str, columns: Types) -> str | None:
    """Give the type of an expression.

    Args:
        sql: Spark SQL over the columns.
        columns: Their types.
    """
    known = {name: kind for name, kind in columns.items() if kind}
    schema: dict[str, object] = {"t": known}
    try:
        query = sqlglot.parse_one(f"SELECT {sql} AS x FROM t", dialect=_DIALECT)
        if any(column.name not in known for column in query.find_all(exp.Column)):
            return None
        typed = annotate_types(qualify(query, schema=schema, dialect=_DIALECT), schema)
    except SqlglotError:
        return None
    kind = typed.selects[0].type if isinstance(typed, exp.Select) else None
    if kind is None or kind.this in (exp.DataType.Type.UNKNOWN, exp.DataType.Type.NULL):
        return None
    return kind.sql(dialect=_DIALECT).replace(", ", ",")
