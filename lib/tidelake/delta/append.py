"""Create tables, evolve their schemas, and append to them.

Each commit carries metadata. A stored table's columns, types and comments are updated to the
current definition.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidelake.config.descriptions import Meaning, standard_meaning
from tidelake.delta.access import load, properties
from tidelake.delta.log import FOLLOWS, REBUILT, encode, last_commit
from tidelake.delta.merge import HAVE_STATISTICS, LISTED, STATISTICS, retry_conflicts
from tidelake.delta.store import Mode, details, no_rows, sql_text
from tidelake.delta.tables import HOPS, Table
from tidelake.errors import SchemaChangedError
from tidelake.names import ID_HASH, quoted
from tidelake.spark.tuning import LOG_CHECKPOINT_COMMITS
from tidelake.typed import runnable

_SEARCHED_BY: dict[str, tuple[str, ...]] = {
    "bronze": ("source_timestamp", "ingested_at", "ingest_date"),
    "silver": ("event_time", "ingested_at", "event_date", "_batch"),
}

_CHANGE_FEED = "delta.enableChangeDataFeed"


def append(
    rows: DataFrame,
    table: Table,
    note: dict[str, Any],
    *,
    even_empty: bool = False,
    may_add_columns: bool = False,
    replaces: bool = False,
    replaces_where: str = "",
    may_repeat: bool = False,
    chosen_at: int | None = None,
) -> None:
    """Append or overwrite rows in one commit with metadata.

    Delta omits a commit without actions, and its metadata is lost. A transaction id is an action,
    but costs a rebuild of the snapshot. So it is set only where a commit is needed ``even_empty``,
    without a row, and for batches that the table's lock may not protect: Delta then skips or
    refuses the duplicate append.

    If the table's files or properties are rewritten meanwhile, the rows are computed and written
    again.

    With ``may_add_columns``, columns that the table lacks are added in the same commit.
    ``replaces`` overwrites the table's rows and columns; ``replaces_where``, an SQL condition, only
    the matching rows. Such a commit may be repeated, so it gets no transaction id: Delta would skip
    a batch's second commit. With ``may_repeat`` it gets an id of its own. Rows that no hop writes
    are protected if ``chosen_at`` is the table's version from which they were chosen.
    """
    options = {"userMetadata": encode(note)}
    if replaces:
        options["overwriteSchema"] = "true"
    elif may_add_columns:
        options["mergeSchema"] = "true"
    is_guarded = note.get("hop") in HOPS and note["batch"] >= 0 and table.needs_transaction_ids
    if not replaces_where and (even_empty or is_guarded):
        # Delta's transaction versions start at 0, which belongs to the first batch; the creating
        # commit (batch -1) needs an application id of its own.
        suffix = f"/{uuid.uuid4().hex}" if may_repeat else "/made" if note["batch"] < 0 else ""
        options["txnAppId"] = f"{table.name}/{note['generation']}{suffix}"
        options["txnVersion"] = str(max(note["batch"], 0))
    elif chosen_at is not None and table.needs_transaction_ids:
        # A rollback restores the table: its batches begin again, its versions do not.
        options["txnAppId"], options["txnVersion"] = table.name, str(chosen_at + 1)
    if replaces:
        if table.exists:
            stored = load(rows.sparkSession, table).schema
            _drop_statistics(rows, table, stored)
            rows = _with_stored_comments(rows, stored)
        elif table.is_created_first:
            table.create(rows.sparkSession, rows.schema, _properties(table, rows.schema))
    mode: Mode = "overwrite" if replaces or replaces_where else "append"
    begins = REBUILT in note or FOLLOWS in note
    before = last_commit(table) if begins else None

    def may_retry() -> bool:
        """Not if the table was replaced: its new generation would not admit the batch.

        Nor if anything was committed where a generation begins: it was computed without that.
        """
        last = last_commit(table)
        if begins:
            return last is not None and before is not None and last.version == before.version
        return last is not None and bool(last.note.get("generation") == note.get("generation"))

    retry_conflicts(lambda: table.save(rows, options, mode, replaces_where), may_retry)


def append_nothing(
    spark: SparkSession, table: Table, note: dict[str, Any], *, may_repeat: bool = False
) -> None:
    """Commit metadata without rows; ``may_repeat`` is that of :func:`append`."""
    append(load(spark, table).limit(0), table, note, even_empty=True, may_repeat=may_repeat)


def ensure_table(
    spark: SparkSession,
    table: Table,
    schema: StructType,
    note: dict[str, Any],
    *,
    meaning: Meaning | None = None,
    freedom: Freedom = "none",
    written: Collection[str] = (),
    searched_by: Sequence[str] = (),
    has_change_feed: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Mapping[str, str]:
    """Create a table with this commit metadata, or evolve the stored one to the definition.

    ``meaning`` has the table and column comments; None for a table that is the same for every
    pipeline. ``freedom`` and ``written`` limit the schema changes, see
    :func:`schema_differences`; others raise a SchemaChangedError. A table that
    is created has file statistics of ``searched_by`` alone; if empty, of its layer's columns. It
    gets the properties ``settings`` with the commit that creates it. With ``has_change_feed`` each
    later MERGE records the rows that it changes.

    Returns:
        What Spark says of a stored table, by name; empty if it was created, or if ``settings`` is
        None and there is no description to compare.
    """
    comments = meaning or standard_meaning(table.name)
    pipeline = str(note.get("pipeline", "PIPELINE"))
    stored = evolve(spark, table, schema, freedom, pipeline, written) if table.exists else None
    if stored is None:
        first = {**_properties(table, schema, searched_by), **(settings or {})}
        if has_change_feed:
            first[_CHANGE_FEED] = "true"
        table.create(spark, commented(schema, comments), first, encode(note), comments.description)
    # Also if an earlier run created the table and failed before it wrote the metadata.
    if table.is_created_first and (stored is None or last_commit(table) is None):
        append(no_rows(spark, schema), table, note, even_empty=True)
    asks = settings is not None
    said = {} if stored is None else describe(spark, table, stored, comments, asks=asks)
    if has_change_feed:
        ensure_change_feed(spark, table)
    return said


def ensure_change_feed(spark: SparkSession, table: Table) -> None:
    """Turn on a table's change data feed, which readers of each later MERGE need, if it is off."""
    if properties(spark, table).get(_CHANGE_FEED) != "true":
        spark.sql(f"ALTER TABLE {table.sql} SET TBLPROPERTIES ('{_CHANGE_FEED}' = 'true')")


def _properties(
    table: Table, schema: StructType, searched_by: Sequence[str] = ()
) -> dict[str, str]:
    """Return the table properties of a new table; see :func:`ensure_table`."""
    result = {"delta.checkpointInterval": str(LOG_CHECKPOINT_COMMITS)}
    layer, side = table.name.partition(".")[0], table.bare.partition("__")[2]
    # Statistics only for columns that queries skip files by: Delta would otherwise compare every
    # value of ids, payloads and paths, and parse the statistics of all columns in each MERGE.
    searched_by = searched_by or (() if side else _SEARCHED_BY.get(layer, ()))
    types = {field.name: field.dataType for field in schema.fields}
    indexed = [name for name in searched_by if isinstance(types.get(name), HAVE_STATISTICS)]
    if indexed:
        result[STATISTICS] = ",".join(map(quoted, indexed))
    if table.takes_whole_commits and layer in _SEARCHED_BY and side in ("", "requeue"):
        # The change feed costs nothing for an append-only table.
        result[_CHANGE_FEED] = "true"
    return result


# Schema changes allowed without a rebuild: none; type widening; also added or dropped columns.
Freedom = Literal["none", "types", "columns"]
Verdict = Literal["added", "kept", "widened", "refused"]

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_WIDER = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "bigint": ("decimal(38,0)",),
}


@dataclass(frozen=True)
class Difference:
    """A column that differs between the stored table and the definition.

    ``stored`` and ``defined`` are its types, None where the column is missing. The verdict is
    ``added`` (older rows are null), ``kept`` (newer rows are null), ``widened`` (no value changes)
    or ``refused`` (needs a new generation).
    """

    column: str
    stored: str | None
    defined: str | None
    verdict: Verdict

    def __str__(self) -> str:
        """Return one line for an error message."""
        return (
            f"{self.column}: stored {self.stored or 'nothing'}, defined {self.defined or 'nothing'}"
        )


def schema_differences(
    stored: StructType, wanted: StructType, freedom: Freedom, written: Collection[str] = ()
) -> list[Difference]:
    """Compare a stored schema with the defined one, ignoring column order.

    Columns that are ``written`` widen only to types in which a value has the same text.
    """
    before, after = types_of(stored), types_of(wanted)
    # A table has no two columns whose names differ in case alone.
    spelled = Counter(name.lower() for name in {*before, *after})
    result = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        # An internal column, in no definition: added to tables of earlier versions even where the
        # schema is strict.
        allowed = "columns" if name == ID_HASH else freedom
        verdict: Verdict = "refused"
        if old and new and allowed != "none" and _is_wider(old, new):
            is_same = name not in written or is_written_alike(old, new)
            verdict = "widened" if is_same else "refused"
        elif allowed == "columns" and not (old and new) and spelled[name.lower()] == 1:
            verdict = "kept" if old else "added"
        result.append(Difference(name, old, new, verdict))
    return result


def evolve(
    spark: SparkSession,
    table: Table,
    wanted: StructType,
    freedom: Freedom,
    pipeline: str,
    written: Collection[str] = (),
) -> StructType:
    """Evolve a stored table to the definition, or raise a SchemaChangedError and change nothing.

    Returns the schema before the change. The error names the command that rebuilds the tables of
    ``pipeline``.
    """
    stored = load(spark, table).schema
    changes = schema_differences(stored, wanted, freedom, written)
    refused = [f"  - {change}" for change in changes if change.verdict == "refused"]
    if refused:
        raise SchemaChangedError(
            f"{table.name} was written under another definition:\n" + "\n".join(refused) + "\n"
            "Restore the definition, or rebuild the tables from bronze under the new one with: "
            f"{runnable('tidelake backfill run', pipeline)}, then promote"
        )
    name = table.sql
    widened = [change for change in changes if change.verdict == "widened"]
    if widened:
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    for change in widened:
        spark.sql(f"ALTER TABLE {name} ALTER COLUMN {quoted(change.column)} TYPE {change.defined}")
    added = [f"{quoted(one.column)} {one.defined}" for one in changes if one.verdict == "added"]
    if added:
        spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({', '.join(added)})")
    return stored


def _is_wider(old: str, new: str) -> bool:
    """Return whether the new type represents every value of the old one exactly."""
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if before and after:
        precision, scale = int(before[1]), int(before[2])
        wider, finer = int(after[1]), int(after[2])
        return finer >= scale and wider - finer >= precision - scale
    return new in _WIDER.get(old, ())


def is_written_alike(old: str, new: str) -> bool:
    """Return whether the text of a value is the same in a wider type."""
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    # Nothing widens to DOUBLE any more, but tables of earlier versions did.
    return before[2] == after[2] if before and after else new != "double"


def types_of(schema: StructType) -> dict[str, str]:
    """Return each column's type as Spark's simple string."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}


_COMMENT = "comment"


def commented(schema: StructType, meaning: Meaning) -> StructType:
    """Add column comments to a schema."""
    result = StructType()
    for field in schema.fields:
        comment = meaning.of(field.name)
        metadata = {_COMMENT: comment} if comment else {}
        result.add(field.name, field.dataType, field.nullable, metadata)
    return result


def _with_stored_comments(rows: DataFrame, stored: StructType) -> DataFrame:
    """Copy the table's column comments to rows that overwrite it, which would drop them."""
    metadata = {field.name: field.metadata for field in [*rows.schema.fields, *stored.fields]}
    columns = [F.col(quoted(name)).alias(name, metadata=metadata[name]) for name in rows.columns]
    return rows.select(*columns)


def _drop_statistics(rows: DataFrame, table: Table, stored: StructType) -> None:
    """Drop statistics of columns that rows do not have: Delta refuses to overwrite them then.

    Without a list of columns, Delta collects statistics of the first ones of the table.
    """
    spark = rows.sparkSession
    if set(stored.names) <= set(rows.columns):
        return
    listed = LISTED.findall(properties(spark, table).get(STATISTICS, ""))
    kept = [name for name in listed if name in {*rows.columns, *map(quoted, rows.columns)}]
    if kept == listed:
        return
    change = f"SET TBLPROPERTIES ('{STATISTICS}' = {sql_text(','.join(kept))})"
    if not kept:
        change = f"UNSET TBLPROPERTIES ('{STATISTICS}')"
    spark.sql(f"ALTER TABLE {table.sql} {change}")


def describe(
    spark: SparkSession, table: Table, stored: StructType, meaning: Meaning, *, asks: bool
) -> Mapping[str, str]:
    """Update the table and column comments of a stored table, whose schema is ``stored``.

    Writes a commit without rows and without a batch's notes, and only where a comment differs:
    readers of notes skip it, streams get an empty batch. Comments that were removed from the
    pipeline file are kept.

    Returns:
        What DESCRIBE says of the table, by property. It is asked only for a description to compare,
        or if the caller ``asks``; else it is empty.
    """
    name = table.sql
    changed = {
        field.name: comment
        for field in stored.fields
        if (comment := meaning.of(field.name)) and field.metadata.get(_COMMENT) != comment
    }
    if changed:
        columns = ", ".join(
            f"{quoted(column)} COMMENT {sql_text(comment)}" for column, comment in changed.items()
        )
        spark.sql(f"ALTER TABLE {name} ALTER COLUMN {columns}")
    if not (asks or meaning.description):
        return {}
    found = details(spark, table)
    if meaning.description and found.get("Comment") != meaning.description:
        spark.sql(f"COMMENT ON TABLE {name} IS {sql_text(meaning.description)}")
    return found
