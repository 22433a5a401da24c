"""Derive each table's schema from the definition, by letting Spark analyse it on no rows."""

from __future__ import annotations

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidelake.bronze import REQUEUE_DDL
from tidelake.config import GlobalWindow, GoldTable, Pipeline, SessionWindow
from tidelake.errors import ConfigError, Violation
from tidelake.gold.measures import columns_of, states_of
from tidelake.gold.sessions import ABSORBED, session_id, to_sessions
from tidelake.gold.windows import BOUNDS, to_partials
from tidelake.reuse import reused
from tidelake.silver.classify import classify, payload_scope
from tidelake.silver.parse import parse
from tidelake.silver.route import decide, to_late, to_silver
from tidelake.sinks.evolution import Freedom


def from_ddl(spark: SparkSession, ddl: str) -> StructType:
    """Parse a schema that we wrote ourselves."""
    return spark.createDataFrame([], ddl).schema


def silver_schema(spark: SparkSession, pipeline: Pipeline) -> StructType:
    """Give silver's columns."""
    return _silver_schema(pipeline, spark)


def late_schema(spark: SparkSession, pipeline: Pipeline) -> StructType:
    """Give the late table's columns."""
    return _late_schema(pipeline, spark)


@reused
def _silver_schema(pipeline: Pipeline, spark: SparkSession) -> StructType:
    return to_silver(_decided(spark, pipeline), pipeline, generation="", batch=0).schema


@reused
def _late_schema(pipeline: Pipeline, spark: SparkSession) -> StructType:
    return to_late(
        _decided(spark, pipeline), pipeline, watermark=None, generation="", batch=0
    ).schema


def silver_freedom(pipeline: Pipeline) -> Freedom:
    """Say how far silver and late may follow the definition without a rebuild."""
    return "none" if pipeline.event.evolution == "strict" else "columns"


def gold_freedom(pipeline: Pipeline) -> Freedom:
    """Say how far gold may: its columns' types grow with silver's, its columns are fixed."""
    return "none" if pipeline.event.evolution == "strict" else "types"


def gold_schema(spark: SparkSession, pipeline: Pipeline, table: GoldTable) -> StructType:
    """Give a gold table's columns, in the order in which analysts read them."""
    events = spark.createDataFrame([], silver_schema(spark, pipeline))
    return gold_columns(aggregate(events, table), table, generation="", batch=0).schema


def gold_columns(
    aggregated: DataFrame, table: GoldTable, *, generation: str, batch: int
) -> DataFrame:
    """Order an aggregate's columns and add where they come from.

    A session's mark of absorption is kept, since the merge acts on it.
    """
    if isinstance(table.window, SessionWindow):
        leading = [*table.keys, "session_id", "session_start", "session_end"]
    elif isinstance(table.window, GlobalWindow):
        leading = list(table.keys)
    else:
        leading = [*BOUNDS, *table.keys]
    marks = [ABSORBED] if ABSORBED in aggregated.columns else []
    return aggregated.select(
        *leading,
        *columns_of(table),
        *marks,
        F.lit(generation).alias("_generation"),
        F.lit(batch).cast("bigint").alias("_batch"),
    )


def check_definition(spark: SparkSession, pipeline: Pipeline) -> None:
    """Let Spark analyse every expression on no rows, before anything is written.

    Raises:
        ConfigError: Lists every expression that Spark does not understand.
    """
    rows = spark.createDataFrame([], REQUEUE_DDL)
    scope = payload_scope(parse(rows, pipeline.event), pipeline)
    violations = _refused(scope, _event_expressions(pipeline))
    if not violations:
        events = spark.createDataFrame([], silver_schema(spark, pipeline))
        for number, table in enumerate(pipeline.gold):
            found = _refused(events, _gold_expressions(table))
            violations += [Violation(f"gold[{number}].{one.path}", one.message) for one in found]
    if violations:
        raise ConfigError(pipeline.file, violations)


def _event_expressions(pipeline: Pipeline) -> dict[str, Column]:
    event = pipeline.event
    named = {
        "event.id": F.expr(event.id).cast("string"),
        "event.time": F.expr(event.time).cast("timestamp"),
    }
    if event.where:
        named["event.where"] = F.coalesce(F.expr(event.where), F.lit(False))
    selected = {f"event.select.{name}": F.expr(sql) for name, sql in pipeline.selected.items()}
    return named | selected


def _gold_expressions(table: GoldTable) -> dict[str, Column]:
    named = {"where": F.count_if(F.expr(table.where))} if table.where else {}
    partials = {
        f"measures.{state.name.lstrip('_')}": F.expr(state.partial) for state in states_of(table)
    }
    return named | partials


def _refused(frame: DataFrame, expressions: dict[str, Column]) -> list[Violation]:
    """Analyse each expression by itself, so that each failure has its place."""
    violations = []
    for path, column in expressions.items():
        try:
            frame.select(column)
        except (AnalysisException, ParseException) as error:
            violations.append(Violation(path, _reason(error)))
    return violations


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _decided(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    rows = spark.createDataFrame([], REQUEUE_DDL)
    return decide(
        classify(rows, pipeline), None, watermark=None, allowed=pipeline.watermark.allowed_lateness
    )


def aggregate(events: DataFrame, table: GoldTable) -> DataFrame:
    """Aggregate silver's rows as a gold table holds them."""
    kept = events.where(table.where) if table.where else events
    if isinstance(table.window, SessionWindow):
        return to_sessions(kept, table).withColumn("session_id", session_id(table))
    return to_partials(kept, table)
