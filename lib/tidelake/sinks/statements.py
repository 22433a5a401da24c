"""Speak to Delta in SQL: the one way that a session of any kind understands.

Delta's Python classes need a plugin in a server of Spark Connect, and serverless compute has its
own; statements need neither.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import DataFrame, Row, SparkSession

from tidelake.config.types import quoted
from tidelake.tables import Table


def place_of(table: Table) -> str:
    """Name a table in a statement."""
    return f"delta.{quoted(str(table.path))}"


def detail(spark: SparkSession, table: Table) -> Row:
    """Read what Delta says of a table: id, properties, features, files, clustering."""
    return spark.sql(f"DESCRIBE DETAIL {place_of(table)}").collect()[0]


@contextmanager
def viewed(rows: DataFrame) -> Iterator[str]:
    """Let a statement name a frame, under a name that no other has."""
    name = f"tidelake_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)


def merge(rows: DataFrame, target: Table, *, on: str, clauses: str) -> None:
    """Merge rows, ``s``, into a table, ``t``.

    Args:
        rows: The source.
        target: The stored table.
        on: SQL over ``t`` and ``s``.
        clauses: What becomes of rows that match and of those that do not.
    """
    with viewed(rows) as source:
        text = f"MERGE INTO {place_of(target)} AS t USING {source} AS s ON {on} {clauses}"
        rows.sparkSession.sql(text)


def assignments(values: Mapping[str, str]) -> str:
    """Write what an UPDATE sets, SQL by column."""
    return ", ".join(f"{quoted(name)} = {value}" for name, value in values.items())
