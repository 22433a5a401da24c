"""Derive each table's schema from the definition, by letting Spark analyse it on no rows.

Silver, and the tables beside it, are made or brought up to date with theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidelake.bronze import REQUEUE_DDL
from tidelake.config import Pipeline
from tidelake.config.meanings import meaning_of
from tidelake.config.names import IS_DELETE, SEQUENCE
from tidelake.delta.access import load
from tidelake.delta.append import ensure_table
from tidelake.delta.evolution import Freedom
from tidelake.errors import ConfigError, Violation
from tidelake.runtime.avro import reading_problem
from tidelake.runtime.enrichment import enriched
from tidelake.runtime.gold_inputs import inputs_of
from tidelake.runtime.hop import Run
from tidelake.runtime.targets import OWN, Inputs, Target, stamped, targets_of
from tidelake.silver.classify import payload_scope
from tidelake.silver.dedup import Repeats
from tidelake.silver.payloads import read_payloads
from tidelake.silver.plan import SilverPlan
from tidelake.silver.route import QUARANTINE_DDL, decide, marked, to_late, to_silver

# How far a gold table may follow the definition without a rebuild: its columns are fixed, their
# types grow with silver's, and where a sum needs a larger one than an earlier version gave it.
GOLD_FREEDOM: Freedom = "types"


def from_ddl(spark: SparkSession, ddl: str) -> StructType:
    """Parse a schema that we wrote ourselves."""
    return spark.createDataFrame([], ddl).schema


def silver_schema(spark: SparkSession, plan: SilverPlan) -> StructType:
    """Give silver's columns."""
    return _schemas(spark, plan)["silver"]


def late_schema(spark: SparkSession, plan: SilverPlan) -> StructType:
    """Give the late table's columns."""
    return _schemas(spark, plan)["late"]


def _schemas(spark: SparkSession, plan: SilverPlan) -> dict[str, StructType]:
    if not plan.schemas:
        judged = plan.judge(spark.createDataFrame([], REQUEUE_DDL))
        allowed = plan.pipeline.watermark.allowed_lateness
        decided = decide(judged, Repeats(None, 0), plan.fates, watermark=None, allowed=allowed)
        rows, mark = enriched(decided, plan, []), marked(None)
        plan.schemas = {
            "silver": to_silver(rows, plan.routing, generation="", batch=0).schema,
            "late": to_late(rows, plan.routing, watermark=mark, generation="", batch=0).schema,
        }
    return plan.schemas


def create_silver(run: Run, note: dict[str, Any]) -> None:
    """Create silver and the tables beside it, or bring those that exist to the definition.

    Args:
        run: What the command works with.
        note: Of the commit that makes a table.

    Raises:
        SchemaChangedError: The definition does not fit a stored table.
    """
    spark, pipeline, lake = run.spark, run.pipeline, run.lake
    freedom = silver_freedom(pipeline)
    for table, schema in (
        (lake.late(pipeline.name), late_schema(spark, run.plan)),
        (lake.quarantine(pipeline.name), from_ddl(spark, QUARANTINE_DDL)),
        (lake.silver(pipeline.name), silver_schema(spark, run.plan)),
    ):
        side = table == lake.quarantine(pipeline.name)
        ensure_table(
            spark,
            table,
            schema,
            note,
            meaning=meaning_of(pipeline, table.name),
            freedom="none" if side else freedom,
        )


def silver_freedom(pipeline: Pipeline) -> Freedom:
    """Say how far silver and late may follow the definition without a rebuild."""
    return "none" if pipeline.event.evolution == "strict" else "columns"


def target_schema(run: Run, target: Target) -> StructType:
    """Give a gold table's columns, in the order in which analysts read them."""
    inputs = _empty_inputs(run)
    rows = target.of_all(Inputs(inputs, inputs.__getitem__))
    return stamped(rows, generation="", batch=0).schema


def _empty_inputs(run: Run) -> dict[str, DataFrame]:
    """Give each input of gold without a row; those of other pipelines only where they exist."""
    empty = {}
    for key, table in inputs_of(run.lake, run.pipeline).items():
        if key == OWN:
            empty[key] = run.spark.createDataFrame([], silver_schema(run.spark, run.plan))
        elif table.exists:
            empty[key] = load(run.spark, table).limit(0)
    return empty


def known_targets(run: Run) -> list[Target]:
    """List the gold tables whose inputs all exist, or can be derived from the definition."""
    return _known_from(run, _empty_inputs(run))


def _known_from(run: Run, inputs: Mapping[str, DataFrame]) -> list[Target]:
    targets = targets_of(run.lake, run.pipeline)
    return [target for target in targets if set(target.inputs) <= inputs.keys()]


def check_definition(run: Run) -> None:
    """Let Spark analyse every expression on no rows, before anything is written.

    Raises:
        ConfigError: Lists every expression that Spark does not understand.
    """
    spark, pipeline = run.spark, run.pipeline
    if pipeline.avro_schema is not None:
        problem = reading_problem(spark, pipeline.avro_schema)
        if problem:
            raise ConfigError(pipeline.file, [Violation("source.schema", problem)])
    rows = spark.createDataFrame([], REQUEUE_DDL)
    scope = payload_scope(read_payloads(rows, pipeline), pipeline)
    violations = _refused(scope, _event_expressions(pipeline))
    if not violations:
        inputs = _empty_inputs(run)
        for target in _known_from(run, inputs):
            for path, (key, column) in target.expressions().items():
                violations += _refused(inputs[key], {f"{target.place}.{path}": column})
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
    selected = {_place(name): F.expr(sql) for name, sql in pipeline.selected.items()}
    return named | selected


def _place(column: str) -> str:
    own = {SEQUENCE: "event.sequence", IS_DELETE: "event.delete_when"}
    return own.get(column, f"event.select.{column}")


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
