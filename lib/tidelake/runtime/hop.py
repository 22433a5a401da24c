"""The base of all hops: the run, its streaming query and checkpoint, its failures.

Through Spark Connect, ``foreachBatch`` runs in a worker process of the server without the driver's
memory. So it gets a description from which it rebuilds the hop. Of a failure only text comes back,
so the error is encoded in it; finished batches are read from the tables' commits.
"""

from __future__ import annotations

import base64
import gc
import json
import re
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import tidelake
from tidelake.config import Environment, Pipeline
from tidelake.config.table_settings import Publish
from tidelake.delta.commit_metadata import positions
from tidelake.delta.locks import HopLocks
from tidelake.delta.log import CREATION, Commit, last_commit
from tidelake.delta.merge import compact, is_due, shorten_log
from tidelake.delta.positions import BEGINNING, has_bytes, slowest_of
from tidelake.delta.store import Catalog
from tidelake.delta.tables import Hop, Lake, Table
from tidelake.errors import MachineError, RefusedError, TidelakeError
from tidelake.folders import Folder
from tidelake.names import logical_name
from tidelake.runtime.checkpoints import (
    CheckpointGuard,
    complete_prepared,
    have_consumed,
    newest_logged,
    open_generation,
    ordered_inputs,
)
from tidelake.runtime.failures import FOREIGN, damage, error_text, named
from tidelake.runtime.fence import Fence
from tidelake.runtime.progress import Closings, InputGrewError, LimitChangedError, Progress
from tidelake.runtime.triggers import Load, Pace
from tidelake.silver.plan import SilverPlan
from tidelake.spark.engine import failure_text, runs_in_process, started
from tidelake.spark.session import whole_file_session
from tidelake.typed import Typed, complete_with, current, runnable

POLL_SECONDS = 1.0
_STOP_POLL_SECONDS = 0.01
# How a query fails when its input gets columns; the second text if they were added between the
# query's planning and its first batch.
_GREW = ("DELTA_SCHEMA_CHANGED", "assertion failed: Invalid batch")
# How a new query fails at a change that Delta streams over only with a log of schemas, which a hop
# does not keep. Databricks Runtime needs it for wider types too, up to 18.0.
_BARRED = re.compile("DELTA_STREAMING_(INCOMPATIBLE_SCHEMA_CHANGE|CANNOT_CONTINUE_PROCESSING)")
# How often a query is restarted for this reason without a batch in between. Delta asks for a
# restart after any change of a schema, even where no query can continue.
_FUTILE_RESTARTS = 3
_CARRIED = re.compile(r"tidelake-error<([A-Za-z0-9_-]+=*)>")


# The newest commit of each closing table (a table whose commits close a batch), before the batch.
Heads = Sequence[Commit | None]


@dataclass(frozen=True)
class Run:
    """Session, definition, tables and settings of one command; each hop and query gets it.

    Attributes:
        stop: Set to end the run: the open batch is abandoned, and the next run retries it.
        replays: Whether a backfill fills its own tables: no row is late, nothing is published.
        locks: Locks that the command holds; ``step`` checks them before each write.
        restarts: How often each hop was restarted since its last batch, for new columns.
    """

    spark: SparkSession
    pipeline: Pipeline
    lake: Lake
    environment: Environment
    progress: Progress
    stop: threading.Event = field(default_factory=threading.Event)
    replays: bool = False
    locks: HopLocks = field(default_factory=HopLocks)
    restarts: dict[Hop, int] = field(default_factory=dict)

    @property
    def published(self) -> Mapping[str, Publish]:
        """The topics to which the run publishes, by gold table; none for a backfill."""
        is_on = self.environment.publish and not self.replays
        return self.pipeline.published if is_on else {}

    @cached_property
    def plan(self) -> SilverPlan:
        """Silver's columns, built once for all batches of the run; bound to its session."""
        return SilverPlan(self.pipeline)

    @cached_property
    def whole_files(self) -> SparkSession:
        """The session that reads the source; one for all queries, since Spark keeps each."""
        return whole_file_session(self.spark)


class HopQuery(ABC):
    """A hop of the pipeline: a streaming query that writes through ``foreachBatch``."""

    hop: ClassVar[Hop]
    # The unit of a batch's limit.
    unit: ClassVar[str] = "bytes"
    # Adapts the limit in a continuous run, so that batches fit into the interval.
    pace: Pace | None = None
    # Called after each batch, with whether it was light; the next one waits for it.
    give_way: Callable[[bool], None] | None = None

    def __init__(self, run: Run, *, creates: bool = True, fence: Fence | None = None) -> None:
        """Open the current generation and, if it ``creates``, missing tables.

        With the ``fence`` of a hop that another process opened, nothing is checked or created.
        Otherwise a GenerationError says that tables and checkpoint do not match, and a
        SchemaChangedError that the definition does not fit the stored tables.
        """
        self.run = run
        name = run.pipeline.name
        checkpoints = run.lake.checkpoints(name, self.hop)
        self.fence: Fence = fence or open_generation(name, self.hop, self.closing, checkpoints)
        self.checkpoint: Folder = checkpoints / self.fence.generation
        self._failure: Exception | None = None
        # Weak: Spark's query refers to this hop, and neither Python's nor the JVM's garbage
        # collector finds a cycle through both.
        self._query: Callable[[], StreamingQuery | None] = lambda: None
        # The thread that stops the query after a batch that changed the limit.
        self._stopping: threading.Thread | None = None
        self._closings: Closings | None = None
        self._ran_batch = False
        filled = tuple(one for one in self.closing if one.name not in self.fence.unfilled)
        self.guard = CheckpointGuard(self.fence, self.checkpoint, filled, self.inputs)
        if fence is not None:
            return
        self.guard.refuse_rewritten()
        self.guard.refuse_mismatch(self.offset_mismatch)
        if creates:
            self.create_tables()

    @property
    def table(self) -> Table:
        """The table of bronze or silver that the hop fills."""
        return self.run.lake.table(logical_name(self.hop, self.run.pipeline.name))

    @cached_property
    def closing(self) -> list[Table]:
        """The tables whose commits close a batch."""
        return self.run.lake.closing_tables(self.run.pipeline, self.hop)

    def compacted(self, spark: SparkSession) -> list[Table]:
        """List the tables that are compacted from time to time."""
        return self.closing

    @cached_property
    def inputs(self) -> Mapping[str, Table]:
        """The tables that the hop reads, by key, in the order of the stream's sources."""
        inputs = self.run.lake.hop_inputs(self.run.pipeline, self.hop)
        return ordered_inputs(self.checkpoint, inputs)

    def offset_mismatch(self, closed: Commit | None) -> str:
        """Describe how the checkpoint differs from a table's newest commit, or return ""."""
        return self.guard.offset_mismatch(closed)

    @property
    @abstractmethod
    def most(self) -> int | None:
        """The configured limit of a batch; None for no limit."""

    @property
    def limit(self) -> int | None:
        """The limit of this query's batches, possibly adapted; None for no limit."""
        return self.most if self.pace is None else self.pace.limit

    @cached_property
    def own_inputs(self) -> Mapping[str, Table]:
        """The inputs that the pipeline fills itself."""
        return self.run.lake.own_inputs(self.run.pipeline, self.hop)

    @property
    def has_full_batch(self) -> bool:
        """Whether the unread rows of an own input reach the limit of a batch.

        Then the next batch stays the same, whatever is appended to that input. False while there
        are tables to be filled first, which reads all of the input.
        """
        slowest = slowest_of(self.closing)
        if self.limit is None or slowest is None or self.fence.unfilled:
            return False
        reached = positions(last_commit(slowest))
        return any(
            has_bytes(table, self.limit, after=reached.get(key, BEGINNING))
            for key, table in self.own_inputs.items()
        )

    @property
    def has_caught_up(self) -> bool:
        """Whether its own inputs are read, and the last batch is in the checkpoint as well."""
        last = last_commit(self.closing[0])
        return (
            have_consumed(self.closing, self.own_inputs)
            and last is not None
            and newest_logged(self.checkpoint / "commits") >= last.batch
        )

    def taken(self, before: Commit | None, batch: int) -> tuple[int, int] | None:
        """Return a closed batch's size and the backlog; None if the limit does not adapt."""
        return self.guard.taken(before, batch)

    @abstractmethod
    def create_tables(self) -> None:
        """Create missing tables and check existing ones."""

    def fill_new_tables(self) -> None:
        """Fill tables that were added to the definition; called before the query is started."""
        return None

    def warm_up(self) -> None:
        """Load classes and start workers that the first batch needs; write nothing."""
        return None

    @abstractmethod
    def stream(self) -> DataFrame:
        """Open the hop's input as a stream."""

    @abstractmethod
    def write(self, rows: DataFrame, batch: int, heads: Heads) -> None:
        """Write one micro-batch; ``heads`` has the newest commit of each closing table."""

    def note(self, batch: int, **more: Any) -> dict[str, Any]:
        """Return commit metadata that identifies the batch, plus ``more``."""
        return {
            "pipeline": self.run.pipeline.name,
            "hop": self.hop,
            "generation": self.fence.generation,
            "batch": batch,
            **more,
        }

    def creation_note(self) -> dict[str, Any]:
        """Return the metadata of a commit that creates a table: pipeline, hop and generation."""
        return self.note(CREATION)

    def start(self, trigger: dict[str, Any]) -> StreamingQuery:
        """Start the query."""
        if self.pace is not None:
            self.pace.begin()
        on_batch: Callable[[DataFrame, int], None] = self._run_here
        if not runs_in_process():
            build = partial(_rebuild_hop, type(self), self.fence, description(self.run), current())
            on_batch = partial(run_in_worker, build, tidelake.__version__)
            self._closings = Closings(self.hop, self.closing[-1], self.run.progress)
        complete_prepared(self.checkpoint)
        # Query names are unique in a session, and a backfill may run along with the live hop.
        suffix = "-backfill" if self.run.replays else ""
        writer = (
            self.stream()
            .writeStream.queryName(f"{self.run.pipeline.name}-{self.hop}{suffix}")
            .option("checkpointLocation", str(self.checkpoint))
            .foreachBatch(on_batch)
            .trigger(**trigger)
        )
        try:
            self._query = weakref.ref(query := started(writer, self.run.progress.say))
        except FOREIGN as error:
            raise self.named(error) from error
        return query

    def take(self, rows: DataFrame, batch: int) -> None:
        """Write one micro-batch, compact the tables if due, adapt the limit, and give way."""
        began = time.monotonic()
        heads = [last_commit(table) for table in self.closing]
        self.write(rows, batch, heads)
        if is_due(batch, self.hop):
            compacted = self.compacted(rows.sparkSession)
            for table in dict.fromkeys([*self.closing, *compacted]):
                if table in compacted:
                    compact(rows.sparkSession, table)
                else:
                    shorten_log(table)
        is_light = False
        if self.pace is not None and (taken := self.taken(heads[0], batch)) is not None:
            ended = time.monotonic()
            load = Load(taken[0], ended - began, taken[1], ended)
            is_light, changed = load.is_light, self.pace.closed(load)
            if changed and (query := self._query()) is not None:
                self.run.progress.say(f"{self.hop:<7} {changed}")
                # Spark cannot change the limit of a running query.
                self._stopping = begin_stop(query)
                return
        if self.give_way is not None:
            # The batch's frames may be collected while it waits.
            self._ran_batch = True
            observer, waiting_since = self.run.progress.observer, time.monotonic()
            observer.pauses(self.hop, batch)
            try:
                self.give_way(is_light)
            finally:
                observer.gave_way(self.hop, batch, time.monotonic() - waiting_since)

    def _run_here(self, rows: DataFrame, batch: int) -> None:
        try:
            self.take(rows, batch)
        except Exception as error:
            # Only the error's text survives Py4J's callback; `check` raises the error itself.
            self._failure = error
            raise
        finally:
            self._ran_batch = True

    def check(self, query: StreamingQuery, seconds: float = POLL_SECONDS) -> None:
        """Wait up to ``seconds`` for the query to end, and raise the error that ended it, if any.

        That is a TidelakeError, or KeyboardInterrupt if a stop was requested.

        After an InputGrewError or a LimitChangedError the hop must be restarted.
        """
        if self.run.stop.is_set():
            raise KeyboardInterrupt
        if self._stopping is not None:
            self._stopping.join()
            raise LimitChangedError(f"the limit of hop {self.hop} changed")
        try:
            query.awaitTermination(seconds)  # type: ignore[arg-type]
        except StreamingQueryException as error:
            if self._stopping is not None and self._failure is None:
                # Stopped while committing the batch to the checkpoint: the next query skips it,
                # since the tables hold it.
                return
            text = failure_text(query, error)
            if has_grown(text) and self._may_restart():
                raise InputGrewError(f"the input of hop {self.hop} has new columns") from error
            raise carried(text) or self.named(self._failure or error) from error
        finally:
            if self._closings is not None:
                self._closings.look()
            # Py4J's objects are in reference cycles: a batch's frames and broadcast tables stay in
            # Spark's JVM until Python collects garbage. By itself it may do so dozens of batches
            # later, so collect here, while waiting for Spark.
            if self._ran_batch:
                self._ran_batch = False
                gc.collect()

    def _may_restart(self) -> bool:
        """Count a restart after the input grew; return False if several led to no batch."""
        batches = [last.batch for table in self.closing if (last := last_commit(table))]
        futile = self.run.restarts.pop(self.hop, 0)
        if max(batches, default=CREATION) > self.fence.closed:
            futile = 0
        if futile == _FUTILE_RESTARTS:
            return False
        self.run.restarts[self.hop] = futile + 1
        return True

    def named(self, error: Exception) -> TidelakeError:
        """Convert the error that stopped the query, or prevented its start."""
        if isinstance(error, TidelakeError):
            return error
        place, text = f"{self.run.pipeline.name}, hop {self.hop}", error_text(error)
        if "ChecksumException" in text and str(self.checkpoint) in text:
            return self.fence.refusal(f"{place}: a file of its checkpoint was altered")
        name, start = self.run.pipeline.name, "--from silver" if self.hop == "gold" else ""
        rebuild = (
            f"Rebuild the tables with: {runnable('tidelake backfill run', name, start)}, "
            f"then: {runnable('tidelake backfill promote', name)}"
        )
        if (is_barred := _BARRED.search(text)) or has_grown(text):
            remedy = rebuild if self.inputs else "Read it into new tables, with another --root."
            if is_barred:
                remedy = (
                    "If a type became wider, Databricks Runtime 18.1 or newer goes on. "
                    f"Otherwise: {remedy}"
                )
            return RefusedError(
                f"{place}: the schema of a table that it reads changed so that no query can "
                "continue: a column was dropped or renamed, or got another type. No row after "
                f"that was read. {remedy}"
            )
        gone = damage(self.run, text)
        if not gone and self.inputs:
            gone = (
                "a file of a table that it reads is gone: VACUUM ran with too short a retention, "
                f"or maintain ran before the first table that reads it. {rebuild}"
            )
        return named(error, place, gone=gone)


def begin_stop(query: StreamingQuery) -> threading.Thread:
    """Begin to stop a query; return the thread that stops it, once no other batch can start.

    ``query.stop`` waits for the open batch, so a batch that called it would wait for itself.
    """
    stopping = threading.Thread(target=query.stop, name="stop-query", daemon=True)
    stopping.start()
    while query.isActive and stopping.is_alive():
        time.sleep(_STOP_POLL_SECONDS)
    return stopping


def has_grown(text: str) -> bool:
    """Return whether an error's text says that the query's input got columns."""
    return any(words in text for words in _GREW)


def description(run: Run) -> Callable[[SparkSession], Run]:
    """Return a picklable function that rebuilds a run in another process.

    Session, printer and the request to stop stay in this process. The other process caches a
    catalog's histories for the following batches.
    """
    made = partial(Run, pipeline=run.pipeline, environment=run.environment, replays=run.replays)
    lake, current = replace(run.lake, catalog=None), run.lake.catalog
    catalog = None if current is None else partial(Catalog, current.name, histories={})
    return partial(_rebuild_run, made, lake, catalog)


def _rebuild_run(
    made: Callable[..., Run],
    lake: Lake,
    catalog: Callable[..., Catalog] | None,
    spark: SparkSession,
) -> Run:
    if catalog is not None:
        lake = replace(lake, catalog=catalog(session=lambda: spark))
    return made(spark=spark, lake=lake, progress=Progress(lambda _: None))


def _rebuild_hop(
    hop: type[HopQuery],
    fence: Fence,
    describe: Callable[[SparkSession], Run],
    typed: Typed,
    spark: SparkSession,
) -> HopQuery:
    complete_with(typed)
    return hop(describe(spark), fence=fence)


class CarriedError(Exception):
    """An error that encodes another in its text, which is all that a worker can return."""

    def __init__(self, error: TidelakeError) -> None:
        """Encode the error after its plain message, which is for readers of the server's log."""
        fields = {"kind": type(error).__name__, "message": str(error)}
        text = base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()
        super().__init__(f"{error}\ntidelake-error<{text}>")


def run_in_worker(
    build: Callable[[SparkSession], HopQuery], version: str, rows: DataFrame, batch: int
) -> None:
    """Process a batch in a worker process of the Spark Connect server.

    ``build`` makes the hop from the batch's session; ``version`` is the sender's Tidelake version.
    Every failure is raised as a CarriedError.
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
    """Decode the error that a worker encoded in a query's failure text; None without one."""
    found = _CARRIED.search(text)
    if found is None:
        return None
    fields = json.loads(base64.urlsafe_b64decode(found[1]))
    kinds = {kind.__name__: kind for kind in _with_children(TidelakeError)}
    kind = kinds.get(fields["kind"], TidelakeError)
    # Bypass the constructor: some subclasses take other arguments than their message.
    error: TidelakeError = Exception.__new__(kind)
    Exception.__init__(error, fields["message"])
    return error


def _with_children(kind: type[TidelakeError]) -> Iterator[type[TidelakeError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _with_children(child)
