"""Validate whole tables with Great Expectations on Spark; only this module imports it.

No data leaves the machine: the context is in memory and analytics are off. Unexpected rows are
counted; their values are neither kept nor returned. An expectation that Great Expectations cannot
evaluate counts as failed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelake.config.arguments import as_bound, from_now, is_parameter
from tidelake.config.expectations import SIGNATURES, SQL_RULE, Expectation
from tidelake.config.pipeline import Pipeline
from tidelake.config.row_guards import MOST_LETTERS, texts_to_bound
from tidelake.delta.access import load
from tidelake.delta.tables import Lake, Table
from tidelake.errors import UsageError, imported
from tidelake.names import IS_DELETE, quoted
from tidelake.silver.quality import bounded, compile_rules, patterns, type_errors
from tidelake.typed import runnable
from tidelake.visible import kind_of_text, shortened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SITE = "tidelake"
# Counts without examples: the pages are kept, and who reads them may not see every column.
_RESULT = {"result_format": "BASIC", "partial_unexpected_count": 0}
_LONGEST = 119


@dataclass(frozen=True)
class GateResult:
    """The result of one expectation on a table, given by its logical name.

    Attributes:
        text: The expectation with its columns and arguments.
        severity: ``critical`` or ``warning``.
        observed: The observed value as a short text, or why it could not be evaluated.
        unexpected: Number of unexpected rows; None if the expectation does not count rows.
    """

    table: str
    type: str
    text: str
    severity: str
    passed: bool
    observed: str
    unexpected: int | None


@dataclass(frozen=True)
class GateReport:
    """The results in the order of the suite, silver first, and the index page of Data Docs."""

    results: tuple[GateResult, ...]
    docs: Path

    @property
    def passed(self) -> bool:
        """Whether no critical expectation failed."""
        return all(result.passed or result.severity == "warning" for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        return asdict(self) | {"passed": self.passed, "docs": str(self.docs)}


def judge_by_suites(
    spark: SparkSession, lake: Lake, pipeline: Pipeline, *, docs: Path, now: datetime
) -> GateReport:
    """Validate a pipeline's silver, and the gold tables that its suite names, as they are now.

    A failed expectation is in the report and raises nothing: see :attr:`GateReport.passed`.
    The session must be in UTC. ``docs`` is the folder of Data Docs, which keeps the pages of
    earlier runs; ``now`` (with a time zone) is the value of ``now`` in the suite. The pipeline has
    a suite or rules of its own.

    Raises:
        UsageError: A table does not exist yet.
        MachineError: Great Expectations is not installed.
    """
    suite = pipeline.suite
    silver, of_gold = lake.silver(pipeline.name), suite.gold if suite else {}
    # Rules are judged apart: their columns would count as columns of the table.
    wanted = [(silver, suite.expectations if suite else ()), (silver, pipeline.inline_rules)]
    wanted += [(lake.gold(name), expectations) for name, expectations in of_gold.items()]
    missing = dict.fromkeys(table.name for table, _ in wanted if not table.exists)
    if missing:
        raise UsageError(
            f"{', '.join(missing)} does not exist yet; "
            f"fill it with: {runnable('tidelake run', pipeline.name)}"
        )
    # The results already contain what Great Expectations would log.
    log = logging.getLogger("great_expectations")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        context = _context(docs)
        results = [
            result
            for table, expectations in wanted
            if expectations
            for result in _judge(context, table.name, _rows(spark, table), expectations, now)
        ]
        _hide_messages(context.validation_results_store)
        context.build_data_docs(site_names=[_SITE])
    finally:
        log.setLevel(level)
    return GateReport(tuple(results), docs / "index.html")


def _rows(spark: SparkSession, table: Table) -> DataFrame:
    """Load a table; of a dimension's changes without deletions, which the stream does not judge."""
    rows = load(spark, table)
    return rows.where(f"NOT {IS_DELETE}") if IS_DELETE in rows.columns else rows


def import_gx() -> Any:
    """Import Great Expectations; if it is missing, a MachineError says how to install it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "module 'sre_", DeprecationWarning)
        return imported("Great Expectations", "great_expectations", extra="quality")[0]


def _context(docs: Path) -> Any:
    gx = import_gx()
    from great_expectations.data_context.types.base import (  # noqa: PLC0415
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    config = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(),
        data_docs_sites={
            _SITE: {
                "class_name": "SiteBuilder",
                "show_how_to_buttons": False,
                "store_backend": {
                    "class_name": "TupleFilesystemStoreBackend",
                    "base_directory": str(docs.resolve()),
                },
            }
        },
        analytics_enabled=False,
        progress_bars=ProgressBarsConfig(globally=False),
    )
    return gx.get_context(project_config=config, mode="ephemeral", cloud_mode=False)


def _judge(
    context: Any, name: str, frame: DataFrame, expectations: Sequence[Expectation], now: datetime
) -> Iterator[GateResult]:
    found: Mapping[int, Any] = {}
    failure = "Great Expectations gave no result"
    types = dict(frame.dtypes)
    rules = [
        one for one in expectations if one.type == SQL_RULE and not any(type_errors(one, types))
    ]
    try:
        # Adding them one by one would merge two that differ only in an explicit default.
        checks = [as_gx(expectation, types, now) for expectation in expectations]
        judged = frame.withColumns({rule.text: rule.fails for rule in compile_rules(rules, types)})
        found = _validate(context, f"{name} rules" if rules else name, judged, checks, now)
    except Exception as error:  # nothing was evaluated, so nothing may pass
        failure = kind_of_text(str(error)) or type(error).__name__
    for index, expectation in enumerate(expectations):
        result: Any = found.get(index)
        raised = failure if result is None else _exception_text(result)
        raised = _never_met(expectation, types) or raised
        outcome = result.result if raised is None else {}
        if expectation.type == SQL_RULE and outcome:
            outcome = {"unexpected_count": outcome["observed_value"]}
        yield GateResult(
            table=name,
            type=expectation.type,
            text=expectation.text,
            severity=expectation.severity,
            passed=raised is None and bool(result.success),
            observed=raised or _observed_text(outcome, expectation, types),
            unexpected=outcome.get("unexpected_count"),
        )


def _never_met(expectation: Expectation, types: Mapping[str, str]) -> str:
    """Say that Great Expectations never finds an expectation met on a type; empty if it may."""
    simple = types.get(expectation.kwargs.get("column", ""), "")
    if expectation.type == "expect_column_mean_to_be_between":
        is_refused = simple in ("tinyint", "smallint")
    elif expectation.type == "expect_column_most_common_value_to_be_in_set":
        # It compares Python's values with those of the suite, in which Decimal("0.1") is not 0.1.
        numbers = [one for one in expectation.kwargs["value_set"] if isinstance(one, float)]
        is_inexact = any(Decimal(repr(one)) != one for one in numbers)
        is_refused = simple.startswith(("date", "time")) or ("decimal" in simple and is_inexact)
    else:
        is_refused = False
    return f"Great Expectations cannot evaluate it on {simple}" if is_refused else ""


def _validate(
    context: Any, name: str, frame: DataFrame, checks: list[Any], now: datetime
) -> dict[int, Any]:
    """Run one validation and return the results by index of the expectation."""
    gx = import_gx()
    asset = context.data_sources.add_spark(name, persist=False).add_dataframe_asset(name)
    batch = asset.add_batch_definition_whole_dataframe(name)
    suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=checks))
    numbers = {each.id: index for index, each in enumerate(suite.expectations)}
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(name=name, data=batch, suite=suite)
    )
    run = definition.run(
        batch_parameters={"dataframe": frame},
        result_format=_RESULT,
        run_id=gx.RunIdentifier(run_name=now.strftime("%Y%m%dT%H%M%S"), run_time=now),
    )
    return {numbers[result.expectation_config.id]: result for result in run.results}


def _hide_messages(store: Any) -> None:
    """Reduce errors in the stored results to their kinds: a message may quote a row's value."""
    for key in store.list_keys():
        found = store.get(key)
        for raised in (part for result in found.results for part in _exceptions(result)):
            raised["exception_message"] = kind_of_text(str(raised["exception_message"]))
            raised["exception_traceback"] = ""
        store.set(key, found)


def _exceptions(result: Any) -> list[dict[str, Any]]:
    info = result.exception_info or {}
    parts = [info] if "raised_exception" in info else list(info.values())
    return [part for part in parts if part["raised_exception"]]


def _exception_text(result: Any) -> str | None:
    """Return the error of an expectation as one line; None if it raised none."""
    messages = [part["exception_message"] for part in _exceptions(result)]
    if not messages:
        return None
    return kind_of_text(next((str(message) for message in messages if message), "")) or "raised"


def _observed_text(
    result: Mapping[str, Any], expectation: Expectation, types: Mapping[str, str]
) -> str:
    """Format a result of format BASIC as a short text, instants in UTC."""
    count = result.get("unexpected_count")
    if count is not None:
        total = result.get("element_count")
        return f"{count} unexpected" if total is None else f"{count} of {total} rows"
    value = result.get("observed_value")
    of_instants = any(types.get(name) == "timestamp" for name in expectation.columns)
    if isinstance(value, datetime) and value.tzinfo is None and of_instants:
        value = value.astimezone(UTC)
    if isinstance(value, date | datetime):
        return value.isoformat()
    return "nothing" if value is None else shortened(str(value), _LONGEST)


def as_gx(expectation: Expectation, types: dict[str, str], now: datetime) -> Any:
    """Convert an expectation to Great Expectations' object, given the columns' simple types."""
    from great_expectations.expectations.expectation_configuration import (  # noqa: PLC0415
        ExpectationConfiguration,
    )
    from great_expectations.expectations.metadata_types import FailureSeverity  # noqa: PLC0415
    from great_expectations.expectations.row_conditions import PassThroughCondition  # noqa: PLC0415

    if expectation.type == SQL_RULE:
        # The query is a format string, in which braces are doubled.
        broken = quoted(expectation.text).replace("{", "{{").replace("}", "}}")
        return import_gx().expectations.UnexpectedRowsExpectation(
            unexpected_rows_query=f"SELECT * FROM {{batch}} WHERE {broken}",
            meta={"rule": expectation.kwargs["name"]},
            severity=FailureSeverity(expectation.severity),
        )
    kwargs = {key: value for key, value in expectation.kwargs.items() if key != "condition_parser"}
    if "row_condition" in kwargs:
        # A condition given as a string with a parser is deprecated and warns at each use.
        where = _guarded(kwargs["row_condition"])
        kwargs["row_condition"] = PassThroughCondition(pass_through_filter=where)
    kinds, fails_on_match = SIGNATURES[expectation.type].arguments, "_not_" in expectation.type
    for key, value in kwargs.items():
        if kinds[key] == "bound":
            kwargs[key] = as_bound(value)
        elif kinds[key] == "moment":
            moment = from_now(value, now) if is_parameter(value) else as_bound(value)
            kwargs[key] = _as_collected(moment, types.get(kwargs["column"], ""))
        elif kinds[key] == "regex":
            kwargs[key] = bounded(value, takes_long=fails_on_match)
        elif kinds[key] == "regexes":
            regexes = value if fails_on_match else patterns(kwargs)
            kwargs[key] = [bounded(one, takes_long=fails_on_match) for one in regexes]
    configuration = ExpectationConfiguration(
        type=expectation.type,
        kwargs=kwargs,
        meta=dict(expectation.meta),
        severity=FailureSeverity(expectation.severity),
    )
    return configuration.to_domain_obj()


def _guarded(condition: str) -> str:
    """Let a condition fail where its regular expressions may overflow the stack on a long text."""
    long = [f"length({text}) > {MOST_LETTERS}" for text in texts_to_bound(condition)]
    if not long:
        return condition
    why = "raise_error('a text is too long for the pattern of row_condition')"
    return f"CASE WHEN {' OR '.join(long)} THEN {why} ELSE (\n{condition}\n) END"


def _as_collected(bound: float | date | datetime, simple: str) -> float | date | datetime:
    """Convert a bound to the type in which Spark collects the column's largest value.

    An instant is collected as a naive time in the local time zone of this process.
    """
    if isinstance(bound, float):
        return bound
    if not isinstance(bound, datetime):
        bound = datetime.combine(bound, time(), UTC)
    zone = UTC if simple in ("date", "timestamp_ntz") else None
    try:
        found = bound.astimezone(zone).replace(tzinfo=None)
    except OverflowError:
        # At an end of the calendar, which is another instant in each time zone.
        found = datetime.max if bound.year > 1 else datetime.min
    return found.date() if simple == "date" else found
