"""Run a stream for some batches as a run that goes on does, and keep what its triggers took."""

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
    """Plays a stream in turns; the first batch after each start does not count.

    Attributes:
        spark: The session.
        start: Starts the query.
        told: ``durationMs`` of the batches that count.
        spent: The executions of all batches of the same turns.
        batches: How many those are.
    """

    spark: SparkSession
    start: Callable[[], StreamingQuery]
    told: list[dict[str, int]] = field(default_factory=list)
    spent: list[executions.Execution] = field(default_factory=list)
    batches: int = 0

    def play(self, batches: int, *, counts: bool) -> float:
        """Take in some commits that are there already; seconds of the median trigger."""
        return median(self.take(batches, counts=counts)) / 1_000

    def take(self, batches: int, *, counts: bool) -> list[int]:
        """Take in some commits that are there already.

        Args:
            batches: How many there are.
            counts: Whether the turn counts.

        Returns:
            Milliseconds of each trigger but the first.
        """
        mark = executions.newest(self.spark) if counts else (-1, -1)
        query = self.start()
        try:
            told = [dict(one.durationMs) for one in filled(query, batches)][1:]
        finally:
            query.stop()
        if counts:
            self.told += told
            self.spent += executions.since(self.spark, mark)
            self.batches += batches
        return [one[_WHOLE] for one in told]

    def once(self) -> float:
        """Start the query and let it close one batch; seconds until then."""
        began = time.monotonic()
        query = self.start()
        try:
            filled(query, 1)
            return time.monotonic() - began
        finally:
            query.stop()

    def details(self) -> dict[str, Any]:
        """Tell where the time went; of a batch, in the mean, but for the medians by phase."""
        phases = sorted({name for one in self.told for name in one})
        return {
            "batches": len(self.told),
            "mean_ms": mean(one[_WHOLE] for one in self.told),
            "duration_ms": {name: median(one.get(name, 0) for one in self.told) for name in phases},
            "a_batch": executions.counts(self.spent, self.batches),
            "where": executions.by_label(self.spent, self.batches),
        }


def going_on(hop: HopQuery) -> StreamingQuery:
    """Start a hop as a run that goes on does."""
    assert GOES_ON.seconds is not None
    hop.pace = Pace(GOES_ON.seconds, hop.most, hop.unit)
    return hop.start(GOES_ON.options)


def filled(query: StreamingQuery, batches: int) -> list[StreamingQueryProgress]:
    """Wait until a query has closed so many batches with rows."""
    ends = time.monotonic() + _PATIENCE
    while time.monotonic() < ends:
        told = [one for one in query.recentProgress if one.numInputRows]
        if len(told) >= batches:
            return told
        if not query.isActive:
            raise RuntimeError(f"a stream ended: {query.exception()}")
        time.sleep(0.01)
    raise TimeoutError(f"{len(query.recentProgress)} batches in {_PATIENCE:.0f} s")
