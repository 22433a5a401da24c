"""Count what a batch made Spark do: figures that no machine's load changes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidelake.runtime.checkpointed_frames import CheckpointedFrames


@dataclass(frozen=True)
class Spent:
    """What one batch of a query cost.

    Attributes:
        jobs: Spark jobs that had a task.
        shuffles: Stages that wrote for another one; what was there already does not count.
    """

    jobs: int
    shuffles: int

    def __le__(self, most: Spent) -> bool:
        """Tell whether neither is more."""
        return self.jobs <= most.jobs and self.shuffles <= most.shuffles


class PlannedFrames(CheckpointedFrames):
    """The frames of a small batch; counts the broadcasts in what it checkpoints when it is read."""

    def __init__(self) -> None:
        super().__init__(small=True)
        self.broadcasts = 0

    def checkpoint(self, frame: DataFrame) -> DataFrame:
        plan: Any = frame._jdf.queryExecution().analyzed()
        self.broadcasts += plan.toString().count("strategy=broadcast")
        return super().checkpoint(frame)


def newest_job(spark: SparkSession) -> int:
    """Give the number of the newest job that the session has run; -1 before the first."""
    return max((job.jobId() for job in _retained(spark)), default=-1)


def _retained(spark: SparkSession) -> list[Any]:
    listed: Any = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return [listed.apply(number) for number in range(listed.size())]


def spent(spark: SparkSession, checkpoints: Path, batch: int) -> Spent:
    """Count a batch's jobs; the session retains the last 400.

    Args:
        spark: The session. Other tests of it run queries of the same name.
        checkpoints: A hop's, of one generation: it tells the query's id.
        batch: One that was closed.
    """
    [metadata] = checkpoints.glob("*/metadata")
    query = json.loads(metadata.read_text())["id"]
    mine = [
        job for job in _retained(spark) if job.numCompletedTasks() and _belongs(job, query, batch)
    ]
    assert mine, f"no job of batch {batch} under {checkpoints}"
    return Spent(len(mine), sum(job.numCompletedStages() - 1 for job in mine))


def _belongs(job: Any, query: str, batch: int) -> bool:
    """Look into what Spark says of a job: a line each for its query, the run and the batch.

    After the batch Delta says what its own jobs are for.
    """
    told = job.description().get() if job.description().isDefined() else ""
    lines = told.replace("<br/>", "\n").splitlines()
    return f"id = {query}" in lines and any(
        re.fullmatch(rf"batch = {batch}(\D.*)?", line) for line in lines
    )
