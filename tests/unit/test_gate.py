"""The gate: whole tables judged by Great Expectations, and what makes it fail."""

from __future__ import annotations

import datetime as dt
import json
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.unit.judged import expect, without_codegen
from tidelake.config import load_environment, load_pipeline
from tidelake.config.expectations import (
    TABLE_EXPECTATIONS,
    Expectation,
    InlineRule,
    Suite,
    load_suite,
)
from tidelake.config.locations import conf_dir
from tidelake.config.pipeline import Pipeline, Quality
from tidelake.delta.tables import Lake
from tidelake.errors import MachineError, UsageError
from tidelake.names import SILVER_RESERVED
from tidelake.ops.gate import GateReport, _never_met, as_gx, import_gx, judge_by_suites
from tidelake.silver.quality import compile_rules

NOW = dt.datetime(2026, 1, 3, 6, tzinfo=dt.UTC)
_AT = [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3)]
_ROWS = [
    (1, "a", Decimal("1.50"), dt.date(2026, 1, 1), _AT[0], _AT[0].replace(tzinfo=None)),
    (2, None, None, dt.date(2026, 1, 2), None, None),
    (3, "a", Decimal("-1.00"), None, _AT[2], _AT[2].replace(tzinfo=None)),
]
_SCHEMA = "id INT, s STRING, d DECIMAL(18,2), day DATE, at TIMESTAMP, local TIMESTAMP_NTZ"
_WHERE = {"row_condition": "id > 1", "condition_parser": "spark"}
_NOW = {"$PARAMETER": "now"}
_NOW_LESS = {"$PARAMETER": "now - 1 day"}


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("gate"))
    for table in (lake.silver("shop"), lake.gold("totals")):
        frame = spark.createDataFrame(_ROWS, _SCHEMA)
        frame.write.format("delta").save(str(table.path))
    return lake


# Pairs: as the table is, and as it is not.
JUDGED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("table_row_count_to_be_between", {"min_value": 3}, {"max_value": 3, "strict_max": True}),
    ("table_row_count_to_equal", {"value": 2, **_WHERE}, {"value": 2}),
    ("table_column_count_to_be_between", {"min_value": 6}, {"max_value": 5}),
    ("table_column_count_to_equal", {"value": 6}, {"value": 5}),
    (
        "table_columns_to_match_ordered_list",
        {"column_list": ["id", "s", "d", "day", "at", "local"]},
        {"column_list": ["s", "id", "d", "day", "at", "local"]},
    ),
    (
        "table_columns_to_match_set",
        {"column_set": ["s", "id"], "exact_match": False},
        {"column_set": ["s", "id"]},
    ),
    ("column_to_exist", {"column": "s", "column_index": 1}, {"column": "gone"}),
    ("column_values_to_be_unique", {"column": "id"}, {"column": "s"}),
    (
        "compound_columns_to_be_unique",
        {"column_list": ["id", "s"]},
        {"column_list": ["s", "s"]},
    ),
    ("column_unique_value_count_to_be_between", {"column": "s", "max_value": 1},
     {"column": "s", "min_value": 2}),
    ("column_proportion_of_unique_values_to_be_between", {"column": "id", "min_value": 1},
     {"column": "s", "min_value": 0.9}),
    ("column_proportion_of_non_null_values_to_be_between", {"column": "s", "max_value": 0.7},
     {"column": "s", "min_value": 0.9}),
    ("column_min_to_be_between", {"column": "d", "max_value": "-0.99"},
     {"column": "d", "min_value": 0}),
    ("column_max_to_be_between", {"column": "at", "min_value": _NOW_LESS},
     {"column": "at", "min_value": _NOW}),
    ("column_max_to_be_between", {"column": "day", "max_value": _NOW},
     {"column": "day", "min_value": _NOW}),
    ("column_max_to_be_between",
     {"column": "at", "min_value": "2026-01-03", "max_value": "2026-01-03T00:00:00Z"},
     {"column": "at", "min_value": "2026-01-03T00:00:01Z"}),
    ("column_max_to_be_between",
     {"column": "local", "min_value": "2026-01-03T00:00:00", "max_value": "2026-01-03"},
     {"column": "local", "max_value": "2026-01-03", "strict_max": True}),
    ("column_min_to_be_between", {"column": "at", "max_value": "2026-01-01T00:00:00"},
     {"column": "at", "min_value": "2026-01-01T00:00:00+00:00", "strict_min": True}),
    ("column_max_to_be_between", {"column": "day", "min_value": "2026-01-02T23:00:00Z"},
     {"column": "day", "min_value": "2026-01-03"}),
    ("column_mean_to_be_between", {"column": "id", "min_value": 2, "max_value": 2},
     {"column": "id", "max_value": 1}),
    ("column_median_to_be_between", {"column": "id", "min_value": 2, "max_value": 2},
     {"column": "id", "max_value": 1}),
    ("column_sum_to_be_between", {"column": "id", "min_value": 5, **_WHERE},
     {"column": "id", "max_value": 5}),
    ("column_stdev_to_be_between", {"column": "id", "min_value": 1, "max_value": 1},
     {"column": "id", "min_value": 2}),
    ("column_distinct_values_to_be_in_set", {"column": "s", "value_set": ["a", "b"]},
     {"column": "s", "value_set": ["b"]}),
    ("column_distinct_values_to_contain_set", {"column": "s", "value_set": ["a"]},
     {"column": "s", "value_set": ["a", "b"]}),
    ("column_distinct_values_to_equal_set", {"column": "id", "value_set": [3, 2, 1]},
     {"column": "id", "value_set": [3, 2]}),
    ("column_most_common_value_to_be_in_set", {"column": "s", "value_set": ["a"]},
     {"column": "s", "value_set": ["b"]}),
    ("column_most_common_value_to_be_in_set",
     {"column": "d", "value_set": [1.5], "ties_okay": True},
     {"column": "day", "value_set": ["2026-01-01"], "ties_okay": True}),
    # Of rows: the gate judges these too.
    ("column_values_to_be_between", {"column": "d", "min_value": -1},
     {"column": "d", "min_value": 0, **_WHERE}),
    ("column_values_to_be_between", {"column": "at", "min_value": "2026-01-01T00:00:00"},
     {"column": "at", "min_value": "2026-01-01T00:00:01"}),
    ("column_values_to_not_be_null", {"column": "s", "mostly": 0.6}, {"column": "s"}),
    ("column_values_to_be_of_type", {"column": "s", "type_": "StringType"},
     {"column": "s", "type_": "LongType"}),
    ("column_pair_values_a_to_be_greater_than_b", {"column_A": "id", "column_B": "d",
     "ignore_row_if": "either_value_is_missing", **_WHERE}, {"column_A": "d", "column_B": "id"}),
]  # fmt: skip


def _judge(
    spark: SparkSession, lake: Lake, docs: Path, *expectations: Expectation, **gold: Any
) -> GateReport:
    suite = Suite(name="shop", expectations=expectations, gold=gold)
    return judge_by_suites(spark, lake, _shop(suite), docs=docs, now=NOW)


def _shop(suite: Suite | None, **rules: str) -> Pipeline:
    quality = Quality(rules={name: InlineRule(sql=sql) for name, sql in rules.items()})
    return Pipeline.model_construct(name="shop", suite=suite, quality=quality)


@pytest.fixture(scope="module")
def whole(
    spark: SparkSession, filled: Lake, tmp_path_factory: pytest.TempPathFactory
) -> GateReport:
    """Judge everything at once: each type as it is, then as it is not; gold by its first three."""
    right = [expect(kind, **kwargs) for kind, kwargs, _ in JUDGED]
    wrong = [expect(kind, **kwargs) for kind, _, kwargs in JUDGED]
    gold = tuple(
        each.model_copy(update={"severity": "warning"}) for each in (*right[:2], *wrong[:1])
    )
    docs = tmp_path_factory.mktemp("docs")
    with without_codegen(spark):
        return _judge(spark, filled, docs, *right, *wrong, totals=gold)


@pytest.mark.long
def test_every_type_passes_what_is_so_and_fails_what_is_not(whole: GateReport) -> None:
    verdicts = [(result.text, result.passed) for result in whole.results]
    right = [(expect(kind, **kwargs).text, True) for kind, kwargs, _ in JUDGED]
    wrong = [(expect(kind, **kwargs).text, False) for kind, _, kwargs in JUDGED]
    assert verdicts[: len(JUDGED)] == right
    assert verdicts[len(JUDGED) : 2 * len(JUDGED)] == wrong


def test_every_type_for_tables_is_judged() -> None:
    assert {f"expect_{kind}" for kind, _, _ in JUDGED} >= set(TABLE_EXPECTATIONS)


def test_gold_is_judged_after_silver_and_by_its_own_expectations(whole: GateReport) -> None:
    of_gold = whole.results[2 * len(JUDGED) :]
    assert [(each.table, each.severity, each.passed) for each in of_gold] == [
        ("gold.totals", "warning", True),
        ("gold.totals", "warning", True),
        ("gold.totals", "warning", False),
    ]
    assert {each.table for each in whole.results[: 2 * len(JUDGED)]} == {"silver.shop"}


def test_what_was_found_is_said_in_a_few_words(whole: GateReport) -> None:
    found = {result.text: (result.observed, result.unexpected) for result in whole.results}
    between = expect("column_values_to_be_between", column="d", min_value=0, **_WHERE)
    assert found[between.text] == ("1 of 2 rows", 1)
    assert found[expect("column_values_to_not_be_null", column="s").text] == ("1 of 3 rows", 1)
    assert found[expect("table_row_count_to_equal", value=2).text] == ("3", None)
    distinct = expect("column_distinct_values_to_be_in_set", column="s", value_set=["b"])
    assert found[distinct.text] == ("1 unexpected", 1)
    fresh = expect("column_max_to_be_between", column="at", min_value=_NOW)
    assert found[fresh.text] == ("2026-01-03T00:00:00+00:00", None)
    common = expect("column_most_common_value_to_be_in_set", column="day",
                    value_set=["2026-01-01"], ties_okay=True)  # fmt: skip
    assert found[common.text] == ("Great Expectations cannot evaluate it on date", None)
    local = expect("column_max_to_be_between", column="local", max_value="2026-01-03",
                   strict_max=True)  # fmt: skip
    assert found[local.text] == ("2026-01-03T00:00:00", None)


@pytest.mark.parametrize(
    ("kind", "simple", "kwargs", "is_refused"),
    [
        ("mean_to_be_between", "smallint", {"min_value": 0}, True),
        ("mean_to_be_between", "int", {"min_value": 0}, False),
        ("most_common_value_to_be_in_set", "date", {"value_set": ["2026-01-01"]}, True),
        ("most_common_value_to_be_in_set", "decimal(6,2)", {"value_set": [0.1]}, True),
        ("most_common_value_to_be_in_set", "decimal(6,2)", {"value_set": [1.5, 2]}, False),
        ("most_common_value_to_be_in_set", "string", {"value_set": ["a"]}, False),
        ("distinct_values_to_be_in_set", "date", {"value_set": ["2026-01-01"]}, False),
    ],
)
def test_types_on_which_great_expectations_never_finds_it_met_are_said(
    kind: str, simple: str, kwargs: dict[str, Any], is_refused: bool
) -> None:
    found = _never_met(expect(f"column_{kind}", column="c", **kwargs), {"c": simple})
    assert found == (f"Great Expectations cannot evaluate it on {simple}" if is_refused else "")


@pytest.mark.parametrize(
    ("zone", "column", "bound", "found"),
    [
        ("Europe/Berlin", "at", "9999-12-31T23:59:59Z", dt.datetime.max),
        ("Europe/Berlin", "day", "9999-12-31T23:59:59-05:00", dt.date.max),
        ("Europe/Berlin", "local", "9999-12-31T23:59:59Z", dt.datetime(9999, 12, 31, 23, 59, 59)),
        ("America/New_York", "at", "0001-01-01", dt.datetime.min),
        ("America/New_York", "at", "0001-01-02", dt.datetime(1, 1, 1, 19, 3, 58)),
        ("America/New_York", "day", "0001-01-01", dt.date.min),
    ],
)
def test_a_bound_at_an_end_of_the_calendar_closes_no_gate(
    monkeypatch: pytest.MonkeyPatch, zone: str, column: str, bound: str, found: dt.date
) -> None:
    import_gx()
    types = {"at": "timestamp", "day": "date", "local": "timestamp_ntz"}
    expectation = expect("column_max_to_be_between", column=column, max_value=bound)
    with monkeypatch.context() as patched:
        patched.setenv("TZ", zone)
        time.tzset()
        try:
            assert as_gx(expectation, types, NOW).max_value == found
        finally:
            patched.undo()
            time.tzset()


def test_data_docs_are_there_and_the_report_is_json(whole: GateReport) -> None:
    assert whole.docs.is_file()
    pages = list(whole.docs.parent.glob("validations/**/*.html"))
    assert len(pages) == 2
    # They are kept, and shown to who may not see the column.
    assert not [page for page in pages if "Sampled Unexpected Values" in page.read_text()]
    report = json.loads(json.dumps(whole.to_json()))
    assert report["passed"] is False
    assert report["docs"] == str(whole.docs)
    assert len(report["results"]) == len(whole.results)


def test_a_failing_warning_does_not_close_the_gate(
    spark: SparkSession, filled: Lake, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kind, kwargs = "expect_column_values_to_not_be_null", {"column": "s"}
    warning = Expectation(type=kind, kwargs=kwargs, severity="warning")
    fine = expect("table_row_count_to_equal", value=3)

    report = _judge(spark, filled, tmp_path, warning, fine)

    assert report.passed
    assert [result.passed for result in report.results] == [False, True]
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_judged_fails_and_leaves_the_others_alone(
    spark: SparkSession, filled: Lake, tmp_path: Path
) -> None:
    where = {"row_condition": "cast(s AS INT) = 1", "condition_parser": "spark"}
    report = _judge(
        spark,
        filled,
        tmp_path,
        expect("column_mean_to_be_between", column="s", min_value=0),
        expect("column_sum_to_be_between", column="d", min_value=0, **where),
        # Equal but for a default that is written out.
        expect("column_values_to_be_between", column="id", min_value=1),
        expect("column_values_to_be_between", column="id", min_value=1, strict_min=False),
        expect("table_row_count_to_equal", value=3),
    )
    assert [result.passed for result in report.results] == [False, False, True, True, True]
    assert not report.passed
    assert "Expected numeric column type" in report.results[0].observed
    assert "CAST_INVALID_INPUT" in report.results[1].observed
    assert report.results[0].unexpected is None
    # Its message quotes the value.
    page = next(tmp_path.glob("validations/**/*.html")).read_text()
    assert "CAST_INVALID_INPUT" in page and "The value" not in page


def test_a_suite_that_breaks_great_expectations_as_a_whole_fails_every_expectation(
    spark: SparkSession, filled: Lake, tmp_path: Path
) -> None:
    report = _judge(
        spark,
        filled,
        tmp_path,
        expect("table_row_count_to_equal", value=3),
        expect("nothing"),
    )
    assert [result.passed for result in report.results] == [False, False]
    assert all("expect_nothing" in result.observed for result in report.results)


def test_a_table_that_is_not_there_is_named_with_the_command_that_fills_it(
    spark: SparkSession, filled: Lake, tmp_path: Path
) -> None:
    suite = Suite(
        name="shop",
        expectations=[expect("table_row_count_to_equal", value=3)],
        gold={"gone": [expect("table_row_count_to_equal", value=3)]},
    )
    with pytest.raises(UsageError, match=r"gold\.gone does not exist yet; .*tidelake run shop"):
        judge_by_suites(spark, filled, _shop(suite), docs=tmp_path, now=NOW)


def test_the_files_own_rules_are_judged_without_and_beside_a_suite(
    spark: SparkSession, filled: Lake, tmp_path: Path
) -> None:
    rules = {
        "short": "s RLIKE '^a{1,2}$' -- one or two",
        "positive": "d > 0",
        "numeric": "CAST(s AS INT) > 0",
    }
    alone = judge_by_suites(spark, filled, _shop(None, **rules), docs=tmp_path, now=NOW)
    assert [(one.table, one.type, one.passed, one.unexpected) for one in alone.results] == [
        ("silver.shop", "sql_rule", True, 0),
        ("silver.shop", "sql_rule", False, 1),
        # As in the stream, a row on which the condition fails breaks the rule.
        ("silver.shop", "sql_rule", False, 2),
    ]
    assert [one.observed for one in alone.results[:2]] == ["0 unexpected", "1 unexpected"]
    suite = Suite(name="shop", expectations=[expect("table_column_count_to_equal", value=6)])
    both = judge_by_suites(spark, filled, _shop(suite, positive="d > -2"), docs=tmp_path, now=NOW)
    assert [one.text for one in both.results] == [suite.expectations[0].text, "positive: d > -2"]
    assert both.passed


def test_a_rule_that_the_stored_table_does_not_fit_fails_alone(
    spark: SparkSession, filled: Lake, tmp_path: Path
) -> None:
    rules = {"new": "not_there > 0", "positive": "d > -2"}
    report = judge_by_suites(spark, filled, _shop(None, **rules), docs=tmp_path, now=NOW)
    assert [result.passed for result in report.results] == [False, True]
    assert "UNRESOLVED_COLUMN" in report.results[0].observed


def test_a_text_too_long_for_a_pattern_is_judged_as_in_the_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Matched without a limit, a longer one would overflow the stack and end the JVM."""
    texts = ("ab" * 300, "a" * 500, "b" * 501, "ab", "xy", "", None)
    rows = spark.createDataFrame([(text,) for text in texts], "s STRING").coalesce(1)
    lake, group = Lake(tmp_path), "^(a|b)*$"
    rows.write.format("delta").save(str(lake.silver("shop").path))
    lists = (
        {"regex_list": ["x", "b(a|b)*$"]},
        {"regex_list": ["^.", group], "match_on": "all"},
    )
    suite = (
        expect("column_values_to_match_regex", column="s", regex=group),
        expect("column_values_to_not_match_regex", column="s", regex=group),
        *(expect("column_values_to_match_regex_list", column="s", **one) for one in lists),
        expect("column_values_to_not_match_regex_list", column="s", regex_list=["x", group]),
        InlineRule(sql=f"s RLIKE '{group}'").named("only_ab"),
    )
    expected = [rows.where(rule.fails).count() for rule in compile_rules(suite, dict(rows.dtypes))]
    assert expected == [3, 5, 4, 4, 6, 3]
    where = {"row_condition": suite[-1].kwargs["sql"], "condition_parser": "spark"}
    conditional = expect("table_row_count_to_be_between", min_value=0, **where)
    shop = _shop(Suite(name="shop", expectations=[*suite[:-1], conditional]))
    shop.quality.rules["only_ab"] = InlineRule(sql=suite[-1].kwargs["sql"])
    report = judge_by_suites(spark, lake, shop, docs=tmp_path / "docs", now=NOW)
    *judged, failed, rule = report.results
    assert [one.unexpected for one in (*judged, rule)] == expected
    assert "USER_RAISED_EXCEPTION" in failed.observed


def test_deletions_of_a_dimension_are_not_judged(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    rows = spark.createDataFrame([(1, "a", False), (2, None, True)], "id INT, s STRING, b BOOLEAN")
    path = str(lake.silver("shop").path)
    rows.withColumnRenamed("b", "_is_delete").write.format("delta").save(path)
    sent = [expect("column_values_to_not_be_null", column="s")]
    assert _judge(spark, lake, tmp_path, *sent).passed


def test_a_missing_package_is_said_with_the_command_that_installs_it(
    spark: SparkSession, filled: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "great_expectations", None)
    with pytest.raises(MachineError, match=r"pip install 'tidelake\[quality\]'"):
        _judge(spark, filled, tmp_path, expect("table_row_count_to_equal", value=3))


@pytest.mark.parametrize("name", ["clickstream", "flights"])
def test_the_suites_of_the_reference_pipelines_are_sound(name: str) -> None:
    pipeline = load_pipeline(name, load_environment("local", root="/lake"))
    window = ("window_start", "window_end", "session_id", "session_start", "session_end")
    gold = {
        table.name: (*table.keys, *window, *[measure.name for measure in table.measures])
        for table in pipeline.gold
    }
    suite = load_suite(
        conf_dir() / "expectations" / f"{name}.yml",
        columns=(*SILVER_RESERVED, *pipeline.silver_columns),
        gold=gold,
    )
    assert suite.name == name
    assert set(suite.gold) <= set(gold)
    assert suite.row_level
