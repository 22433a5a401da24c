"""Run one of our queries, written for DuckDB and Spark alike, over frames of Spark's."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from tidelake.delta.tables import Table


def query_over(spark: SparkSession, query: str, frames: Mapping[Table, DataFrame]) -> DataFrame:
    """Answer a query.

    Args:
        spark: The session.
        query: It names tables by their logical names, each followed by a blank.
        frames: What stands for each.
    """
    for table, frame in frames.items():
        # A view has no dots in its name.
        view = "side_" + table.name.replace(".", "_")
        frame.createOrReplaceTempView(view)
        query = query.replace(f"FROM {table.name} ", f"FROM {view} ")
    return spark.sql(query)
