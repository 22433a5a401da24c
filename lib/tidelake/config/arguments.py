"""Check the arguments of expectations: bounds, sets, patterns, columns, conditions."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from tidelake.config.document import Finding, KeyPath
from tidelake.config.expressions import expression_problems
from tidelake.config.model import parse_duration, suggestion, unknown

Bound = float | date | datetime
Columns = Collection[str] | None

PARAMETER = "$PARAMETER"
_SPARK_TYPES = (
    *("StringType", "BooleanType", "BinaryType", "DateType", "TimestampType", "TimestampNTZType"),
    *("ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "DecimalType"),
    *("ArrayType", "MapType", "StructType", "NumericType", "IntegralType", "FractionalType"),
)
# Kinds of arguments that are one of several words.
CHOICES = {
    "ignore_pair": ("both_values_are_missing", "either_value_is_missing", "neither"),
    "ignore_record": ("all_values_are_missing", "any_value_is_missing", "never"),
    "match_on": ("any", "all"),
    "type": _SPARK_TYPES,
}
_LONG = 1 << 63
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_MOMENT = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}:\d{2})?", re.ASCII
)
_FROM_NOW = re.compile(r"\s*now\s*(?:([+-])\s*(.+))?")
_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)
_HOW = "write a number, a date '2026-01-31' or a time '2026-01-31T09:30:00Z'"
# Character classes of Java's patterns that Python's lack.
_JAVA_CLASS = re.compile(
    r"\\[hHe]|\\[pP]\{(?:C[cfnos]?|L[Clmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?|Is\w+"
    r"|Alpha|Digit|Alnum|Upper|Lower|Punct|Space|XDigit|ASCII)\}"
)
# Syntax that Java interprets differently or rejects: anywhere, and outside of [classes] only.
_NOT_JAVA = re.compile(r"\\[0pPQEUNLG]|\[\^?\]|\[[^\]]*(?:\\[bRz]|\[|&&)")
_NOT_JAVA_OUTSIDE = re.compile(
    r"\(\?[P#]|\(\?[a-z-]*[^ims:)=!<>-]|\(\?<(?![=!]|[A-Za-z][A-Za-z0-9]*>)[^>]*>?"
    r"|\{(?!\d{1,9}(?:,\d{0,9})?\})[^}]*\}?"
)


def as_bound(value: object) -> Bound:
    """Parse a bound as Great Expectations does: numbers as floats, times without a zone as UTC.

    Raises:
        ValueError: It is not a finite number, a date or a time.
    """
    if isinstance(value, date):
        raise ValueError("YAML does not parse an unquoted date as text; put it in quotes")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(value)
    if isinstance(value, str):
        if _NUMBER.fullmatch(value):
            return _finite(value)
        if _DATE.fullmatch(value):
            return date.fromisoformat(value)
        if _MOMENT.fullmatch(value):
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    raise ValueError(_HOW)


def _finite(value: float | str) -> float:
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError("is too large a number") from error
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def is_parameter(value: object) -> bool:
    """Return whether a value is a ``$PARAMETER``, which is evaluated when the gate runs."""
    return isinstance(value, Mapping) and PARAMETER in value


def from_now(value: Mapping[str, Any], now: datetime) -> datetime:
    """Evaluate a ``$PARAMETER`` such as ``{"$PARAMETER": "now - 1 day"}``.

    Raises:
        ValueError: It is not ``now``, ``now + <duration>`` or ``now - <duration>``.
    """
    written = value[PARAMETER]
    match = _FROM_NOW.fullmatch(written) if isinstance(written, str) else None
    if match is None or len(value) > 1:
        raise ValueError(f"{PARAMETER} must be now or now - <duration>, such as 'now - 1 day'")
    shift = parse_duration(match[2]) if match[2] else timedelta(0)
    try:
        return now - shift if match[1] == "-" else now + shift
    except OverflowError as error:
        raise ValueError(f"'{written}' is out of the range of dates") from error


def argument_findings(kind: str, value: Any, path: KeyPath, columns: Columns) -> Iterator[Finding]:
    """Check an argument against its kind; ``columns`` of None skips the check of names."""
    if kind in LISTS:
        yield from _list_findings(kind, value, path, columns)
    elif kind == "pair" and _is_pair(value):
        for side, item in enumerate(value):
            if item is not None:
                yield from argument_findings("member", item, (*path, side), columns)
    elif kind == "column" and isinstance(value, str) and value:
        if columns is not None and value not in columns:
            yield Finding(path, unknown("column", value, columns))
    elif kind == "condition" and isinstance(value, str):
        yield from (Finding(path, problem) for problem in expression_problems(value, columns))
    elif problem := _PROBLEMS[kind](value):
        yield Finding(path, problem)


def _list_findings(kind: str, value: Any, path: KeyPath, columns: Columns) -> Iterator[Finding]:
    item_kind, least, what = LISTS[kind]
    if not isinstance(value, list) or len(value) < least:
        yield Finding(path, f"must be a list of at least {what}")
        return
    for index, item in enumerate(value):
        yield from argument_findings(item_kind, item, (*path, index), columns)
        if item_kind == "column" and item in value[:index]:
            yield Finding((*path, index), f"{item} appears twice")
    if kind == "values" and _is_mixed(value):
        yield Finding(path, "mixes text, numbers and booleans")
    pairs = [item for item in value if kind == "pairs" and _is_pair(item)]
    for side, name in enumerate(("column_A", "column_B")):
        if _is_mixed(pair[side] for pair in pairs):
            yield Finding(path, f"mixes text, numbers and booleans for {name}")


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def _is_mixed(values: Iterable[Any]) -> bool:
    return len({_type_name(value) for value in values} - {None}) > 1


def _type_name(value: Any) -> str | None:
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else None


def _member(value: Any) -> str | None:
    if value is None:
        return "is null; in SQL a set with null lets every row pass, so add an expectation on null"
    if _type_name(value) is None:
        return "must be text, a number or true or false; put dates in quotes"
    if isinstance(value, int) and not -_LONG <= value < _LONG:
        return "is too large a number"
    return None if isinstance(value, str | bool) else _bound(value)


def _bound(value: Any) -> str | None:
    if is_parameter(value):
        return f"{PARAMETER} is not allowed here, only in the bounds of a column's min or max"
    return _parse_error(as_bound, value)


def _moment(value: Any) -> str | None:
    return _parse_error(from_now, value, _ANY_TIME) if is_parameter(value) else _bound(value)


def _parse_error(parse: Callable[..., object], *arguments: Any) -> str | None:
    try:
        parse(*arguments)
    except ValueError as error:
        return str(error)
    return None


def regex_problem(pattern: Any) -> str | None:
    """Check a pattern with Python's parser: Spark would reject it only when evaluating rows."""
    if not isinstance(pattern, str):
        return "must be a regular expression"
    if not pattern:
        return "is empty, which matches everything"
    without_classes = _JAVA_CLASS.sub(r"\\w", pattern)
    bare = re.sub(r"\\[^0bpPQEUNLGRz]", "x", without_classes, flags=re.DOTALL)
    rejected = _NOT_JAVA.search(bare) or _NOT_JAVA_OUTSIDE.search(re.sub(r"\[[^\]]*\]", "x", bare))
    if rejected:
        return (
            f"contains {rejected[0]}, which Java's regular expressions interpret differently "
            "or reject"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            named = re.sub(r"\(\?<(?![=!])", "(?P<", without_classes)
            re.compile(re.sub(r"\\[Rz]", r"\\w", named))
    except (re.error, RecursionError, OverflowError) as error:
        return f"is not a valid regular expression: {error}"
    return None


def _check(is_valid: Callable[[Any], bool], message: str) -> Callable[[Any], str | None]:
    return lambda value: None if is_valid(value) else message


def _choice(*known: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if value in known:
            return None
        return f"{value!r} is not one of: {', '.join(known)}{suggestion(str(value), known)}"

    return check


_PROBLEMS: dict[str, Callable[[Any], str | None]] = {
    "bound": _bound,
    "column": lambda _: "must be the name of a column",
    "condition": lambda _: "must be one SQL expression, in quotes",
    "flag": _check(lambda value: isinstance(value, bool), "must be true or false"),
    "member": _member,
    "moment": _moment,
    "number": lambda value: _bound(value) if _type_name(value) == "number" else "must be a number",
    "pair": lambda _: "must be a pair: [of column_A, of column_B]",
    "parser": _check(lambda value: value == "spark", "must be spark: conditions are SQL"),
    "regex": regex_problem,
    "share": _check(
        lambda value: _type_name(value) == "number" and 0 <= value <= 1,
        "must be a number from 0 to 1",
    ),
    "whole": _check(
        lambda value: type(value) is int and 0 <= value < _LONG,
        "must be a whole number, at least 0",
    ),
} | {kind: _choice(*known) for kind, known in CHOICES.items()}
# Kinds of lists: the kind of their items, the least number of them, and its words.
LISTS: dict[str, tuple[str, int, str]] = {
    "columns": ("column", 2, "2 columns"),
    "names": ("column", 1, "1 columns"),
    "pairs": ("pair", 1, "one pair"),
    "regexes": ("regex", 1, "one"),
    "types": ("type", 1, "one"),
    "values": ("member", 1, "one"),
}
