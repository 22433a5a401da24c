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
from tidelake.silver.values import MOST_DEPTH

# Spark writes out all zeros when it casts such an exponent to a decimal: seconds per value, or an
# error that try_cast does not catch.
_LONG_EXPONENT = r"[eE][+-]?[0-9]{5}"
_NESTED = frozenset({"array", "map", "struct"})
_READ, _READ_NESTED, _IS_OBJECT = "_read", "_read_nested", "_own_is_object"
# A payload is parsed as a member of an object that has another member after it: Spark reads one
# value, and would take `{…} {…}` for its first object.
_RECORD, _END, _MALFORMED = "_tidelake_record", "_tidelake_end", "_tidelake_malformed"
# By default Spark accepts more than JSON, and keeps what it could read of a malformed object.
_STRICT = {
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "columnNameOfCorruptRecord": _MALFORMED,
    # The object around the payload is one level more.
    "maxNestingDepth": str(MOST_DEPTH + 1),
}
# Half of a surrogate pair, escaped: silver's parser refuses it, and Spark's makes a question mark
# of it. After an escaped backslash, "ud800" is text.
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF_PAIR = rf"(?<!\\)(?:\\\\)*+(?:{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW})"
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
    read = rows.select(*own, F.col(_IS_OBJECT), *values)
    ahead = F.col("ingested_at") + F.lit(pipeline.watermark.max_future_skew)
    tests = [
        F.coalesce(F.col("event_id"), F.lit("")) != "",
        is_representable("event_time"),
        F.col("event_time") <= ahead,
        *[F.coalesce(F.col(name), F.lit(False)) for name in wanted],
    ]
    # Spark moves no condition below expressions that it takes for nondeterministic, as a guarded
    # one; below them, the payload would be parsed once for the condition and once for the fields.
    return read.where(F.col(_IS_OBJECT) & reduce(and_, tests)).drop(_IS_OBJECT, *wanted)


def _scope(records: DataFrame, pipeline: Pipeline, used: Collection[str]) -> DataFrame:
    """Select the used payload fields and bronze columns; a field hides a column of its name."""
    fields = [field for field in pipeline.event.fields if field.name.lower() in used]
    hidden = {field.name.lower() for field in fields}
    kept = [name for name in BRONZE_COLUMNS if name in used and name not in hidden]
    own = [F.col(name).alias(f"_own_{name}") for name in ("record_id", "ingested_at")]
    text = F.col("payload").cast("string")
    # Payloads with a number outside a double's range are skipped: it would be read as another
    # number. A quoted number with such an exponent takes seconds to cast to a decimal; _value
    # handles that for plain fields, this filter for nested ones.
    nested = [field for field in fields if field.type.kind in _NESTED]
    quote = '"?' if any("DECIMAL" in field.type.sql for field in nested) else ""
    has_pairs = F.contains(text, F.lit(r"\ud")) | F.contains(text, F.lit(r"\uD"))
    sound = (
        F.is_valid_utf8(text)
        & ~text.rlike(_BEYOND_DOUBLES % (quote, quote))
        & ~(has_pairs & text.rlike(_HALF_PAIR))
    )
    plain = ", ".join(f"{quoted(field.name)} string" for field in fields if field not in nested)
    kind = f"struct<{_RECORD}: struct<{plain}>, {_END}: int, {_MALFORMED}: string>"
    member = F.concat(F.lit(f'{{"{_RECORD}":'), text, F.lit(f',"{_END}":0}}'))
    parsed = [F.when(sound, F.from_json(member, kind, _STRICT)).alias(_READ)]
    if nested:
        # Apart from the plain ones, as a nested value of another type would make a record malformed
        # too, while any value can be read as a string.
        of_nested = ", ".join(f"{quoted(field.name)} {field.type.sql}" for field in nested)
        parsed.append(F.when(sound, F.from_json(text, f"struct<{of_nested}>")).alias(_READ_NESTED))
    read = records.select(*own, *kept, *parsed)
    is_object = _part(_RECORD).isNotNull() & _part(_END).isNotNull() & _part(_MALFORMED).isNull()
    values = [_value(field).alias(field.name) for field in fields]
    columns = ["_own_record_id", "_own_ingested_at", *kept]
    return read.select(*columns, is_object.alias(_IS_OBJECT), *values)


def _part(name: str) -> Column:
    return F.col(_READ).getField(name)


def _value(field: Field) -> Column:
    """Cast a field's text; null if that fails, or if the exponent exceeds any decimal."""
    kind = field.type.kind
    if kind in _NESTED:
        return F.col(_READ_NESTED).getField(field.name)
    read = _part(_RECORD).getField(field.name)
    cast = read.try_cast(field.type.sql)
    if kind != "decimal":
        return cast
    short = ~(F.contains(read, F.lit("e")) | F.contains(read, F.lit("E")))
    return F.when(short | ~read.rlike(_LONG_EXPONENT), cast)
