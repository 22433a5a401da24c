"""A lake with batches for silver to take in, which each round does on a copy of its own."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.measuring import say
from benchmarks.silver_data import Cut, twin
from benchmarks.silver_lake import check_silver, context, durations, play, seconds_a_batch

TTL = "1 day"


@dataclass
class Side:
    """A lake in a state, and what the batches behind it said.

    Attributes:
        spark: The session.
        base: The lake, its measured batches in bronze alone.
        limit: What a batch takes, in bytes.
        cuts: Of the measured batches.
        closed: The last batch that silver closed.
        searched: Ids that deduplication compared with, a batch each.
        told: What Spark said of each round's batches.
    """

    spark: SparkSession
    base: Path
    limit: int
    cuts: list[Cut]
    closed: int = 0
    searched: list[int] = field(default_factory=list)
    told: list[list[dict[str, Any]]] = field(default_factory=list)

    def play(self, number: int) -> float:
        """Give the median seconds of the measured batches, on a copy of the lake."""
        root = self.base.parent / f"{self.base.name}-{number}"
        twin(self.base, root)
        run = context(self.spark, root, batch_bytes=self.limit, ttl=TTL)
        query = play(run)
        self.told.append(durations(query))
        if number == 0:
            notes = check_silver(run, self.cuts, after=self.closed)
            self.searched.extend(note.searched for note in notes)
            say(f"  searched {self.searched}")
        shutil.rmtree(root)
        return median(seconds_a_batch(query))
