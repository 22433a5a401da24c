"""Derive each table's schema from the definition, by letting Spark analyse it on empty frames.

Silver and its side tables are created with these schemas or evolved to them. Avro's writer schemas
come from a table, or from the registry, whose answers change over time, but a row's fate must not:
answers are stored before any row is decided by them. An accepted schema stays accepted; a refusal
holds for the rows that had arrived by then, and for later rows the registry is asked again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidelake.bronze.records import REQUEUE_DDL
from tidelake.columns import stamped
from tidelake.config import Pipeline, Registry
from tidelake.config.descriptions import meaning_of
from tidelake.config.expressions import columns_in
from tidelake.config.queries import inexact_columns
from tidelake.config.types import incomparable, is_comparable, unstorable
from tidelake.delta.access import load
from tidelake.delta.append import (
    Difference,
    Freedom,
    append,
    ensure_table,
    schema_differences,
    types_of,
)
from tidelake.delta.log import CREATION, FIRST_GENERATION, Commit, last_commit
from tidelake.delta.merge import compact, is_due
from tidelake.delta.tables import Table
from tidelake.errors import ConfigError, RefusedError, UsageError, Violation
from tidelake.gold.kinds import OWN, GoldKind, Inputs
from tidelake.gold.queried import Queried
from tidelake.instants import from_micros, now, to_json
from tidelake.kafka.client import Version, versions_of
from tidelake.names import IS_DELETE, SEQUENCE
from tidelake.runtime.failures import FOREIGN
from tidelake.runtime.gold_tables import Target, changed_types, targets_of
from tidelake.runtime.hop import Run
from tidelake.runtime.lookups import enriched
from tidelake.silver import payloads
from tidelake.silver.avro_schema import incompatibility, schema_problem
from tidelake.silver.dedup import Repeats
from tidelake.silver.fates import QUARANTINE_DDL, decide, to_late, to_silver
from tidelake.silver.payloads import WriterSchemas
from tidelake.silver.plan import SilverPlan
from tidelake.silver.stages import payload_scope
from tidelake.spark.engine import driver_options
from tidelake.spark.java import AVRO_LIMITS, AVRO_OPTIONS

# Of a gold table, without a rebuild: columns are fixed; types may widen with silver's, or where a
# sum needs a wider type than an earlier Tidelake version gave it.
GOLD_FREEDOM: Freedom = "types"
# Types that no column of a Delta table can have.
_UNSTORABLE = ("interval", "void")
_SHOWN = 300
_PY4J_PREFIX = re.compile(r"^An error occurred while calling \S+ : (?:[\w.$]+: )?")


def from_ddl(spark: SparkSession, ddl: str) -> StructType:
    """Parse a DDL string into a schema."""
    return spark.createDataFrame([], ddl).schema


def from_records(spark: SparkSession, records: Sequence[Mapping[str, Any]], ddl: str) -> DataFrame:
    """Create a frame from records in this process, instants among them, with a DDL's columns.

    The records go to Spark as JSON text: a list of Python rows would need a Python worker.
    """
    text = F.lit(json.dumps(records, default=to_json))
    return spark.range(1).select(F.inline(F.from_json(text, f"array<struct<{ddl}>>")))


def append_records(
    spark: SparkSession,
    table: Table,
    records: Sequence[Mapping[str, Any]],
    ddl: str,
    *,
    newest: Commit | None,
    pipeline: str,
    hop: str,
    **metadata: Any,
) -> None:
    """Append records as the next batch of a table that no hop fills, and compact it when due.

    The table gets the columns of ``ddl`` that it lacks. ``newest`` is its newest commit, if any;
    ``hop`` says what writes, such as ``books``. See :func:`from_records` for the records.
    """
    note = {"pipeline": pipeline, "hop": hop, "generation": FIRST_GENERATION}
    schema = from_ddl(spark, ddl)
    ensure_table(spark, table, schema, {**note, "batch": CREATION}, freedom="columns")
    batch = newest.batch + 1 if newest else 0
    append(from_records(spark, records, ddl), table, {**note, "batch": batch, **metadata})
    if is_due(batch):
        compact(spark, table)


def silver_schemas(spark: SparkSession, plan: SilverPlan) -> dict[str, StructType]:
    """Return the schemas of ``silver`` and of ``late``."""
    if not plan.schemas:
        judged = plan.judge(spark.createDataFrame([], REQUEUE_DDL))
        allowed = plan.pipeline.watermark.allowed_lateness
        decided = decide(judged, Repeats(None, 0), plan.fates, watermark=None, allowed=allowed)
        rows = enriched(decided, plan, [])
        plan.schemas = {
            "silver": to_silver(rows, plan.routing, generation="", batch=0).schema,
            "late": to_late(rows, plan.routing, None, generation="", batch=0).schema,
        }
    return plan.schemas


def create_silver(run: Run, note: dict[str, Any]) -> None:
    """Create silver and its side tables, or evolve existing ones to the definition."""
    spark, pipeline, lake = run.spark, run.pipeline, run.lake
    schemas, free = silver_schemas(spark, run.plan), silver_freedom(pipeline)
    wanted: list[tuple[Table, StructType, Freedom]] = [
        (lake.late(pipeline.name), schemas["late"], free),
        (lake.quarantine(pipeline.name), from_ddl(spark, QUARANTINE_DDL), "none"),
        (lake.silver(pipeline.name), schemas["silver"], free),
    ]
    for table, schema, freedom in wanted:
        meaning = meaning_of(pipeline, table.name)
        ensure_table(spark, table, schema, note, meaning=meaning, freedom=freedom)


def silver_freedom(pipeline: Pipeline) -> Freedom:
    """Return what may change in silver and late without a rebuild."""
    return "none" if pipeline.event.evolution == "strict" else "columns"


def target_schema(run: Run, target: Target) -> StructType:
    """Return a gold table's schema, with columns in the order for analysts."""
    inputs = _empty_inputs(run)
    rows = target.kind.of_all(Inputs(inputs, inputs.__getitem__))
    return stamped(rows, generation="", batch=0).schema


def column_changes(run: Run, target: Target) -> tuple[Difference, ...]:
    """Compare a gold table's columns, and the inputs' types, with the definition's."""
    stored, wanted = load(run.spark, target.table).schema, target_schema(run, target)
    found = schema_differences(stored, wanted, GOLD_FREEDOM, target.kind.alike)
    read = _empty_inputs(run).__getitem__
    return (*found, *changed_types(target.kind, last_commit(target.table), read))


def _empty_inputs(run: Run) -> dict[str, DataFrame]:
    """Return each input of gold as an empty frame; those of other pipelines only if they exist."""
    empty = {}
    for key, table in run.lake.hop_inputs(run.pipeline, "gold").items():
        if key == OWN:
            schema = silver_schemas(run.spark, run.plan)["silver"]
            empty[key] = run.spark.createDataFrame([], schema)
        elif table.exists:
            empty[key] = load(run.spark, table).limit(0)
    return empty


def known_targets(run: Run, inputs: Mapping[str, DataFrame] | None = None) -> list[Target]:
    """List the gold tables whose inputs all exist, or can be derived from the definition."""
    known = (_empty_inputs(run) if inputs is None else inputs).keys()
    return [one for one in targets_of(run.lake, run.pipeline) if set(one.kind.sources) <= known]


def check_definition(run: Run) -> None:
    """Analyse every expression on empty frames; a ConfigError lists all that Spark refuses."""
    spark, pipeline = run.spark, run.pipeline
    schema = pipeline.avro_schema
    if schema is not None and (problem := reading_problem(spark, schema)):
        raise ConfigError(pipeline.file, [Violation("source.schema", problem)])
    read = payloads.read_payloads(spark.createDataFrame([], REQUEUE_DDL), pipeline)
    violations = _unfit(payload_scope(read, pipeline), _event_expressions(pipeline).items())
    if not violations:
        inputs = _empty_inputs(run)
        queries: list[Queried] = []
        for target in known_targets(run, inputs):
            if isinstance(target.kind, Queried):
                queries.append(target.kind)
                continue
            found = _expression_violations(target.kind, inputs)
            violations += found or _derived_violations(target.kind, inputs)
        # Their expressions are over other tables, which must be valid.
        for query in [] if violations else queries:
            violations += _query_violations(query, inputs)
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


def _expression_violations(kind: GoldKind, inputs: Mapping[str, DataFrame]) -> list[Violation]:
    used = {f"{kind.place}.{path}": found for path, found in kind.expressions().items()}
    # Conditions separately: a SELECT cannot mix aggregates and values of rows.
    selects: dict[tuple[str, bool], dict[str, Column]] = {}
    for place, one in used.items():
        column = F.expr(one.sql)
        wanted = F.count_if(column) if one.is_condition else column
        selects.setdefault((one.key, one.is_condition), {})[place] = wanted
    refused = [_unfit(inputs[key], columns.items()) for (key, _), columns in selects.items()]
    order = list(used)
    if found := sorted(chain.from_iterable(refused), key=lambda one: order.index(one.path)):
        return found
    problems = kind.type_problems(inputs)
    return [Violation(f"{kind.place}.{path}", problem) for path, problem in problems.items()]


def _derived_violations(kind: GoldKind, inputs: Mapping[str, DataFrame]) -> list[Violation]:
    if not kind.derived:
        return []
    rows = kind.without_derived().of_all(Inputs(inputs, inputs.__getitem__))
    derived = {f"{kind.place}.derive.{name}": F.expr(sql) for name, sql in kind.derived.items()}
    return _unfit(rows, derived.items(), _UNSTORABLE)


def _query_violations(kind: Queried, inputs: Mapping[str, DataFrame]) -> list[Violation]:
    """Analyse the parts of a query over the table that it reads, then its columns."""
    place, parts = f"{kind.place}.sql", kind.parts
    rows = kind.read(Inputs(inputs, inputs.__getitem__))
    wanted = [(place, F.expr(sql)) for words, sql in parts.used() if words != "WHERE"]
    where = [(place, F.count_if(F.expr(parts.where)))] if parts.where is not None else []
    if violations := _refused(rows, wanted) + _refused(rows, where):
        return violations
    source = kind.definition.source
    inexact = inexact_columns(source, types_of(rows.schema)) if source else {}
    read = {name for _, sql in parts.used() for name in columns_in(sql)}
    problems = [f"{name} is not exact; {inexact[name]}" for name in sorted(read & inexact.keys())]
    if problems := problems + kind.call_problems(rows):
        return [Violation(place, problem) for problem in problems]
    grouped = kind.aggregated(rows)
    computed = [F.expr(column.computed) for column in parts.columns]
    violations = _refused(grouped, [(place, column) for column in computed])
    if parts.having is not None:
        violations += _refused(grouped, [(place, F.count_if(F.expr(parts.having)))])
    for field in [] if violations else kind.answer(rows).schema.fields:
        what = field.dataType.simpleString()
        if what.startswith(_UNSTORABLE):
            violations.append(Violation(place, f"{field.name} {unstorable(what)}"))
        elif not is_comparable(what):
            violations.append(Violation(place, f"{field.name} {incomparable(what)}"))
    return violations


def _unfit(
    frame: DataFrame,
    expressions: Collection[tuple[str, Column]],
    kinds: str | tuple[str, ...] = "interval",
) -> list[Violation]:
    """Return the expressions that Spark refuses, and those of types that Delta refuses."""
    found = {one.path: one for one in _refused(frame, expressions)}
    fine = {path: column for path, column in expressions if path not in found}
    fields = frame.select(*fine.values()).schema.fields
    for path, field in zip(fine, fields, strict=True):
        if (what := field.dataType.simpleString()).startswith(kinds):
            found[path] = Violation(path, unstorable(what))
    return [found[path] for path, _ in expressions if path in found]


def _refused(frame: DataFrame, expressions: Collection[tuple[str, Column]]) -> list[Violation]:
    """Analyse all expressions in one plan; if Spark refuses it, analyse each alone."""
    with suppress(AnalysisException, ParseException):
        _ = frame.select(*(column for _, column in expressions)).schema
        return []
    violations = []
    for path, column in expressions:
        try:
            _ = frame.select(column).schema
        except (AnalysisException, ParseException) as error:
            violations.append(Violation(path, str(error).strip().splitlines()[0]))
    return violations


def reading_problem(spark: SparkSession, schema: str) -> str:
    """Return why records of an Avro schema cannot be read; empty if they can."""
    if problem := schema_problem(schema):
        return problem
    try:
        _ = spark.range(0).select(payloads.trial(schema)).schema
    except FOREIGN as error:
        text = _PY4J_PREFIX.sub("", " ".join(str(error).split()))
        return f"cannot be read by Spark: {text[:_SHOWN]}"
    return ""


def refuse_unlimited(spark: SparkSession) -> None:
    """Raise a UsageError unless the JVM limits the lengths that an Avro record may declare.

    A corrupt record may declare a string of 2 GB. Avro's reader allocates it: the JVM is killed.
    """
    options = driver_options(spark)
    if not all(limit in options for limit in AVRO_LIMITS):
        raise UsageError(
            "Avro is read only if the JVM limits the lengths that a corrupt record may declare. "
            "Add to spark.driver.extraJavaOptions and spark.executor.extraJavaOptions: "
            f"{AVRO_OPTIONS}"
        )


SCHEMAS_DDL = (
    "schema_id bigint, schema string, refusal string, refused_through timestamp, found_at timestamp"
)


class _Answer(NamedTuple):
    """A row: an accepted schema, or why one is refused for arrivals up to then (epoch us)."""

    schema_id: int
    schema: str | None
    refusal: str | None
    refused_through: int | None


def stored_schemas(run: Run, *, still_refused: Column | None = None) -> WriterSchemas | None:
    """Read a pipeline's stored writer schemas; None if it has no registry.

    ``still_refused``: condition for the rows to which a refusal applies although the schema was
    accepted later; None: rows that had arrived by the time of the refusal.
    """
    registry = run.pipeline.registry
    if registry is None:
        return None
    known = WriterSchemas(registry.subject, {}, still_refused=still_refused)
    table = run.lake.schemas(run.pipeline.name)
    if not table.exists:
        return known
    through = F.unix_micros("refused_through").alias("refused_through")
    rows = load(run.spark, table).select("schema_id", "schema", "refusal", through).collect()
    return _with_answers(known, [_Answer(*row) for row in rows])


def schemas_for(
    run: Run, rows: DataFrame, *, redecides: bool = False, keeps: bool = True
) -> WriterSchemas | None:
    """Return the writer schemas of rows, from the table or the registry; None without a registry.

    If a command ``redecides`` the rows, which have bronze's columns plus ``requeued_at``, a schema
    that was refused once and is accepted now applies to all of them. Unless it ``keeps`` the
    registry's answers, nothing is written.
    """
    registry = run.pipeline.registry
    known = stored_schemas(run, still_refused=F.lit(False) if redecides else None)
    if known is None or registry is None:
        return None
    address = _address_of_ids(run, registry, known, keeps=keeps)
    arrived = F.unix_micros(payloads.arrival()).alias("at")
    named = rows.select(payloads.schema_id().alias("id"), arrived).where(F.col("id").isNotNull())
    reached = {int(key): int(last) for key, last in named.groupBy("id").max("at").collect()}
    refusals = sorted(known.refusals, key=lambda refusal: refusal.through)
    through = {refusal.schema_id: refusal.through for refusal in refusals}
    later = {key for key, last in reached.items() if last > through.get(key, -1)}
    wanted = (reached.keys() if redecides else later) - known.accepted.keys()
    if wanted:
        answers = _answers(run.spark, registry, {key: reached[key] for key in wanted})
        new = [one for one in answers if one.refusal is None or one.schema_id in later]
        if keeps and new:
            _store(run, new, address)
        known = _with_answers(known, new)
    return known.of(reached)


def _with_answers(known: WriterSchemas, answers: Iterable[_Answer]) -> WriterSchemas:
    accepted, refusals = dict(known.accepted), list(known.refusals)
    for key, schema, refusal, through in answers:
        if refusal is None and schema is not None:
            accepted[key] = schema
        elif refusal is not None and through is not None:
            refusals.append(payloads.Refusal(key, refusal, through))
    return replace(known, accepted=accepted, refusals=tuple(refusals))


def _address_of_ids(run: Run, registry: Registry, known: WriterSchemas, *, keeps: bool) -> str:
    """Return the registry's address, after refusing one that gives stored ids other schemas."""
    last = last_commit(run.lake.schemas(run.pipeline.name))
    was = last.note.get("registry") if last else None
    # Without the scheme, and without a user.
    address = registry.url.partition("://")[2].rpartition("@")[2].rstrip("/")
    if was is not None and was != address and known.accepted:
        offered = {version.schema_id: version.schema for version in versions_of(registry)}
        if other := [key for key, schema in known.accepted.items() if offered.get(key) != schema]:
            raise RefusedError(
                f"{run.lake.schemas(run.pipeline.name).name} holds the schemas of the registry at "
                f"{was}, and the one at {address} has another schema for id {min(other)}, or none. "
                "Restore source.registry.url, or use another pipeline or --root."
            )
    if was != address and known.accepted and keeps:
        _store(run, [_Answer(*next(iter(known.accepted.items())), None, None)], address)
    return address


def _answers(spark: SparkSession, registry: Registry, ids: Mapping[int, int]) -> Iterator[_Answer]:
    """Look ids up in the registry, each with its last arrival."""
    versions = versions_of(registry)
    # With the version before; of several versions with one id, the first counts.
    pairs = reversed(list(zip(versions, [None, *versions], strict=False)))
    found = {version.schema_id: (version, before) for version, before in pairs}
    for key, last in sorted(ids.items()):
        if key not in found:
            yield _Answer(key, None, payloads.not_registered(key, registry.subject), last)
            continue
        version, before = found[key]
        problem = _problem(spark, registry, version, before)
        refusal = f"payload: schema {key} {problem}" if problem else None
        yield _Answer(key, version.schema, refusal, last if problem else None)


def _problem(spark: SparkSession, registry: Registry, new: Version, old: Version | None) -> str:
    """Return why a registered version is refused; empty if it is accepted."""
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


def _store(run: Run, answers: Iterable[_Answer], address: str) -> None:
    table, found = run.lake.schemas(run.pipeline.name), {"found_at": now()}
    records = [
        {**answer._asdict(), "refused_through": from_micros(answer.refused_through), **found}
        for answer in answers
    ]
    note = {"pipeline": run.pipeline.name, "hop": "schemas", "registry": address}
    append_records(run.spark, table, records, SCHEMAS_DDL, newest=last_commit(table), **note)
