"""Read the rows that came into a table between two positions, without those of other commits."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from tidelake.access import inserted_between, load
from tidelake.sinks.positions import Position, files_between, rows_between
from tidelake.tables import CatalogName, Table


def rows_that_came(
    spark: SparkSession, table: Table, after: Position, until: Position
) -> DataFrame | None:
    """Read the rows between two positions of a table that only grows.

    Args:
        spark: The session.
        table: Bronze, the requeue or silver.
        after: Where the reader stood.
        until: Where it stands now; in a catalog the end of a commit, as ``after`` is.

    Returns:
        The table's columns; None where no row came in.
    """
    if isinstance(table.place, CatalogName):
        if not rows_between(table, after, until):
            return None
        return inserted_between(spark, table, after[0], until[0] - 1)
    files = [str(file) for file in files_between(table, after, until)]
    if not files:
        return None
    return spark.read.schema(load(spark, table).schema).parquet(*files)
