"""Capabilities of a session's engine: settings, checkpointed frames, local files, callbacks.

The engine is Spark's JVM in this process, a Spark Connect server, or a managed runtime.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache

from pyspark.errors import (
    AnalysisException,
    PySparkException,
    PySparkNotImplementedError,
    StreamingQueryException,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.utils import is_remote

from tidelake.spark import tuning

# Raised by serverless compute when a setting is changed or a frame is checkpointed.
REFUSED = (AnalysisException, PySparkNotImplementedError)
# A range large enough that every slot gets a partition.
_NUMBERS = 1 << 16
_COUNTED_SECONDS = 600
# What Spark says where a Python process that it started has not connected within ten seconds, a
# limit that no setting changes.
_LATE_WORKER = "Python worker failed to connect back"
_WORKER_STARTS = 12


@contextmanager
def with_settings(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Change some of a session's settings until the block ends.

    They are restored because Spark writes a query's settings into its checkpoint between batches.
    Where the compute refuses a setting, the block runs with none, so results must not depend on
    them.
    """
    before: dict[str, str | None] = {}
    try:
        for key, value in wanted.items():
            earlier = session.conf.get(key, None)
            session.conf.set(key, value)
            before[key] = earlier
    except REFUSED:
        _restore(session, before)
        before = {}
    try:
        yield
    finally:
        _restore(session, before)


def _restore(session: SparkSession, before: Mapping[str, str | None]) -> None:
    for key, value in before.items():
        if value is None:
            session.conf.unset(key)
        else:
            session.conf.set(key, value)


def fitted(session: SparkSession, rows: int) -> AbstractContextManager[None]:
    """Tune a batch's session to the batch's size until the block ends."""
    is_small = rows <= tuning.SMALL_BATCH_ROWS
    return with_settings(session, tuning.SMALL_BATCH_SETTINGS if is_small else {})


def slots_of(spark: SparkSession) -> int:
    """Return how many tasks the engine runs at once.

    Spark Connect has no Spark context; there a job counts the partitions of a range, every ten
    minutes, since a server may get more executors.
    """
    if is_remote():
        return _counted(spark, int(time.monotonic() // _COUNTED_SECONDS))
    return int(spark.sparkContext.defaultParallelism)


@lru_cache(maxsize=1)
def _counted(spark: SparkSession, _: int) -> int:
    parts = spark.range(_NUMBERS).select(F.spark_partition_id()).distinct()
    return max(1, parts.count())


def driver_options(spark: SparkSession) -> str:
    """Return the JVM options of Spark's driver; empty where the compute does not show them."""
    try:
        return spark.conf.get("spark.driver.extraJavaOptions", "") or ""
    except REFUSED:
        return ""


def checkpointed(frame: DataFrame, *, eager: bool) -> DataFrame | None:
    """Checkpoint a frame's rows locally, which truncates its plan; None where that is impossible.

    ``eager`` runs a job at once; otherwise the first action does it. Not used with Spark Connect,
    which does not report observations of a checkpointed frame.
    """
    if is_remote():
        return None
    try:
        return frame.localCheckpoint(eager=eager)
    except REFUSED:
        return None


def runs_in_process() -> bool:
    """Return whether Spark's JVM belongs to this process, rather than to a Spark Connect server.

    With a server, ``foreachBatch`` runs in a worker of the server, a continuous query cannot adapt
    its limit (which is kept in this process) or use real-time mode, paths are of another disk,
    settings may be refused, and sessions cannot be cloned.
    """
    return not is_remote()


def started(writer: DataStreamWriter, say: Callable[[str], None]) -> StreamingQuery:
    """Start a query, again while a Spark Connect server's Python worker is late; ``say`` so once.

    The server starts that worker for ``foreachBatch`` and gives it ten seconds to import Spark's
    client; on a busy machine it needs more. Nothing of the query has run by then.
    """
    for late in range(1, _WORKER_STARTS):
        try:
            return writer.start()
        except PySparkException as error:
            if _LATE_WORKER not in str(error):
                raise
        if late == 1:
            say("the server did not start a Python worker within its ten seconds; trying again")
    return writer.start()


def failure_text(query: StreamingQuery, error: StreamingQueryException) -> str:
    """Return the full text of a query's failure; Spark Connect may truncate the raised error."""
    full_error = query.exception() if is_remote() else None
    return f"{error}\n{full_error or ''}"
