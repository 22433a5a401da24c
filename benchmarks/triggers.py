"""Run a stream for some batches as a continuous run does, and record its trigger times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import executions
from tidelake.runtime.hop import HopQuery
from tidelake.runtime.triggers import CONTINUOUS, Pace, parse_trigger

GOES_ON = parse_trigger(CONTINUOUS)
_PATIENCE = 300.0
_WHOLE = "triggerExecution"


@dataclass
class Triggers:
    """Runs a query for some batches at a time; the first batch after each start does not count.

    Attributes:
        spark: The session.
        start: Starts the query.
        durations: ``durationMs`` of the counted batches.
        spent: Executions of all batches in the counted rounds.
        batches: Number of all batches in the counted rounds.
    """

    spark: SparkSession
    start: Callable[[], StreamingQuery]
    durations: list[dict[str, int]] = field(default_factory=list)
    spent: list[executions.Execution] = field(default_factory=list)
    batches: int = 0

    def play(self, batches: int, *, counts: bool) -> float:
        """Process existing commits, one a batch; return the median trigger in seconds."""
        return median(self.take(batches, counts=counts)) / 1_000

    def take(self, batches: int, *, counts: bool) -> list[int]:
        """Process existing commits, one a batch.

        Args:
            batches: Number of commits.
            counts: Whether the round counts.

        Returns:
            Milliseconds of each trigger except the first.
        """
        mark = executions.newest(self.spark) if counts else (-1, -1)
        query = self.start()
        try:
            durations = [dict(each.durationMs) for each in filled(query, batches)][1:]
        finally:
            query.stop()
        if counts:
            self.durations += durations
            self.spent += executions.since(self.spark, mark)
            self.batches += batches
        return [each[_WHOLE] for each in durations]

    def once(self) -> float:
        """Start the query and run one batch; return the seconds until it is committed."""
        began = time.monotonic()
        query = self.start()
        try:
            filled(query, 1)
            return time.monotonic() - began
        finally:
            query.stop()

    def details(self) -> dict[str, Any]:
        """Return where the time went: means per batch, and medians by phase."""
        phases = sorted({name for each in self.durations for name in each})
        return {
            "batches": len(self.durations),
            "mean_ms": mean(each[_WHOLE] for each in self.durations),
            "duration_ms": {
                name: median(each.get(name, 0) for each in self.durations) for name in phases
            },
            "a_batch": executions.counts(self.spent, self.batches),
            "where": executions.by_label(self.spent, self.batches),
        }


def going_on(hop: HopQuery) -> StreamingQuery:
    """Start a hop as a continuous run does."""
    assert GOES_ON.seconds is not None
    hop.pace = Pace(GOES_ON.seconds, hop.most, hop.unit)
    return hop.start(GOES_ON.options)


def filled(query: StreamingQuery, batches: int) -> list[StreamingQueryProgress]:
    """Wait until a query has committed ``batches`` batches with rows; return their progress."""
    ends = time.monotonic() + _PATIENCE
    while time.monotonic() < ends:
        progress = [each for each in query.recentProgress if each.numInputRows]
        if len(progress) >= batches:
            return progress
        if not query.isActive:
            raise RuntimeError(f"the query ended: {query.exception()}")
        time.sleep(0.01)
    raise TimeoutError(
        f"only {len(query.recentProgress)} of {batches} batches in {_PATIENCE:.0f} s"
    )
