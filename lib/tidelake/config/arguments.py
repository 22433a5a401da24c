"""Check each argument of an expectation by its kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from typing import Any

from tidelake.config.bounds import PARAMETER, as_bound, from_now, is_parameter
from tidelake.config.document import Finding, KeyPath
from tidelake.config.expressions import expression_problems
from tidelake.config.model import suggestion
from tidelake.config.patterns import pattern_problem
from tidelake.config.signatures import Kind

Columns = Collection[str] | None

SPARK_TYPES = (
    *("StringType", "BooleanType", "BinaryType", "DateType", "TimestampType", "TimestampNTZType"),
    *("ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "DecimalType"),
    *("ArrayType", "MapType", "StructType", "NumericType", "IntegralType", "FractionalType"),
)
IGNORE_PAIR = ("both_values_are_missing", "either_value_is_missing", "neither")
IGNORE_RECORD = ("all_values_are_missing", "any_value_is_missing", "never")
_LONG = 1 << 63


def argument_findings(kind: Kind, value: Any, path: KeyPath, columns: Columns) -> Iterator[Finding]:
    """Find what is wrong with one argument.

    Args:
        kind: What it has to be.
        value: What was written.
        path: Where it stands.
        columns: The table's columns; None when they cannot be known.
    """
    if kind == "column":
        yield from _column(value, path, columns)
    elif kind in {"columns", "names"}:
        yield from _columns(value, path, columns, least=2 if kind == "columns" else 1)
    elif kind == "condition":
        yield from _condition(value, path, columns)
    elif kind in _LISTS:
        yield from _each(value, path, _LISTS[kind])
    elif kind == "pairs":
        yield from _pairs(value, path)
    else:
        yield from _said(_PROBLEMS[kind](value), path)


def _said(problem: str | None, path: KeyPath) -> Iterator[Finding]:
    if problem is not None:
        yield Finding(path, problem)


def _column(value: Any, path: KeyPath, columns: Columns) -> Iterator[Finding]:
    if not isinstance(value, str) or not value:
        yield Finding(path, "must be the name of a column")
    elif columns is not None and value not in columns:
        hint = suggestion(value, columns) or f" (known: {', '.join(columns)})"
        yield Finding(path, f"unknown column {value}{hint}")


def _columns(value: Any, path: KeyPath, columns: Columns, *, least: int) -> Iterator[Finding]:
    if not isinstance(value, list) or len(value) < least:
        yield Finding(path, f"must be a list of at least {least} columns")
        return
    for index, name in enumerate(value):
        yield from _column(name, (*path, index), columns)
        if name in value[:index]:
            yield Finding((*path, index), f"{name} is there twice")


def _condition(value: Any, path: KeyPath, columns: Columns) -> Iterator[Finding]:
    if not isinstance(value, str):
        yield Finding(path, "must be one SQL expression, in quotes")
    else:
        yield from (Finding(path, problem) for problem in expression_problems(value, columns))


def _each(value: Any, path: KeyPath, check: Callable[[Any], str | None]) -> Iterator[Finding]:
    if not isinstance(value, list) or not value:
        yield Finding(path, "must be a list of at least one")
        return
    for index, item in enumerate(value):
        yield from _said(check(item), (*path, index))
    if check is _member and len({_sort_of(item) for item in value} - {None}) > 1:
        yield Finding(path, "mixes texts, numbers and truth values")


def _pairs(value: Any, path: KeyPath) -> Iterator[Finding]:
    if not isinstance(value, list) or not value:
        yield Finding(path, "must be a list of at least one pair")
        return
    for index, pair in enumerate(value):
        place = (*path, index)
        if not isinstance(pair, list) or len(pair) != 2:
            yield Finding(place, "must be a pair: [of column_A, of column_B]")
            continue
        for side, item in enumerate(pair):
            if item is not None:
                yield from _said(_member(item), (*place, side))
    sound = [pair for pair in value if isinstance(pair, list) and len(pair) == 2]
    for side, name in enumerate(("column_A", "column_B")):
        if len({_sort_of(pair[side]) for pair in sound} - {None}) > 1:
            yield Finding(path, f"mixes texts, numbers and truth values for {name}")


def _sort_of(value: Any) -> str | None:
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else None


def _member(value: Any) -> str | None:
    if value is None:
        return "is null; in SQL a set with null lets every row pass, so say it of null apart"
    if _sort_of(value) is None:
        return "must be text, a number or true or false; put dates in quotes"
    if isinstance(value, int) and not -_LONG <= value < _LONG:
        return "is too large a number"
    return None if isinstance(value, str | bool) else _number(value)


def _number(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "must be a number"
    return _bound(value)


def _bound(value: Any) -> str | None:
    if is_parameter(value):
        return f"{PARAMETER} has no place here, only in the bounds of a column's min or max"
    try:
        as_bound(value)
    except ValueError as error:
        return str(error)
    return None


def _moment(value: Any) -> str | None:
    if not is_parameter(value):
        return _bound(value)
    try:
        from_now(value, datetime(2000, 1, 1, tzinfo=UTC))
    except ValueError as error:
        return str(error)
    return None


def _whole(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LONG:
        return "must be a whole number, at least 0"
    return None


def _share(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return "must be a number from 0 to 1"
    return None


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _regex(value: Any) -> str | None:
    return pattern_problem(value) if isinstance(value, str) else "must be a regular expression"


def _one_of(*known: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if value in known:
            return None
        return f"{value!r} is not one of: {', '.join(known)}{suggestion(str(value), known)}"

    return check


def _parser(value: Any) -> str | None:
    return None if value == "spark" else "must be spark: conditions are SQL"


_PROBLEMS: dict[Kind, Callable[[Any], str | None]] = {
    "bound": _bound,
    "flag": _flag,
    "ignore_pair": _one_of(*IGNORE_PAIR),
    "ignore_record": _one_of(*IGNORE_RECORD),
    "match_on": _one_of("any", "all"),
    "moment": _moment,
    "number": _number,
    "parser": _parser,
    "regex": _regex,
    "share": _share,
    "type": _one_of(*SPARK_TYPES),
    "whole": _whole,
}
_LISTS: dict[Kind, Callable[[Any], str | None]] = {
    "regexes": _regex,
    "types": _one_of(*SPARK_TYPES),
    "values": _member,
}
