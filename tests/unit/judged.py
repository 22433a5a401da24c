"""Rows, and expectations over them, that compiled rules and Great Expectations both judge."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidelake.config.expectations import Expectation

SCHEMA = (
    "id INT, s STRING, t STRING, n INT, m BIGINT, big BIGINT, d DECIMAL(18,2), e DECIMAL(38,18), "
    "x DOUBLE, y DOUBLE, b BOOLEAN, c BOOLEAN, day DATE, due DATE, at TIMESTAMP, until TIMESTAMP, "
    "local TIMESTAMP_NTZ, raw BINARY, many ARRAY<INT>"
)
_NAN = float("nan")


def _at(day: int, hour: int = 0, micros: int = 0) -> dt.datetime:
    return dt.datetime(2026, 1, day, hour, 0, 0, micros, tzinfo=dt.UTC)


def _day(day: int) -> dt.date:
    return dt.date(2026, 1, day)


def _local(day: int, hour: int) -> dt.datetime:
    return dt.datetime(2026, 1, day, hour)


def _d(text: str) -> Decimal:
    return Decimal(text)


_ROWS: list[tuple[Any, ...]] = [
    ("abc", "abc", 1, 1, 2**62, _d("0.10"), _d("0.1"), 0.1, 0.2, True, True,
     _day(1), _day(1), _at(1, 12), _at(1, 12), _local(1, 12), b"a", [1]),
    ("ABC", "abc", 2, 1, 9007199254740993, _d("1.50"), _d("1.5"), 1.5, 1.5, True, False,
     _day(2), _day(1), _at(2), _at(1), _local(2, 0), b"", []),
    ("", "x", 0, 2, 0, _d("0.00"), _d("0"), 0.0, -0.0, False, True,
     _day(3), _day(4), _at(2, 15), _at(3), _local(2, 15), b"ab", [1, 2]),
    ("view\n", "view", -1, -1, -5, _d("-0.01"), _d("-0.01"), -0.5, -1.0, False, False,
     _day(2), _day(2), _at(2, 15, 1), _at(2, 15), _local(2, 16), b"abc", None),
    ("äöü", "aou", 10, 9, 10, _d("9999999999999999.99"), _d("9" * 20), 1e300, 1e300, None, True,
     _day(31), None, _at(31, 23), None, _local(31, 23), None, [None]),
    (None, "abc", None, 1, None, None, _d("1"), None, 1.0, None, None,
     None, _day(1), None, _at(1), None, b"x", [3]),
    ("abc", None, 1, None, 1, _d("0.30"), None, 0.3, None, True, None,
     _day(1), None, _at(1, 12), None, _local(1, 12), b"y", [4]),
    (None, None, None, None, None, None, None, None, None, None, None,
     None, None, None, None, None, None, None),
    ("42", "a42b", 2147483647, 2147483647, 2**63 - 1, _d("100.00"), _d("100"), _NAN, _NAN, True,
     True, _day(15), _day(16), _at(15), _at(16), _local(15, 0), b"z", [5]),
    ("a.b", "a,b", -2147483648, 5, -(2**63), _d("0.20"), _d("-" + "9" * 20), float("inf"), 0.0,
     False, None, _day(1), _day(2), _at(1), _at(1), _local(1, 0), b"", [6]),
]  # fmt: skip


def rows(spark: SparkSession) -> DataFrame:
    """Give ten rows: each column with nulls, edges and ordinary values."""
    numbered = [(number, *row) for number, row in enumerate(_ROWS)]
    return spark.createDataFrame(numbered, SCHEMA).coalesce(1)


@contextmanager
def without_codegen(spark: SparkSession) -> Iterator[None]:
    """Interpret plans: to compile each of hundreds takes longer than to run it on ten rows."""
    settings = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    before = {key: spark.conf.get(key) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            spark.conf.set(key, old)


def expect(kind: str, **kwargs: Any) -> Expectation:
    return Expectation(type=f"expect_{kind}", kwargs=kwargs)


def _where(sql: str) -> dict[str, str]:
    return {"row_condition": sql, "condition_parser": "spark"}


IGNORE_PAIR: tuple[dict[str, str], ...] = (
    {},
    {"ignore_row_if": "both_values_are_missing"},
    {"ignore_row_if": "either_value_is_missing"},
    {"ignore_row_if": "neither"},
)
IGNORE_RECORD: tuple[dict[str, str], ...] = (
    {},
    {"ignore_row_if": "all_values_are_missing"},
    {"ignore_row_if": "any_value_is_missing"},
    {"ignore_row_if": "never"},
)
_BETWEEN = "column_values_to_be_between"
_IN, _NOT_IN = "column_values_to_be_in_set", "column_values_to_not_be_in_set"
_GREATER = "column_pair_values_a_to_be_greater_than_b"
_EQUAL, _PAIR_IN = "column_pair_values_to_be_equal", "column_pair_values_to_be_in_set"
_SUM, _DISTINCT = "multicolumn_sum_to_equal", "select_column_values_to_be_unique_within_record"
_SAME = "multicolumn_values_to_be_equal"
_SETS: tuple[dict[str, Any], ...] = (
    {"column": "s", "value_set": ["abc", "", "42"]},
    {"column": "n", "value_set": [1, 2, -1]},
    {"column": "n", "value_set": [1.0, 0.5]},
    {"column": "big", "value_set": [9007199254740993, 10]},
    {"column": "d", "value_set": [0.1, 1.5, 100]},
    {"column": "x", "value_set": [0.1, 0]},
    {"column": "b", "value_set": [True]},
    {"column": "day", "value_set": ["2026-01-01", "2026-01-31"]},
    {"column": "at", "value_set": ["2026-01-01T12:00:00Z", "2026-01-02", "2026-01-02 15:00:00"]},
    {"column": "local", "value_set": ["2026-01-01T12:00:00", "2026-01-02"]},
)
_REGEXES = (r"^[a-z]+$", r"^\d+$", r"\p{L}{3}", r"(?i)^ABC$", r"a\.b", r"^$")

CASES: tuple[Expectation, ...] = (
    *[
        expect(f"column_values_to_{kind}_null", column=column, **more)
        for kind in ("be", "not_be")
        for column, more in (
            ("s", {}), ("d", {}), ("at", {}), ("many", {}), ("raw", {}), ("n", _where("id > 5")),
        )
    ],
    *[expect(kind, **written) for kind in (_IN, _NOT_IN) for written in _SETS],
    expect(_IN, column="s", value_set=["abc"], **_where("n = 1")),
    expect(_NOT_IN, column="s", value_set=["abc"], **_where("t IS NULL")),
    expect(_BETWEEN, column="n", min_value=0),
    expect(_BETWEEN, column="n", min_value=0, strict_min=True),
    expect(_BETWEEN, column="n", max_value=1),
    expect(_BETWEEN, column="n", max_value=1, strict_max=True),
    expect(_BETWEEN, column="n", min_value=-1, max_value=2),
    expect(_BETWEEN, column="n", min_value=-1, max_value=2, strict_min=True),
    expect(_BETWEEN, column="n", min_value=-1, max_value=2, strict_max=True),
    expect(_BETWEEN, column="n", min_value=-1, max_value=2, strict_min=True, strict_max=True),
    expect(_BETWEEN, column="n", min_value="1", max_value="1.5"),
    expect(_BETWEEN, column="big", min_value=9007199254740993),
    expect(_BETWEEN, column="big", min_value=9007199254740993, strict_min=True),
    expect(_BETWEEN, column="d", min_value=0),
    expect(_BETWEEN, column="d", min_value="0.10", max_value="0.30", strict_max=True),
    expect(_BETWEEN, column="d", max_value=9999999999999999.99),
    expect(_BETWEEN, column="e", min_value=0.1, max_value=1e19),
    expect(_BETWEEN, column="x", min_value=0, max_value=1.5),
    expect(_BETWEEN, column="x", min_value=0.3, strict_min=True),
    expect(_BETWEEN, column="day", min_value="2026-01-02", max_value="2026-01-15"),
    expect(_BETWEEN, column="day", min_value="2026-01-02", strict_min=True),
    expect(_BETWEEN, column="day", max_value="2026-01-02T00:00:00Z", strict_max=True),
    expect(_BETWEEN, column="at", min_value="2026-01-02"),
    expect(_BETWEEN, column="at", max_value="2026-01-02T15:00:00Z"),
    expect(_BETWEEN, column="at", min_value="2026-01-02T16:00:00+01:00", strict_min=True),
    expect(_BETWEEN, column="local", max_value="2026-01-02T15:00:00Z"),
    expect(_BETWEEN, column="local", min_value="2026-01-02", strict_min=True),
    expect(_BETWEEN, column="d", min_value=1, **_where("b AND n < 100")),
    *[
        expect(f"column_values_to_{kind}_regex", column="s", regex=regex)
        for kind in ("match", "not_match")
        for regex in _REGEXES
    ],
    expect("column_values_to_match_regex", column="s", regex="z", **_where("id < 3")),
    expect("column_values_to_not_match_regex", column="s", regex="b", **_where("id < 3")),
    expect("column_values_to_match_regex_list", column="s", regex_list=["^a", "2$"]),
    expect("column_values_to_match_regex_list", column="s", regex_list=["(?i)^x", "^ABC$"]),
    expect(
        "column_values_to_match_regex_list", column="s", regex_list=["^a", "c$"], match_on="all"
    ),
    expect(
        "column_values_to_match_regex_list", column="s", regex_list=["^a", "c$"], match_on="any"
    ),
    expect("column_values_to_match_regex_list", column="s", regex_list=["q"], **_where("n = 1")),
    expect("column_values_to_not_match_regex_list", column="s", regex_list=["^a", "2$"]),
    expect("column_values_to_not_match_regex_list", column="s", regex_list=["a"], **_where("n=1")),
    *[
        expect("column_values_to_be_of_type", column=column, type_=name)
        for column, name in (
            ("s", "StringType"), ("s", "IntegerType"), ("d", "DecimalType"), ("d", "NumericType"),
            ("n", "IntegralType"), ("x", "IntegralType"), ("x", "FractionalType"),
            ("m", "IntegerType"), ("at", "TimestampType"), ("local", "TimestampType"),
            ("many", "ArrayType"), ("raw", "BinaryType"),
        )
    ],
    expect("column_values_to_be_in_type_list", column="m", type_list=["IntegerType", "LongType"]),
    expect("column_values_to_be_in_type_list", column="m", type_list=["ByteType", "ShortType"]),
    expect("column_value_lengths_to_be_between", column="s", min_value=1, max_value=3),
    expect("column_value_lengths_to_be_between", column="s", min_value=2, strict_min=True),
    expect("column_value_lengths_to_be_between", column="s", max_value=3, strict_max=True),
    expect("column_value_lengths_to_be_between", column="s", min_value=3, **_where("id <> 0")),
    expect("column_value_lengths_to_equal", column="s", value=3),
    expect("column_value_lengths_to_equal", column="s", value=3, **_where("t = 'abc'")),
    *[
        expect(_GREATER, column_A=left, column_B=right, or_equal=or_equal, **ignore)
        for ignore in IGNORE_PAIR
        for or_equal in (False, True)
        for left, right in (("n", "m"), ("day", "due"))
    ],
    expect(_GREATER, column_A="x", column_B="y", or_equal=True),
    expect(_GREATER, column_A="d", column_B="x"),
    expect(_GREATER, column_A="at", column_B="day"),
    expect(_GREATER, column_A="b", column_B="c"),
    expect(_GREATER, column_A="s", column_B="t", **_where("id < 6")),
    *[expect(_EQUAL, column_A="n", column_B="m", **ignore) for ignore in IGNORE_PAIR],
    expect(_EQUAL, column_A="at", column_B="until", **_where("id > 0")),
    expect(_EQUAL, column_A="x", column_B="y"),
    expect(_EQUAL, column_A="d", column_B="e"),
    *[
        expect(_PAIR_IN, column_A="n", column_B="s", value_pairs_set=pairs, **ignore)
        for ignore in IGNORE_PAIR
        for pairs in ([[1, "abc"], [0, ""]], [[None, "abc"], [1, None]])
    ],
    expect(_PAIR_IN, column_A="day", column_B="b", value_pairs_set=[["2026-01-01", True]]),
    expect(_PAIR_IN, column_A="d", column_B="n", value_pairs_set=[[0.1, 1], [0, 0]],
           **_where("id <> 2")),
    *[expect(_DISTINCT, column_list=["s", "t"], **ignore) for ignore in IGNORE_RECORD],
    *[expect(_DISTINCT, column_list=["n", "m", "x"], **ignore) for ignore in IGNORE_RECORD],
    expect(_DISTINCT, column_list=["n", "m"], **_where("id <> 0")),
    *[expect(_SAME, column_list=["n", "m", "big"], **ignore) for ignore in IGNORE_RECORD],
    expect(_SAME, column_list=["s", "t"], **_where("id <> 1")),
    *[expect(_SUM, column_list=["n", "m"], sum_total=2, **ignore) for ignore in IGNORE_RECORD],
    expect(_SUM, column_list=["n", "m", "big"], sum_total=1),
    expect(_SUM, column_list=["x", "y"], sum_total=0.3),
    expect(_SUM, column_list=["d", "e"], sum_total=0.2),
    expect(_SUM, column_list=["d", "n"], sum_total=1.1, **_where("id < 1")),
)  # fmt: skip
