"""Create tables and append to them, each commit with its note."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from tidelake.access import FEED_PROPERTY, create, save
from tidelake.sinks.commits import encode, newest_version
from tidelake.sinks.evolution import Freedom, evolve
from tidelake.tables import CatalogName, Table


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
    an action; it costs a rebuild of the snapshot, so only what may be empty gets one. So does a
    batch in a catalog: of two runs that close it at once, and no lock keeps apart, one fails.

    Args:
        rows: What to append.
        table: Where to.
        note: The commit's note.
        surely_filled: Whether there is at least one row.
        may_add_columns: Whether columns that the table lacks come into it, in the same commit.
        replaces: Whether the rows, and their columns, take the place of those that the table has.
    """
    options = {"userMetadata": encode(note)}
    if replaces:
        options["overwriteSchema"] = "true"
    elif may_add_columns:
        options["mergeSchema"] = "true"
    if not surely_filled or _may_lack_a_lock(table, note):
        # Delta's numbers begin at 0, and 0 is the first batch's.
        made = "/made" if note["batch"] < 0 else ""
        options["txnAppId"] = f"{table.name}/{note['generation']}{made}"
        options["txnVersion"] = str(max(note["batch"], 0))
    if replaces and isinstance(table.place, CatalogName) and not table.exists:
        create(rows.limit(0), table, _properties(table))
    save(rows, table, options, "overwrite" if replaces else "append")


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
        # Where a table was made and its first note was not written any more.
        if isinstance(table.place, CatalogName) and newest_version(table) == 0:
            append(_no_rows(spark, schema), table, note, surely_filled=False)
        return
    if isinstance(table.place, CatalogName):
        create(_no_rows(spark, schema), table, _properties(table))
        append(_no_rows(spark, schema), table, note, surely_filled=False)
        return
    options = {"userMetadata": encode(note), **_properties(table)}
    save(_no_rows(spark, schema), table, options, "error")


def _may_lack_a_lock(table: Table, note: dict[str, Any]) -> bool:
    """Tell whether two writers may append the same batch: volumes may know no locks."""
    of_a_batch = note.get("hop") in ("bronze", "silver") and note["batch"] >= 0
    return isinstance(table.place, CatalogName) and of_a_batch


def _properties(table: Table) -> dict[str, str]:
    """Give the properties that a table is made with."""
    # A checkpoint of the log every tenth commit doubles the time of that commit.
    found = {"delta.checkpointInterval": "50"}
    of_a_layer, side = table.name.startswith(("bronze.", "silver.")), table.bare.partition("__")[2]
    followed = of_a_layer and side in ("", "requeue")
    if isinstance(table.place, CatalogName) and followed:
        # Costs nothing while a table only grows.
        found[FEED_PROPERTY] = "true"
    return found


def _no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Make a frame of no row."""
    if is_remote():
        # A type that a client names says the collation of each text, and with that in a table's
        # schema other readers of Delta give up.
        return spark.createDataFrame([], schema)
    # Not from a Python list, which would start a Python worker here.
    return spark.range(0).select(
        *[F.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields]
    )
