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

from tidelake.access import detail
from tidelake.config.types import quoted
from tidelake.settings import with_settings
from tidelake.sinks.commits import last_commit
from tidelake.tables import Table

# What a writer hears whose files somebody else put together meanwhile; they share no base.
CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
)
# In batches. A log's checkpoint comes as often (see append), and finds few files to list.
EVERY = 50
_LARGE = str(16 * 1024 * 1024)
_CUBE = "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize"
_SETTINGS = {
    "spark.databricks.delta.optimize.minFileSize": _LARGE,
    "spark.databricks.delta.optimize.maxFileSize": _LARGE,
    # How much of what is sorted already may be sorted again with what came since; Delta's own is
    # 100 GB, which means the whole table each time.
    f"{_CUBE}.threshold": str(256 * 1024 * 1024),
    f"{_CUBE}.targetCubeSize": str(512 * 1024 * 1024),
}
# As many as Delta clusters by.
CLUSTERED_BY = 4


# A merge that copies fewer rows is quicker than one with deletion vectors.
COPIED = 50_000
_VECTORS = "delta.enableDeletionVectors"


def is_due(batch: int) -> bool:
    """Tell whether a batch is one after which tables are compacted."""
    return batch % EVERY == EVERY - 1


def compact(spark: SparkSession, table: Table) -> None:
    """Put a table's small files together, in a commit that changes no row.

    Where somebody else rewrites the table at the same moment, it is left to them.
    """
    with with_settings(spark, _SETTINGS), contextlib.suppress(*CONFLICTS):
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
    if last is not None and last.copied > COPIED and not has_vectors(spark, table):
        spark.sql(f"ALTER TABLE {table.sql} SET TBLPROPERTIES ('{_VECTORS}' = 'true')")


def has_vectors(spark: SparkSession, table: Table) -> bool:
    """Tell whether merges into a table copy no rows, so that its files may be large."""
    return bool(detail(spark, table)["properties"].get(_VECTORS) == "true")
