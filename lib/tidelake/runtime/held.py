"""Keep what a batch reads more than once, and cut its plan there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from tidelake.reuse import reused
from tidelake.settings import REFUSED

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

    def first(self, frame: DataFrame) -> DataFrame:
        """Keep a batch's rows: in the driver, or as soon as something reads them."""
        return self.now(frame) if self._small else self(frame)

    def _keep(self, frame: DataFrame, *, at_once: bool) -> DataFrame:
        if is_remote():
            return _anew(frame, at_once=at_once)
        try:
            kept = frame.localCheckpoint(eager=at_once)
        except REFUSED:
            return _anew(frame, at_once=at_once)
        self._frames.append(kept)
        return _in_driver(kept) if at_once and self._small else kept

    def __enter__(self) -> Held:
        """Start holding."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let all of them go."""
        for frame in self._frames:
            _rows_of(frame).unpersist(False)
        self._frames.clear()


def _anew(frame: DataFrame, *, at_once: bool) -> DataFrame:
    """Let each reader compute a frame; its observations hear of a read of their own."""
    if at_once:
        frame.write.format("noop").mode("overwrite").save()
    return frame


def _rows_of(kept: DataFrame) -> Any:
    plan: Any = kept._jdf.queryExecution().analyzed()
    return plan.rdd()


def _in_driver(kept: DataFrame) -> DataFrame:
    """Bring a frame's kept rows to the driver; as it is where this Spark is built otherwise."""
    from py4j.protocol import Py4JError  # noqa: PLC0415  a mere client of a server lacks it

    try:
        return _local(kept)
    except Py4JError:
        return kept


@reused
def _makers(jvm: Any) -> tuple[Any, Any, Any, Any]:
    """Find Spark's own classes; each part of a class's name is a call into the JVM."""
    spark = jvm.org.apache.spark.sql
    return (
        jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray,
        spark.catalyst.plans.logical.LocalRelation,
        spark.classic.Dataset.ofRows,
        jvm.scala.Option.apply(None),
    )


def _local(kept: DataFrame) -> DataFrame:
    """Turn kept rows into a relation that the driver holds, in Spark's own form.

    What `collect` gives would not do: it takes maps apart, and their order with it.
    """
    session = kept.sparkSession
    made_of, relation_of, frame_of, none = _makers(session.sparkContext._jvm)
    rows = made_of(_rows_of(kept).collect())
    output = kept._jdf.queryExecution().analyzed().output()
    made = frame_of(session._jsparkSession, relation_of(output, rows, False, none))
    # In one partition, which suits every grouping and order: nothing is shuffled.
    return DataFrame(made, session).coalesce(1)
