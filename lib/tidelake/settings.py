"""Set what a piece of work wants of its Spark session, where the compute lets it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.errors import AnalysisException, PySparkNotImplementedError
from pyspark.sql import SparkSession

# What serverless compute answers to a setting, and to a frame that is to be kept.
REFUSED = (AnalysisException, PySparkNotImplementedError)


@contextmanager
def with_settings(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Set some of a session's settings until the work ends.

    Where the compute refuses settings, the work goes on without them: nothing may rest on one.

    Args:
        session: The one that the work runs in. Spark writes a query's settings into its
            checkpoint between batches, so that they must be what they were.
        wanted: By key.
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
