"""Create tables and append to them, each commit with its note."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidelake.errors import SchemaChangedError
from tidelake.sinks.commits import encode
from tidelake.tables import Table

# A checkpoint of the log every tenth commit doubles the time of that commit.
_PROPERTIES = {"delta.checkpointInterval": "50"}


def append(
    rows: DataFrame, table: Table, note: dict[str, Any], *, surely_filled: bool = True
) -> None:
    """Append rows in one commit that carries the note.

    Delta leaves out a commit without any action, and the note with it. A transaction id is such
    an action; it costs a rebuild of the snapshot, so only what may be empty gets one.

    Args:
        rows: What to append.
        table: Where to.
        note: The commit's note.
        surely_filled: Whether there is at least one row.
    """
    writer = rows.write.format("delta").mode("append").option("userMetadata", encode(note))
    if not surely_filled:
        writer = writer.option("txnAppId", f"{table.name}/{note['generation']}")
        writer = writer.option("txnVersion", str(note["batch"]))
    writer.save(str(table.path))


def ensure_table(
    spark: SparkSession, table: Table, schema: StructType, note: dict[str, Any]
) -> None:
    """Create a table, or hold the stored one against the schema that today's definition gives.

    Raises:
        SchemaChangedError: The stored table has other columns.
    """
    if not table.exists:
        empty = spark.createDataFrame([], schema)
        writer = empty.write.format("delta").option("userMetadata", encode(note))
        writer.options(**_PROPERTIES).save(str(table.path))
        return
    stored = _shape(spark.read.format("delta").load(str(table.path)).schema)
    wanted = _shape(schema)
    if stored == wanted:
        return
    differences = [
        f"  - {name}: stored {stored.get(name, 'nothing')}, defined {wanted.get(name, 'nothing')}"
        for name in sorted({*stored, *wanted})
        if stored.get(name) != wanted.get(name)
    ] or ["  - the columns stand in another order"]
    raise SchemaChangedError(
        f"{table.name} was written under another definition:\n" + "\n".join(differences) + "\n"
        "Restore the definition, or run the new one on a new --root."
    )


def _shape(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}
