"""Put a table's small files together now and then: each batch leaves at least one.

Files that have grown large are left alone, so that what is rewritten does not grow with the table.
"""

from __future__ import annotations

import contextlib

from delta.exceptions import DeltaConcurrentModificationException
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from tidelake.tables import Table

# In batches. A log's checkpoint comes as often (see append), and finds few files to list.
EVERY = 50
_LARGE = str(16 * 1024 * 1024)
_SETTINGS = {
    "spark.databricks.delta.optimize.minFileSize": _LARGE,
    "spark.databricks.delta.optimize.maxFileSize": _LARGE,
}


def is_due(batch: int) -> bool:
    """Tell whether a batch is one after which tables are compacted."""
    return batch % EVERY == EVERY - 1


def compact(spark: SparkSession, table: Table) -> None:
    """Put a table's small files together, in a commit that changes no row.

    Where somebody else rewrites the table at the same moment, it is left to them.
    """
    for key, value in _SETTINGS.items():
        spark.conf.set(key, value)
    try:
        with contextlib.suppress(DeltaConcurrentModificationException):
            DeltaTable.forPath(spark, str(table.path)).optimize().executeCompaction()
    finally:
        for key in _SETTINGS:
            spark.conf.unset(key)
