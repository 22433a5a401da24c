"""What the engine behind a session allows: settings, checkpointed frames, local files, callbacks.

The engine is Spark's JVM in this process, a server of Spark Connect, or a managed runtime. Callers
ask the question that they have, and not where Spark is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from pyspark.errors import (
    AnalysisException,
    PySparkNotImplementedError,
    StreamingQueryException,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from tidelake.spark import tuning

# Raised by serverless compute for a setting, and for a frame that is to be checkpointed.
REFUSED = (AnalysisException, PySparkNotImplementedError)
# Numbers enough for each slot to get a partition of the range.
_NUMBERS = 1 << 16


@contextmanager
def with_settings(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Change some of a session's settings until the block ends.

    They are restored because Spark writes a query's settings into its checkpoint between batches.
    Where the compute refuses settings the block runs without them, so no result may depend on one.
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
    """Tune a batch's own session to the batch's size until the block ends."""
    is_small = rows <= tuning.SMALL_BATCH_ROWS
    return with_settings(session, tuning.SMALL_BATCH_SETTINGS if is_small else {})


def slots_of(spark: SparkSession) -> int:
    """Return how many tasks the engine runs at once.

    Spark Connect has no Spark context to ask; there a job counts the partitions of a range.
    """
    if not is_remote():
        return int(spark.sparkContext.defaultParallelism)
    parts = spark.range(_NUMBERS).select(F.spark_partition_id()).distinct()
    return max(1, parts.count())


def checkpointed(frame: DataFrame, *, eager: bool) -> DataFrame | None:
    """Checkpoint a frame's rows locally, which truncates its plan; None where that is impossible.

    Eagerly in a job at once, else with the first action on it. Through Spark Connect it would be
    possible, but observations are not reported for a frame that the server checkpoints.
    """
    if is_remote():
        return None
    try:
        return frame.localCheckpoint(eager=eager)
    except REFUSED:
        return None


def runs_batches_here() -> bool:
    """Return whether ``foreachBatch`` calls into this process, or into a worker of the server."""
    return not is_remote()


def runs_until_stopped() -> bool:
    """Return whether a query may run without end.

    The limit that follows the trigger interval is kept in this process, where a server's workers
    cannot reach it; a fast lane needs Spark's real-time mode.
    """
    return not is_remote()


def reads_local_paths() -> bool:
    """Return whether Spark's driver reads the same disk, by the same paths, as this process."""
    return not is_remote()


def reads_files_whole() -> bool:
    """Return whether :func:`tidelake.spark.session.whole_file_session` keeps files unsplit.

    A server of Spark Connect may refuse the settings.
    """
    return not is_remote()


def failure_text(query: StreamingQuery, error: StreamingQueryException) -> str:
    """Return all text about what ended a query; Spark Connect may truncate the raised error."""
    whole = query.exception() if is_remote() else None
    return f"{error}\n{whole or ''}"
