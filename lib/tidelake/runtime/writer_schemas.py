"""Know the schemas of a pipeline's records: some are remembered, others the registry is asked for.

What a registry answers changes with time, a row's fate may not. So answers are written into a
table before anything is decided by them. That a schema is accepted holds for good; that it is
refused holds for the rows that had arrived, and rows that come later ask again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.config import Registry
from tidelake.delta.access import load
from tidelake.delta.append import append, ensure_table
from tidelake.delta.compaction import compact, is_due
from tidelake.delta.generations import CREATION, FIRST_GENERATION
from tidelake.delta.log import last_commit
from tidelake.instants import from_micros, to_json
from tidelake.kafka.registry import Version, versions_of
from tidelake.kafka.resolution import incompatibility
from tidelake.runtime.avro import reading_problem
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import from_ddl
from tidelake.silver.payloads import Refusal, WriterSchemas, arrival, not_registered, schema_id

SCHEMAS_DDL = (
    "schema_id bigint, schema string, refusal string, refused_through timestamp, found_at timestamp"
)


class _Line(NamedTuple):
    """A row of the table: of a schema that is read, or of one that is refused.

    Attributes:
        schema_id: Under which records name it.
        schema: Its text; None where the registry has none.
        refusal: Why rows are not read; None where they are.
        refused_through: Up to which arrival, in microseconds since the epoch.
    """

    schema_id: int
    schema: str | None
    refusal: str | None = None
    refused_through: int | None = None


def remembered(run: Run, *, stands: Column | None = None) -> WriterSchemas | None:
    """Read what is known of a pipeline's schemas; None where it has no registry.

    Args:
        run: What the command works with.
        stands: For which rows a refusal holds although its schema was accepted later; None: for
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

    Raises:
        SourceError: The registry does not answer; nothing was written.
    """
    registry = run.pipeline.registry
    known = remembered(run, stands=F.lit(False) if anew else None)
    if known is None or registry is None:
        return None
    reached = _reached(rows)
    through = _refused_through(known)
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


def _refused_through(known: WriterSchemas) -> dict[int, int]:
    through: dict[int, int] = {}
    for one in known.refusals:
        through[one.schema_id] = max(one.through, through.get(one.schema_id, one.through))
    return through


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
    """Append lines to the table, in one commit."""
    spark, table = run.spark, run.lake.schemas(run.pipeline.name)
    stamp = {"pipeline": run.pipeline.name, "hop": "schemas", "generation": FIRST_GENERATION}
    schema = from_ddl(spark, SCHEMAS_DDL)
    ensure_table(spark, table, schema, {**stamp, "batch": CREATION})
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
    # As text, which Spark parses: a list of Python rows would go through a Python worker.
    parsed = F.inline(F.from_json(F.lit(json.dumps(told)), f"array<struct<{SCHEMAS_DDL}>>"))
    append(spark.range(1).select(parsed), table, {**stamp, "batch": batch})
    if is_due(batch):
        compact(spark, table)
