"""Keep the views of a catalog that show a gold table's final rows.

A view's text stays as it is while the boundary moves: it asks ``ops.epochs``, where each epoch says
up to when a table's rows are final. So a view trails its table by an epoch at most, and never shows
a row too early.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from tidelake.access import load
from tidelake.tables import Lake, Table


def ensure_final_view(
    spark: SparkSession, lake: Lake, table: Table, *, column: str, pipeline: str
) -> None:
    """Create ``<table>__final``, or bring it to the columns that the table has now.

    Args:
        spark: The session.
        lake: A catalog's; ``ops.epochs`` exists.
        table: A gold table.
        column: Where a row's time ends.
        pipeline: Whose epochs say which rows are final; a checked name.
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
