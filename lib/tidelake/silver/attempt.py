"""Evaluate a user's expression so that a row on which it fails fails alone.

Under ANSI a bad cast or a division by zero raises, and the whole batch with it, again at each
restart. Turning ANSI off instead would make silent nulls of them.
"""

from __future__ import annotations

import re
from typing import Any

from pyspark import SparkContext
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

_NAME = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|`[^`]+`)\s*")
VALUE = "value"


def attempt(sql: str, cast: str | None = None) -> Column:
    """Evaluate SQL into ``struct<value>``; the struct is null where evaluation raised.

    Catalyst has the expression for this, ``TryEval``, but no SQL or Python name for it. Where the
    JVM is out of reach, through Spark Connect, a function serves that holds one.

    Args:
        sql: The expression.
        cast: A type to cast to, within the attempt.
    """
    value = F.expr(sql) if cast is None else F.expr(sql).cast(cast)
    wrapped = F.struct(value.alias(VALUE))
    if cast is None and _NAME.fullmatch(sql):
        return wrapped
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
