"""The silver tables that a pipeline's gold follows: its own, and those that its joins look into."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.config import Pipeline
from tidelake.delta.access import follow, load, rows_that_came
from tidelake.delta.positions import Position
from tidelake.delta.tables import Lake, Table
from tidelake.runtime.targets import OWN

# What silver's batches wrote beside the columns that users see.
_HIDDEN = ("_payload_hash", "_id_hash", "_generation", "_batch")


def inputs_of(lake: Lake, pipeline: Pipeline) -> dict[str, Table]:
    """Name the tables, the pipeline's own first."""
    others = [lake.silver(join.right.pipeline) for join in pipeline.joins]
    own = lake.silver(pipeline.name)
    return {OWN: own} | {table.name: table for table in others if table != own}


def open_stream(
    spark: SparkSession,
    inputs: Mapping[str, Table],
    *,
    max_bytes: int | None,
    idle: Collection[str] = (),
) -> DataFrame:
    """Follow each table from its first commit on.

    Args:
        spark: The session.
        inputs: From :func:`inputs_of`.
        max_bytes: How many compressed bytes of each a batch takes at most.
        idle: Those that have no commit behind what was taken.

    Returns:
        The table's rows; those of several tables each in a struct of its own, by number.
    """
    streams = [
        follow(spark, table, max_bytes=max_bytes, idle=key in idle).drop(*_HIDDEN)
        for key, table in inputs.items()
    ]
    if len(streams) == 1:
        return streams[0]
    packed = [rows.select(F.struct("*").alias(_packed(n))) for n, rows in enumerate(streams)]
    together = packed[0]
    for rows in packed[1:]:
        together = together.unionByName(rows, allowMissingColumns=True)
    return together


def by_input(rows: DataFrame, inputs: Mapping[str, Table]) -> dict[str, DataFrame]:
    """Take a batch of the stream apart again."""
    if len(inputs) == 1:
        return dict.fromkeys(inputs, rows)
    return {
        key: rows.where(F.col(_packed(n)).isNotNull()).select(f"{_packed(n)}.*")
        for n, key in enumerate(inputs)
    }


def up_to(
    spark: SparkSession, inputs: Mapping[str, Table], until: Mapping[str, Position]
) -> Callable[[str], DataFrame]:
    """Give a reader of each table as far as a batch goes in it."""

    def read(key: str) -> DataFrame:
        return _as_of(spark, inputs[key], until[key])

    return read


def _as_of(spark: SparkSession, table: Table, position: Position) -> DataFrame:
    """Read a table that only grows up to a position, which may lie inside a commit."""
    version = position[0]
    rows = load(spark, table, version=version - 1) if version else load(spark, table).limit(0)
    begun = rows_that_came(spark, table, (version, -1), position)
    if begun is not None:
        rows = rows.unionByName(begun)
    return rows.drop(*_HIDDEN)


def _packed(number: int) -> str:
    return f"_input_{number}"
