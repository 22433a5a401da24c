"""Check expectations against the types of their columns before any row is evaluated.

On a type mismatch Spark would cast implicitly, and in ANSI mode a failing cast fails the batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tidelake.config.arguments import as_bound
from tidelake.config.expectations import Expectation
from tidelake.config.expressions import expression_problems

_FAMILIES = {
    **dict.fromkeys(
        ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal"), "number"
    ),
    **dict.fromkeys(("date", "timestamp", "timestamp_ntz"), "time"),
    "string": "text",
    "boolean": "truth",
}
_DATE = r"\d{4}-\d{2}-\d{2}"
_CLOCK = r"[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?"
_TIMES = {
    "date": re.compile(_DATE, re.ASCII),
    "timestamp": re.compile(rf"{_DATE}({_CLOCK}(Z|[+-]\d{{2}}:\d{{2}})?)?", re.ASCII),
    "timestamp_ntz": re.compile(rf"{_DATE}({_CLOCK})?", re.ASCII),
}
_ANY = {"expect_column_values_to_not_be_null", "expect_column_values_to_be_null"}
_TYPES = {"expect_column_values_to_be_of_type", "expect_column_values_to_be_in_type_list"}


def kind_of(simple: str) -> str:
    """Return the outermost type of a Spark simple string: ``decimal`` for ``decimal(18,2)``."""
    return re.split(r"[(<]", simple, maxsplit=1)[0]


def type_errors(expectation: Expectation, types: Mapping[str, str]) -> Iterator[str]:
    """Yield a message for each mismatch between an expectation and its columns' types.

    Args:
        expectation: One of ``ROW_EXPECTATIONS``, with arguments validated by config.
        types: Column names to types, as Spark's simple strings.
    """
    unknown = [name for name in expectation.columns if name not in types]
    if unknown:
        yield f"{', '.join(unknown)} cannot be evaluated row by row (known: {', '.join(types)})"
        return
    condition = expectation.kwargs.get("row_condition")
    if condition is not None:
        for problem in expression_problems(condition, types):
            yield f"row_condition {problem}"
    if expectation.type not in _ANY | _TYPES:
        yield from _value_type_errors(expectation, types)


def _value_type_errors(expectation: Expectation, types: Mapping[str, str]) -> Iterator[str]:
    kwargs, names = expectation.kwargs, expectation.columns
    families = {name: _FAMILIES.get(kind_of(types[name])) for name in names}
    if None in families.values():
        other = next(name for name, family in families.items() if family is None)
        yield f"{other} is {types[other]}; only null and type expectations support this type"
    elif "pair" in expectation.type or "column_list" in kwargs:
        if "value_pairs_set" in kwargs:
            for side, name in enumerate(names):
                written = [pair[side] for pair in kwargs["value_pairs_set"]]
                yield from _set_errors(written, name, types[name])
        elif "sum_total" in kwargs:
            yield from _family_errors("number", names, types)
        elif len(set(families.values())) > 1:
            listed = ", ".join(f"{name} {types[name]}" for name in names)
            yield f"columns of different kinds cannot be compared: {listed}"
    elif "value_set" in kwargs:
        yield from _set_errors(kwargs["value_set"], names[0], types[names[0]])
    elif "values_to_be_between" in expectation.type:
        yield from _bound_errors(kwargs, names[0], types[names[0]])
    else:
        yield from _family_errors("text", names, types)


def _family_errors(family: str, names: tuple[str, ...], types: Mapping[str, str]) -> Iterator[str]:
    for name in names:
        if _FAMILIES.get(kind_of(types[name])) != family:
            yield f"{name} is {types[name]}; this expectation needs {family} columns"


def _set_errors(values: list[Any], name: str, simple: str) -> Iterator[str]:
    for value in values:
        if value is not None and not _fits(value, kind_of(simple)):
            yield f"{value!r} cannot be a value of {name}, which is {simple}"


def _fits(value: Any, kind: str) -> bool:
    family = _FAMILIES[kind]
    if isinstance(value, bool) or family == "truth":
        return isinstance(value, bool) and family == "truth"
    if isinstance(value, int | float) or family == "number":
        return isinstance(value, int | float) and family == "number"
    if family == "time":
        if not _TIMES[kind].fullmatch(value):
            return False
        try:
            as_bound(value)
        except ValueError:
            return False
    return True


def _bound_errors(kwargs: Mapping[str, Any], name: str, simple: str) -> Iterator[str]:
    family = _FAMILIES[kind_of(simple)]
    if family not in {"number", "time"}:
        yield f"{name} is {simple}; only numbers, dates and times have bounds"
        return
    for key in ("min_value", "max_value"):
        if kwargs.get(key) is not None:
            is_number = isinstance(as_bound(kwargs[key]), float)
            if is_number != (family == "number"):
                yield f"{key} {kwargs[key]!r} is not a valid bound for {name}, which is {simple}"
