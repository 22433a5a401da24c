"""Keep what a batch costs the same while its tables grow: their files and their merges.

Each batch leaves at least one file, and now and then the small ones are put together; files that
have grown large are left alone. A merge writes a file with a changed row in it anew, and the more
files were put together, the more rows it copies: a table where that is much gets deletion vectors,
with which a merge copies nothing, but takes longer on small files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
)
from pyspark.sql import SparkSession

from tidelake.config.types import quoted
from tidelake.delta.access import detail
from tidelake.delta.log import last_commit
from tidelake.delta.tables import Table
from tidelake.spark import tuning
from tidelake.spark.engine import with_settings

# What a writer hears whose files somebody else put together meanwhile; they share no base.
CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
)
# As many as Delta clusters by.
CLUSTERED_BY = 4
_VECTORS = "delta.enableDeletionVectors"


def is_due(batch: int) -> bool:
    """Tell whether a batch is one after which tables are compacted."""
    return (batch + 1) % tuning.COMPACTION_BATCHES == 0


def compact(spark: SparkSession, table: Table) -> None:
    """Put a table's small files together, in a commit that changes no row.

    Where somebody else rewrites the table at the same moment, it is left to them.
    """
    with with_settings(spark, tuning.COMPACTION_SETTINGS), contextlib.suppress(*CONFLICTS):
        spark.sql(f"OPTIMIZE {table.sql}")


def cluster(spark: SparkSession, table: Table, columns: Sequence[str]) -> None:
    """Have compactions sort a table by some columns; a writer beside it would fail once."""
    if clustering_of(spark, table) != tuple(columns):
        spark.sql(f"ALTER TABLE {table.sql} CLUSTER BY ({', '.join(map(quoted, columns))})")


def clustering_of(spark: SparkSession, table: Table) -> tuple[str, ...]:
    """Name the columns that compactions sort a table by."""
    return tuple(detail(spark, table)["clusteringColumns"])


def relieve(spark: SparkSession, table: Table) -> None:
    """Give a table deletion vectors where its last merge copied many rows."""
    last = last_commit(table)
    if last is not None and last.copied > tuning.COPIED_ROWS and not has_vectors(spark, table):
        spark.sql(f"ALTER TABLE {table.sql} SET TBLPROPERTIES ('{_VECTORS}' = 'true')")


def has_vectors(spark: SparkSession, table: Table) -> bool:
    """Tell whether merges into a table copy no rows, so that its files may be large."""
    return bool(detail(spark, table)["properties"].get(_VECTORS) == "true")
