"""Create tables, let them follow today's definition, and append to them.

Each commit carries its metadata. Of a stored table the columns, their types and their comments
follow the definition. Gold's tables in a catalog have views of their final rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from tidelake.config.meanings import Meaning, standard_meaning
from tidelake.config.names import ID_HASH
from tidelake.config.types import quoted
from tidelake.delta.access import load
from tidelake.delta.log import encode, last_commit
from tidelake.delta.store import Mode, no_rows, sql_text
from tidelake.delta.tables import Lake, Table
from tidelake.errors import SchemaChangedError
from tidelake.spark.tuning import LOG_CHECKPOINT_COMMITS

_SKIPPED = {
    "bronze": ("source_timestamp", "ingested_at", "ingest_date"),
    "silver": ("event_time", "ingested_at", "event_date", "_batch"),
}


def append(
    rows: DataFrame,
    table: Table,
    note: dict[str, Any],
    *,
    surely_filled: bool = True,
    may_add_columns: bool = False,
    replaces: bool = False,
    replaces_where: str = "",
) -> None:
    """Append rows in one commit that carries the note.

    Delta leaves out a commit without any action, and the note with it. A transaction id is such an
    action; it costs a rebuild of the snapshot, so only what may be empty gets one, and each batch
    where a lock may be missing or lost: Delta then skips or refuses its second append.

    Args:
        rows: What to append.
        table: Where to.
        note: The commit's metadata.
        surely_filled: Whether there is at least one row.
        may_add_columns: Whether columns that the table lacks come into it, in the same commit.
        replaces: Whether the rows, and their columns, take the place of those that the table has.
        replaces_where: SQL; only of those for which it holds. It may be done again, so it gets no
            transaction id: Delta would pass over the second commit of a batch.
    """
    options = {"userMetadata": encode(note)}
    if replaces:
        options["overwriteSchema"] = "true"
    elif may_add_columns:
        options["mergeSchema"] = "true"
    of_a_batch = note.get("hop") in ("bronze", "silver") and note["batch"] >= 0
    is_guarded = of_a_batch and table.store.needs_transaction_ids
    if not replaces_where and (not surely_filled or is_guarded):
        # Delta's numbers begin at 0, and 0 is the first batch's.
        made = "/made" if note["batch"] < 0 else ""
        options["txnAppId"] = f"{table.name}/{note['generation']}{made}"
        options["txnVersion"] = str(max(note["batch"], 0))
    if replaces:
        if table.store.is_created_first and not table.exists:
            table.store.create(rows.sparkSession, rows.schema, _properties(table, rows.columns))
        rows = keeping_words(rows, table)
    mode: Mode = "overwrite" if replaces or replaces_where else "append"
    table.store.save(rows, options, mode, replaces_where)


def ensure_table(
    spark: SparkSession,
    table: Table,
    schema: StructType,
    note: dict[str, Any],
    *,
    meaning: Meaning | None = None,
    freedom: Freedom = "none",
) -> None:
    """Create a table with a commit that has this note, or bring the stored one to the definition.

    ``meaning`` has its comments, None for a table that is the same for every pipeline; ``freedom``
    is how far a stored one may follow the definition before a SchemaChangedError.
    """
    words = meaning or standard_meaning(table.name)
    stored = evolve(spark, table, schema, freedom) if table.exists else None
    if stored is None:
        made, properties = commented(schema, words), _properties(table, schema.names)
        table.store.create(spark, made, properties, encode(note), words.description)
    # Also where a table was made and its first note was not written any more.
    if table.store.is_created_first and (stored is None or last_commit(table) is None):
        append(no_rows(spark, schema), table, note, surely_filled=False)
    if stored is not None:
        describe(spark, table, stored, words)


def _properties(table: Table, columns: Sequence[str]) -> dict[str, str]:
    """Give the properties that a table is made with."""
    found = {"delta.checkpointInterval": str(LOG_CHECKPOINT_COMMITS)}
    of_a_layer, side = table.name.startswith(("bronze.", "silver.")), table.bare.partition("__")[2]
    followed = of_a_layer and side in ("", "requeue")
    if followed and not side:
        # By these files are skipped. Of ids, payloads and paths Delta would compare each value.
        skipped = [name for name in _SKIPPED[table.name.partition(".")[0]] if name in columns]
        if skipped:
            found["delta.dataSkippingStatsColumns"] = ",".join(skipped)
    if table.store.takes_whole_commits and followed:
        # Costs nothing while a table only grows.
        found["delta.enableChangeDataFeed"] = "true"
    return found


def ensure_final_view(
    spark: SparkSession, lake: Lake, table: Table, *, column: str, pipeline: str
) -> None:
    """Create ``<table>__final``, or bring it to the columns that the table has now.

    ``column`` is where a row's time ends; the epochs of ``pipeline``, a checked name, say which
    rows are final. The lake is a catalog's, and has ``ops.epochs``.
    """
    view = lake.table(f"{table.name}__final")
    columns = load(spark, table).columns
    if view.exists and spark.table(view.sql).columns == columns:
        return
    boundary = (
        f"SELECT max_by(final['{table.name}'], epoch) FROM {lake.epochs().sql} "
        f"WHERE pipeline = '{pipeline}'"
    )
    spark.sql(
        f"CREATE OR REPLACE VIEW {view.sql} AS "
        f"SELECT * FROM {table.sql} WHERE `{column}` <= ({boundary})"
    )


# What may change without a rebuild: nothing; types that grow; columns as well.
Freedom = Literal["none", "types", "columns"]
Verdict = Literal["added", "kept", "widened", "refused"]

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_WIDER = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "bigint": ("decimal(38,0)",),
    "float": ("double",),
}


@dataclass(frozen=True)
class Difference:
    """A column in which the stored table and the definition differ, by its types there, if any.

    The verdict is ``added`` (older rows are null), ``kept`` (newer rows are null), ``widened`` (no
    value changes) or ``refused`` (only a new generation can hold it).
    """

    column: str
    stored: str | None
    defined: str | None
    verdict: Verdict

    def __str__(self) -> str:
        """Give one line for a person."""
        return (
            f"{self.column}: stored {self.stored or 'nothing'}, defined {self.defined or 'nothing'}"
        )


def differences(stored: StructType, wanted: StructType, freedom: Freedom) -> list[Difference]:
    """Compare a stored table with what the definition gives; the order of columns is no matter."""
    before, after = types_of(stored), types_of(wanted)
    found = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old != new:
            # Not part of any definition: tables of earlier versions get it, strict ones too.
            may = "columns" if name == ID_HASH else freedom
            verdict: Verdict = "refused"
            if old and new:
                verdict = "widened" if may != "none" and _grows(old, new) else "refused"
            elif may == "columns":
                verdict = "kept" if old else "added"
            found.append(Difference(name, old, new, verdict))
    return found


def evolve(spark: SparkSession, table: Table, wanted: StructType, freedom: Freedom) -> StructType:
    """Bring a stored table to the definition, or raise a SchemaChangedError and change nothing.

    Returns the schema with which it was stored.
    """
    stored = load(spark, table).schema
    found = differences(stored, wanted, freedom)
    refused = [f"  - {one}" for one in found if one.verdict == "refused"]
    if refused:
        raise SchemaChangedError(
            f"{table.name} was written under another definition:\n" + "\n".join(refused) + "\n"
            "Restore the definition, or let the tables follow from bronze under the new one with: "
            "tidelake backfill run, then promote"
        )
    place = table.sql
    widened = [one for one in found if one.verdict == "widened"]
    if widened:
        spark.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    for one in widened:
        spark.sql(f"ALTER TABLE {place} ALTER COLUMN {quoted(one.column)} TYPE {one.defined}")
    added = [f"{quoted(one.column)} {one.defined}" for one in found if one.verdict == "added"]
    if added:
        spark.sql(f"ALTER TABLE {place} ADD COLUMNS ({', '.join(added)})")
    return stored


def _grows(old: str, new: str) -> bool:
    """Tell whether every value of a type is one of the other, digit for digit."""
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if before and after:
        precision, scale = int(before[1]), int(before[2])
        wider, finer = int(after[1]), int(after[2])
        return finer >= scale and wider - finer >= precision - scale
    return new in _WIDER.get(old, ())


def types_of(schema: StructType) -> dict[str, str]:
    """Name each column's type as Spark's simple string."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}


_COMMENT = "comment"


def commented(schema: StructType, meaning: Meaning) -> StructType:
    """Give a schema the comments of its columns."""
    return StructType(
        [
            StructField(
                field.name,
                field.dataType,
                field.nullable,
                {_COMMENT: words} if (words := meaning.of(field.name)) else {},
            )
            for field in schema.fields
        ]
    )


def keeping_words(rows: DataFrame, table: Table) -> DataFrame:
    """Give rows that are to replace a table's the comments of its columns, or they would go."""
    if not table.exists:
        return rows
    stored = load(rows.sparkSession, table).schema
    words = {field.name: field.metadata for field in stored.fields}
    return rows.select(
        *[
            F.col(quoted(field.name)).alias(
                field.name, metadata=words.get(field.name, field.metadata)
            )
            for field in rows.schema.fields
        ]
    )


def describe(spark: SparkSession, table: Table, stored: StructType, meaning: Meaning) -> None:
    """Bring the comments of a stored table, which has this schema, to today's words.

    A commit of its own, without a note and without rows, and only where a word differs: readers
    of notes pass over it, streams get an empty batch. What the pipeline file no longer says stays.
    """
    place = table.sql
    changed = {
        field.name: words
        for field in stored.fields
        if (words := meaning.of(field.name)) and field.metadata.get(_COMMENT) != words
    }
    if changed:
        columns = ", ".join(f"{quoted(name)} COMMENT {sql_text(w)}" for name, w in changed.items())
        spark.sql(f"ALTER TABLE {place} ALTER COLUMN {columns}")
    if meaning.description:
        # What is known of a table beside its columns; costs no job.
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {place}").collect()
        told = {row["col_name"]: row["data_type"] for row in rows}
        if told.get("Comment") != meaning.description:
            spark.sql(f"COMMENT ON TABLE {place} IS {sql_text(meaning.description)}")
