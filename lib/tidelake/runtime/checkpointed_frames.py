"""Checkpoint the frames that a batch reads several times, truncating their lineage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from tidelake.silver.dedup import CheckpointedBatch
from tidelake.silver.driver_dedup import NUMBER
from tidelake.spark.engine import checkpointed, runs_in_process
from tidelake.spark.internals import collected, in_driver, release
from tidelake.spark.tuning import NUMBERED_ROWS


class CheckpointedFrames:
    """Locally checkpointed frames, released together when the batch ends.

    Checkpointed and not cached: a cached frame keeps its whole plan, which Spark analyses again
    with each later step, and each commit to a table replans every cached frame that read it, such
    as the verdicts that read silver.

    Eagerly checkpointed rows of a small batch become a local relation in the plan: Spark then knows
    their number, and broadcasts them without a job.

    If the engine supports no checkpoints, each reader recomputes the rows, with the same result,
    because the input of an open batch does not change.
    """

    def __init__(self, *, small: bool = False, rows: int | None = None) -> None:
        """Create an empty set of frames.

        Args:
            small: Whether the batch easily fits into the driver's memory.
            rows: The batch's row count; None if unknown.
        """
        self._small = small
        self._is_numbered = rows is not None and rows <= NUMBERED_ROWS
        self._frames: list[DataFrame] = []

    def checkpoint(self, frame: DataFrame) -> DataFrame:
        """Checkpoint a frame with the first action that reads it."""
        return self._keep(frame, at_once=False)

    def checkpoint_now(
        self, frame: DataFrame, *measures: Column
    ) -> tuple[DataFrame, Mapping[str, Any]]:
        """Checkpoint a frame at once, in a job that also computes aggregates over it.

        The job completes the observations that the frame has.

        Args:
            frame: In a small batch, at most about as many rows as the batch.
            measures: The aggregates, with aliases.

        Returns:
            The rows, and the measures by name; Spark drops those of some empty inputs.
        """
        if not measures:
            return self._keep(frame, at_once=True), {}
        observation = Observation()
        kept = self._keep(frame.observe(observation, *measures), at_once=True)
        reported = observation.get
        if not reported and not runs_in_process():
            # Of an empty input, or by compute that reports none: only another job tells.
            reported = kept.agg(*measures).collect()[0].asDict()
        return kept, reported

    def materialize(
        self, frame: DataFrame, *measures: Column
    ) -> tuple[DataFrame, Mapping[str, Any]]:
        """Do the same as :meth:`checkpoint_now`, in a small batch in one job and without storage.

        Args:
            frame: Without observations.
            measures: The aggregates, with aliases.

        Returns:
            The rows, and the measures by name; Spark drops those of some empty inputs.
        """
        found = collected(frame, *measures) if self._small else None
        return found or self.checkpoint_now(frame, *measures)

    def checkpoint_batch(self, frame: DataFrame) -> CheckpointedBatch:
        """Checkpoint a batch's rows: at once if the batch is small, else with the first action."""
        if self._is_numbered:
            numbered = frame.withColumn(NUMBER, F.monotonically_increasing_id())
            found = collected(numbered) if self._small else None
            kept = found[0] if found else self._checkpointed(numbered, at_once=self._small)
            if kept is not None:
                return CheckpointedBatch(kept, numbered=True, is_small=self._small)
        kept = self._checkpointed(frame, at_once=self._small)
        rows = frame if kept is None else kept
        return CheckpointedBatch(rows, numbered=False, is_small=self._small)

    def _keep(self, frame: DataFrame, *, at_once: bool) -> DataFrame:
        kept = self._checkpointed(frame, at_once=at_once)
        if kept is None and at_once:
            # A job that completes its observations.
            frame.write.format("noop").mode("overwrite").save()
        return frame if kept is None else kept

    def _checkpointed(self, frame: DataFrame, *, at_once: bool) -> DataFrame | None:
        kept = checkpointed(frame, eager=at_once)
        if kept is None:
            return None
        self._frames.append(kept)
        return in_driver(kept) if at_once and self._small else kept

    def __enter__(self) -> CheckpointedFrames:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release all frames."""
        for frame in self._frames:
            release(frame)
        self._frames.clear()
