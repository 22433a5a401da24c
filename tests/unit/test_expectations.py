"""Suites of expectations: what loads, and that every violation comes at once with its place."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidelake.config.arguments import as_bound, from_now
from tidelake.config.expectations import (
    ROW_EXPECTATIONS,
    TABLE_EXPECTATIONS,
    Expectation,
    Suite,
    load_suite,
)
from tidelake.errors import ConfigError, UsageError, Violation

COLUMNS = ("event_id", "event_time", "user_id", "action", "value")
GOLD = {"per_minute": ("user_id", "window_start", "events")}
BETWEEN = "expect_column_values_to_be_between"
IN_SET = "expect_column_values_to_be_in_set"
REGEX = "expect_column_values_to_match_regex"
MAX = "expect_column_max_to_be_between"
PAIRS = "expect_column_pair_values_to_be_in_set"


def expected(kind: str, severity: str = "critical", **kwargs: Any) -> dict[str, Any]:
    return {"type": kind, "kwargs": kwargs, "severity": severity}


def write(path: Path, *expectations: dict[str, Any], **more: Any) -> Path:
    file = path / "suite.yml"
    raw = {"name": "shop", "expectations": list(expectations), **more}
    file.write_text(yaml.safe_dump(raw, sort_keys=False))
    return file


def violations(file: Path, **known: Any) -> tuple[Violation, ...]:
    with pytest.raises(ConfigError) as caught:
        load_suite(file, **{"columns": COLUMNS, "gold": GOLD, **known})
    return caught.value.violations


def test_a_suite_keeps_its_expectations_and_tells_those_of_rows(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        expected(BETWEEN, column="value", min_value=0),
        expected("expect_column_values_to_be_unique", column="event_id"),
        expected(IN_SET, "warning", column="action", value_set=["view"], mostly=0.9),
        gold={"per_minute": [expected("expect_column_min_to_be_between", column="events",
                                      min_value=1)]},
    )  # fmt: skip

    suite = load_suite(file, columns=COLUMNS, gold=GOLD)

    assert suite.name == "shop"
    assert [each.type for each in suite.row_level] == [BETWEEN, IN_SET]
    assert [each.severity for each in suite.row_level] == ["critical", "warning"]
    assert suite.gold["per_minute"][0].kwargs == {"column": "events", "min_value": 1}


def test_severity_is_critical_and_meta_empty_unless_written(tmp_path: Path) -> None:
    plain = {"type": BETWEEN, "kwargs": {"column": "value", "min_value": 0}}
    noted = {**plain, "kwargs": {"column": "value", "max_value": 9}, "meta": {"owner": "shop"}}
    first, second = load_suite(write(tmp_path, plain, noted), columns=None, gold=None).expectations
    assert (first.severity, first.meta) == ("critical", {})
    assert second.meta == {"owner": "shop"}


def test_rows_are_judged_before_the_columns_that_silver_adds_to_them(tmp_path: Path) -> None:
    columns = (*COLUMNS, "is_late", "ingested_at")
    of_row = expected(BETWEEN, column="ingested_at", min_value="2026-01-01")
    of_table = expected(MAX, column="ingested_at", min_value="2026-01-01")
    where = {"row_condition": "is_late", "condition_parser": "spark"}
    found = violations(
        write(tmp_path, of_row, of_table, expected(REGEX, column="action", regex="a", **where)),
        columns=columns,
    )
    assert [one.path for one in found] == [
        "expectations[0].kwargs.column",
        "expectations[2].kwargs.row_condition",
    ]


def test_names_are_not_checked_where_no_columns_are_known(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        expected(BETWEEN, column="anything", min_value=0),
        gold={"any_table": [expected(BETWEEN, column="anything", min_value=0)]},
    )
    assert load_suite(file, columns=None, gold=None).expectations[0].columns == ("anything",)


@pytest.mark.parametrize(
    ("expectation", "text"),
    [
        (
            Expectation(type=BETWEEN, kwargs={"min_value": 0, "column": "value"}),
            "value: expect_column_values_to_be_between(min_value=0)",
        ),
        (
            Expectation(
                type=BETWEEN,
                severity="warning",
                kwargs={
                    "strict_min": True,
                    "min_value": "1.50",
                    "column": "value",
                    "condition_parser": "spark",
                    "row_condition": "action = 'ü'",
                },
            ),
            "value: expect_column_values_to_be_between("
            'min_value="1.50", row_condition="action = \'ü\'", strict_min=true)',
        ),
        (
            Expectation(
                type=PAIRS,
                kwargs={"value_pairs_set": [["a", None]], "column_B": "y", "column_A": "x"},
            ),
            'x, y: expect_column_pair_values_to_be_in_set(value_pairs_set=[["a", null]])',
        ),
        (
            Expectation(type=REGEX, kwargs={"column": "a", "regex": "x\ny"}),
            'a: expect_column_values_to_match_regex(regex="x\\ny")',
        ),
        (
            Expectation(
                type="expect_compound_columns_to_be_unique", kwargs={"column_list": ["b", "a"]}
            ),
            "b, a: expect_compound_columns_to_be_unique()",
        ),
        (
            Expectation(type="expect_table_row_count_to_equal", kwargs={"value": 3}),
            "expect_table_row_count_to_equal(value=3)",
        ),
    ],
)
def test_a_text_names_the_columns_first_and_then_sorted_arguments(
    expectation: Expectation, text: str
) -> None:
    assert expectation.text == text


def test_a_type_is_of_rows_or_of_tables_but_not_of_both() -> None:
    assert not ROW_EXPECTATIONS.keys() & TABLE_EXPECTATIONS.keys()
    assert all(Expectation(type=kind).is_row_level for kind in ROW_EXPECTATIONS)
    assert not any(Expectation(type=kind).is_row_level for kind in TABLE_EXPECTATIONS)


WRONG: list[tuple[dict[str, Any], str, str]] = [
    (expected("expect_column_values_to_be_in_sets", column="action"), "type",
     "did you mean expect_column_values_to_be_in_set? (supported: expect_column_values_to_not_be"),
    (expected("expect_column_values_to_match_like_pattern", column="action"), "type",
     "is not supported"),
    (expected("expect_column_quantile_values_to_be_between", column="value"), "type",
     "is not supported"),
    (expected(BETWEEN, "info", column="value", min_value=0), "severity", "info is not supported"),
    (expected(BETWEEN, "criticla", column="value", min_value=0), "severity",
     "did you mean critical?"),
    (expected(BETWEEN, column="value", min_valu=0, max_value=1), "kwargs.min_valu",
     "unknown argument; did you mean min_value?"),
    (expected(BETWEEN, min_value=0), "kwargs.column", "required argument is missing"),
    (expected(IN_SET, column="action"), "kwargs.value_set", "required argument is missing"),
    (expected(BETWEEN, column="value"), "kwargs", "needs min_value or max_value"),
    (expected(BETWEEN, column="valu", min_value=0), "kwargs.column",
     "unknown column valu; did you mean value?"),
    (expected(BETWEEN, column=3, min_value=0), "kwargs.column", "must be the name of a column"),
    (expected(BETWEEN, column="value", min_value=2, max_value=1), "kwargs.min_value",
     "2 is greater than max_value, 1"),
    (expected(BETWEEN, column="value", min_value="10", max_value="9"), "kwargs.min_value",
     "10 is greater than max_value, 9"),
    (expected(BETWEEN, column="event_time", min_value="2026-01-02", max_value="2026-01-01"),
     "kwargs.min_value", "is greater than"),
    (expected(BETWEEN, column="event_time", min_value="2026-01-02", max_value=9),
     "kwargs.min_value", "must have the same type as max_value"),
    (expected(BETWEEN, column="value", min_value="soon"), "kwargs.min_value",
     "write a number, a date"),
    (expected(BETWEEN, column="value", min_value=True), "kwargs.min_value",
     "write a number, a date"),
    (expected(BETWEEN, column="value", min_value="2026-02-30"), "kwargs.min_value",
     "day is out of range"),
    (expected(BETWEEN, column="value", min_value=date(2026, 1, 1)), "kwargs.min_value",
     "put it in quotes"),
    (expected(BETWEEN, column="value", min_value=float("nan")), "kwargs.min_value",
     "must be a finite number"),
    (expected(BETWEEN, column="value", min_value=10**400), "kwargs.min_value", "too large"),
    (expected(BETWEEN, column="value", min_value=0, strict_min="yes"), "kwargs.strict_min",
     "must be true or false"),
    (expected(BETWEEN, column="value", min_value={"$PARAMETER": "now"}), "kwargs.min_value",
     "$PARAMETER is not allowed here"),
    (expected(MAX, column="event_time", min_value={"$PARAMETER": "yesterday"}),
     "kwargs.min_value", "$PARAMETER must be now or now - <duration>"),
    (expected(MAX, column="event_time", min_value={"$PARAMETER": "now - 1 fortnight"}),
     "kwargs.min_value", "'1 fortnight' is not a duration"),
    (expected(MAX, column="event_time", min_value={"$PARAMETER": "now - 999999 days"}),
     "kwargs.min_value", "out of the range of dates"),
    (expected(IN_SET, column="action", value_set=[]), "kwargs.value_set",
     "must be a list of at least one"),
    (expected(IN_SET, column="action", value_set=["a", None]), "kwargs.value_set[1]",
     "is null"),
    (expected(IN_SET, column="action", value_set=["a", 1]), "kwargs.value_set", "mixes"),
    (expected(IN_SET, column="action", value_set=[date(2026, 1, 1)]), "kwargs.value_set[0]",
     "put dates in quotes"),
    (expected(IN_SET, column="value", value_set=[2**63]), "kwargs.value_set[0]", "too large"),
    (expected(REGEX, column="action", regex="a(b"), "kwargs.regex", "not a valid regular"),
    (expected(REGEX, column="action", regex=7), "kwargs.regex", "must be a regular expression"),
    (expected("expect_column_values_to_match_regex_list", column="action", regex_list=["a", "["]),
     "kwargs.regex_list[1]", "is not a valid regular expression"),
    (expected("expect_column_values_to_match_regex_list", column="action", regex_list=["a"],
              match_on="most"), "kwargs.match_on", "'most' is not one of: any, all"),
    (expected("expect_column_values_to_be_of_type", column="value", type_="DECIMAL"),
     "kwargs.type_", "did you mean DecimalType?"),
    (expected("expect_column_values_to_be_of_type", column="value", type_="DecimalType",
              mostly=1), "kwargs.mostly", "unknown argument"),
    (expected("expect_column_values_to_be_in_type_list", column="value", type_list=["Text"]),
     "kwargs.type_list[0]", "is not one of"),
    (expected("expect_column_value_lengths_to_equal", column="action", value=-1),
     "kwargs.value", "must be a whole number, at least 0"),
    (expected("expect_column_value_lengths_to_equal", column="action", value=1.5),
     "kwargs.value", "must be a whole number, at least 0"),
    (expected("expect_multicolumn_sum_to_equal", column_list=["value"], sum_total=1),
     "kwargs.column_list", "at least 2 columns"),
    (expected("expect_multicolumn_sum_to_equal", column_list=["value", "value"], sum_total=1),
     "kwargs.column_list[1]", "value appears twice"),
    (expected("expect_multicolumn_sum_to_equal", column_list=["value", "valu"], sum_total=1),
     "kwargs.column_list[1]", "unknown column valu"),
    (expected("expect_multicolumn_sum_to_equal", column_list=["value", "action"], sum_total="1"),
     "kwargs.sum_total", "must be a number"),
    (expected("expect_multicolumn_values_to_be_equal", column_list=["value", "action"],
              ignore_row_if="neither"), "kwargs.ignore_row_if", "is not one of: all_values"),
    (expected("expect_column_pair_values_to_be_equal", column_A="value", column_B="action",
              ignore_row_if="never"), "kwargs.ignore_row_if", "is not one of: both_values"),
    (expected(PAIRS, column_A="value", column_B="action", value_pairs_set=[]),
     "kwargs.value_pairs_set", "at least one pair"),
    (expected(PAIRS, column_A="value", column_B="action", value_pairs_set=[[1]]),
     "kwargs.value_pairs_set[0]", "must be a pair"),
    (expected(PAIRS, column_A="value", column_B="action", value_pairs_set=[[1, "a"], ["b", "c"]]),
     "kwargs.value_pairs_set", "for column_A"),
    (expected(PAIRS, column_A="value", column_B="action", value_pairs_set=[[1, date(2026, 1, 1)]]),
     "kwargs.value_pairs_set[0][1]", "put dates in quotes"),
    (expected(BETWEEN, column="value", min_value=0, mostly=0.9), "kwargs.mostly",
     "write severity: warning"),
    (expected(BETWEEN, "warning", column="value", min_value=0, mostly=1.1), "kwargs.mostly",
     "must be a number from 0 to 1"),
    (expected(BETWEEN, column="value", min_value=0, row_condition="action = 'a'"),
     "kwargs.condition_parser", "write spark"),
    (expected(BETWEEN, column="value", min_value=0, condition_parser="spark"),
     "kwargs.condition_parser", "allowed with row_condition only"),
    (expected(BETWEEN, column="value", min_value=0, row_condition="value > 1",
              condition_parser="pandas"), "kwargs.condition_parser", "must be spark"),
    (expected(BETWEEN, column="value", min_value=0, row_condition="actio = 'a'",
              condition_parser="spark"), "kwargs.row_condition", "unknown column actio"),
    (expected(BETWEEN, column="value", min_value=0, row_condition="rand() > 0.5",
              condition_parser="spark"), "kwargs.row_condition", "changes from run to run"),
    (expected(BETWEEN, column="value", min_value=0, row_condition=1, condition_parser="spark"),
     "kwargs.row_condition", "must be one SQL expression"),
    (expected("expect_table_row_count_to_equal", value=1, column="value"), "kwargs.column",
     "unknown argument"),
    (expected("expect_table_columns_to_match_set", column_set=["value", "valu"]),
     "kwargs.column_set[1]", "unknown column valu"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "place", "message"), WRONG)
def test_what_is_wrong_is_said_with_its_place(
    tmp_path: Path, wrong: dict[str, Any], place: str, message: str
) -> None:
    found = violations(write(tmp_path, wrong))
    assert [(v.path, message in v.message) for v in found] == [(f"expectations[0].{place}", True)]
    assert found[0].line is not None


def test_every_violation_comes_at_once_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "suite.yml"
    file.write_text(
        "name: shop\n"
        "expectations:\n"
        "  - type: expect_nothing\n"
        "  - type: expect_column_values_to_be_between\n"
        "    kwargs:\n"
        "      column: valu\n"
        "      mostly: 0.5\n"
        "    severty: warning\n"
        "gold:\n"
        "  per_minut:\n"
        "    - type: expect_column_values_to_not_be_null\n"
        "      kwargs: {column: user_id}\n"
        "  per_minute:\n"
        "    - type: expect_column_values_to_not_be_null\n"
        "      kwargs: {column: user}\n"
    )
    assert [(v.line, v.path) for v in violations(file)] == [
        (3, "expectations[0].type"),
        (5, "expectations[1].kwargs"),
        (6, "expectations[1].kwargs.column"),
        (7, "expectations[1].kwargs.mostly"),
        (8, "expectations[1].severty"),
        (10, "gold.per_minut"),
        (15, "gold.per_minute[0].kwargs.column"),
    ]


def test_the_same_expectation_twice_is_refused(tmp_path: Path) -> None:
    one = expected(BETWEEN, column="value", min_value=0)
    (found,) = violations(write(tmp_path, one, {**one, "severity": "warning"}))
    assert found.path == "expectations[1]"
    assert "equal to expectation number 1" in found.message


def test_a_share_below_one_is_fine_where_whole_tables_are_judged(tmp_path: Path) -> None:
    share = expected(BETWEEN, column="events", min_value=1, mostly=0.9)
    unique = expected("expect_column_values_to_be_unique", column="event_id", mostly=0.9)
    suite = load_suite(
        write(tmp_path, unique, gold={"per_minute": [share]}), columns=COLUMNS, gold=GOLD
    )
    assert suite.gold["per_minute"][0].kwargs["mostly"] == 0.9


@pytest.mark.parametrize(
    ("raw", "place", "message"),
    [
        ("name: shop\n", "expectations", "required key is missing"),
        ("name: shop\nexpectations: []\n", "expectations", "needs at least one"),
        ("name: shop\nexpectations: {a: 1}\n", "expectations", "must be a list"),
        ("name: shop\nexpectations: [3]\n", "expectations[0]", "must be a mapping"),
        ("name: shop\nexpectations: [{kwargs: {}}]\n", "expectations[0].type", "required key"),
        (
            "name: shop\nexpectations: [{type: expect_column_to_exist, kwargs: 3}]\n",
            "expectations[0].kwargs",
            "must be a mapping",
        ),
    ],
)
def test_a_broken_shape_is_said_with_its_place(
    tmp_path: Path, raw: str, place: str, message: str
) -> None:
    file = tmp_path / "suite.yml"
    file.write_text(raw)
    (found,) = violations(file)
    assert found.path == place
    assert message in found.message


def test_a_file_that_is_not_there_is_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        load_suite(tmp_path / "none.yml", columns=None, gold=None)


@pytest.mark.parametrize(
    ("regex", "is_sound"),
    [
        (r"^u\d{5}$", True),
        (r"\p{L}+\h*", True),
        (r"(?<year>\d{4})-(?i)x", False),
        (r"(?<year>\d{4})", True),
        (r"(?<user_id>[a-z]+)-\d+", False),
        (r"(?<1st>a)", False),
        (r"(?i)abc", True),
        (r"\(?P", True),
        (r"a(?=b)(?<!c)", True),
        (r"[^,\]]", True),
        (r"\{a\}", True),
        (r"(?P<year>\d{4})", False),
        (r"(?u)a", False),
        (r"a(?#note)", False),
        (r"a{", False),
        (r"a{,3}", False),
        (r"^[0-9]{1, 3}$", False),
        (r"a{3000000000}", False),
        (r"a{2,5}b{3}c{1,}\{[{}]\p{L}{3}", True),
        (r"\R+[\\R]\z", True),
        (r"[\R]", False),
        (r"[a\]\z]", False),
        (r"[[]", False),
        (r"[a&&b]", False),
        (r"[]a]", False),
        (r"[\b]", False),
        (r"\Qa.b\E", False),
        (r"\p{Klingon}", False),
        (r"\p{Lz}", False),
        (r"\p{Lu}\p{IsLatin}\P{N}", True),
        (r"\0", False),
        ("", False),
    ],
)
def test_a_regex_must_be_one_that_java_takes(tmp_path: Path, regex: str, is_sound: bool) -> None:
    file = write(tmp_path, expected(REGEX, column="action", regex=regex))
    if is_sound:
        load_suite(file, columns=COLUMNS, gold=GOLD)
    else:
        assert violations(file)[0].path == "expectations[0].kwargs.regex"


@pytest.mark.parametrize(
    ("written", "bound"),
    [
        (3, 3.0),
        ("-1.5e3", -1500.0),
        ("2026-01-31", date(2026, 1, 31)),
        ("2026-01-31T09:30:00", datetime(2026, 1, 31, 9, 30, tzinfo=UTC)),
        ("2026-01-31 09:30:00.5+02:00", datetime(2026, 1, 31, 7, 30, 0, 500_000, tzinfo=UTC)),
    ],
)
def test_a_bound_is_a_number_a_date_or_an_instant(written: object, bound: object) -> None:
    assert as_bound(written) == bound
    assert type(as_bound(written)) is type(bound)


def test_a_time_without_a_zone_is_utc_wherever_the_machine_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert as_bound("2026-01-31T09:30:00") == datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_now_is_filled_in_and_shifted() -> None:
    now = datetime(2026, 1, 2, 3, tzinfo=UTC)
    assert from_now({"$PARAMETER": "now"}, now) == now
    assert from_now({"$PARAMETER": "now - 1 day"}, now) == datetime(2026, 1, 1, 3, tzinfo=UTC)
    assert from_now({"$PARAMETER": "now + 2 hours"}, now) == datetime(2026, 1, 2, 5, tzinfo=UTC)


def test_a_suite_knows_all_its_keys() -> None:
    assert set(Suite.model_fields) == {"name", "expectations", "gold"}
