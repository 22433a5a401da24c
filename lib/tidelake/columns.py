"""Column helpers that Spark lacks: expressions that fail row by row, exact timestamps."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    IntegralType,
    StringType,
    StructType,
    TimestampType,
)

from tidelake.config.expressions import DATELESS, Types, columns_in
from tidelake.config.row_guards import (
    MOST_LETTERS,
    never_fails,
    texts_as_timestamps,
    texts_beside,
    texts_to_bound,
)
from tidelake.instants import to_micros
from tidelake.spark.internals import null_on_error

_NAME = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|`[^`]+`)\s*")
VALUE = "value"
# What Spark trims from a text that it casts to a decimal. Possessive: no text takes quadratic time.
_BLANKS = r"[\x00-\x20]*+"
# Options of `to_json`: Spark's defaults truncate microseconds.
EXACT_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
    "timeZone": "UTC",
}


def instant(moment: datetime) -> Column:
    """Return an instant as a timestamp literal.

    ``F.lit`` would convert it by Java's hybrid calendar, which shifts dates before 1582 by days.
    """
    return F.timestamp_micros(F.lit(to_micros(moment)))


def literal(moment: datetime) -> str:
    """Write an instant in Spark SQL, which needs four-digit years; ``%Y`` would not pad them."""
    return f"TIMESTAMP'{moment.astimezone(UTC).replace(tzinfo=None).isoformat(' ')}Z'"


def between(column: str, bounds: tuple[datetime, datetime]) -> str:
    """Write the SQL condition that a column is between two instants, inclusive."""
    return f"{column} BETWEEN {literal(bounds[0])} AND {literal(bounds[1])}"


def stamped(rows: DataFrame, *, generation: str, batch: int) -> DataFrame:
    """Add the columns ``_generation`` and ``_batch``."""
    return rows.withColumns(
        {"_generation": F.lit(generation), "_batch": F.lit(batch).cast("bigint")}
    )


def in_pairs(operator: Callable[[Any, Any], Any], columns: Sequence[Column]) -> Column:
    """Join columns, at least one, in pairs: nested in one another, hundreds overflow the stack.

    Spark's analyzer and optimizer are recursive.
    """
    while len(columns) > 1:
        starts = range(0, len(columns), 2)
        columns = [reduce(operator, columns[at : at + 2]) for at in starts]
    return columns[0]


def is_plain_name(sql: str) -> bool:
    """Return whether an expression is only a column name."""
    return _NAME.fullmatch(sql) is not None


def try_eval(sql: str, cast: str | None = None, *, types: Types | None = None) -> Column:
    """Evaluate a user's expression into ``struct<value>``; the struct is null where it failed.

    In ANSI mode a bad cast or a division by zero would fail the whole batch, and each retry of it.
    Without ANSI mode errors would become nulls, indistinguishable from real ones.

    A text too long for a regular expression that may exhaust the stack counts as a failure,
    whatever the stack size: an overflow cannot be caught, and would end the JVM. So does a text
    without a date that is cast to a timestamp, explicitly or because the expression combines it
    with one: Spark adds the current date, so a retry or a verification on another day would find
    another value. So does a text that Spark makes of bytes that are not UTF-8, which other engines
    do not read from Parquet.

    Args:
        sql: The expression.
        cast: A type to cast to; a failing cast counts as a failure too.
        types: The column types, if known; expressions that cannot fail with them are not guarded.
    """
    value = F.expr(sql) if cast is None else F.expr(sql).cast(cast)
    wrapped = F.struct(value.alias(VALUE))
    if cast is None and is_plain_name(sql):
        return wrapped
    of_bytes = {name.lower() for name, kind in (types or {}).items() if kind and "BINARY" in kind}
    reads_bytes = bool(of_bytes) and not of_bytes.isdisjoint(columns_in(sql))
    if types is not None and not reads_bytes:
        kind = never_fails(sql, types)
        if kind is not None and (cast is None or cast == kind.lower()):
            return wrapped
    # An operand that fails may be one that the expression does not evaluate on this row.
    allowed = [
        null_on_error(F.length(F.expr(text)) <= MOST_LETTERS) for text in texts_to_bound(sql)
    ]
    timed = [*texts_as_timestamps(sql), *([sql] if cast == "timestamp" else [])]
    allowed += [_keeps_its_date(F.expr(text)) for text in timed]
    allowed += [_keeps_its_date(F.expr(text), F.expr(other)) for text, other in texts_beside(sql)]
    if reads_bytes:
        allowed.append(F.when(F.typeof(value) == "string", F.is_valid_utf8(value.cast("string"))))
    if allowed:
        known = [F.coalesce(one, F.lit(True)) for one in allowed]
        wrapped = F.when(in_pairs(and_, known), wrapped)
    return null_on_error(wrapped)


def _is_dateless(value: Column) -> Column:
    """Return whether a value is a text of which Spark would make a timestamp of the current day."""
    text = value.cast("string")
    matches = F.regexp_like(text, F.lit(DATELESS)) & text.try_cast("timestamp").isNotNull()
    return (F.typeof(value) == "string") & matches


def _keeps_its_date(text: Column, other: Column | None = None) -> Column:
    """Return whether a text has a date; null if it is no text, or fails.

    With another operand, also null if Spark does not cast the text to the type of that one. Only
    Spark's analysis knows the types.
    """
    is_cast = F.typeof(text) == "string"
    if other is not None:
        is_cast &= F.typeof(other).rlike("timestamp|interval")
    return F.when(is_cast, null_on_error(~_is_dateless(text)))


def holds(condition: str) -> Column:
    """Evaluate a user's condition; null and failures count as false."""
    return F.coalesce(try_eval(condition, "boolean").getField(VALUE), F.lit(False))


def failed_within(where: str | None, broken: Column) -> Column:
    """Return whether condition ``where`` fails to evaluate, or is true together with ``broken``.

    Without a condition, returns ``broken``.
    """
    if where is None:
        return broken
    return try_eval(where, "boolean").isNull() | (holds(where) & broken)


def equal(one: Column, its_type: DataType, other: Column, other_type: DataType) -> Column:
    """Compare values of two types; a text that cannot be cast to the other type equals nothing.

    Nor does a text without a date equal a timestamp, or a text with more digits after the point
    than a decimal type has equal a decimal. Spark's implicit cast would raise on the first text of
    another kind, make a timestamp of today of a text without a date, and round the digits.
    """
    return in_type_of(one, its_type, other_type) == in_type_of(other, other_type, its_type)


def in_type_of(value: Column, its_type: DataType, other_type: DataType) -> Column:
    """Return a value in the type in which :func:`equal` compares it with another one.

    A text takes the other type; any other value takes the type that is common to both, or is null
    if that cannot hold it.
    """
    if isinstance(other_type, StringType) or its_type == other_type:
        return value
    if isinstance(its_type, StringType):
        return _of_text(value, other_type)
    if isinstance(its_type, ArrayType | StructType):
        # As above: texts among the elements take the other type. No guard that a join would refuse.
        texts, other_texts = ("string" in one.simpleString() for one in (its_type, other_type))
        if texts is not other_texts:
            return value.try_cast(other_type) if texts else value
    common = F.coalesce(value, F.lit(None).cast(other_type))
    if isinstance(its_type, DecimalType) and isinstance(other_type, DecimalType | IntegralType):
        # Of two decimals with more than 38 digits together, Spark rounds the one with the more
        # digits after the point. What does not survive that is no value of the other type.
        return F.when(common.try_cast(its_type) == value, common)
    return common


def as_timestamp(value: Column) -> Column:
    """Cast a value to a timestamp; null where it cannot be cast, and for a text without a date."""
    return F.when(~_is_dateless(value), value.try_cast("timestamp"))


def _of_text(text: Column, kind: DataType) -> Column:
    """Cast a text to another type; null where it cannot be cast, or would be another value."""
    if isinstance(kind, TimestampType):
        return as_timestamp(text)
    return _as_decimal(text, kind) if isinstance(kind, DecimalType) else text.try_cast(kind)


def _as_decimal(text: Column, kind: DecimalType) -> Column:
    """Cast a text to a decimal; null where it cannot be cast, and where the cast would round it.

    No decimal type holds all digits that a text may have, so the digits are counted in the text.
    """
    cast = text.try_cast(kind)
    is_plain = text.rlike(rf"^{_BLANKS}[+-]?[0-9]*(?:\.[0-9]{{0,{kind.scale}}}0*)?{_BLANKS}$")
    # With more digits in the exponent `try_cast` may raise.
    has_exponent = text.rlike(rf"[eE][+-]?[0-9]{{1,4}}{_BLANKS}$")
    exponent = F.regexp_extract(text, "[eE]([+-]?[0-9]+)", 1).try_cast("int")
    is_zero = text.rlike(rf"^{_BLANKS}[+-]?[0.]*[eE]")
    places = F.length(F.regexp_extract(text, r"\.([0-9]*[1-9])", 1))
    zeros = F.length(F.regexp_extract(text, r"^[^.eE]*[1-9](0+)(?:\.0*)?[eE]", 1))
    is_exact = is_zero | (places - zeros - exponent <= kind.scale)
    # Nested: of OR and AND Spark evaluates both sides if a part occurs twice.
    return F.when(is_plain, cast).when(has_exponent, F.when(is_exact, cast))
