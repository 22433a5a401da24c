"""Run a small batch without what only pays for large ones."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pyspark.sql import SparkSession

from tidelake.settings import with_settings

SMALL = 20_000
# In files, where text is a tenth of its size or less.
_SMALL_BYTES = 4 * 1024 * 1024

# Compiling an expression costs more than interpreting it for a few thousand rows, and each
# batch's literals make its code new.
_FOR_SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    # A job that lists files takes longer than to look at some hundreds, one after the other.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "500",
}


def fitted(session: SparkSession, rows: int) -> AbstractContextManager[None]:
    """Fit a batch's own session to its size, until its work ends.

    Args:
        session: The batch's.
        rows: How many the batch will touch.
    """
    return with_settings(session, _FOR_SMALL if rows <= SMALL else {})


def is_small(rows: int, size: int) -> bool:
    """Tell whether a batch fits into the driver with ease.

    Args:
        rows: How many it takes.
        size: Their bytes in files.
    """
    return rows <= SMALL and size <= _SMALL_BYTES
