"""Find in an expression what must be guarded on each row: failures, endless matches, the clock."""

from __future__ import annotations

import re
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from tidelake.config.expressions import (
    DATELESS,
    DIALECT,
    Types,
    as_operand,
    cast_to_timestamp,
    operands_to_bound,
)
from tidelake.config.inference import operands_of_a_type

_TEXT, _BOOLEAN = "STRING", "BOOLEAN"
# Expressions with the types of operands for which they cannot fail, and of the result.
_INFALLIBLE: tuple[tuple[tuple[type[exp.Expr], ...], list[str], str], ...] = (
    ((exp.Lower, exp.Upper, exp.Trim), [_TEXT], _TEXT),
    ((exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE), [_TEXT, _TEXT], _BOOLEAN),
    ((exp.And, exp.Or), [_BOOLEAN, _BOOLEAN], _BOOLEAN),
    ((exp.Not,), [_BOOLEAN], _BOOLEAN),
)


def never_fails(sql: str, columns: Types) -> str | None:
    """Return the type of an expression that cannot fail on any row; None if it may fail.

    Such an expression consists of columns, comparisons of strings, tests for null, ``lower``,
    ``upper``, ``trim``, ``AND``, ``OR`` and ``NOT``. Anything that may need a cast may fail.
    """
    try:
        root = sqlglot.parse_one(sql, dialect=DIALECT)
    except SqlglotError:
        return None
    return _infallible_type(root, {name.lower(): kind for name, kind in columns.items()})


def _infallible_type(node: exp.Expr, known: Types) -> str | None:
    if isinstance(node, exp.Column):
        return None if node.table else known.get(node.name.lower())
    if isinstance(node, exp.Literal):
        return _TEXT if node.is_string else None
    parts = [_infallible_type(part, known) for part in node.iter_expressions()]
    if isinstance(node, exp.Paren):
        return parts[0]
    if isinstance(node, exp.Is):
        return _BOOLEAN if parts[0] and isinstance(node.expression, exp.Null) else None
    rules = (rule for rule in _INFALLIBLE if isinstance(node, rule[0]))
    return next((result for _, operands, result in rules if parts == operands), None)


# A stack of 1 MB is overflowed by nested alternatives from about 1,800 characters on (Java 17).
MOST_LETTERS = 500


@lru_cache(maxsize=1024)
def _nodes(sql: str) -> tuple[exp.Expr, ...]:
    """Return the nodes of an expression's tree; none if it cannot be parsed."""
    try:
        root = sqlglot.parse_one(f"SELECT ({as_operand(sql)})", dialect=DIALECT)
    except SqlglotError:
        return ()
    for node in list(root.find_all(exp.Collate)):
        # The parser makes `a COLLATE 'X'` of collate(a, 'X'), which Spark does not parse.
        if not isinstance(node.expression, exp.Column | exp.Identifier | exp.Var):
            node.replace(exp.Anonymous(this="collate", expressions=[node.this, node.expression]))
    return tuple(root.walk())


def _sql(node: exp.Expr) -> str:
    return node.sql(dialect=DIALECT, comments=False)


@lru_cache(maxsize=1024)
def texts_to_bound(sql: str) -> tuple[str, ...]:
    """List the operands whose length must be limited before an expression is evaluated.

    Validation refuses the ones in lambda functions, where a guard knows no variables.
    """
    found = [_sql(one) for node in _outside_of_lambdas(sql) for one in operands_to_bound(node)]
    return tuple(dict.fromkeys(found))


# Functions that cast a text among their arguments to a timestamp.
_OF_TIMES = (
    *(exp.TimestampTrunc, exp.TimeToStr, exp.TimestampAdd, exp.TimestampDiff, exp.DateDiff),
    *(exp.UnixSeconds, exp.UnixMillis, exp.UnixMicros, exp.MonthsBetween, exp.ConvertTimezone),
)
_COMBINED = (
    *(exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ, exp.EqualNull),
    *(exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Between, exp.In, exp.Nullif),
    *(exp.Case, exp.If, exp.Nvl2, exp.Coalesce, exp.Array, exp.GenerateSeries),
    *(exp.Add, exp.Sub, exp.SafeAdd, exp.SafeSubtract),
)
_NO_TEXTS = (exp.Interval, exp.Boolean, exp.Null, exp.Predicate, exp.Var)


@lru_cache(maxsize=1024)
def texts_as_timestamps(sql: str) -> tuple[str, ...]:
    """List the operands that an expression casts to timestamps, outside of lambda functions.

    If one is a text without a date, Spark adds the current one: the result changes from day to day.
    """
    found = [
        _sql(one)
        for node in _outside_of_lambdas(sql)
        for one in (cast_to_timestamp(node), *_arguments_of_times(node))
        if one is not None
    ]
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=1024)
def texts_beside(sql: str) -> tuple[tuple[str, str], ...]:
    """List the operands that Spark casts to the type of another one, which may be a timestamp.

    Returns:
        Pairs of an operand that may be a text and another operand of the same expression.
    """
    found: list[tuple[str, str]] = []
    for node in _outside_of_lambdas(sql):
        for group in operands_of_a_type(node) if isinstance(node, _COMBINED) else ():
            texts = [one for one in group if _may_be_a_time(one)]
            others = [one for one in group if isinstance(one, exp.Interval) or one in texts]
            found += [
                (_sql(text), _sql(other)) for text in texts for other in others if other is not text
            ]
    return tuple(dict.fromkeys(found))


def _outside_of_lambdas(sql: str) -> list[exp.Expr]:
    return [node for node in _nodes(sql) if not node.find_ancestor(exp.Lambda)]


def _arguments_of_times(node: exp.Expr) -> list[exp.Expr]:
    """Return the arguments of which a function of timestamps casts texts."""
    if isinstance(node, exp.Anonymous) and node.name.lower() == "time_bucket":
        return [one for one in node.expressions if _may_be_a_time(one)]
    if not isinstance(node, _OF_TIMES):
        return []
    # The parser adds a cast to the argument of `date_format`.
    arguments = (
        one.this if isinstance(one, exp.TimeStrToTime) else one for one in node.iter_expressions()
    )
    return [one for one in arguments if _may_be_a_time(one)]


def _may_be_a_time(node: exp.Expr) -> bool:
    """Return whether an operand may be a text that Spark casts to a timestamp of the query's day.

    Validation refuses literals only beside operands whose types it infers.
    """
    if isinstance(node, exp.Literal):
        return node.is_string and re.search(DATELESS, node.name) is not None
    return not isinstance(node, _NO_TEXTS)
