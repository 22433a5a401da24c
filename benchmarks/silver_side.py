"""A lake with unprocessed batches for silver; each round processes them on its own copy."""

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
    """A prepared lake, and the measurements of the batches run on it.

    Attributes:
        spark: The session.
        base: The lake, the measured batches only in bronze.
        limit: Bytes a batch reads.
        cuts: The cuts of the measured batches.
        closed: The last batch that silver committed.
        searched: Accepted ids that deduplication searched, by batch.
        progress: Spark's progress of each round's batches.
    """

    spark: SparkSession
    base: Path
    limit: int
    cuts: list[Cut]
    closed: int = 0
    searched: list[int] = field(default_factory=list)
    progress: list[list[dict[str, Any]]] = field(default_factory=list)

    def play(self, number: int) -> float:
        """Run the measured batches on a copy of the lake, and return their median seconds."""
        root = self.base.parent / f"{self.base.name}-{number}"
        twin(self.base, root)
        run = context(self.spark, root, batch_bytes=self.limit, ttl=TTL)
        query = play(run)
        self.progress.append(durations(query))
        if number == 0:
            notes = check_silver(run, self.cuts, after=self.closed)
            self.searched.extend(note.searched for note in notes)
            say(f"  searched {self.searched}")
        shutil.rmtree(root)
        return median(seconds_a_batch(query))
