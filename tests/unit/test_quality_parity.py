"""Compiled rules fail the rows that Great Expectations calls unexpected on Spark, no others.

A validation of all cases takes a long time. Each change compares the rules with its recorded
verdicts, and a long test compares those with the library.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.unit import judged
from tidelake.config.expectations import ROW_EXPECTATIONS, Expectation
from tidelake.ops.gate import as_gx, import_gx
from tidelake.silver.quality import compile_rules

NOW = datetime(2026, 1, 1, tzinfo=UTC)
# Of a version of the library: the ids of the unexpected rows of each case.
VERDICTS = Path(__file__).parent.parent / "data" / "unexpected_rows.json"
OF_TYPES = {"expect_column_values_to_be_of_type", "expect_column_values_to_be_in_type_list"}
COMPLETE = {
    "result_format": "COMPLETE",
    "unexpected_index_column_names": ["id"],
    "return_unexpected_index_query": False,
}


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return judged.rows(spark)


@pytest.fixture(scope="module")
def compiled(frame: DataFrame) -> dict[str, set[int]]:
    """Give the failing rows of each case by the compiled rules, all in one pass."""
    rules = compile_rules(judged.CASES, dict(frame.dtypes))
    columns = [rule.fails.alias(str(number)) for number, rule in enumerate(rules)]
    found: dict[str, set[int]] = {rule.text: set() for rule in rules}
    for row in frame.select("id", *columns).collect():
        for number, rule in enumerate(rules):
            assert row[str(number)] is not None, rule.text
            if row[str(number)]:
                found[rule.text].add(row["id"])
    return found


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """Give the recorded verdicts, with the version that gave them."""
    return json.loads(VERDICTS.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


@pytest.mark.long
def test_the_library_gives_the_recorded_verdicts(
    spark: SparkSession, frame: DataFrame, recorded: dict[str, Any], tmp_path: Path
) -> None:
    """All in one validation, which asks for each case several times.

    Of a local relation Spark answers that without a job.
    """
    local = spark.createDataFrame(frame.toArrow(), frame.schema)
    gx = import_gx()
    context = gx.get_context(mode="ephemeral")
    asset = context.data_sources.add_spark("rows", persist=False).add_dataframe_asset("rows")
    batch = asset.add_batch_definition_whole_dataframe("rows")
    types = dict(frame.dtypes)
    judges = [as_gx(case, types, NOW) for case in judged.CASES]
    suite = context.suites.add(gx.ExpectationSuite(name="cases", expectations=judges))
    texts = {
        each.id: case.text for each, case in zip(suite.expectations, judged.CASES, strict=True)
    }
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(name="cases", data=batch, suite=suite)
    )
    with judged.without_codegen(spark):
        run = definition.run(batch_parameters={"dataframe": local}, result_format=COMPLETE)
    rows = {texts[each.expectation_config.id]: _written(_unexpected(each)) for each in run.results}
    found = {"great-expectations": version("great-expectations"), "rows": rows}
    asked = tmp_path / VERDICTS.name
    asked.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert found == recorded, f"Great Expectations says otherwise; its verdicts are in {asked}"


def test_the_verdicts_are_of_the_installed_version_and_of_every_case(
    recorded: dict[str, Any],
) -> None:
    assert recorded["great-expectations"] == version("great-expectations")
    assert recorded["rows"].keys() == {case.text for case in judged.CASES}


def _written(ids: set[int]) -> str:
    return " ".join(map(str, sorted(ids)))


def _unexpected(result: Any) -> set[int]:
    if result.expectation_config.type in OF_TYPES:
        assert result.exception_info["raised_exception"] is False, result.exception_info
        return set() if result.success else set(range(10))
    assert result.result, (result.expectation_config, result.exception_info)
    ids = {each["id"] for each in result.result.get("unexpected_index_list") or ()}
    assert len(ids) == result.result["unexpected_count"], result.expectation_config
    return ids


@pytest.mark.parametrize("case", judged.CASES, ids=lambda case: case.text)
def test_both_fail_the_same_rows(
    case: Expectation, compiled: dict[str, set[int]], recorded: dict[str, Any]
) -> None:
    assert _written(compiled[case.text]) == recorded["rows"][case.text]


def test_every_type_of_row_expectations_has_a_case_that_fails_and_one_that_passes(
    compiled: dict[str, set[int]],
) -> None:
    failing = {case.type for case in judged.CASES if compiled[case.text]}
    sparing = {case.type for case in judged.CASES if len(compiled[case.text]) < 10}
    assert failing == set(ROW_EXPECTATIONS)
    assert sparing == set(ROW_EXPECTATIONS)


def test_every_argument_of_every_type_is_in_some_case() -> None:
    used: dict[str, set[str]] = {}
    for case in judged.CASES:
        used.setdefault(case.type, set()).update(case.kwargs)
    # A share of rows means nothing to one row.
    missing = {
        kind: signature.arguments.keys() - used.get(kind, set()) - {"mostly"}
        for kind, signature in ROW_EXPECTATIONS.items()
    }
    assert not {kind: names for kind, names in missing.items() if names}


def test_cases_are_told_apart_by_their_texts() -> None:
    assert len({case.text for case in judged.CASES}) == len(judged.CASES)
