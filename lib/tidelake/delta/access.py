"""Read tables with Spark: by their folder under a root, by their name in a catalog."""

from __future__ import annotations

from pyspark.sql import DataFrame, Row, SparkSession

from tidelake.delta.positions import Position, files_between, rows_between
from tidelake.delta.store import CatalogStore
from tidelake.delta.tables import Table


def load(spark: SparkSession, table: Table, *, version: int | None = None) -> DataFrame:
    """Read a table as it is, or as a version of it was."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return table.store.open(reader)


def follow(
    spark: SparkSession, table: Table, *, max_bytes: int | None, idle: bool = False
) -> DataFrame:
    """Read a table that only grows as a stream, from its first commit on.

    A batch takes at most ``max_bytes`` compressed bytes, except in a catalog; None: no limit.
    ``idle``: the reader has taken all rows; a change feed fails at a start behind the newest
    version.
    """
    reader = spark.readStream.format("delta").option("startingVersion", 0)
    return table.store.follow(reader, max_bytes=max_bytes, idle=idle)


def detail(spark: SparkSession, table: Table) -> Row:
    """Read what Delta says of a table: id, properties, features, files, clustering."""
    return spark.sql(f"DESCRIBE DETAIL {table.sql}").collect()[0]


def properties(spark: SparkSession, table: Table) -> dict[str, str]:
    """Read a table's properties, its features among them, without its list of files."""
    return {
        row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {table.sql}").collect()
    }


def rows_that_came(
    spark: SparkSession, table: Table, after: Position, until: Position
) -> DataFrame | None:
    """Read the rows between two positions of a growing table; None for no row."""
    if isinstance(table.store, CatalogStore):
        if not rows_between(table, after, until):
            return None
        return table.store.inserted(spark.read.format("delta"), after[0], until[0] - 1)
    files = [str(file) for file in files_between(table, after, until)]
    if not files:
        return None
    return spark.read.schema(load(spark, table).schema).parquet(*files)
