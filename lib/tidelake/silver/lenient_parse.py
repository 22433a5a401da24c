"""Parse events fast and leniently, for the fast lane, whose results the tables correct.

Silver parses strictly, with a plan that takes a second to build. Here each value is cast once and
becomes null if the cast fails. The suite's rules are not evaluated.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.columns import VALUE, try_eval
from tidelake.config import Field, Pipeline
from tidelake.config.expressions import columns_in
from tidelake.names import BRONZE_COLUMNS, quoted
from tidelake.silver.stages import is_representable

# Spark writes out all zeros when it casts such an exponent to a decimal: seconds per value, or an
# error that try_cast does not catch.
_LONG_EXPONENT = r"[eE][+-]?[0-9]{5}"
_NESTED = frozenset({"array", "map", "struct"})
_READ = "_read"
_BEYOND_DOUBLES = (
    r"[:,\[]\s*%s-?[0-9]++(?:\.[0-9]*+)?[eE][+-]?0*+(?:29[0-9]|[3-9][0-9]{2}|[0-9]{4,}+)%s\s*[,}\]]"
)


def lenient_parse(records: DataFrame, pipeline: Pipeline, needed: Collection[str]) -> DataFrame:
    """Parse records; keep the events that have an id and a valid time and pass ``where``.

    Returns:
        ``record_id``, ``event_id``, ``event_time``, ``ingested_at`` and the needed columns.
    """
    event = pipeline.event
    selected = {name: sql for name, sql in pipeline.selected.items() if name.lower() in needed}
    tried = {"event_id": event.id, "event_time": event.time, **selected}
    # Spark's implicit cast of a text to a condition would fail outside of the guard.
    casts = {"event_id": "string", "event_time": "timestamp", "_wanted": "boolean"}
    wanted = {"_wanted": event.where} if event.where else {}
    used = {name for sql in (*tried.values(), *wanted.values()) for name in columns_in(sql)}
    rows = _scope(records, pipeline, used)
    values = [
        try_eval(sql, casts.get(name)).getField(VALUE).alias(name)
        for name, sql in (tried | wanted).items()
    ]
    own = [F.col(f"_own_{name}").alias(name) for name in ("record_id", "ingested_at")]
    read = rows.select(*own, *values)
    ahead = F.col("ingested_at") + F.lit(pipeline.watermark.max_future_skew)
    tests = [
        F.coalesce(F.col("event_id"), F.lit("")) != "",
        is_representable("event_time"),
        F.col("event_time") <= ahead,
        *[F.coalesce(F.col(name), F.lit(False)) for name in wanted],
    ]
    return read.where(reduce(and_, tests)).drop(*wanted)


def _scope(records: DataFrame, pipeline: Pipeline, used: Collection[str]) -> DataFrame:
    """Select the used payload fields and bronze columns; a field hides a column of its name."""
    fields = [field for field in pipeline.event.fields if field.name.lower() in used]
    ddl = ", ".join(
        f"{quoted(field.name)} {field.type.sql if field.type.kind in _NESTED else 'string'}"
        for field in fields
    )
    hidden = {field.name.lower() for field in fields}
    kept = [name for name in BRONZE_COLUMNS if name in used and name not in hidden]
    own = [F.col(name).alias(f"_own_{name}") for name in ("record_id", "ingested_at")]
    text = F.col("payload").cast("string")
    # Payloads with a number outside a double's range are skipped: it would be read as another
    # number. A quoted number with such an exponent takes seconds to cast to a decimal; _value
    # handles that for plain fields, this filter for nested ones.
    quote = '"?' if any("DECIMAL" in f.type.sql and f.type.kind in _NESTED for f in fields) else ""
    sound = ~text.rlike(_BEYOND_DOUBLES % (quote, quote))
    parsed = F.when(sound, F.from_json(text, f"struct<{ddl}>")) if fields else F.lit(None)
    read = records.select(*own, *kept, parsed.alias(_READ))
    values = [_value(field).alias(field.name) for field in fields]
    return read.select("_own_record_id", "_own_ingested_at", *kept, *values)


def _value(field: Field) -> Column:
    """Cast a field's text; null if that fails, or if the exponent exceeds any decimal."""
    read, kind = F.col(_READ).getField(field.name), field.type.kind
    if kind in _NESTED:
        return read
    cast = read.try_cast(field.type.sql)
    if kind != "decimal":
        return cast
    short = ~(F.contains(read, F.lit("e")) | F.contains(read, F.lit("E")))
    return F.when(short | ~read.rlike(_LONG_EXPONENT), cast)
