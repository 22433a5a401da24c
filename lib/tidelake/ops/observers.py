"""Observe a run: measure its batches, judge its alerts, report where its rows came from."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelake.config import Environment
from tidelake.delta.tables import Hop
from tidelake.instants import now
from tidelake.ops.alerts.alert import AlertContext
from tidelake.ops.alerts.telling import Teller, Watch, sender_of
from tidelake.ops.backlogs import TakenFiles
from tidelake.ops.lineage import LineageReporter, client_of
from tidelake.ops.metrics.prometheus import MetricRegistry, Served, library
from tidelake.ops.metrics.recorder import (
    Closed,
    Failed,
    Joining,
    Recorder,
    Started,
    TriggerListener,
    first_line,
)
from tidelake.ops.metrics.table import ProgressTable, Sink
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Say
from tidelake.runtime.triggers import Trigger
from tidelake.typed import PLAIN, Typed
from tidelake.visible import kind_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def refuse_unready(environment: Environment) -> None:
    """Stop before Spark starts where what the environment asks for cannot be had.

    Raises:
        MachineError: A client is not installed.
        UsageError: A variable that is referred to is not set.
    """
    if environment.metrics.prometheus:
        library()
    sender_of(environment)
    if environment.lineage:
        client_of(environment.lineage)


@contextmanager
def observing(run: Run, trigger: Trigger, typed: Typed = PLAIN) -> Iterator[Run]:
    """Observe a run, and give it with an observer; nothing that goes wrong here stops it.

    ``typed`` completes the commands that alerts name.
    """
    environment, say = run.environment, run.progress.say
    metrics = environment.metrics
    with ExitStack() as closing:
        registry: MetricRegistry | None = None
        sinks: list[Sink] = []
        if metrics.prometheus:
            registry = MetricRegistry(run.pipeline.name)
            sinks.append(registry)
            _serve(registry, metrics.prometheus, run, closing)
        if metrics.table:
            sinks.append(ProgressTable(run, metrics.keep))
        joining = Joining(run.lake, run.pipeline, str(uuid.uuid4()), trigger.seconds)
        recorder = Recorder(joining, sinks, say)
        taken = TakenFiles(run.lake, run.pipeline)
        watch = Watch(
            lambda: AlertContext(run.lake, run.pipeline, now(), recorder.recent(), taken, typed),
            Teller(run.lake, run.pipeline.name, say, sender_of(environment)),
            registry.tell if registry else None,
            say,
        )
        lineage = None
        # Closed from the last to the first: Spark's last reports, a last look at the alerts, sinks.
        if (target := environment.lineage) is not None:
            lineage = LineageReporter(run, target, client_of(target), streams=not trigger.ends)
            closing.callback(lineage.close)
        observer = RunObserver(recorder, lineage, say)
        closing.callback(observer.detach)
        closing.callback(recorder.close)
        closing.callback(watch.close)
        closing.callback(recorder.settle)
        observer.attach(run.spark)
        yield replace(run, progress=replace(run.progress, observer=observer))


def _serve(registry: MetricRegistry, address: str, run: Run, closing: ExitStack) -> None:
    try:
        served = Served(registry, address)
    except OSError as error:
        run.progress.say(
            f"metrics: {address} cannot be listened on: {error.strerror or error}. "
            "The run goes on without /metrics."
        )
        return
    closing.callback(served.close)
    run.progress.say(f"metrics: http://{address}/metrics")


class RunObserver:
    """Passes on what a run says of itself; whoever hears of it works in a thread of its own."""

    def __init__(self, recorder: Recorder, lineage: LineageReporter | None, say: Say) -> None:
        """Keep who hears of it."""
        self._recorder = recorder
        self._lineage = lineage
        self._say = say
        self._listener = TriggerListener(recorder.hear)
        self._sessions: list[SparkSession] = []

    def attach(self, session: SparkSession) -> None:
        """Listen to a session's queries, once."""
        if any(session is one for one in self._sessions):
            return
        try:
            session.streams.addListener(self._listener)
        except Exception as error:
            # Some compute knows no listeners; batches are measured by the run's own word then.
            self._say(f"metrics: Spark takes no listener: {first_line(error)}. The run goes on.")
        self._sessions.append(session)

    def detach(self) -> None:
        """Listen no more; a session may be gone by now."""
        for session in self._sessions:
            with contextlib.suppress(Exception):
                session.streams.removeListener(self._listener)

    def starts(self, hop: Hop, generation: str, limit: int | None) -> None:
        """Pass it on."""
        self._recorder.hear(Started(hop, generation, limit))
        self._report(lambda lineage: lineage.starts(hop))

    def closed(self, hop: Hop, batch: int, rows: int, seconds: float) -> None:
        """Pass it on."""
        self._recorder.hear(Closed(hop, batch, rows, seconds, now()))

    def ends(self, hop: Hop) -> None:
        """Pass it on; its batches have told the rest."""
        self._report(lambda lineage: lineage.ends(hop))

    def failed(self, hop: Hop, error: Exception) -> None:
        """Pass on the error's kind and what it is."""
        self._recorder.hear(Failed(hop, type(error).__name__, kind_of(error), now()))
        self._report(lambda lineage: lineage.failed(hop, error))

    def _report(self, tell: Callable[[LineageReporter], None]) -> None:
        """Report lineage, which reads the logs; what is wrong there the run says itself."""
        if self._lineage is None:
            return
        try:
            tell(self._lineage)
        except Exception as error:
            self._lineage = None
            self._say(f"lineage: {first_line(error)}. The run goes on without.")
