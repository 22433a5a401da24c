"""Check whether the current definition can continue on the stored tables, and what changes.

The checkpoints are checked by :func:`tidelake.runtime.runner.refusals`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pyspark.sql.types import StructType

from tidelake.config import Pipeline
from tidelake.csv_records import parse_layout
from tidelake.delta.access import load
from tidelake.delta.append import Difference, schema_differences, types_of
from tidelake.delta.commit_metadata import (
    SilverNote,
    changed_definition,
    changed_parts,
    positions,
    silver_note,
)
from tidelake.delta.log import CREATION, REBUILT, Commit, last_commit
from tidelake.delta.positions import unfilled_tables
from tidelake.delta.tables import Lake
from tidelake.errors import UsageError
from tidelake.ledger.history import gold_of, history
from tidelake.ledger.query import ask
from tidelake.names import logical_name
from tidelake.replay.backfill_state import backfill_again
from tidelake.runtime.gold_tables import holds_nothing
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import (
    check_definition,
    column_changes,
    known_targets,
    silver_freedom,
    silver_schemas,
)
from tidelake.silver.fates import extra_columns, new_columns

_SAMPLE = 10_000
# Metadata keys of silver's commits: the definition, and the others by which kept rows were decided.
_DEFINITION, _KEPT = "definition", "kept_definitions"
Standing = Literal[
    "continues", "not there yet", "new", "new input", "redefined", "no longer filled"
]


@dataclass(frozen=True)
class TableVerdict:
    """The differences, by column, between a stored table and the definition.

    A table is ``new`` if other gold tables already hold batches: the next run fills it. It reads a
    ``new input`` if gold's stream has not read one of its inputs, and is ``redefined`` if it was
    filled under another definition. ``changed`` parts of the definition apply to rows from now on.
    """

    table: str
    standing: Standing
    differences: tuple[Difference, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def may_continue(self) -> bool:
        """Return whether a run would continue."""
        refused = any(one.verdict == "refused" for one in self.differences)
        return not refused and self.standing not in ("new input", "redefined")


@dataclass(frozen=True)
class FieldDrift:
    """A payload field in which the newest arrivals differ from ``event.schema``.

    It is ``unknown`` to the schema, or in it and ``absent`` from every payload. ``rows`` of the
    ``sampled`` payloads have it; ``follows`` says how silver treats it.
    """

    field: str
    kind: Literal["unknown", "absent"]
    rows: int
    sampled: int
    follows: str


_FOLLOWS = {
    "strict": "its rows are quarantined (stage contract)",
    "additive": "is a text column of silver",
    "rescue": "is kept in _rescued_data",
}
# Where a change event has its row, with and without a schema around it.
_ROWS = ("$.payload.after", "$.after", "$.payload.before", "$.before")
# SQL where the engines differ: a payload's text, whether it is an object, its field names, and the
# text at a path in it, null if it has none.
_IN_DUCKDB = (
    "try(decode(payload))",
    "json_valid(payload) AND json_type(payload) = 'OBJECT'",
    "json_keys(payload)",
    "nullif(try(json_extract(payload, '{}'))::VARCHAR, 'null')",
)
_IN_SPARK = (
    "try_validate_utf8(CAST(payload AS TEXT))",
    "json_object_keys(payload) IS NOT NULL",
    "json_object_keys(payload)",
    "get_json_object(payload, '{}')",
)


def judge_tables(run: Run) -> list[TableVerdict]:
    """Compare every stored table with the definition; nothing is written.

    Raises:
        ConfigError: Spark does not understand an expression.
    """
    check_definition(run)
    return [*_silver_verdicts(run), *_gold_verdicts(run)]


def _silver_verdicts(run: Run) -> Iterator[TableVerdict]:
    spark, pipeline, lake = run.spark, run.pipeline, run.lake
    freedom, schemas = silver_freedom(pipeline), silver_schemas(spark, run.plan)
    for table, wanted in (
        (lake.silver(pipeline.name), schemas["silver"]),
        (lake.late(pipeline.name), schemas["late"]),
    ):
        if not table.exists:
            yield TableVerdict(table.name, "not there yet")
            continue
        identity = changed_parts(last_commit(table), pipeline).identity
        found = tuple(schema_differences(load(spark, table).schema, wanted, freedom))
        standing: Standing = "redefined" if identity else "continues"
        others = other_definitions(lake, pipeline).values() if table.bare == pipeline.name else ()
        changed = dict.fromkeys([*identity, *(part for parts in others for part in parts)])
        yield TableVerdict(table.name, standing, found, tuple(changed))


def other_definitions(lake: Lake, pipeline: Pipeline) -> dict[int, tuple[str, ...]]:
    """Return silver's batches that another definition decided, and the parts that differ."""
    found: dict[int, tuple[str, ...]] = {}
    # Of many batches few have a definition of their own.
    compared: dict[str, tuple[str, ...]] = {}
    for one in history(lake, lake.silver(pipeline.name)):
        parts: tuple[str, ...] = ()
        for each in _definitions(one):
            if (key := repr(each)) not in compared:
                changed = changed_parts(replace(one, note={_DEFINITION: each}), pipeline)
                compared[key] = changed.identity + changed.rules
            parts += compared[key]
        if parts:
            found[one.batch] = parts
    return found


def kept_note(lake: Lake, pipeline: Pipeline) -> dict[str, Any]:
    """Return the metadata that keeps the other definitions of silver's rows in its next commit."""
    found = list[Any](silver_note(pipeline).values())
    for one in history(lake, lake.silver(pipeline.name)):
        found += [each for each in _definitions(one) if each not in found]
    return {_KEPT: found[1:]}


def refuse_unlike(run: Run, last: Commit, stored: StructType) -> None:
    """Raise a UsageError unless new rows can be added to silver's: a union would convert values."""
    wanted = silver_schemas(run.spark, run.plan)["silver"]
    changes = schema_differences(stored, wanted, "columns")
    types = [f"type of a column ({one})" for one in changes if one.verdict == "refused"]
    if changed := [*changed_parts(last, run.pipeline).identity, *types]:
        raise UsageError(
            f"{logical_name('silver', run.pipeline.name)} was filled under another "
            f"{' and '.join(changed)}: new rows would not fit the stored ones. Recompute all of it "
            f"with: {backfill_again(run.pipeline)}"
        )


def unknown_columns(run: Run, stored: Mapping[str, str]) -> tuple[str, ...]:
    """Return silver's columns of unknown fields, without text columns that left the definition."""
    found = extra_columns(stored, run.pipeline.defined_columns)
    made = history(run.lake, run.lake.silver(run.pipeline.name)) if found else []
    # The commit of a rebuild does not name the columns that were there.
    if not made or REBUILT in made[-1].note:
        return found
    named = {name for commit in made for name in SilverNote.of(commit).columns}
    return tuple(name for name in found if name in named)


def _definitions(commit: Commit) -> list[Any]:
    """Return the definitions, as hashes of their parts, that decided a batch of silver."""
    if commit.batch <= CREATION or _DEFINITION not in commit.note:
        return []
    return [commit.note[_DEFINITION], *commit.note.get(_KEPT, ())]


def _gold_verdicts(run: Run) -> Iterator[TableVerdict]:
    tables = run.lake.closing_tables(run.pipeline, "gold")
    unfilled = unfilled_tables(tables)
    reached = positions(next((last_commit(one) for one in tables if one not in unfilled), None))
    for target in known_targets(run):
        table = target.table
        reads_new = not reached.keys() >= set(target.kind.sources)
        if table in unfilled:
            yield TableVerdict(table.name, "new input" if reads_new else "new")
            continue
        if not table.exists:
            yield TableVerdict(table.name, "not there yet")
            continue
        last = last_commit(table)
        if holds_nothing(table, last):
            # The next run gives it the columns of the definition.
            yield TableVerdict(table.name, "continues")
            continue
        redefined = changed_definition(last, target.kind.definition)
        standing: Standing = "redefined" if redefined else "continues"
        # A backfill of the table alone is refused then.
        standing = "new input" if reached and reads_new else standing
        yield TableVerdict(table.name, standing, column_changes(run, target))
    for table, _ in gold_of(run.lake, run.pipeline.name):
        if table not in tables:
            yield TableVerdict(table.name, "no longer filled")


def payload_drift(run: Run) -> list[FieldDrift]:
    """Compare the fields of bronze's newest payloads with the schema."""
    lake, pipeline = run.lake, run.pipeline
    bronze, silver = lake.bronze(pipeline.name), lake.silver(pipeline.name)
    if not bronze.exists:
        return []
    stored = types_of(load(run.spark, silver).schema) if silver.exists else {}
    if pipeline.csv:
        sampled, seen = _columns_seen(lake, bronze.name)
    else:
        sampled, seen = _fields_seen(lake, bronze.name, in_envelope=pipeline.envelope is not None)
    declared = [field.name for field in pipeline.event.fields]
    unknown = [
        FieldDrift(name, "unknown", rows, sampled, _follows(name, pipeline, stored))
        for name, rows in sorted(seen.items())
        if name not in declared
    ]
    absent = [
        FieldDrift(name, "absent", 0, sampled, "is null in silver")
        for name in declared
        if sampled and name not in seen
    ]
    return unknown + absent


def _newest(bronze: str, text: str) -> str:
    """Return SQL for ``text`` of the newest arrivals, as ``payload``."""
    return (
        f"SELECT {text} AS payload FROM {bronze} WHERE ingested_at = "
        f"(SELECT max(ingested_at) FROM {bronze}) LIMIT {_SAMPLE}"
    )


def _fields_seen(lake: Lake, bronze: str, *, in_envelope: bool) -> tuple[int, dict[str, int]]:
    """Return how many of the newest payloads are objects, and how many of those have each field."""
    text, is_object, names, in_json = _IN_DUCKDB if lake.catalog is None else _IN_SPARK
    newest = _newest(bronze, text)
    if in_envelope:
        rows = ", ".join(in_json.format(path) for path in _ROWS)
        newest = f"SELECT coalesce({rows}) AS payload FROM ({newest})"
    objects = f"SELECT payload FROM ({newest}) WHERE {is_object}"
    sampled = int(ask(lake, f"SELECT count(*) FROM ({objects})").rows[0][0])
    each = f"SELECT unnest({names}) AS name FROM ({objects})"
    return sampled, dict(ask(lake, f"SELECT name, count(*) FROM ({each}) GROUP BY 1").rows)


def _columns_seen(lake: Lake, bronze: str) -> tuple[int, dict[str, int]]:
    """Return how many of the newest records are CSV, and how many are of files with each column."""
    # Records of files have one header, their layout; arrays begin at 1 in DuckDB, at 0 in Spark.
    newest = _newest(bronze, "headers[1].value" if lake.catalog is None else "headers[0].value")
    counted = ask(lake, f"SELECT payload, count(*) FROM ({newest}) GROUP BY 1").rows
    seen: Counter[str] = Counter()
    sampled = 0
    for layout, rows in counted:
        if layout is not None:
            sampled += rows
            seen.update(dict.fromkeys(parse_layout(bytes(layout))[1], rows))
    return sampled, dict(seen)


def _follows(name: str, pipeline: Pipeline, stored: Mapping[str, str]) -> str:
    evolution, defined = pipeline.event.evolution, pipeline.defined_columns
    is_text = name in extra_columns(stored, defined) or name in new_columns(
        [name], defined=defined, stored=stored
    )
    if evolution == "additive" and not is_text:
        return "stays in bronze only: it cannot be a text column of silver"
    return _FOLLOWS[evolution]
