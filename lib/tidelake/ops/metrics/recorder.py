"""Measure the batches of a run, joining what the run, Spark and the commits' notes say of each.

The run tells of a batch when its tables hold it, Spark of the trigger when the checkpoint does.
Both only put a message into a queue; all work is done in a thread of its own, and what fails there
is reported once and stops no run.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import methodcaller
from queue import Empty, SimpleQueue
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tidelake.config import Pipeline
from tidelake.delta.log import Commit, commits
from tidelake.delta.notes import SilverNote
from tidelake.delta.tables import HOPS, Hop, Lake, Table
from tidelake.instants import now
from tidelake.kafka.topic_offsets import total
from tidelake.ops.backlogs import TakenFiles, hop_backlog
from tidelake.ops.metrics.table import Measured, Sink
from tidelake.runtime.progress import Say
from tidelake.visible import kind_of

# The phase in which foreachBatch runs; a trigger without it only looked for something to do.
WRITING = "addBatch"
# How far back the log is looked through for a batch that was closed a moment ago.
_NEWEST = 20
_POLL_SECONDS = 1.0
# How long the end of a run waits for Spark's last reports, and for the sinks.
_LAST_SECONDS, _CLOSE_SECONDS = 3.0, 30.0
# How long Spark may take to report the trigger of a batch that is closed.
_OVERDUE = timedelta(seconds=10)
# For the alerts of a run that goes on: an hour of batches of a second.
_RECENT = 3_600


@dataclass(frozen=True)
class Started:
    """A hop's query is to start; ``limit`` is what its batches take at most."""

    hop: Hop
    generation: str
    limit: int | None


@dataclass(frozen=True)
class Closed:
    """The tables hold a batch, which took so many seconds to write."""

    hop: Hop
    batch: int
    rows: int
    seconds: float
    at: datetime


@dataclass(frozen=True)
class Failed:
    """A hop stopped: the kind of the error, and what it says."""

    hop: Hop
    kind: str
    told: str
    at: datetime


@dataclass(frozen=True)
class TriggerProgress:
    """What Spark says of a trigger of a query that took a batch; ``phases`` are in milliseconds.

    The state is that of stateful operators: keys and memory; None where there is none.
    """

    query: str
    batch: int
    started_at: datetime
    phases: Mapping[str, int]
    state_rows: int | None
    state_bytes: int | None

    @property
    def seconds(self) -> float:
        """All of it: planning, writing, both writes into the checkpoint."""
        return self.phases.get("triggerExecution", 0) / 1000

    @property
    def checkpoint_seconds(self) -> float:
        """The write of the batch's plan before it, and of its end after it."""
        return (self.phases.get("walCommit", 0) + self.phases.get("commitOffsets", 0)) / 1000


Message = Started | Closed | Failed | TriggerProgress


class TriggerListener(StreamingQueryListener):
    """Passes on each trigger that took a batch; Spark calls it after the batch, in its own thread.

    Nothing that it does may raise or take time: Spark's bus waits for it.
    """

    def __init__(self, hears: Callable[[TriggerProgress], None]) -> None:
        """Keep who hears of triggers."""
        self._hears = hears

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Pass on what is Spark's own in its report; rows are not: it counts them once a read."""
        progress = event.progress
        if WRITING not in progress.durationMs:
            return
        states = list(progress.stateOperators)
        trigger = TriggerProgress(
            query=progress.name or "",
            batch=progress.batchId,
            started_at=datetime.fromisoformat(progress.timestamp).astimezone(UTC),
            phases={str(name): int(took) for name, took in progress.durationMs.items()},
            state_rows=sum(one.numRowsTotal for one in states) if states else None,
            state_bytes=sum(one.memoryUsedBytes for one in states) if states else None,
        )
        self._hears(trigger)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the run itself reports it."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: the run itself reports it, and knows the error by its own name."""


class Joining:
    """Joins each batch with its trigger, and with what the commits' notes say of both."""

    def __init__(self, lake: Lake, pipeline: Pipeline, run: str, interval: float | None) -> None:
        """Start with nothing known; ``interval`` is how long a batch may take, in seconds."""
        self.lake = lake
        self._pipeline = pipeline
        self._run = run
        self._interval = interval
        self._taken = TakenFiles(lake, pipeline)
        self._open: dict[tuple[Hop, int], Closed] = {}
        self._reported: dict[Hop, TriggerProgress] = {}
        self._started: dict[Hop, Started] = {}
        # Of the last measured batch of each hop: its number, and when it began.
        self._last: dict[Hop, tuple[int, datetime]] = {}
        # Silver's watermark, and when it was first seen there.
        self._mark: tuple[datetime | None, datetime] | None = None

    @property
    def waits(self) -> bool:
        """Whether a batch waits for Spark's report on its trigger."""
        return bool(self._open)

    def take(self, message: Message) -> Measured | None:
        """Take a message; give the batch or failure that it completes, None while one is open."""
        if isinstance(message, Started):
            self._started[message.hop] = message
            return None
        if isinstance(message, Failed):
            batch = self._last[message.hop][0] + 1 if message.hop in self._last else -1
            return self._record(
                message.hop,
                batch=batch,
                started_at=message.at,
                ended_at=message.at,
                error_class=message.kind,
                error=message.told,
            )
        if isinstance(message, Closed):
            hop: Hop | None = message.hop
            self._open[message.hop, message.batch] = message
        else:
            named = {f"{self._pipeline.name}-{one}": one for one in HOPS}
            hop = named.get(message.query)
            if hop is not None:
                # Through Spark Connect the run may hear of a batch after its trigger is over.
                self._reported[hop] = message
        # A trigger that stays alone wrote nothing: an earlier run closed the batch and counted it.
        trigger = self._reported.get(hop) if hop else None
        closed = self._open.pop((hop, trigger.batch), None) if hop and trigger else None
        return None if closed is None else self._measured(closed, trigger)

    def rest(self, *, until: datetime | None = None) -> Iterator[Measured]:
        """Give the batches closed before ``until`` whose trigger Spark did not report."""
        for key, closed in sorted(self._open.items(), key=lambda one: one[1].at):
            if until is None or closed.at < until:
                del self._open[key]
                yield self._measured(closed, None)

    def _record(self, hop: Hop, **values: Any) -> Measured:
        started = self._started.get(hop)
        return Measured(
            pipeline=self._pipeline.name,
            hop=hop,
            generation=started.generation if started else "",
            run=self._run,
            interval_seconds=self._interval,
            **values,
        )

    def _measured(self, closed: Closed, trigger: TriggerProgress | None) -> Measured:
        hop, started = closed.hop, self._started.get(closed.hop)
        started_at, seconds = closed.at - timedelta(seconds=closed.seconds), closed.seconds
        # A batch that changed its own limit fails after it was closed; Spark reports a second
        # pass over it, which began later and wrote nothing.
        if trigger is not None and trigger.started_at <= closed.at:
            started_at, seconds = trigger.started_at, trigger.seconds
        since = (started_at - self._last[hop][1]).total_seconds() if hop in self._last else 0.0
        self._last[hop] = closed.batch, started_at
        ended_at = started_at + timedelta(seconds=seconds)
        waiting, lag = self._waiting(hop, closed.batch, ended_at)
        return self._record(
            hop,
            batch=closed.batch,
            started_at=started_at,
            ended_at=ended_at,
            seconds=seconds,
            rows=closed.rows,
            input_rows_per_second=closed.rows / since if since > 0 else None,
            processed_rows_per_second=closed.rows / seconds if seconds else None,
            phases=trigger.phases if trigger else {},
            checkpoint_seconds=trigger.checkpoint_seconds if trigger else 0.0,
            state_bytes=trigger.state_bytes if trigger else None,
            waiting=waiting,
            lag_seconds=lag,
            limit=started.limit if started else None,
            **self._noted(hop, closed.batch, trigger, ended_at),
        )

    def _noted(
        self, hop: Hop, batch: int, trigger: TriggerProgress | None, ended_at: datetime
    ) -> dict[str, Any]:
        """Take from the batch's note what only silver has: fates, watermark, state."""
        operator_rows = trigger.state_rows if trigger else None
        if hop != "silver":
            return {"state_rows": operator_rows}
        note = SilverNote.of(_of_batch(self.lake.silver(self._pipeline.name), batch))
        mark = note.watermark
        if self._mark is None or self._mark[0] != mark:
            self._mark = mark, ended_at
        age = (ended_at - self._mark[1]).total_seconds()
        return {
            # The ids that were compared with are the state, unless an operator keeps one in front.
            "state_rows": note.searched + (operator_rows or 0),
            "fates": dict(note.total()),
            "watermark": mark,
            "event_time_lag_seconds": (ended_at - mark).total_seconds() if mark else None,
            "watermark_age_seconds": age if mark else None,
        }

    def _waiting(self, hop: Hop, batch: int, at: datetime) -> tuple[int | None, float | None]:
        """Count what waits for a hop after its batch, and give how long the oldest has waited."""
        lake, pipeline = self.lake, self._pipeline
        # How the backlog moved lately is the alerts' matter.
        lately = timedelta(0)
        reader = lake.silver(pipeline.name)
        if hop == "gold":
            reader = lake.table(pipeline.gold_names[0])
        backlog = hop_backlog(lake, pipeline, hop, reader, taken=self._taken, now=at, lately=lately)
        if backlog is not None:
            return backlog.waiting, backlog.seconds(at)
        commit = _of_batch(lake.bronze(pipeline.name), batch)
        behind = commit.note.get("behind") if commit else None
        # The broker told how many; since when, only the records could tell.
        return (None, None) if behind is None else (total(behind), None)


def _of_batch(table: Table, batch: int) -> Commit | None:
    for number, commit in enumerate(commits(table)):
        if commit.batch == batch:
            return commit
        if number >= _NEWEST:
            break
    return None


class Recorder:
    """Measures the batches of one run, and hands them to the sinks."""

    def __init__(self, joining: Joining, sinks: Sequence[Sink], say: Say) -> None:
        """Begin to listen."""
        self._joining = joining
        self._sinks = list(sinks)
        self._say = say
        self._queue: SimpleQueue[Message | None] = SimpleQueue()
        self._recent: deque[Measured] = deque(maxlen=_RECENT)
        self._lock = threading.Lock()
        self._has_failed = False
        self._thread = threading.Thread(target=self._work, name="tidelake-metrics", daemon=True)
        self._thread.start()

    def hear(self, message: Message) -> None:
        """Take a message; from any thread, at once."""
        self._queue.put(message)

    def recent(self) -> tuple[Measured, ...]:
        """Give the latest batches, oldest first; from any thread."""
        with self._lock:
            return tuple(self._recent)

    def settle(self) -> None:
        """Wait for what Spark has still to report of batches that are closed."""
        until = time.monotonic() + _LAST_SECONDS
        while time.monotonic() < until and (self._joining.waits or not self._queue.empty()):
            time.sleep(0.05)

    def close(self) -> None:
        """Write what waits, and let go."""
        self._queue.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _work(self) -> None:
        while True:
            with suppress(Empty):
                message = self._queue.get(timeout=_POLL_SECONDS)
                if message is None:
                    break
                self._record(self._completed(message))
            if self._joining.waits:
                # Some compute takes no listener, and a query that was stopped reports no more.
                self._record(self._joining.rest(until=now() - _OVERDUE))
            self._for_each_sink(methodcaller("tick"))
        self._record(self._joining.rest())
        self._for_each_sink(methodcaller("close"))

    def _completed(self, message: Message) -> Iterator[Measured]:
        measured = self._joining.take(message)
        if measured is not None:
            yield measured

    def _record(self, measures: Iterator[Measured]) -> None:
        """Keep measures and hand them on; an error while they are worked out is reported once."""
        try:
            for measured in measures:
                with self._lock:
                    self._recent.append(measured)
                self._for_each_sink(methodcaller("put", measured))
        except Exception as error:
            # A log that cannot be read now is the run's own matter; it says so by itself.
            if not self._has_failed:
                self._has_failed = True
                told = first_line(error)
                self._say(f"metrics: a batch could not be measured: {told}. The run goes on.")

    def _for_each_sink(self, step: Callable[[Sink], None]) -> None:
        """Let a sink fail once, say so, and leave it alone from then on."""
        for sink in list(self._sinks):
            try:
                step(sink)
            except Exception as error:
                # Whatever it is: the run goes on, and its tables are what counts.
                self._sinks.remove(sink)
                self._say(
                    f"metrics: {sink.name} takes no more: {first_line(error)}. The run goes on."
                )


def first_line(error: BaseException) -> str:
    """Give an error's kind and, without values of rows, what it is."""
    told, kind = kind_of(error), type(error).__name__
    return (told if told.startswith(kind) else f"{kind}: {told}").rstrip(".")
