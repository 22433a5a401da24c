"""Judge whole tables by a suite, with Great Expectations on Spark: the only module that uses it.

Nothing leaves the machine: the context lives in memory and its analytics are off. What Great
Expectations cannot judge counts as failed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelake.config.arguments import as_bound, from_now, is_parameter
from tidelake.config.expectations import SIGNATURES, Expectation, Suite
from tidelake.delta.access import load
from tidelake.delta.tables import Lake, Table
from tidelake.errors import MachineError, UsageError
from tidelake.foreign import kind_of_text
from tidelake.ops.gate_report import (
    GateReport,
    GateResult,
    exception_text,
    observed_text,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["GateReport", "GateResult", "as_gx", "import_gx", "judge_tables"]

_SITE = "tidelake"
_RESULT = {"result_format": "BASIC", "partial_unexpected_count": 5}


def judge_tables(
    spark: SparkSession,
    lake: Lake,
    pipeline_name: str,
    suite: Suite,
    *,
    docs: Path,
    now: datetime,
) -> GateReport:
    """Hold a pipeline's silver and gold tables against a suite.

    Args:
        spark: A session in UTC.
        lake: Where the tables lie.
        pipeline_name: Whose silver table it is.
        suite: What is expected.
        docs: The folder for Data Docs; pages of earlier runs stay in it.
        now: What ``now`` stands for in the suite, with a time zone.

    Returns:
        The verdict, and where Data Docs begin.

    Raises:
        UsageError: A table does not exist yet.
        MachineError: Great Expectations is not installed.
    """
    wanted = [(lake.silver(pipeline_name), suite.expectations)]
    wanted += [(lake.gold(name), expectations) for name, expectations in suite.gold.items()]
    missing = [table.name for table, _ in wanted if not table.exists]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} does not exist yet; fill it with: tidelake run {pipeline_name}"
        )
    with _quietly():
        context = _context(docs)
        results = [
            result
            for table, expectations in wanted
            for result in _judge(context, spark, table, expectations, now)
        ]
        context.build_data_docs(site_names=[_SITE])
    return GateReport(tuple(results), docs / "index.html")


def import_gx() -> Any:
    """Import Great Expectations, which is slow and optional.

    Raises:
        MachineError: It is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "module 'sre_", DeprecationWarning)
            import great_expectations  # noqa: PLC0415
    except ImportError as error:
        raise MachineError(
            "Great Expectations is not installed. Install it with: pip install 'tidelake[quality]'"
        ) from error
    return great_expectations


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
                "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
            }
        },
        analytics_enabled=False,
        progress_bars=ProgressBarsConfig(globally=False),
    )
    return gx.get_context(project_config=config, mode="ephemeral", cloud_mode=False)


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep Great Expectations' own log off the terminal; what matters of it is in the results."""
    log = logging.getLogger("great_expectations")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


def _judge(
    context: Any,
    spark: SparkSession,
    table: Table,
    expectations: Sequence[Expectation],
    now: datetime,
) -> Iterator[GateResult]:
    frame = load(spark, table)
    found: Mapping[int, Any] = {}
    failure = "Great Expectations gave no result"
    try:
        found = _validate(context, table.name, frame, expectations, now)
    except Exception as error:  # whatever it is, nothing was judged, and that must not pass
        failure = kind_of_text(str(error)) or type(error).__name__
    types = dict(frame.dtypes)
    for index, expectation in enumerate(expectations):
        result: Any = found.get(index)
        raised = failure if result is None else exception_text(result)
        outcome = result.result if raised is None else {}
        yield GateResult(
            table=table.name,
            type=expectation.type,
            text=expectation.text,
            severity=expectation.severity,
            passed=raised is None and bool(result.success),
            observed=raised or observed_text(outcome, expectation, types),
            unexpected=outcome.get("unexpected_count"),
        )


def _validate(
    context: Any,
    name: str,
    frame: DataFrame,
    expectations: Sequence[Expectation],
    now: datetime,
) -> dict[int, Any]:
    """Run one validation; its results by the number of the expectation."""
    gx = import_gx()
    source = context.data_sources.add_spark(name, persist=False)
    asset = source.add_dataframe_asset(name)
    batch = asset.add_batch_definition_whole_dataframe(name)
    types = dict(frame.dtypes)
    # Added one by one, those equal but for a default that is written out would become one.
    judges = [as_gx(expectation, types, now) for expectation in expectations]
    suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=judges))
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


def as_gx(expectation: Expectation, types: dict[str, str], now: datetime) -> Any:
    """Make Great Expectations' own object of an expectation.

    Args:
        expectation: What is expected.
        types: Name of each column to its type, as Spark's simple string.
        now: What ``now`` stands for.
    """
    from great_expectations.expectations.expectation_configuration import (  # noqa: PLC0415
        ExpectationConfiguration,
    )
    from great_expectations.expectations.metadata_types import (  # noqa: PLC0415
        FailureSeverity,
    )
    from great_expectations.expectations.row_conditions import (  # noqa: PLC0415
        PassThroughCondition,
    )

    kwargs = {key: value for key, value in expectation.kwargs.items() if key != "condition_parser"}
    if "row_condition" in kwargs:
        # The text and its parser are deprecated, and each use of them warns.
        kwargs["row_condition"] = PassThroughCondition(pass_through_filter=kwargs["row_condition"])
    kinds = SIGNATURES[expectation.type].arguments
    for key, value in kwargs.items():
        if kinds[key] == "bound":
            kwargs[key] = as_bound(value)
        elif kinds[key] == "moment":
            moment = from_now(value, now) if is_parameter(value) else as_bound(value)
            kwargs[key] = _as_collected(moment, types.get(kwargs["column"], ""))
    configuration = ExpectationConfiguration(
        type=expectation.type,
        kwargs=kwargs,
        meta=dict(expectation.meta),
        severity=FailureSeverity(expectation.severity),
    )
    return configuration.to_domain_obj()


def _as_collected(bound: float | date | datetime, simple: str) -> float | date | datetime:
    """Give a bound the form in which Spark's driver collects the column's largest value.

    An instant is collected as a naive time on the clock of this process, wherever that hangs.
    """
    if isinstance(bound, float):
        return bound
    if not isinstance(bound, datetime):
        if simple == "date":
            return bound
        bound = datetime.combine(bound, time(), UTC)
    if simple == "date":
        return bound.astimezone(UTC).date()
    zone = UTC if simple == "timestamp_ntz" else None
    return bound.astimezone(zone).replace(tzinfo=None)
