"""What every hop has in common: its place, its query, its failures."""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidelake.delta.compaction import compact, is_due
from tidelake.delta.generations import CREATION, Fence, open_generation
from tidelake.delta.log import Commit, last_commit
from tidelake.delta.tables import Hop, Table
from tidelake.errors import TidelakeError
from tidelake.folders import Folder
from tidelake.runtime.again import InputGrewError, LimitChangedError, has_grown
from tidelake.runtime.closings import Closings
from tidelake.runtime.elsewhere import Elsewhere, carried
from tidelake.runtime.failures import FOREIGN, named, swept, told_by
from tidelake.runtime.limits import Load
from tidelake.runtime.pace import Pace
from tidelake.runtime.run import Described, Run
from tidelake.runtime.standing import Standing
from tidelake.spark.engine import failure_text, runs_batches_here

__all__ = ["HopQuery", "Run"]

_POLL_SECONDS = 1


class HopQuery(ABC):
    """One arrow of the pipeline: a streaming query that writes through ``foreachBatch``."""

    hop: ClassVar[Hop]
    # Of the limit of a batch.
    unit: ClassVar[str] = "bytes"
    # Where a run that goes on keeps its batches under an interval.
    pace: Pace | None = None

    def __init__(self, run: Run, *, creates: bool = True, fence: Fence | None = None) -> None:
        """Find the generation and create the tables that do not exist yet.

        Args:
            run: What the hop works with.
            creates: Whether tables are to be created; without, nothing is written.
            fence: Of a hop that another process opened: nothing is checked or created again.

        Raises:
            GenerationError: Table and checkpoint do not belong together.
            SchemaChangedError: The definition does not fit the stored tables.
        """
        self.run = run
        self.fence: Fence = fence or open_generation(
            run.pipeline.name, self.hop, self.closing_tables(), self._checkpoints
        )
        self._failure: Exception | None = None
        self._closings: Closings | None = None
        self._took = False
        self.standing = Standing(
            self.fence, self.checkpoint, tuple(self.closing_tables()), self.inputs
        )
        if fence is not None:
            return
        self.standing.refuse_rewritten()
        self.standing.refuse_astray(self.astray)
        if creates:
            self.create_tables()

    @property
    def _checkpoints(self) -> Folder:
        return self.run.lake.checkpoints(self.run.pipeline.name, self.hop)

    @property
    def checkpoint(self) -> Folder:
        """The folder of this generation's checkpoint."""
        return self._checkpoints / self.fence.generation

    @abstractmethod
    def closing_tables(self) -> list[Table]:
        """List the tables whose commits close a batch."""

    def compacted(self, spark: SparkSession) -> list[Table]:
        """List the tables whose small files are put together now and then."""
        return self.closing_tables()

    @property
    def inputs(self) -> Mapping[str, Table]:
        """The tables that the hop follows, in the order in which its stream names them."""
        return {}

    def astray(self, closed: Commit) -> str:
        """Say how the checkpoint goes on elsewhere than a batch ended; empty where it does not.

        Args:
            closed: The newest batch of a table.
        """
        return self.standing.astray(closed)

    @property
    def most(self) -> int | None:
        """What a batch takes at most, by the configuration; None for no limit."""
        return None

    @property
    def limit(self) -> int | None:
        """The same, of this query."""
        return self.most if self.pace is None else self.pace.limit

    def taken(self, before: Commit | None, batch: int) -> tuple[int, int] | None:
        """Tell what a closed batch took and what waits still; None where nothing adapts a limit."""
        return self.standing.taken(before, batch)

    @abstractmethod
    def create_tables(self) -> None:
        """Create what does not exist, and check what does."""

    @abstractmethod
    def stream(self) -> DataFrame:
        """Open the hop's input as a stream."""

    @abstractmethod
    def write(self, rows: DataFrame, batch: int) -> None:
        """Write one micro-batch."""

    def note(self, batch: int, **more: Any) -> dict[str, Any]:
        """Start the note of a commit."""
        return {
            "pipeline": self.run.pipeline.name,
            "hop": self.hop,
            "generation": self.fence.generation,
            "batch": batch,
            **more,
        }

    def creation_note(self) -> dict[str, Any]:
        """Write the note of the commit that makes a table."""
        return self.note(CREATION)

    def start(self, trigger: dict[str, Any]) -> StreamingQuery:
        """Start the query."""
        if self.pace is not None:
            self.pace.begin()
        on_batch: Callable[[DataFrame, int], None] = self._take_here
        if not runs_batches_here():
            described = Described.of(self.run)
            on_batch = Elsewhere(partial(_rebuilt, type(self), self.fence, described))
            self._closings = Closings(self.hop, self.closing_tables(), self.run.progress)
        name = f"{self.run.pipeline.name}-{self.hop}"
        writer = (
            self.stream()
            # A session knows a name once, and a backfill may go on beside the live hop.
            .writeStream.queryName(f"{name}-backfill" if self.run.replays else name)
            .option("checkpointLocation", str(self.checkpoint))
            .foreachBatch(on_batch)
            .trigger(**trigger)
        )
        try:
            return writer.start()
        except FOREIGN as error:
            raise self.named(error) from error

    def take(self, rows: DataFrame, batch: int) -> None:
        """Write one micro-batch, and now and then put files together."""
        began = time.monotonic()
        before = None if self.pace is None else last_commit(self.closing_tables()[0])
        self.write(rows, batch)
        if is_due(batch):
            for table in self.compacted(rows.sparkSession):
                compact(rows.sparkSession, table)
        if self.pace is not None:
            self._keep_pace(self.pace, before, batch, began)

    def _take_here(self, rows: DataFrame, batch: int) -> None:
        try:
            self.take(rows, batch)
        except Exception as error:
            # Py4J hands only a text across the JVM; the error itself waits here.
            self._failure = error
            raise
        finally:
            self._took = True

    def _keep_pace(self, pace: Pace, before: Commit | None, batch: int, began: float) -> None:
        """Let a closed batch teach how large the next ones should be.

        Spark cannot change the limit of a query that runs, nor stop one between two batches. So
        the batch fails after it was closed: the next query passes over it, and has another limit.
        """
        taken = self.taken(before, batch)
        if taken is None:
            return
        ended = time.monotonic()
        changed = pace.closed(Load(taken[0], ended - began, taken[1], ended))
        if changed:
            self.run.progress.say(f"{self.hop:<7} {changed}")
            raise LimitChangedError(f"hop {self.hop}: {changed}")

    def check(self, query: StreamingQuery) -> None:
        """Raise what ended the query, if anything did, as the error that it was.

        Raises:
            KeyboardInterrupt: The run was asked to stop.
            InputGrewError, LimitChangedError: Start the hop again.
            TidelakeError: The batch's own error, or one that names the query's failure.
        """
        if self.run.stop.is_set():
            raise KeyboardInterrupt
        try:
            query.awaitTermination(_POLL_SECONDS)
        except StreamingQueryException as error:
            told = failure_text(query, error)
            if has_grown(told):
                raise InputGrewError(f"the input of hop {self.hop} has new columns") from error
            raise carried(told) or self.named(self._failure or error) from error
        finally:
            if self._closings is not None:
                self._closings.look()
            self._let_go()

    def _let_go(self) -> None:
        """Let Spark's JVM have back what it keeps for frames of batches that ended.

        Py4J's objects refer to themselves, so a frame, and the tables that were broadcast for it,
        stays until Python looks for cycles, and by itself it may do so dozens of batches later.
        It looks while it waits for Spark, and not within a batch.
        """
        if self._took:
            self._took = False
            gc.collect()

    def named(self, error: Exception) -> TidelakeError:
        """Name what stopped the query, or did not let it start."""
        if isinstance(error, TidelakeError):
            return error
        place, told = f"{self.run.pipeline.name}, hop {self.hop}", told_by(error)
        if "ChecksumException" in told and str(self.checkpoint) in told:
            return self.fence.refusal(f"{place}: a file of its checkpoint was altered")
        gone = swept(self.run.pipeline.name, self.hop) if self.inputs else ""
        return named(error, place, gone=gone)

    def finish(self, query: StreamingQuery) -> None:
        """Wait for a query that ends by itself; stop it when interrupted."""
        try:
            while query.isActive:
                self.check(query)
            self.check(query)
        finally:
            if query.isActive:
                query.stop()


def _rebuilt(
    hop: type[HopQuery], fence: Fence, described: Described, spark: SparkSession
) -> HopQuery:
    """Build a hop anew where its batches are worked on; its tables tell what it did."""
    return hop(described.run(spark), fence=fence)
