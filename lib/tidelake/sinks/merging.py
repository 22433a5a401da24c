"""Merge in SQL: the one way that a session of any kind understands.

Delta's Python classes need a plugin in a server of Spark Connect; statements do not.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import DataFrame

from tidelake.config.types import quoted
from tidelake.tables import Table


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
        text = f"MERGE INTO {target.sql} AS t USING {source} AS s ON {on} {clauses}"
        rows.sparkSession.sql(text)


def assignments(values: Mapping[str, str]) -> str:
    """Write what an UPDATE sets, SQL by column."""
    return ", ".join(f"{quoted(name)} = {value}" for name, value in values.items())
