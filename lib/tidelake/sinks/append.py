"""Create tables and append to them, each commit with its note."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidelake.sinks.commits import encode
from tidelake.sinks.evolution import Freedom, evolve
from tidelake.store.folders import is_remote
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
    an action; it costs a rebuild of the snapshot, so only what may be empty gets one. On a store
    each batch gets one: a lock may be lost there while its holder stands still, and Delta then
    refuses the second commit of a batch, which would fit behind the first.

    Args:
        rows: What to append.
        table: Where to.
        note: The commit's note.
        surely_filled: Whether there is at least one row.
        may_add_columns: Whether columns that the table lacks come into it, in the same commit.
        replaces: Whether the rows, and their columns, take the place of those that the table has.
    """
    mode = "overwrite" if replaces else "append"
    writer = rows.write.format("delta").mode(mode).option("userMetadata", encode(note))
    if replaces:
        writer = writer.option("overwriteSchema", "true")
    elif may_add_columns:
        writer = writer.option("mergeSchema", "true")
    if not surely_filled or (is_remote(table.path) and {"generation", "batch"} <= note.keys()):
        writer = writer.option("txnAppId", f"{table.name}/{note['generation']}")
        writer = writer.option("txnVersion", str(note["batch"]))
    writer.save(str(table.path))


def ensure_table(
    spark: SparkSession,
    table: Table,
    schema: StructType,
    note: dict[str, Any],
    *,
    freedom: Freedom = "none",
) -> None:
    """Create a table, or bring the stored one to the schema that today's definition gives.

    Raises:
        SchemaChangedError: The stored table differs by more than ``freedom`` allows.
    """
    if table.exists:
        evolve(spark, table, schema, freedom)
        return
    # Not from a Python list, which would start a Python worker for no row.
    empty = spark.range(0).select(
        *[F.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields]
    )
    writer = empty.write.format("delta").option("userMetadata", encode(note))
    writer.options(**_PROPERTIES).save(str(table.path))
