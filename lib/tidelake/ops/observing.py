"""Observe a run: measure its batches, look out for alerts, tell where its rows came from."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelake.config import Environment
from tidelake.delta.tables import HOPS, Hop
from tidelake.instants import now
from tidelake.ops.alerts.telling import Teller, sender_of
from tidelake.ops.alerts.watch import Watch
from tidelake.ops.lineage.events import client_of
from tidelake.ops.lineage.reporter import LineageReporter
from tidelake.ops.metrics.joining import Joining
from tidelake.ops.metrics.jsonl import JsonLines
from tidelake.ops.metrics.listener import TriggerListener
from tidelake.ops.metrics.messages import Closed, Failed, Started
from tidelake.ops.metrics.prometheus import Registry, Served, Textfile, library
from tidelake.ops.metrics.recorder import Recorder
from tidelake.ops.metrics.sinks import Guarded, Sink, first_line
from tidelake.ops.metrics.table import ProgressTable
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
    metrics = environment.metrics
    if metrics.prometheus or metrics.textfile:
        library()
    sender_of(environment)
    if environment.lineage:
        client_of(environment.lineage)


@contextmanager
def observing(
    run: Run, hops: Sequence[Hop], trigger: Trigger, typed: Typed = PLAIN
) -> Iterator[Run]:
    """Observe a run; nothing that goes wrong here stops it.

    Args:
        run: What it works with.
        hops: Which hops it runs.
        trigger: When its batches begin.
        typed: Completes the commands that alerts name.

    Yields:
        The run, with an observer that hears of it.
    """
    environment, say = run.environment, run.progress.say
    metrics = environment.metrics
    with ExitStack() as closing:
        registry: Registry | None = None
        sinks: list[Sink] = []
        if metrics.prometheus or metrics.textfile:
            registry = Registry(run.pipeline.name)
            sinks.append(registry)
        if registry and metrics.prometheus:
            _serve(registry, metrics.prometheus, run, closing)
        if registry and metrics.textfile:
            sinks.append(Textfile(registry, metrics.textfile, _file_name(run, hops)))
        if metrics.jsonl:
            sinks.append(JsonLines(metrics.jsonl))
        if metrics.table:
            sinks.append(ProgressTable(run, metrics.keep))
        joining = Joining(run.lake, run.pipeline, str(uuid.uuid4()), trigger.seconds)
        recorder = Recorder(joining, [Guarded(sink, say) for sink in sinks], say)
        watch = Watch(
            run.lake,
            run.pipeline,
            Teller(run.lake, run.pipeline.name, say, sender_of(environment)),
            measures=recorder.recent,
            shows=registry.tell if registry else None,
            say=say,
            typed=typed,
        )
        lineage = _reporter(run, trigger)
        observer = RunObserver(recorder, lineage, say)
        # From the last to the first: Spark's last reports, a last look at the alerts, the sinks.
        if lineage is not None:
            closing.callback(lineage.close)
        closing.callback(observer.detach)
        closing.callback(recorder.close)
        closing.callback(watch.close)
        closing.callback(recorder.settle)
        observer.attach(run.spark)
        yield replace(run, progress=replace(run.progress, observer=observer))


def _serve(registry: Registry, address: str, run: Run, closing: ExitStack) -> None:
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


def _file_name(run: Run, hops: Sequence[Hop]) -> str:
    """Name a textfile so that runs of single hops do not overwrite each other's."""
    part = "" if set(hops) == set(HOPS) else "_" + "_".join(hops)
    return f"tidelake_{run.pipeline.name}{part}"


def _reporter(run: Run, trigger: Trigger) -> LineageReporter | None:
    lineage = run.environment.lineage
    if lineage is None:
        return None
    return LineageReporter(run, lineage, client_of(lineage), streams=not trigger.ends)


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
        """Tell of lineage, which looks into the logs; what is wrong there the run says itself."""
        if self._lineage is None:
            return
        try:
            tell(self._lineage)
        except Exception as error:
            self._lineage = None
            self._say(f"lineage: {first_line(error)}. The run goes on without.")
