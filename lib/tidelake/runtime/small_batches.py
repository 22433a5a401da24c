"""Run a small batch without what only pays for large ones."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pyspark.sql import SparkSession

from tidelake.settings import with_settings

SMALL = 20_000

# Compiling an expression costs more than interpreting it for a few thousand rows, and each
# batch's literals make its code new.
_FOR_SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}


def fitted(session: SparkSession, rows: int) -> AbstractContextManager[None]:
    """Fit a batch's own session to its size, until its work ends.

    Args:
        session: The batch's.
        rows: How many the batch will touch.
    """
    return with_settings(session, _FOR_SMALL if rows <= SMALL else {})
