"""Compile a suite's row-level expectations into columns that are true for failing rows.

Each predicate follows the Spark implementation in Great Expectations 1.24, nulls included: it is
true for what Great Expectations calls an unexpected row, and false or null for any other. A test
compares both on the same rows.

The types of the columns are checked before any row is evaluated: on a mismatch Spark would cast
implicitly, and in ANSI mode a failing cast fails the batch. With :mod:`.stages`, which evaluates
the columns, the file would exceed 500 lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import reduce
from itertools import combinations
from operator import and_, or_
from typing import Any, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidelake.columns import VALUE, in_pairs, instant, try_eval
from tidelake.config.arguments import as_bound
from tidelake.config.expectations import SQL_RULE, Expectation
from tidelake.config.expressions import expression_problems
from tidelake.config.literals import may_overflow
from tidelake.config.row_guards import MOST_LETTERS
from tidelake.errors import UsageError

Kwargs = Mapping[str, Any]
Types = Mapping[str, str]
Predicate = Callable[[Kwargs, Types], Column]

_CLASSES: dict[str, type[T.DataType]] = {
    **{
        kind().simpleString(): kind
        for kind in (
            *(T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType),
            *(T.StringType, T.BooleanType, T.BinaryType),
            *(T.DateType, T.TimestampType, T.TimestampNTZType),
        )
    },
    **{kind.typeName(): kind for kind in (T.DecimalType, T.ArrayType, T.MapType, T.StructType)},
}
_FAMILIES: dict[type[T.DataType], str] = {
    T.NumericType: "number",
    T.DateType: "time",
    T.TimestampType: "time",
    T.TimestampNTZType: "time",
    T.StringType: "text",
    T.BooleanType: "truth",
}
_FOR_ANY_TYPE = {
    *("expect_column_values_to_not_be_null", "expect_column_values_to_be_null"),
    *("expect_column_values_to_be_of_type", "expect_column_values_to_be_in_type_list"),
}


def _present(expected: Callable[[Column, Kwargs], Column]) -> Predicate:
    """Return a predicate over one column's values; a null never fails."""

    def predicate(kwargs: Kwargs, types: Types) -> Column:
        column = F.col(kwargs["column"])
        return column.isNotNull() & ~expected(column, kwargs)

    return predicate


def bounded(regex: str, *, takes_long: bool) -> str:
    """Rewrite a regex that may overflow the stack so that long texts never reach its groups.

    A text of more than :data:`MOST_LETTERS` characters matches if ``takes_long``, and else not: it
    fails an expectation in either case.
    """
    if not may_overflow(regex):
        return regex
    too_long = rf"[\s\S]{{{MOST_LETTERS + 1}}}"
    if takes_long:
        return rf"\A{too_long}|(?:{regex})"
    return rf"\A(?!{too_long})[\s\S]*?(?:{regex})"


def _like(column: Column, regex: str) -> Column:
    return column.rlike(bounded(regex, takes_long=False))


def _unlike(column: Column, regex: str) -> Column:
    return ~column.rlike(bounded(regex, takes_long=True))


def _between(value: Column, kwargs: Kwargs) -> Column:
    tests = []
    if kwargs.get("min_value") is not None:
        low = _bound(kwargs["min_value"])
        tests.append(value > low if kwargs.get("strict_min") else value >= low)
    if kwargs.get("max_value") is not None:
        high = _bound(kwargs["max_value"])
        tests.append(value < high if kwargs.get("strict_max") else value <= high)
    return reduce(and_, tests)


def _bound(written: object) -> Column:
    bound = as_bound(written)
    if isinstance(bound, datetime):
        return instant(bound)
    if isinstance(bound, date):
        # PySpark fails on a literal of a year with fewer than four digits.
        return F.date_from_unix_date(F.lit((bound - date(1970, 1, 1)).days))
    return F.lit(bound)


def patterns(kwargs: Kwargs) -> list[str]:
    """Return the patterns of a list that all must match."""
    if kwargs.get("match_on", "any") == "any":
        # One pattern, as in Great Expectations: a flag such as (?i) applies to all later ones.
        return ["|".join(kwargs["regex_list"])]
    return list(kwargs["regex_list"])


def _is_type(kwargs: Kwargs, types: Types) -> Column:
    wanted = kwargs["type_list"] if "type_list" in kwargs else [kwargs["type_"]]
    found = _class_of(types[kwargs["column"]])
    return F.lit(not issubclass(found, tuple(getattr(T, name) for name in wanted)))


def _pair(expected: Callable[[Column, Column, Kwargs], Column]) -> Predicate:
    """Return a predicate over two columns' values."""

    def predicate(kwargs: Kwargs, types: Types) -> Column:
        return ~expected(F.col(kwargs["column_A"]), F.col(kwargs["column_B"]), kwargs)

    return predicate


def _pair_in_set(left: Column, right: Column, kwargs: Kwargs) -> Column:
    pairs = [
        left.eqNullSafe(F.lit(of_left)) & right.eqNullSafe(F.lit(of_right))
        for of_left, of_right in kwargs["value_pairs_set"]
    ]
    return in_pairs(or_, pairs)


def _all_distinct(kwargs: Kwargs, types: Types) -> Column:
    columns = [F.col(name) for name in kwargs["column_list"]]
    return in_pairs(or_, [left.eqNullSafe(right) for left, right in combinations(columns, 2)])


def _all_equal(kwargs: Kwargs, types: Types) -> Column:
    first, *others = [F.col(name) for name in kwargs["column_list"]]
    return ~in_pairs(and_, [first.eqNullSafe(other) for other in others])


def _sum_equal(kwargs: Kwargs, types: Types) -> Column:
    operands = []
    for name in kwargs["column_list"]:
        value = F.coalesce(F.col(name), F.lit(0))
        is_integral = issubclass(_class_of(types[name]), T.IntegralType)
        operands.append(value.cast("decimal(38,0)") if is_integral else value)
    # try_add: a sum that overflows is null; with + it would fail the batch.
    total = reduce(F.try_add, operands) == F.lit(float(kwargs["sum_total"]))
    return ~F.coalesce(total, F.lit(False))


def _breaks(kwargs: Kwargs, types: Types) -> Column:
    """Return where a condition is false or fails."""
    upper = {name: kind.upper() for name, kind in types.items()}
    tried = try_eval(kwargs["sql"], "boolean", types=upper)
    return tried.isNull() | ~F.coalesce(tried.getField(VALUE), F.lit(True))


PREDICATES: dict[str, Predicate] = {
    "expect_column_values_to_not_be_null": lambda kwargs, _: F.col(kwargs["column"]).isNull(),
    "expect_column_values_to_be_null": lambda kwargs, _: F.col(kwargs["column"]).isNotNull(),
    "expect_column_values_to_be_in_set": _present(lambda c, kw: c.isin(kw["value_set"])),
    "expect_column_values_to_not_be_in_set": _present(lambda c, kw: ~c.isin(kw["value_set"])),
    "expect_column_values_to_be_between": _present(_between),
    "expect_column_values_to_match_regex": _present(lambda c, kw: _like(c, kw["regex"])),
    "expect_column_values_to_not_match_regex": _present(lambda c, kw: _unlike(c, kw["regex"])),
    "expect_column_values_to_match_regex_list": _present(
        lambda c, kw: in_pairs(and_, [_like(c, regex) for regex in patterns(kw)])
    ),
    "expect_column_values_to_not_match_regex_list": _present(
        lambda c, kw: in_pairs(and_, [_unlike(c, regex) for regex in kw["regex_list"]])
    ),
    "expect_column_values_to_be_of_type": _is_type,
    "expect_column_values_to_be_in_type_list": _is_type,
    "expect_column_value_lengths_to_be_between": _present(lambda c, kw: _between(F.length(c), kw)),
    "expect_column_value_lengths_to_equal": _present(lambda c, kw: F.length(c) == kw["value"]),
    "expect_column_pair_values_a_to_be_greater_than_b": _pair(
        lambda a, b, kw: a >= b if kw.get("or_equal") else a > b
    ),
    "expect_column_pair_values_to_be_equal": _pair(lambda a, b, _: a.eqNullSafe(b)),
    "expect_column_pair_values_to_be_in_set": _pair(_pair_in_set),
    "expect_select_column_values_to_be_unique_within_record": _all_distinct,
    "expect_multicolumn_sum_to_equal": _sum_equal,
    "expect_multicolumn_values_to_be_equal": _all_equal,
    SQL_RULE: _breaks,
}


class Rule(NamedTuple):
    """An expectation over single rows, ``critical`` or ``warning``.

    ``text`` is the reason recorded for a failing row. ``fails`` refers to plain column names and is
    never null.
    """

    text: str
    severity: str
    fails: Column


def compile_rules(expectations: Sequence[Expectation], types: Types) -> tuple[Rule, ...]:
    """Compile expectations into rules that fail the same rows as Great Expectations, in order.

    The loader has checked that all are row-level expectations. No rule raises on any row.
    ``types`` maps each column to its type as Spark's simple string.

    Raises:
        UsageError: Some expectations do not fit the types of their columns; lists all of them.
    """
    problems = [
        f"  - {expectation.text}: {problem}"
        for expectation in expectations
        for problem in type_errors(expectation, types)
    ]
    if problems:
        raise UsageError("expectations do not fit the columns:\n" + "\n".join(problems))
    return tuple(
        Rule(expectation.text, expectation.severity, _fails(expectation, types))
        for expectation in expectations
    )


def _fails(expectation: Expectation, types: Types) -> Column:
    kwargs = expectation.kwargs
    fails = PREDICATES[expectation.type](kwargs, types)
    if len(expectation.columns) > 1:
        fails = ~_ignored(expectation.columns, kwargs.get("ignore_row_if")) & fails
    fails = F.coalesce(fails, F.lit(False))
    condition = kwargs.get("row_condition")
    if condition is None:
        return fails
    # If the condition itself fails, the row fails.
    tried = try_eval(condition, "boolean")
    concerned = F.coalesce(tried.getField(VALUE), F.lit(False))
    return F.when(tried.isNull(), F.lit(True)).otherwise(concerned & fails)


def _ignored(names: Sequence[str], ignore_row_if: str | None) -> Column:
    """Return which rows an expectation over several columns ignores: by default all-null ones."""
    if ignore_row_if in {"neither", "never"}:
        return F.lit(False)
    is_any = ignore_row_if in {"either_value_is_missing", "any_value_is_missing"}
    return in_pairs(or_ if is_any else and_, [F.col(name).isNull() for name in names])


def _class_of(simple: str) -> type[T.DataType]:
    """Return the class of a type: ``DecimalType`` for ``decimal(18,2)``."""
    return _CLASSES.get(simple.partition("<")[0].partition("(")[0], T.DataType)


def _family(simple: str) -> str | None:
    found = _class_of(simple)
    return next((family for kind, family in _FAMILIES.items() if issubclass(found, kind)), None)


def type_errors(expectation: Expectation, types: Types) -> Iterator[str]:
    """Yield a message for each mismatch between a row-level expectation and its columns' types."""
    unknown = [name for name in expectation.columns if name not in types]
    if unknown:
        yield f"{', '.join(unknown)} cannot be evaluated row by row (known: {', '.join(types)})"
        return
    condition = expectation.kwargs.get("row_condition")
    if condition is not None:
        for problem in expression_problems(condition, types):
            yield f"row_condition {problem}"
    if expectation.type == SQL_RULE:
        yield from expression_problems(expectation.kwargs["sql"], types)
    elif expectation.type not in _FOR_ANY_TYPE:
        yield from _value_type_errors(expectation, types)


def _value_type_errors(expectation: Expectation, types: Types) -> Iterator[str]:
    kwargs, names = expectation.kwargs, expectation.columns
    families = {name: _family(types[name]) for name in names}
    if None in families.values():
        other = next(name for name, family in families.items() if family is None)
        yield f"{other} is {types[other]}; only null and type expectations support this type"
    elif "value_set" in kwargs or "value_pairs_set" in kwargs:
        rows = kwargs.get("value_pairs_set") or [[value] for value in kwargs["value_set"]]
        for number, name in enumerate(names):
            for value in (row[number] for row in rows):
                if value is not None and not _fits(value, types[name]):
                    yield f"{value!r} cannot be a value of {name}, which is {types[name]}"
    elif "sum_total" not in kwargs and len(names) > 1:
        if len(set(families.values())) > 1:
            listed = ", ".join(f"{name} {types[name]}" for name in names)
            yield f"columns of different kinds cannot be compared: {listed}"
    elif "values_to_be_between" in expectation.type:
        yield from _bound_errors(kwargs, names[0], types[names[0]])
    else:
        wanted = "number" if "sum_total" in kwargs else "text"
        for name in names:
            if families[name] != wanted:
                yield f"{name} is {types[name]}; this expectation needs {wanted} columns"


def _fits(value: Any, simple: str) -> bool:
    family = _family(simple)
    if isinstance(value, bool) or family == "truth":
        return isinstance(value, bool) and family == "truth"
    if isinstance(value, int | float) or family == "number":
        return isinstance(value, int | float) and family == "number"
    if family == "time":
        try:
            bound = as_bound(value)
        except ValueError:
            return False
        if isinstance(bound, datetime):
            has_zone = datetime.fromisoformat(value).tzinfo is not None
            return simple == "timestamp" or (simple == "timestamp_ntz" and not has_zone)
        return isinstance(bound, date)
    return True


def _bound_errors(kwargs: Kwargs, name: str, simple: str) -> Iterator[str]:
    family = _family(simple)
    if family not in {"number", "time"}:
        yield f"{name} is {simple}; only numbers, dates and times have bounds"
        return
    for key in ("min_value", "max_value"):
        if kwargs.get(key) is not None:
            is_number = isinstance(as_bound(kwargs[key]), float)
            if is_number != (family == "number"):
                yield f"{key} {kwargs[key]!r} is not a valid bound for {name}, which is {simple}"
