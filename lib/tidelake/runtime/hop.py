"""What every hop has in common: the run, its query and checkpoint, its failures.

Through Spark Connect a hop's batches are worked on in another process. Nothing of the driver's
memory is there, so it gets a description from which it builds the hop anew. Of what goes wrong only
a text comes back, into which the error is written; of what was done, the tables' commits tell.
"""

from __future__ import annotations

import base64
import gc
import json
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import takewhile
from typing import Any, ClassVar

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import tidelake
from tidelake.config import Environment, Pipeline
from tidelake.delta.locks import HopLocks
from tidelake.delta.log import CREATION, Commit, commits, last_commit
from tidelake.delta.merge import compact, is_due
from tidelake.delta.store import Catalog
from tidelake.delta.tables import Hop, Lake, Table
from tidelake.errors import MachineError, TidelakeError
from tidelake.folders import Folder
from tidelake.runtime.checkpoints import CheckpointGuard, Fence, open_generation
from tidelake.runtime.failures import FOREIGN, named, swept, told_by
from tidelake.runtime.progress import InputGrewError, LimitChangedError, Progress
from tidelake.runtime.triggers import Load, Pace
from tidelake.silver.plan import SilverPlan
from tidelake.spark.engine import failure_text, runs_batches_here

_POLL_SECONDS = 1
_STOP_POLL_SECONDS = 0.01
# What ends a query whose input got columns; the second where they came between the query's plan
# and its first batch.
_GREW = ("DELTA_SCHEMA_CHANGED", "assertion failed: Invalid batch")
_CARRIED = re.compile(r"tidelake-error<([A-Za-z0-9_-]+=*)>")


# The newest commit of each table whose commits close a batch, before the batch.
Heads = Sequence[Commit | None]


@dataclass(frozen=True)
class Run:
    """What a run works with.

    Attributes:
        environment: What differs by place.
        progress: Hears of each closed batch.
        stop: Set to end the run: the open batch is given up, the next run repeats it.
        replays: Whether rows that arrived long ago are processed again: none of them is late.
        locks: What a command that changes several tables holds; hears of each step.
    """

    spark: SparkSession
    pipeline: Pipeline
    lake: Lake
    environment: Environment
    progress: Progress
    stop: threading.Event = field(default_factory=threading.Event)
    replays: bool = False
    locks: HopLocks = field(default_factory=HopLocks)

    @cached_property
    def plan(self) -> SilverPlan:
        """Silver's columns, built once for all batches of the run; they belong to its session."""
        return SilverPlan(self.pipeline)


class HopQuery(ABC):
    """One arrow of the pipeline: a streaming query that writes through ``foreachBatch``."""

    hop: ClassVar[Hop]
    # Of the limit of a batch.
    unit: ClassVar[str] = "bytes"
    # Where a run that goes on keeps its batches under an interval.
    pace: Pace | None = None

    def __init__(self, run: Run, *, creates: bool = True, fence: Fence | None = None) -> None:
        """Find the generation and create the tables that do not exist yet.

        Without ``creates`` nothing is written; with the ``fence`` of a hop that another process
        opened nothing is checked or created again. A GenerationError where table and checkpoint do
        not belong together, a SchemaChangedError where the definition does not fit the stored
        tables.
        """
        self.run = run
        closing = self.closing_tables()
        checkpoints = run.lake.checkpoints(run.pipeline.name, self.hop)
        self.fence: Fence = fence or open_generation(
            run.pipeline.name, self.hop, closing, checkpoints
        )
        # The folder of this generation's checkpoint.
        self.checkpoint: Folder = checkpoints / self.fence.generation
        self._failure: Exception | None = None
        self._query: StreamingQuery | None = None
        # Stops the query after a batch that changed the limit.
        self._stopping: threading.Thread | None = None
        self._closings: Closings | None = None
        self._took = False
        self.guard = CheckpointGuard(self.fence, self.checkpoint, tuple(closing), self.inputs)
        if fence is not None:
            return
        self.guard.refuse_rewritten()
        self.guard.refuse_mismatch(self.offset_mismatch)
        if creates:
            self.create_tables()

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

    def offset_mismatch(self, closed: Commit) -> str:
        """Describe how the checkpoint differs from a table's newest batch, or return ""."""
        return self.guard.offset_mismatch(closed)

    @property
    def most(self) -> int | None:
        """What a batch takes at most, by the configuration; None for no limit."""
        return None

    @property
    def limit(self) -> int | None:
        """The same, of this query."""
        return self.most if self.pace is None else self.pace.limit

    def taken(self, before: Commit | None, batch: int) -> tuple[int, int] | None:
        """Return what a closed batch took and what still waits; None where no limit adapts."""
        return self.guard.taken(before, batch)

    @abstractmethod
    def create_tables(self) -> None:
        """Create what does not exist, and check what does."""

    @abstractmethod
    def stream(self) -> DataFrame:
        """Open the hop's input as a stream."""

    @abstractmethod
    def write(self, rows: DataFrame, batch: int, heads: Heads) -> None:
        """Write one micro-batch; ``heads`` has the newest commit of each closing table."""

    def note(self, batch: int, **more: Any) -> dict[str, Any]:
        """Start the metadata of a commit."""
        return {
            "pipeline": self.run.pipeline.name,
            "hop": self.hop,
            "generation": self.fence.generation,
            "batch": batch,
            **more,
        }

    def creation_note(self) -> dict[str, Any]:
        """Return the metadata of the commit that makes a table."""
        return self.note(CREATION)

    def start(self, trigger: dict[str, Any]) -> StreamingQuery:
        """Start the query."""
        if self.pace is not None:
            self.pace.begin()
        on_batch: Callable[[DataFrame, int], None] = self._take_here
        if not runs_batches_here():
            build = partial(_rebuilt, type(self), self.fence, description(self.run))
            on_batch = partial(take_elsewhere, build, tidelake.__version__)
            self._closings = Closings(self.hop, self.closing_tables()[-1], self.run.progress)
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
            self._query = writer.start()
        except FOREIGN as error:
            raise self.named(error) from error
        return self._query

    def take(self, rows: DataFrame, batch: int) -> None:
        """Write one micro-batch, and now and then put files together."""
        began = time.monotonic()
        heads = [last_commit(table) for table in self.closing_tables()]
        self.write(rows, batch, heads)
        if is_due(batch):
            for table in self.compacted(rows.sparkSession):
                compact(rows.sparkSession, table)
        taken = None if self.pace is None else self.taken(heads[0], batch)
        if self.pace is None or taken is None:
            return
        ended = time.monotonic()
        changed = self.pace.closed(Load(taken[0], ended - began, taken[1], ended))
        if changed and self._query is not None:
            self.run.progress.say(f"{self.hop:<7} {changed}")
            self._stop_after_batch(self._query)

    def _stop_after_batch(self, query: StreamingQuery) -> None:
        """Let the open batch be the last of its query; Spark cannot change the limit of one.

        A query that is stopped waits for its batch, and so must not be stopped from within it.
        This returns when Spark has taken note, so that no other batch begins.
        """
        self._stopping = threading.Thread(target=query.stop, name=f"stop-{self.hop}", daemon=True)
        self._stopping.start()
        while query.isActive and self._stopping.is_alive():
            time.sleep(_STOP_POLL_SECONDS)

    def _take_here(self, rows: DataFrame, batch: int) -> None:
        try:
            self.take(rows, batch)
        except Exception as error:
            # Py4J hands only a text across the JVM; the error itself waits here.
            self._failure = error
            raise
        finally:
            self._took = True

    def check(self, query: StreamingQuery) -> None:
        """Raise what ended the query, if anything did, as the error that it was.

        A KeyboardInterrupt where the run was asked to stop; after an InputGrewError or a
        LimitChangedError the hop is to be started again.
        """
        if self.run.stop.is_set():
            raise KeyboardInterrupt
        if self._stopping is not None:
            self._stopping.join()
            raise LimitChangedError(f"the limit of hop {self.hop} changed")
        try:
            query.awaitTermination(_POLL_SECONDS)
        except StreamingQueryException as error:
            if self._stopping is not None and self._failure is None:
                # Stopped while it wrote down that the batch is done: the next query passes over it.
                return
            told = failure_text(query, error)
            if has_grown(told):
                raise InputGrewError(f"the input of hop {self.hop} has new columns") from error
            raise carried(told) or self.named(self._failure or error) from error
        finally:
            if self._closings is not None:
                self._closings.look()
            # Py4J's objects refer to themselves: a batch's frames, and the tables that were
            # broadcast for it, stay in Spark's JVM until Python looks for cycles. By itself it may
            # do so dozens of batches later, so it looks while it waits for Spark.
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


def has_grown(told: str) -> bool:
    """Return whether a query ended because its input got columns."""
    return any(words in told for words in _GREW)


class Closings:
    """Reports each batch of a hop that another process closed, once, by its commit."""

    def __init__(self, hop: Hop, table: Table, progress: Progress) -> None:
        """Begin with the batches to come; the commits of ``table`` close them."""
        self._hop, self._table, self._progress = hop, table, progress
        last = last_commit(table)
        self._told = CREATION if last is None else last.batch
        self._since = time.monotonic()

    def look(self) -> None:
        """Report what was closed since the last look."""
        fresh = list(takewhile(lambda commit: commit.batch > self._told, commits(self._table)))
        for commit in reversed(fresh):
            note = commit.note
            rows = int(note.get("records", note.get("rows", 0)))
            if "counts" in note:
                rows = sum(int(count[3]) for count in note["counts"])
            mark = note.get("watermark")
            watermark = None if mark is None else datetime.fromisoformat(mark)
            self._progress.closed(self._hop, commit.batch, rows, self._since, watermark=watermark)
            self._told, self._since = commit.batch, time.monotonic()


def description(run: Run) -> Callable[[SparkSession], Run]:
    """Return what makes a run anew in another process; it can be sent there.

    Session, printer and the request to stop belong to this process. What the other one comes to
    know of a catalog's histories it keeps for the batches that follow.
    """
    lake, known = replace(run.lake, catalog=None), run.lake.catalog
    catalog = None if known is None else partial(Catalog, known.name, histories={})
    return partial(_described, run.pipeline, lake, catalog, run.environment, run.replays)


def _described(
    pipeline: Pipeline,
    lake: Lake,
    catalog: Callable[..., Catalog] | None,
    environment: Environment,
    replays: bool,
    spark: SparkSession,
) -> Run:
    if catalog is not None:
        lake = replace(lake, catalog=catalog(session=lambda: spark))
    return Run(spark, pipeline, lake, environment, Progress(lambda _: None), replays=replays)


def _rebuilt(
    hop: type[HopQuery], fence: Fence, describe: Callable[[SparkSession], Run], spark: SparkSession
) -> HopQuery:
    return hop(describe(spark), fence=fence)


class CarriedError(Exception):
    """Holds another error in its text, which is all that comes back from a worker."""

    def __init__(self, error: TidelakeError) -> None:
        """Write the error down, beside its message for those who read a server's log."""
        told = {"kind": type(error).__name__, "message": str(error)}
        text = base64.urlsafe_b64encode(json.dumps(told).encode()).decode()
        super().__init__(f"{error}\ntidelake-error<{text}>")


def take_elsewhere(
    build: Callable[[SparkSession], HopQuery], version: str, rows: DataFrame, batch: int
) -> None:
    """Work on a batch in a process of the server.

    ``build`` makes the worker from the session that a batch comes with; ``version`` is that of the
    Tidelake that sends it. Raises a CarriedError, whatever stopped it.
    """
    if version != tidelake.__version__:
        raise CarriedError(
            MachineError(
                f"the Spark Connect server has tidelake {tidelake.__version__}, this is "
                f"{version}. Install the same on both."
            )
        )
    worker = build(rows.sparkSession)
    try:
        worker.take(rows, batch)
    except Exception as error:
        raise CarriedError(worker.named(error)) from error


def carried(text: str) -> TidelakeError | None:
    """Read the error that a worker wrote into what ended a query; None where none did."""
    found = _CARRIED.search(text)
    if found is None:
        return None
    told = json.loads(base64.urlsafe_b64decode(found[1]))
    kinds = {kind.__name__: kind for kind in _with_children(TidelakeError)}
    kind = kinds.get(told["kind"], TidelakeError)
    # Some take other arguments than their message.
    error: TidelakeError = Exception.__new__(kind)
    Exception.__init__(error, told["message"])
    return error


def _with_children(kind: type[TidelakeError]) -> Iterator[type[TidelakeError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _with_children(child)
