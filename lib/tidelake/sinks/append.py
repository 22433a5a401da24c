"""Create tables and append to them, each commit with its note."""

from __future__ import annotations

from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidelake.config.meanings import Meaning, standard_meaning
from tidelake.settings import with_settings
from tidelake.sinks.comments import commented, describe, keeping_words
from tidelake.sinks.commits import USER_METADATA, encode
from tidelake.sinks.evolution import Freedom, evolve
from tidelake.tables import Table

# A checkpoint of the log every tenth commit doubles the time of that commit.
_PROPERTIES = {"delta.checkpointInterval": "50"}


def append(
    rows: DataFrame,
    table: Table,
    note: dict[str, Any],
    *,
    surely_filled: bool = True,
    may_add_columns: bool = False,
    replaces: bool = False,
) -> None:
    """Append rows in one commit that carries the note.

    Delta leaves out a commit without any action, and the note with it. A transaction id is such
    an action; it costs a rebuild of the snapshot, so only what may be empty gets one.

    Args:
        rows: What to append.
        table: Where to.
        note: The commit's note.
        surely_filled: Whether there is at least one row.
        may_add_columns: Whether columns that the table lacks come into it, in the same commit.
        replaces: Whether the rows, and their columns, take the place of those that the table has.
    """
    mode = "overwrite" if replaces else "append"
    writer = (
        (keeping_words(rows, table) if replaces else rows)
        .write.format("delta")
        .mode(mode)
        .option("userMetadata", encode(note))
    )
    if replaces:
        writer = writer.option("overwriteSchema", "true")
    elif may_add_columns:
        writer = writer.option("mergeSchema", "true")
    if not surely_filled:
        writer = writer.option("txnAppId", f"{table.name}/{note['generation']}")
        writer = writer.option("txnVersion", str(note["batch"]))
    writer.save(str(table.path))


def ensure_table(
    spark: SparkSession,
    table: Table,
    schema: StructType,
    note: dict[str, Any],
    *,
    meaning: Meaning | None = None,
    freedom: Freedom = "none",
) -> None:
    """Create a table, or bring the stored one to what today's definition says.

    Args:
        spark: The session.
        table: Which table.
        schema: Its columns.
        note: Of the commit that makes it.
        meaning: What it holds; None for a table that is the same for every pipeline.
        freedom: How far a stored one may follow the definition.

    Raises:
        SchemaChangedError: The stored table differs by more than ``freedom`` allows.
    """
    words = meaning or standard_meaning(table.name)
    if table.exists:
        describe(spark, table, evolve(spark, table, schema, freedom), words)
    else:
        _create(spark, table, commented(schema, words), words.description, note)


def _create(
    spark: SparkSession, table: Table, schema: StructType, description: str, note: dict[str, Any]
) -> None:
    builder = DeltaTable.create(spark).location(str(table.path)).addColumns(schema)
    for key, value in _PROPERTIES.items():
        builder = builder.property(key, value)
    if description:
        builder = builder.comment(description)
    told = encode(note)
    with with_settings(spark, {USER_METADATA: told}):
        if spark.conf.get(USER_METADATA, None) == told:
            builder.execute()
            return
    # A session that takes no settings: a writer carries the note, and the next run describes.
    writer = _no_rows(spark, schema).write.format("delta").option("userMetadata", told)
    writer.options(**_PROPERTIES).save(str(table.path))


def _no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    # Not from a Python list, which would start a Python worker for no row.
    return spark.range(0).select(
        *[
            F.lit(None).cast(field.dataType).alias(field.name, metadata=field.metadata)
            for field in schema.fields
        ]
    )
