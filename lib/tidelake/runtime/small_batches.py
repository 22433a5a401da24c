"""Run a small batch without what only pays for large ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

SMALL = 20_000

# Compiling an expression costs more than interpreting it for a few thousand rows, and each
# batch's literals make its code new.
_FOR_SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}


@contextmanager
def fitted(session: SparkSession, rows: int) -> Iterator[None]:
    """Fit a batch's own session to its size, until its work ends.

    Args:
        session: The batch's; Spark writes its settings into the checkpoint between batches, so
            that they must be what they were.
        rows: How many the batch will touch.
    """
    before = {key: session.conf.get(key, None) for key in _FOR_SMALL} if rows <= SMALL else {}
    try:
        for key in before:
            session.conf.set(key, _FOR_SMALL[key])
        yield
    finally:
        for key, value in before.items():
            if value is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, value)
