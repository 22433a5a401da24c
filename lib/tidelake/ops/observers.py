"""Observe a run: measure its batches, evaluate its alerts, report its lineage.

The run reports a batch after the commit to the tables; Spark reports the trigger after the commit
to the checkpoint. Both only queue a message. A separate thread processes the queue; an error there
is reported once and does not stop the run.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from operator import attrgetter, methodcaller
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming import listener

from tidelake.config import Pipeline
from tidelake.delta.commit_metadata import SilverNote
from tidelake.delta.log import Commit, commits
from tidelake.delta.tables import HOPS, Hop, Lake, Table
from tidelake.instants import now
from tidelake.kafka.client import total_offsets
from tidelake.ledger.history import BacklogReader
from tidelake.ops.alert_delivery import AlertReporter, sender_of, watching
from tidelake.ops.alerts import AlertContext
from tidelake.ops.lineage import LineageReporter, client_of
from tidelake.ops.metrics import Measured, MetricRegistry, ProgressTable, Sink, served
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Observer, Say
from tidelake.runtime.triggers import Trigger
from tidelake.typed import PLAIN, Typed
from tidelake.visible import first_line, kind_of

# How many of the newest commits are searched for a batch that was just committed.
_NEWEST = 20
_POLL_SECONDS = 1.0
# How long the end of a run waits for Spark's last reports, and for the sinks.
_LAST_SECONDS, _CLOSE_SECONDS = 3.0, 30.0
# How long Spark may take to report the trigger of a batch that was committed and waits no longer.
_OVERDUE = timedelta(seconds=20)
# Spark's phases of a trigger that contain all of foreachBatch.
_WITH_THE_BATCH = ("addBatch", "triggerExecution")
# Batches that are kept for alerts: an hour of batches of a second.
_RECENT = 3_600
# A hop of which no batch waited.
_NEVER = -1, 0.0, datetime.min.replace(tzinfo=UTC)
_NOT_YET = datetime.max.replace(tzinfo=UTC)


class Closed(NamedTuple):
    """A batch was committed to the tables; it took ``seconds``."""

    hop: Hop
    batch: int
    rows: int
    seconds: float
    at: datetime


@dataclass(frozen=True)
class TriggerProgress:
    """Spark's progress of a trigger that ran a batch; ``phases`` are in milliseconds.

    The state is that of stateful operators, None if there are none.
    """

    query: str
    batch: int
    started_at: datetime
    phases: Mapping[str, int]
    state_rows: int | None
    state_bytes: int | None

    @property
    def seconds(self) -> float:
        """Duration of the whole trigger: planning, the batch, and both checkpoint writes."""
        return self.phases.get("triggerExecution", 0) / 1000

    def without(self, seconds: float) -> TriggerProgress:
        """Return the trigger without the time that its batch waited for later hops."""
        waited = round(1000 * seconds)
        less = {name: self.phases.get(name, 0) - waited for name in _WITH_THE_BATCH}
        return replace(self, phases={**self.phases, **less, "turn": waited})


class TriggerListener(listener.StreamingQueryListener):
    """Reports each trigger that ran a batch; Spark calls it after the batch, in its own thread.

    It must not raise or take long: Spark's listener bus waits for it.
    """

    def __init__(self, on_trigger: Callable[[TriggerProgress], None]) -> None:
        """Call ``on_trigger`` with each trigger."""
        self._on_trigger = on_trigger

    def onQueryProgress(self, event: listener.QueryProgressEvent) -> None:
        """Report times and state; not Spark's row counts, which count a row once per read."""
        progress = event.progress
        # The phase in which foreachBatch runs; a trigger without it found no input.
        if "addBatch" not in progress.durationMs:
            return
        states = list(progress.stateOperators)
        self._on_trigger(
            TriggerProgress(
                query=progress.name or "",
                batch=progress.batchId,
                started_at=datetime.fromisoformat(progress.timestamp).astimezone(UTC),
                phases={str(name): int(took) for name, took in progress.durationMs.items()},
                state_rows=sum(one.numRowsTotal for one in states) if states else None,
                state_bytes=sum(one.memoryUsedBytes for one in states) if states else None,
            )
        )

    def onQueryStarted(self, event: listener.QueryStartedEvent) -> None:
        """Do nothing: the run itself reports its start."""

    def onQueryTerminated(self, event: listener.QueryTerminatedEvent) -> None:
        """Do nothing: the run itself reports its end, with the error."""


class BatchJoiner:
    """Joins each batch with its trigger and with the metadata of its commit.

    Each method takes a report, and yields the batches or the failure that it completes.
    """

    def __init__(self, lake: Lake, pipeline: Pipeline, run: str, interval: float | None) -> None:
        """Join batches of one run; ``interval`` is the trigger interval in seconds, or None."""
        self.lake = lake
        self._pipeline = pipeline
        self._run = run
        self._interval = interval
        self._backlogs = BacklogReader(lake, pipeline)
        self._open: dict[tuple[Hop, int], Closed] = {}
        # The last batch of each hop that waited for other hops, how many seconds, and until when;
        # before that Spark reports no trigger.
        self._waited: dict[Hop, tuple[int, float, datetime]] = {}
        self._reported: dict[Hop, TriggerProgress] = {}
        # The generation, and the limit of a batch.
        self._started: defaultdict[Hop, tuple[str, int | None]] = defaultdict(lambda: ("", None))
        # Number and start of the last measured batch of each hop.
        self._last: dict[Hop, tuple[int, datetime]] = {}
        # Silver's watermark, and when it took that value.
        self._mark: tuple[datetime | None, datetime] | None = None

    @property
    def waits(self) -> bool:
        """Whether a committed batch still lacks Spark's report of its trigger."""
        return bool(self._open)

    def started(self, hop: Hop, generation: str, limit: int | None) -> Iterable[Measured]:
        """A hop's query started; ``limit`` is the largest input of a batch, in the hop's unit."""
        self._started[hop] = generation, limit
        return ()

    def failed(self, hop: Hop, kind: str, message: str, at: datetime) -> Iterator[Measured]:
        """A hop stopped with an error, given by its class and message."""
        batch = self._last[hop][0] + 1 if hop in self._last else -1
        error = {"error_class": kind, "error": message}
        yield self._record(hop, batch=batch, started_at=at, ended_at=at, **error)

    def ended(self, hop: Hop, at: datetime) -> Iterator[Measured]:
        """A hop has read all of its input; measured if it closed no batch."""
        if hop not in self._last and not any(one == hop for one, _ in self._open):
            yield self._record(hop, batch=-1, started_at=at, ended_at=at)

    def closed(self, batch: Closed) -> Iterator[Measured]:
        """A batch was committed to the tables."""
        self._open[batch.hop, batch.batch] = batch
        yield from self._joined(batch.hop)

    def pauses(self, hop: Hop, batch: int) -> Iterable[Measured]:
        """A batch was committed to the tables, and may wait for other hops."""
        return self.gave_way(hop, batch, 0.0, _NOT_YET)

    def gave_way(self, hop: Hop, batch: int, seconds: float, at: datetime) -> Iterable[Measured]:
        """A batch waited for other hops, after it was committed to the tables."""
        self._waited[hop] = batch, seconds, at
        return ()

    def triggered(self, trigger: TriggerProgress) -> Iterator[Measured]:
        """Spark reported a trigger, of any query."""
        for hop in HOPS:
            if trigger.query == f"{self._pipeline.name}-{hop}":
                # With Spark Connect the trigger's progress may arrive before the batch's report.
                batch, seconds, _ = self._waited.get(hop, _NEVER)
                has_waited = batch == trigger.batch
                self._reported[hop] = trigger.without(seconds) if has_waited else trigger
                yield from self._joined(hop)

    def _joined(self, hop: Hop) -> Iterator[Measured]:
        # A trigger without a batch report wrote nothing: an earlier run committed and measured it.
        trigger = self._reported.get(hop)
        closed = self._open.pop((hop, trigger.batch), None) if trigger else None
        if closed is not None:
            yield self._measured(closed, trigger)

    def rest(self, *, until: datetime | None = None) -> Iterator[Measured]:
        """Yield the batches over before ``until`` whose trigger Spark did not report."""
        for closed in sorted(self._open.values(), key=attrgetter("at")):
            waited, _, over = self._waited.get(closed.hop, _NEVER)
            over = max(over, closed.at) if waited == closed.batch else closed.at
            if until is None or over < until:
                del self._open[closed.hop, closed.batch]
                yield self._measured(closed, None)

    def _record(self, hop: Hop, **values: Any) -> Measured:
        return Measured(
            pipeline=self._pipeline.name,
            hop=hop,
            generation=self._started[hop][0],
            run=self._run,
            interval_seconds=self._interval,
            **values,
        )

    def _measured(self, closed: Closed, trigger: TriggerProgress | None) -> Measured:
        hop = closed.hop
        started_at, seconds = closed.at - timedelta(seconds=closed.seconds), closed.seconds
        # A batch that changes its own limit is retried after its commit: Spark then reports the
        # second attempt, which began later and wrote nothing.
        if trigger is not None and trigger.started_at <= closed.at:
            started_at, seconds = trigger.started_at, trigger.seconds
        since = (started_at - self._last[hop][1]).total_seconds() if hop in self._last else 0.0
        self._last[hop] = closed.batch, started_at
        ended_at = started_at + timedelta(seconds=seconds)
        waiting, lag = self._waiting(hop, closed.batch, ended_at)
        phases = trigger.phases if trigger else {}
        return self._record(
            hop,
            batch=closed.batch,
            started_at=started_at,
            ended_at=ended_at,
            seconds=seconds,
            rows=closed.rows,
            input_rows_per_second=closed.rows / since if since > 0 else None,
            processed_rows_per_second=closed.rows / seconds if seconds else None,
            phases=phases,
            # The writes to the offset log before the batch and to the commit log after it.
            checkpoint_seconds=(phases.get("walCommit", 0) + phases.get("commitOffsets", 0)) / 1000,
            state_bytes=trigger.state_bytes if trigger else None,
            waiting=waiting,
            lag_seconds=lag,
            limit=self._started[hop][1],
            **self._noted(closed, trigger.state_rows if trigger else None, ended_at),
        )

    def _noted(self, closed: Closed, operator_rows: int | None, at: datetime) -> dict[str, Any]:
        """Return the values from silver's commit metadata: fates, watermark, state."""
        if closed.hop != "silver":
            return {"state_rows": operator_rows}
        note = SilverNote.of(_of_batch(self.lake.silver(self._pipeline.name), closed.batch))
        mark = note.watermark
        if self._mark is None or self._mark[0] != mark:
            self._mark = mark, at
        age = (at - self._mark[1]).total_seconds()
        return {
            # Silver's state: the accepted ids that it searched, plus the prefilter's state.
            "state_rows": note.searched + (operator_rows or 0),
            "fates": dict(note.total()),
            "watermark": mark,
            "event_time_lag_seconds": (at - mark).total_seconds() if mark else None,
            "watermark_age_seconds": age if mark else None,
        }

    def _waiting(self, hop: Hop, batch: int, at: datetime) -> tuple[int | None, float | None]:
        """Return the backlog of a hop after its batch, and the age of its oldest input (s)."""
        lake, pipeline = self.lake, self._pipeline
        reader = lake.closing_tables(pipeline, hop)[0]
        # Only the alerts need to know how the backlog changed.
        backlog = self._backlogs.backlog(hop, reader, now=at, lately=timedelta(0))
        if backlog is not None:
            return backlog.waiting, backlog.seconds(at)
        commit = _of_batch(lake.bronze(pipeline.name), batch)
        behind = commit.note.get("behind") if commit else None
        # The broker reports how many records wait, not since when.
        return (None, None) if behind is None else (total_offsets(behind), None)


def _of_batch(table: Table, batch: int) -> Commit | None:
    return next((one for one in islice(commits(table), _NEWEST) if one.batch == batch), None)


class RunObserver(Observer):
    """Measures the batches of a run for the sinks, and forwards its hops to lineage.

    Its methods may be called from any thread and only queue messages, which a thread of its own
    processes. No error of a sink, of lineage or in a measurement stops the run.
    """

    def __init__(
        self,
        joining: BatchJoiner,
        sinks: Sequence[Sink],
        say: Say,
        lineage: LineageReporter | None = None,
    ) -> None:
        """Start the thread that processes messages."""
        self._joining = joining
        self._sinks = list(sinks)
        self._say = say
        self._lineage = lineage
        self._queue: SimpleQueue[Callable[[], Iterable[Measured]] | None] = SimpleQueue()
        self._recent: deque[Measured] = deque(maxlen=_RECENT)
        self._lock = threading.Lock()
        self._has_failed = False
        self._listener = TriggerListener(lambda trigger: self.hear(joining.triggered, trigger))
        self._sessions: list[SparkSession] = []
        self._thread = threading.Thread(target=self._work, name="tidelake-metrics", daemon=True)
        self._thread.start()

    def attach(self, session: SparkSession) -> None:
        """Listen to a session's queries; a session is added once."""
        if any(session is one for one in self._sessions):
            return
        try:
            session.streams.addListener(self._listener)
        except Exception as error:
            # Some compute has no listeners; batches are then measured without Spark's progress.
            self._say(f"metrics: cannot add a listener: {first_line(error)}. The run continues.")
        self._sessions.append(session)

    def detach(self) -> None:
        """Stop listening; sessions that have ended are ignored."""
        for session in self._sessions:
            with suppress(Exception):
                session.streams.removeListener(self._listener)

    def starts(self, hop: Hop, generation: str, limit: int | None) -> None:
        """Record the start of a hop."""
        self.hear(self._started, hop, generation, limit)
        self._report(lambda lineage: lineage.starts(hop))

    def _started(self, hop: Hop, generation: str, limit: int | None) -> Iterable[Measured]:
        self._for_each_sink(methodcaller("starts", hop))
        return self._joining.started(hop, generation, limit)

    def closed(self, hop: Hop, batch: int, rows: int, seconds: float) -> None:
        """Record a committed batch."""
        self.hear(self._joining.closed, Closed(hop, batch, rows, seconds, now()))

    def pauses(self, hop: Hop, batch: int) -> None:
        """Record that a committed batch may wait for other hops."""
        self.hear(self._joining.pauses, hop, batch)

    def gave_way(self, hop: Hop, batch: int, seconds: float) -> None:
        """Record how long a batch waited for other hops."""
        self.hear(self._joining.gave_way, hop, batch, seconds, now())

    def ends(self, hop: Hop) -> None:
        """Record the end of a hop."""
        self.hear(self._joining.ended, hop, now())
        self._report(lambda lineage: lineage.ends(hop))

    def failed(self, hop: Hop, error: Exception) -> None:
        """Record the error's class and message, without values of rows."""
        self.hear(self._joining.failed, hop, type(error).__name__, kind_of(error), now())
        self._report(lambda lineage: lineage.failed(hop, error))

    def hear(self, report: Callable[..., Iterable[Measured]], *values: Any) -> None:
        """Queue a report to the :class:`BatchJoiner`."""
        self._queue.put(partial(report, *values))

    def recent(self) -> tuple[Measured, ...]:
        """Return the latest batches, oldest first."""
        with self._lock:
            return tuple(self._recent)

    def settle(self) -> None:
        """Wait, for a few seconds, for Spark's reports of committed batches."""
        until = time.monotonic() + _LAST_SECONDS
        while time.monotonic() < until and (self._joining.waits or not self._queue.empty()):
            time.sleep(0.05)

    def close(self) -> None:
        """Flush and close the sinks, and end the thread."""
        self._queue.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _work(self) -> None:
        while True:
            with suppress(Empty):
                report = self._queue.get(timeout=_POLL_SECONDS)
                if report is None:
                    break
                self._record(report())
            if self._joining.waits:
                # Some compute has no listeners, and a stopped query reports no progress.
                self._record(self._joining.rest(until=now() - _OVERDUE))
            self._for_each_sink(methodcaller("tick"))
        self._record(self._joining.rest())
        self._for_each_sink(methodcaller("close"))

    def _record(self, measures: Iterable[Measured]) -> None:
        """Store measures and write them to the sinks; report the first error in computing them."""
        try:
            for measured in measures:
                with self._lock:
                    self._recent.append(measured)
                self._for_each_sink(methodcaller("put", measured))
        except Exception as error:
            # The run itself reports a log that cannot be read.
            if not self._has_failed:
                self._has_failed = True
                reason = first_line(error)
                self._say(f"metrics: a batch could not be measured: {reason}. The run continues.")

    def _for_each_sink(self, step: Callable[[Sink], None]) -> None:
        """Call a method of each sink; a sink that fails is reported and removed."""
        for sink in list(self._sinks):
            try:
                step(sink)
            except Exception as error:
                self._sinks.remove(sink)
                self._say(
                    f"metrics: {sink.name} failed and was disabled: {first_line(error)}. "
                    "The run continues."
                )

    def _report(self, send: Callable[[LineageReporter], None]) -> None:
        """Report to lineage; its first error ends lineage for this run."""
        if self._lineage is None:
            return
        try:
            send(self._lineage)
        except Exception as error:
            self._lineage = None
            self._say(f"lineage: {first_line(error)}. The run continues without lineage.")


@contextmanager
def observing(run: Run, trigger: Trigger, typed: Typed = PLAIN) -> Iterator[Run]:
    """Yield a run with an observer attached; no error of the observer stops the run.

    ``typed`` completes the commands of alerts.
    """
    environment, say, lake = run.environment, run.progress.say, run.lake
    metrics, pipeline = environment.metrics, run.pipeline
    with ExitStack() as closing:
        registry: MetricRegistry | None = None
        sinks: list[Sink] = []
        if metrics.prometheus:
            sinks.append(registry := MetricRegistry(pipeline.name))
            try:
                closing.enter_context(served(registry, metrics.prometheus))
                say(f"metrics: http://{metrics.prometheus}/metrics")
            except OSError as error:
                say(
                    f"metrics: cannot listen on {metrics.prometheus}: "
                    f"{error.strerror or error}. The run continues without /metrics."
                )
        if metrics.table:
            sinks.append(ProgressTable(run, metrics.keep))
        lineage = None
        # Closed in reverse order: Spark's last reports, last evaluation of alerts, sinks, lineage.
        if (target := environment.lineage) is not None:
            lineage = LineageReporter(run, target, client_of(target), streams=not trigger.ends)
            closing.callback(lineage.close)
        joiner = BatchJoiner(lake, pipeline, str(uuid.uuid4()), trigger.seconds)
        observer = RunObserver(joiner, sinks, say, lineage)
        closing.callback(observer.detach)
        closing.callback(observer.close)
        backlogs = BacklogReader(lake, pipeline)
        closing.enter_context(
            watching(
                lambda: AlertContext(
                    lake, pipeline, now(), observer.recent(), backlogs, typed, environment.publish
                ),
                AlertReporter(lake, pipeline.name, say, sender_of(environment)),
                registry.show if registry else None,
                say,
            )
        )
        closing.callback(observer.settle)
        observer.attach(run.spark)
        yield replace(run, progress=replace(run.progress, observer=observer))
