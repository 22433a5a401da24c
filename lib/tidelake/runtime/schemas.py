"""Derive each table's schema from the definition, by letting Spark analyse it on no rows.

Silver, and the tables beside it, are made or brought up to date with theirs. What silver looks up
in dimensions, and what Spark's reader of Avro can take, is part of a definition's schema.

The schemas of a pipeline's records are remembered, or the registry is asked for them. What it
answers changes with time, a row's fate may not. So answers are written into a table before anything
is decided by them. That a schema is accepted holds for good; that it is refused holds for the rows
that had arrived, and rows that come later ask again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidelake.bronze import REQUEUE_DDL
from tidelake.columns import stamped
from tidelake.config import Enrich, Pipeline, Registry
from tidelake.config.meanings import meaning_of
from tidelake.config.names import IS_DELETE, SEQUENCE
from tidelake.delta.access import load
from tidelake.delta.append import Freedom, append, ensure_table
from tidelake.delta.log import CREATION, FIRST_GENERATION, last_commit, newest_version
from tidelake.delta.merge import compact, is_due
from tidelake.delta.tables import Lake, Table
from tidelake.errors import ConfigError, UsageError, Violation
from tidelake.gold.kinds import OWN, Inputs
from tidelake.instants import from_micros, to_json
from tidelake.kafka.registry import Version, incompatibility, versions_of
from tidelake.runtime.failures import FOREIGN
from tidelake.runtime.gold_tables import Target, inputs_of, targets_of
from tidelake.runtime.hop import Run
from tidelake.silver.avro_schema import problem_of
from tidelake.silver.classify import SELECTED, payload_scope
from tidelake.silver.dedup import Repeats
from tidelake.silver.enrich import look_up, without_entry
from tidelake.silver.payloads import (
    Refusal,
    WriterSchemas,
    arrival,
    not_registered,
    read_payloads,
    schema_id,
    trial,
)
from tidelake.silver.plan import SilverPlan
from tidelake.silver.route import QUARANTINE_DDL, decide, marked, to_late, to_silver
from tidelake.spark.java import AVRO_LIMITS, AVRO_OPTIONS

# How far a gold table may follow the definition without a rebuild: its columns are fixed, their
# types grow with silver's, and where a sum needs a larger one than an earlier version gave it.
GOLD_FREEDOM: Freedom = "types"
_SHOWN = 300
_PYTHONS_OWN = re.compile(r"^An error occurred while calling \S+ : (?:[\w.$]+: )?")


def from_ddl(spark: SparkSession, ddl: str) -> StructType:
    """Parse a schema that we wrote ourselves."""
    return spark.createDataFrame([], ddl).schema


def from_records(spark: SparkSession, records: Sequence[Mapping[str, Any]], ddl: str) -> DataFrame:
    """Make a frame of records that this process has, with the columns of a DDL.

    As text, which Spark parses: a list of Python rows would go through a Python worker.
    """
    text = F.lit(json.dumps(records))
    return spark.range(1).select(F.inline(F.from_json(text, f"array<struct<{ddl}>>")))


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
    """Create silver and its side tables, or bring those that exist to the definition."""
    spark, pipeline, lake = run.spark, run.pipeline, run.lake
    free = silver_freedom(pipeline)
    wanted: list[tuple[Table, StructType, Freedom]] = [
        (lake.late(pipeline.name), late_schema(spark, run.plan), free),
        (lake.quarantine(pipeline.name), from_ddl(spark, QUARANTINE_DDL), "none"),
        (lake.silver(pipeline.name), silver_schema(spark, run.plan), free),
    ]
    for table, schema, freedom in wanted:
        meaning = meaning_of(pipeline, table.name)
        ensure_table(spark, table, schema, note, meaning=meaning, freedom=freedom)


def silver_freedom(pipeline: Pipeline) -> Freedom:
    """Say how far silver and late may follow the definition without a rebuild."""
    return "none" if pipeline.event.evolution == "strict" else "columns"


def target_schema(run: Run, target: Target) -> StructType:
    """Give a gold table's columns, in the order in which analysts read them."""
    inputs = _empty_inputs(run)
    rows = target.kind.of_all(Inputs(inputs, inputs.__getitem__))
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


def known_targets(run: Run, inputs: Mapping[str, DataFrame] | None = None) -> list[Target]:
    """List the gold tables whose inputs all exist, or can be derived from the definition."""
    known = (_empty_inputs(run) if inputs is None else inputs).keys()
    return [one for one in targets_of(run.lake, run.pipeline) if set(one.kind.sources) <= known]


def check_definition(run: Run) -> None:
    """Let Spark analyse every expression on no rows; a ConfigError lists all that it refuses."""
    spark, pipeline = run.spark, run.pipeline
    if pipeline.avro_schema is not None:
        problem = reading_problem(spark, pipeline.avro_schema)
        if problem:
            raise ConfigError(pipeline.file, [Violation("source.schema", problem)])
    scope = payload_scope(read_payloads(spark.createDataFrame([], REQUEUE_DDL), pipeline), pipeline)
    violations = _refused(scope, _event_expressions(pipeline))
    if not violations:
        inputs = _empty_inputs(run)
        for target in known_targets(run, inputs):
            for path, one in target.kind.expressions().items():
                place = f"{target.kind.place}.{path}"
                column = F.expr(one.sql)
                wanted = F.count_if(column) if one.is_condition else column
                violations += _refused(inputs[one.key], {place: wanted})
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
    own = {SEQUENCE: "event.sequence", IS_DELETE: "event.delete_when"}
    for name, sql in pipeline.selected.items():
        named[own.get(name, f"event.select.{name}")] = F.expr(sql)
    return named


def _refused(frame: DataFrame, expressions: dict[str, Column]) -> list[Violation]:
    """Analyse each expression by itself, so that each failure has its place."""
    violations = []
    for path, column in expressions.items():
        try:
            frame.select(column)
        except (AnalysisException, ParseException) as error:
            violations.append(Violation(path, str(error).strip().splitlines()[0]))
    return violations


def reading_problem(spark: SparkSession, schema: str) -> str:
    """Say why records of an Avro schema cannot be read; empty where they can."""
    problem = problem_of(schema)
    if problem:
        return problem
    try:
        spark.range(0).select(trial(schema))
    except FOREIGN as error:
        told = " ".join(str(error).split())
        return f"cannot be read by Spark: {_PYTHONS_OWN.sub('', told)[:_SHOWN]}"
    return ""


def refuse_unlimited(spark: SparkSession) -> None:
    """Raise a UsageError unless the JVM refuses lengths that no record of Avro has.

    A broken record may announce two billion letters; the reader makes room for them before it
    looks whether they are there, and the JVM dies of it, again at each restart.
    """
    given = spark.conf.get("spark.driver.extraJavaOptions", "") or ""
    if not all(limit in given for limit in AVRO_LIMITS):
        raise UsageError(
            "Avro is read only where the JVM bounds the lengths that a broken record may announce. "
            "Add to spark.driver.extraJavaOptions and spark.executor.extraJavaOptions: "
            f"{AVRO_OPTIONS}"
        )


@dataclass(frozen=True)
class Lookup:
    """One enrichment of a batch, at a version of the dimension's table.

    The version is -1 where the table is not there yet, and no row finds anything.
    """

    enrich: Enrich
    table: Table
    version: int


def lookups(lake: Lake, pipeline: Pipeline) -> list[Lookup]:
    """Pin every dimension that a pipeline's silver looks into, each at one version."""
    found = []
    for enrich in pipeline.enrich:
        suffix = "__history" if enrich.as_of else ""
        table = lake.table(f"dim.{enrich.dimension}{suffix}")
        found.append(Lookup(enrich, table, newest_version(table)))
    return found


def enriched(rows: DataFrame, plan: SilverPlan, pinned: Sequence[Lookup]) -> DataFrame:
    """Look every row up in every dimension, where nothing is pinned without finding anything.

    ``rows`` come from :func:`tidelake.silver.route.decide`, ``pinned`` from :func:`lookups`.
    """
    spark = rows.sparkSession
    for number, enrich in enumerate(plan.pipeline.enrich):
        lookup = pinned[number] if pinned else None
        if lookup is None or lookup.version < 0:
            kind = _entry_type(plan, enrich.dimension, spark)
            chosen = StructType([kind[name] for name in enrich.columns])
            rows = without_entry(rows, chosen, number)
        else:
            entries = load(spark, lookup.table, version=lookup.version)
            rows = look_up(rows, entries, enrich, number)
    return rows


def _entry_type(plan: SilverPlan, dimension: str, spark: SparkSession) -> StructType:
    """Give the types of a dimension's columns by its definition."""
    if dimension not in plan.entry_types:
        of_dimension = SilverPlan(plan.pipeline.dimensions[dimension])
        rows = of_dimension.judge(spark.createDataFrame([], REQUEUE_DDL))
        selected = rows.schema[SELECTED].dataType
        assert isinstance(selected, StructType)
        plan.entry_types[dimension] = selected
    return plan.entry_types[dimension]


SCHEMAS_DDL = (
    "schema_id bigint, schema string, refusal string, refused_through timestamp, found_at timestamp"
)


class _Line(NamedTuple):
    """A row of the table: a schema, why it is refused, up to which arrival (epoch microseconds)."""

    schema_id: int
    schema: str | None
    refusal: str | None = None
    refused_through: int | None = None


def remembered(run: Run, *, stands: Column | None = None) -> WriterSchemas | None:
    """Read what is known of a pipeline's schemas; None where it has no registry.

    ``stands``: for which rows a refusal holds although its schema was accepted later; None: for
    those that had arrived.
    """
    registry = run.pipeline.registry
    if registry is None:
        return None
    nothing = WriterSchemas(registry.subject, {}, stands=stands)
    table = run.lake.schemas(run.pipeline.name)
    if not table.exists:
        return nothing
    stored = load(run.spark, table)
    through = F.unix_micros("refused_through").alias("refused_through")
    rows = stored.select("schema_id", "schema", "refusal", through).collect()
    return _with_lines(nothing, [_Line(*row) for row in rows])


def schemas_for(
    run: Run, rows: DataFrame, *, anew: bool = False, keeps: bool = True
) -> WriterSchemas | None:
    """Give the schemas by which rows are to be read; None where the pipeline has no registry.

    Args:
        run: What the command works with.
        rows: Bronze's columns plus ``requeued_at``.
        anew: Whether the rows are decided whatever became of them before: a schema that was
            refused once and is accepted now holds for all of them.
        keeps: Whether answers are written down; without, they are only looked at.
    """
    registry = run.pipeline.registry
    known = remembered(run, stands=F.lit(False) if anew else None)
    if known is None or registry is None:
        return None
    reached = _reached(rows)
    through: dict[int, int] = {}
    for one in known.refusals:
        through[one.schema_id] = max(one.through, through.get(one.schema_id, one.through))
    asked = {
        key: last
        for key, last in reached.items()
        if key not in known.accepted and (anew or last > through.get(key, -1))
    }
    if asked:
        answers = _answers(run.spark, registry, asked)
        new = [
            line if line.refusal is None else line._replace(refused_through=asked[line.schema_id])
            for line in answers
            if line.refusal is None or asked[line.schema_id] > through.get(line.schema_id, -1)
        ]
        if keeps and new:
            _write_down(run, new)
        known = _with_lines(known, new)
    return known.of(reached)


def _with_lines(known: WriterSchemas, lines: Iterable[_Line]) -> WriterSchemas:
    accepted = dict(known.accepted)
    refusals = list(known.refusals)
    for line in lines:
        if line.refusal is None and line.schema is not None:
            accepted[line.schema_id] = line.schema
        elif line.refusal is not None and line.refused_through is not None:
            refusals.append(Refusal(line.schema_id, line.refusal, line.refused_through))
    return replace(known, accepted=accepted, refusals=tuple(refusals))


def _reached(rows: DataFrame) -> dict[int, int]:
    """Find the ids that rows name, and when the last row of each arrived."""
    named = rows.select(schema_id().alias("id"), F.unix_micros(arrival()).alias("at"))
    found = named.where(F.col("id").isNotNull()).groupBy("id").agg(F.max("at").alias("at"))
    return {int(row["id"]): int(row["at"]) for row in found.collect()}


def _answers(spark: SparkSession, registry: Registry, ids: Iterable[int]) -> Iterator[_Line]:
    """Ask for ids; each gets a line, without ``refused_through``."""
    versions = versions_of(registry)
    places: dict[int, int] = {}
    for place, version in enumerate(versions):
        places.setdefault(version.schema_id, place)
    for key in sorted(ids):
        if key not in places:
            yield _Line(key, None, not_registered(key, registry.subject))
            continue
        place = places[key]
        before = versions[place - 1] if place else None
        problem = _problem(spark, registry, versions[place], before)
        refusal = f"payload: schema {key} {problem}" if problem else None
        yield _Line(key, versions[place].schema, refusal)


def _problem(spark: SparkSession, registry: Registry, new: Version, old: Version | None) -> str:
    """Say why a version is not read; empty where it is."""
    if new.kind != "AVRO":
        return f"is {new.kind}, not Avro"
    if not new.is_whole:
        return "refers to other schemas"
    problem = reading_problem(spark, new.schema)
    if problem or old is None:
        return problem
    rule = registry.compatibility
    broken = incompatibility(new.schema, old.schema, rule)
    return f"is not {rule} compatible with schema {old.schema_id}: {broken}" if broken else ""


def _write_down(run: Run, lines: Iterable[_Line]) -> None:
    spark, table = run.spark, run.lake.schemas(run.pipeline.name)
    stamp = {"pipeline": run.pipeline.name, "hop": "schemas", "generation": FIRST_GENERATION}
    ensure_table(spark, table, from_ddl(spark, SCHEMAS_DDL), {**stamp, "batch": CREATION})
    last = last_commit(table)
    batch = last.batch + 1 if last else 0
    found_at = to_json(datetime.now(UTC))
    told = [
        {
            **line._asdict(),
            "refused_through": to_json(from_micros(line.refused_through)),
            "found_at": found_at,
        }
        for line in lines
    ]
    append(from_records(spark, told, SCHEMAS_DDL), table, {**stamp, "batch": batch})
    if is_due(batch):
        compact(spark, table)
