"""Compiled rules: which rows fail, what nulls do, and what is refused before a row is judged."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.unit.judged import expect
from tidelake.config.expectations import ROW_EXPECTATIONS, SQL_RULE, Expectation, InlineRule
from tidelake.errors import UsageError
from tidelake.silver.quality import PREDICATES, compile_rules

TYPES = {
    "id": "int",
    "s": "string",
    "n": "int",
    "d": "decimal(38,0)",
    "b": "boolean",
    "day": "date",
    "local": "timestamp_ntz",
    "many": "array<int>",
}


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    rows = [
        (0, "abc", 5, Decimal(1)),
        (1, "", 0, Decimal("9" * 38)),
        (2, "x1", -1, None),
        (3, None, None, None),
    ]
    return spark.createDataFrame(rows, "id INT, s STRING, n INT, d DECIMAL(38,0)").coalesce(1)


CASES: list[tuple[Expectation, list[int]]] = [
    (expect("column_values_to_not_be_null", column="s"), [3]),
    (expect("column_values_to_be_null", column="s"), [0, 1, 2]),
    (expect("column_values_to_be_in_set", column="s", value_set=["abc", "x"]), [1, 2]),
    (expect("column_values_to_not_be_in_set", column="n", value_set=[0, 5]), [0, 1]),
    (expect("column_values_to_be_between", column="n", min_value=0), [2]),
    (expect("column_values_to_be_between", column="n", min_value=0, strict_min=True), [1, 2]),
    (expect("column_values_to_be_between", column="n", max_value=5, strict_max=True), [0]),
    (expect("column_values_to_be_between", column="n", min_value=-1, max_value=0), [0]),
    (expect("column_values_to_match_regex", column="s", regex=r"\d"), [0, 1]),
    (expect("column_values_to_not_match_regex", column="s", regex=r"\d"), [2]),
    (expect("column_values_to_match_regex_list", column="s", regex_list=["a", "1"]), [1]),
    (
        expect(
            "column_values_to_match_regex_list", column="s", regex_list=["a", "1"], match_on="all"
        ),
        [0, 1, 2],
    ),
    (expect("column_values_to_not_match_regex_list", column="s", regex_list=["a", "1"]), [0, 2]),
    (expect("column_values_to_be_of_type", column="n", type_="IntegerType"), []),
    (expect("column_values_to_be_of_type", column="n", type_="LongType"), [0, 1, 2, 3]),
    (expect("column_values_to_be_in_type_list", column="n", type_list=["NumericType"]), []),
    (expect("column_value_lengths_to_be_between", column="s", min_value=1, max_value=2), [0, 1]),
    (expect("column_value_lengths_to_equal", column="s", value=3), [1, 2]),
    (
        expect("column_pair_values_a_to_be_greater_than_b", column_A="n", column_B="id"),
        [1, 2],
    ),
    (
        expect(
            "column_pair_values_a_to_be_greater_than_b",
            column_A="id",
            column_B="n",
            or_equal=True,
            ignore_row_if="neither",
        ),
        # A null is neither greater nor not.
        [0],
    ),
    (expect("column_pair_values_to_be_equal", column_A="n", column_B="id"), [0, 1, 2, 3]),
    (
        expect(
            "column_pair_values_to_be_equal",
            column_A="n",
            column_B="id",
            ignore_row_if="either_value_is_missing",
        ),
        [0, 1, 2],
    ),
    (
        expect(
            "column_pair_values_to_be_in_set",
            column_A="s",
            column_B="n",
            value_pairs_set=[["abc", 5], ["", 1]],
        ),
        [1, 2],
    ),
    (expect("select_column_values_to_be_unique_within_record", column_list=["id", "n"]), []),
    (
        expect(
            "select_column_values_to_be_unique_within_record",
            column_list=["n", "d"],
            ignore_row_if="never",
        ),
        [3],
    ),
    (expect("multicolumn_values_to_be_equal", column_list=["n", "d"]), [0, 1, 2]),
    (expect("multicolumn_sum_to_equal", column_list=["id", "n"], sum_total=1), [0, 3]),
    (
        expect(
            "multicolumn_sum_to_equal",
            column_list=["id", "n"],
            sum_total=1,
            ignore_row_if="any_value_is_missing",
        ),
        [0],
    ),
]


def _failing(frame: DataFrame, expectations: list[Expectation]) -> list[list[int]]:
    rules = compile_rules(expectations, dict(frame.dtypes))
    columns = [rule.fails.alias(f"_{number}") for number, rule in enumerate(rules)]
    rows = frame.select("id", *columns).orderBy("id").collect()
    verdicts = [[(row["id"], row[f"_{number}"]) for row in rows] for number in range(len(rules))]
    assert all(fails is not None for verdict in verdicts for _, fails in verdict)
    return [[number for number, fails in verdict if fails] for verdict in verdicts]


def test_each_type_fails_the_rows_it_should(frame: DataFrame) -> None:
    found = _failing(frame, [expectation for expectation, _ in CASES])
    assert dict(zip([each.text for each, _ in CASES], found, strict=True)) == {
        each.text: failing for each, failing in CASES
    }
    assert {each.type for each, _ in CASES} == set(ROW_EXPECTATIONS) == set(PREDICATES) - {SQL_RULE}


def test_a_rule_keeps_its_expectations_text_and_severity() -> None:
    kwargs = {"column": "n", "min_value": 0}
    kind = "expect_column_values_to_be_between"
    first, second = compile_rules(
        [
            Expectation(type=kind, kwargs=kwargs, severity="warning"),
            Expectation(type=kind, kwargs={"column": "d", "min_value": 0}),
        ],
        TYPES,
    )
    assert (first.text, first.severity) == (f"n: {kind}(min_value=0)", "warning")
    assert (second.text, second.severity) == (f"d: {kind}(min_value=0)", "critical")


def test_a_condition_spares_the_rows_that_it_does_not_name(frame: DataFrame) -> None:
    where = {"row_condition": "s <> ''", "condition_parser": "spark"}
    assert _failing(
        frame,
        [
            expect("column_values_to_be_between", column="n", min_value=1, **where),
            expect("column_values_to_be_null", column="id", **where),
        ],
    ) == [[2], [0, 2]]


def test_a_condition_that_cannot_be_computed_fails_the_row_and_not_the_batch(
    frame: DataFrame,
) -> None:
    where = {"row_condition": "cast(s AS INT) = 1", "condition_parser": "spark"}
    expectation = expect("column_values_to_not_be_null", column="id", **where)
    assert _failing(frame, [expectation]) == [[0, 1, 2]]
    # A text is a condition too; one that is neither true nor false fails its row.
    where = {"row_condition": "s", "condition_parser": "spark"}
    expectation = expect("column_values_to_be_null", column="id", **where)
    assert _failing(frame, [expectation]) == [[0, 1, 2]]


def test_a_bound_may_be_a_day_or_a_time_of_the_first_year(frame: DataFrame) -> None:
    days = frame.withColumn("day", F.expr("date_add(DATE'0001-01-01', id)"))
    times = days.withColumn("at", F.col("day").cast("timestamp"))
    first = expect("column_values_to_be_between", column="day", min_value="0001-01-02")
    last = expect("column_values_to_be_between", column="at", max_value="0001-01-02T00:00:00Z")
    assert _failing(times, [first, last]) == [[0], [2, 3]]


def test_a_sum_that_no_decimal_holds_fails_the_row_and_not_the_batch(
    frame: DataFrame,
) -> None:
    expectation = expect("multicolumn_sum_to_equal", column_list=["d", "id"], sum_total=1)
    assert _failing(frame, [expectation]) == [[1, 2, 3]]


def rule(sql: str) -> Expectation:
    return InlineRule(sql=sql).named("one")


def test_a_rule_in_sql_fails_where_it_is_false_or_cannot_be_computed(frame: DataFrame) -> None:
    assert _failing(
        frame,
        [
            rule("n >= 0"),
            rule("n >= 0 AND n IS NOT NULL"),
            rule("10 / n > 0"),
            rule("s RLIKE '^[a-z]{0,3}$' -- letters"),
            rule("s <> ''"),
        ],
    ) == [[2], [2, 3], [1, 2], [2], [1]]


def test_a_rule_in_sql_is_reported_by_its_name_and_text() -> None:
    named = InlineRule(sql="n >=\n  0", severity="warning").named("positive")
    (found,) = compile_rules([named], TYPES)
    assert (found.text, found.severity) == ("positive: n >= 0", "warning")


def test_a_rule_in_sql_is_refused_if_its_column_is_missing(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="one: gone > 0: unknown column gone"):
        compile_rules([rule("gone > 0")], TYPES)


def test_a_text_too_long_for_a_pattern_that_may_exhaust_the_stack_fails_the_rule(
    spark: SparkSession,
) -> None:
    texts = [(0, "ab"), (1, "a" * 100_000), (2, None)]
    frame = spark.createDataFrame(texts, "id int, s string")
    regex = "^(a|b)*$"
    assert _failing(
        frame,
        [
            expect("column_values_to_match_regex", column="s", regex=regex),
            expect("column_values_to_not_match_regex", column="s", regex=regex),
            expect("column_values_to_match_regex_list", column="s", regex_list=["x", regex]),
        ],
    ) == [[1], [0, 1], [1]]


@pytest.mark.parametrize(
    ("kind", "kwargs", "problem"),
    [
        ("column_values_to_not_be_null", {"column": "other"}, "other cannot be evaluated"),
        ("column_values_to_be_between", {"column": "s", "min_value": 0}, "s is string; only"),
        ("column_values_to_be_between", {"column": "b", "min_value": 0}, "b is boolean; only"),
        (
            "column_values_to_be_between",
            {"column": "n", "max_value": "2026-01-01"},
            "max_value '2026-01-01' is not a valid bound for n, which is int",
        ),
        (
            "column_values_to_be_between",
            {"column": "day", "min_value": 3},
            "is not a valid bound for day",
        ),
        ("column_values_to_be_in_set", {"column": "s", "value_set": [1]}, "1 cannot be a value"),
        ("column_values_to_be_in_set", {"column": "n", "value_set": ["1"]}, "'1' cannot be"),
        ("column_values_to_be_in_set", {"column": "n", "value_set": [True]}, "True cannot be"),
        ("column_values_to_be_in_set", {"column": "b", "value_set": [1]}, "1 cannot be"),
        ("column_values_to_not_be_in_set", {"column": "day", "value_set": ["x"]}, "'x' cannot"),
        (
            "column_values_to_be_in_set",
            {"column": "day", "value_set": ["2026-02-30"]},
            "'2026-02-30' cannot be a value of day",
        ),
        (
            "column_values_to_be_in_set",
            {"column": "local", "value_set": ["2026-01-01T00:00:00Z"]},
            "cannot be a value of local",
        ),
        ("column_values_to_be_in_set", {"column": "many", "value_set": [1]}, "only null and type"),
        ("column_values_to_match_regex", {"column": "n", "regex": "1"}, "needs text columns"),
        ("column_value_lengths_to_equal", {"column": "n", "value": 1}, "needs text columns"),
        ("column_pair_values_to_be_equal", {"column_A": "s", "column_B": "n"}, "of different"),
        (
            "column_pair_values_to_be_in_set",
            {"column_A": "s", "column_B": "n", "value_pairs_set": [["a", "b"]]},
            "'b' cannot be a value of n",
        ),
        (
            "multicolumn_sum_to_equal",
            {"column_list": ["n", "s"], "sum_total": 1},
            "needs number columns",
        ),
        (
            "column_values_to_not_be_null",
            {"column": "n", "row_condition": "gone = 1", "condition_parser": "spark"},
            "row_condition unknown column gone",
        ),
    ],
)
def test_what_would_make_spark_cast_is_refused_at_once(
    spark: SparkSession, kind: str, kwargs: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError) as caught:
        compile_rules([expect(kind, **kwargs)], TYPES)
    assert problem in str(caught.value)


def test_all_that_do_not_fit_are_named_at_once(spark: SparkSession) -> None:
    wrong = [
        expect("column_values_to_be_between", column="s", min_value=0),
        expect("column_values_to_match_regex", column="n", regex="1"),
    ]
    with pytest.raises(UsageError) as caught:
        compile_rules(wrong, TYPES)
    assert all(each.text in str(caught.value) for each in wrong)
