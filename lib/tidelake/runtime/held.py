"""Keep what a batch reads more than once, and cut its plan there."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from tidelake.spark.engine import checkpointed
from tidelake.spark.internals import in_driver, release

Hold = Callable[[DataFrame], DataFrame]


class Held:
    """Frames that are kept until the work on them ends.

    Their plans end at the kept rows. A cached frame keeps its whole plan, which Spark walks again
    with each step that follows; and each commit to a table plans anew every cached frame that
    read the table, here the verdicts that read silver.

    A small batch's rows that are kept at once come to the driver. A plan holds them itself then:
    Spark knows how few they are, and to send them to all tasks takes no job.

    Where the compute keeps no frames, each reader computes the rows anew: what a batch reads does
    not change while it is open, so they come out the same. Through Spark Connect none is kept,
    since observations do not hear of a frame that a server keeps.
    """

    def __init__(self, *, small: bool = False) -> None:
        """Hold nothing yet.

        Args:
            small: Whether the batch fits into the driver with ease.
        """
        self._small = small
        self._frames: list[DataFrame] = []

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Keep a frame's rows as soon as something reads them."""
        return self._keep(frame, at_once=False)

    def now(self, frame: DataFrame) -> DataFrame:
        """Keep a frame's rows at once, in a job that its observations hear of.

        Args:
            frame: Of a small batch, not many more rows than the batch has.
        """
        return self._keep(frame, at_once=True)

    def _keep(self, frame: DataFrame, *, at_once: bool) -> DataFrame:
        kept = checkpointed(frame, eager=at_once)
        if kept is None:
            return _anew(frame, at_once=at_once)
        self._frames.append(kept)
        return in_driver(kept) if at_once and self._small else kept

    def __enter__(self) -> Held:
        """Start holding."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let all of them go."""
        for frame in self._frames:
            release(frame)
        self._frames.clear()


def _anew(frame: DataFrame, *, at_once: bool) -> DataFrame:
    """Let each reader compute a frame; its observations hear of a read of their own."""
    if at_once:
        frame.write.format("noop").mode("overwrite").save()
    return frame
