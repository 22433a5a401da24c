"""Columns that Spark's functions do not give: expressions that fail alone, and exact instants."""

from __future__ import annotations

import re
from datetime import datetime
from functools import reduce
from operator import and_
from typing import Any

from pyspark import SparkContext
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType
from pyspark.sql.utils import is_remote

from tidelake.config.expressions import Types, never_fails
from tidelake.config.patterns import MOST_LETTERS, texts_to_bound
from tidelake.instants import to_micros

_NAME = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|`[^`]+`)\s*")
VALUE = "value"


def instant(moment: datetime) -> Column:
    """Give an instant as a literal.

    ``F.lit`` passes a datetime through Java's old calendar, which shifts it by days before 1582.
    """
    return F.timestamp_micros(F.lit(to_micros(moment)))


def is_plain_name(sql: str) -> bool:
    """Tell whether an expression names a column and does nothing with it."""
    return _NAME.fullmatch(sql) is not None


def try_eval(sql: str, cast: str | None = None, *, types: Types | None = None) -> Column:
    """Evaluate a user's expression into ``struct<value>``; the struct is null where it failed.

    Under ANSI a bad cast or a division by zero raises, and the whole batch with it, again at each
    restart. Turning ANSI off instead would turn errors into nulls without a trace.

    A text too long for a regular expression that may exhaust the stack fails by its length,
    whatever the size of the stack: an overflow cannot be caught, and would end the JVM.

    Catalyst has the expression for the rest, ``TryEval``, but no SQL or Python name for it. Where
    the JVM is out of reach, through Spark Connect, a function serves that holds one.

    Args:
        sql: The expression.
        cast: A type to cast to; a cast that raises fails likewise.
        types: Of the columns, where they are known: what cannot fail by them is not guarded.
    """
    value = F.expr(sql) if cast is None else F.expr(sql).cast(cast)
    wrapped = F.struct(value.alias(VALUE))
    if cast is None and is_plain_name(sql):
        return wrapped
    if types is not None:
        kind = never_fails(sql, types)
        if kind is not None and (cast is None or cast == kind.lower()):
            return wrapped
    long = [F.length(F.expr(text)) for text in texts_to_bound(sql)]
    if long:
        short = [F.coalesce(length <= MOST_LETTERS, F.lit(True)) for length in long]
        wrapped = F.when(reduce(and_, short), wrapped)
    if is_remote():
        return F.when(_succeeds(wrapped), wrapped)
    # A part that two attempts share would be computed once, before and outside of both; what a
    # branch holds is not. The condition is always true, and the optimizer cannot know it.
    wrapped = F.when(F.spark_partition_id() >= 0, wrapped)
    context = SparkContext._active_spark_context
    if context is None or context._jvm is None:
        raise RuntimeError("an expression needs a running Spark session")
    jvm: Any = context._jvm
    bridge = jvm.org.apache.spark.sql.classic.ExpressionUtils
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(bridge.expression(_java(wrapped)))
    return _python(bridge.column(tried))


def holds(condition: str) -> Column:
    """Tell where a user's condition is true; where it is null or fails it does not hold."""
    return F.coalesce(try_eval(condition, "boolean").getField(VALUE), F.lit(False))


def equal(one: Column, its_type: DataType, other: Column, other_type: DataType) -> Column:
    """Compare values of two types; a text that the other type cannot hold equals nothing.

    Spark would cast the text by itself, and raise on the first that does not fit.
    """
    texts = isinstance(its_type, StringType), isinstance(other_type, StringType)
    if texts == (True, False):
        return one.try_cast(other_type) == other
    return one == (other.try_cast(its_type) if texts == (False, True) else other)


def _succeeds(wrapped: Column) -> Column:
    """Tell whether an expression can be evaluated, by evaluating it.

    ``try_to_binary`` is null where anything beneath it raises; a text of digits it always takes.
    """
    shown = F.length(wrapped.cast("string")).cast("string")
    # As above: what two of these share must not be computed outside of them.
    return F.try_to_binary(F.when(F.spark_partition_id() >= 0, shown), F.lit("utf-8")).isNotNull()


def _java(column: Column) -> Any:
    return column._jc


def _python(column: Any) -> Column:
    from pyspark.sql.classic.column import Column as ClassicColumn  # noqa: PLC0415

    return ClassicColumn(column)
