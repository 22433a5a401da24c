"""Read tables with Spark, from folders under a root or from a catalog."""

from __future__ import annotations

from pyspark.sql import DataFrame, Row, SparkSession

from tidelake.delta.positions import Position, files_between, rows_between
from tidelake.delta.store import CatalogStore
from tidelake.delta.tables import Table


def load(spark: SparkSession, table: Table, *, version: int | None = None) -> DataFrame:
    """Read the current or a given version of a table."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return table.store.open(reader)


def follow(
    spark: SparkSession, table: Table, *, max_bytes: int | None, idle: bool = False
) -> DataFrame:
    """Read an append-only table as a stream, from its first commit on.

    A micro-batch reads at most ``max_bytes`` compressed bytes, except in a catalog; None for no
    limit. ``idle`` says that all rows have been read: a change feed would fail there, because it
    cannot start after the newest version.
    """
    reader = spark.readStream.format("delta").option("startingVersion", 0)
    return table.store.follow(reader, max_bytes=max_bytes, idle=idle)


def detail(spark: SparkSession, table: Table) -> Row:
    """Read a table's Delta detail: id, properties, features, files, clustering."""
    return spark.sql(f"DESCRIBE DETAIL {table.sql}").collect()[0]


def properties(spark: SparkSession, table: Table) -> dict[str, str]:
    """Read a table's properties, including features, without its list of files."""
    return {
        row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {table.sql}").collect()
    }


def read_between(
    spark: SparkSession, table: Table, after: Position, until: Position
) -> DataFrame | None:
    """Read the rows of an append-only table between two positions; None if there are none."""
    if isinstance(table.store, CatalogStore):
        if not rows_between(table, after, until):
            return None
        return table.store.inserted(spark.read.format("delta"), after[0], until[0] - 1)
    files = [str(file) for file in files_between(table, after, until)]
    if not files:
        return None
    return spark.read.schema(load(spark, table).schema).parquet(*files)
