"""Report a run's hops to an OpenLineage backend, in a thread that no batch waits for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from queue import SimpleQueue
from typing import Any

from tidelake.config import Lineage
from tidelake.delta.access import load
from tidelake.delta.log import commits, newest_version
from tidelake.delta.tables import Hop, Table
from tidelake.instants import now
from tidelake.ops.lineage.datasets import Flow, flow_of
from tidelake.ops.lineage.events import Job, State, Told, Written, event_of, new_run_id
from tidelake.ops.metrics.sinks import first_line
from tidelake.runtime.failures import FOREIGN
from tidelake.runtime.hop import Run

_CLOSE_SECONDS = 20.0


@dataclass(frozen=True)
class _Change:
    """What happened to a hop, or to the whole run where ``hop`` is None.

    Attributes:
        state: What happened.
        hop: To which.
        at: When (UTC).
        versions: Of the tables that it writes, at that moment, by their logical names.
        error: What stopped it; empty where nothing did.
    """

    state: State
    hop: Hop | None
    at: datetime
    versions: Mapping[str, int] = field(default_factory=dict)
    error: str = ""


class LineageReporter:
    """Tells when a run and its hops start, end or fail; a backend that is away is told of once."""

    def __init__(self, run: Run, lineage: Lineage, client: Any, *, streams: bool) -> None:
        """Report the start of the run.

        Args:
            run: What it works with.
            lineage: Where events go and whose they are.
            client: From :func:`tidelake.ops.lineage.events.client_of`.
            streams: Whether the run goes on until it is stopped.
        """
        self._run = run
        self._lineage = lineage
        self._client = client
        self._job = Job(run.pipeline.name, new_run_id(), streams)
        self._jobs: dict[Hop, Job] = {}
        self._before: dict[Hop, Mapping[str, int]] = {}
        # Of hops that have started and not ended; known to the run's own thread.
        self._open: list[Hop] = []
        self._error = ""
        self._queue: SimpleQueue[_Change | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tidelake-lineage", daemon=True)
        self._thread.start()
        self._queue.put(_Change("START", None, now()))

    def starts(self, hop: Hop) -> None:
        """A hop starts; under another limit it only goes on."""
        if hop not in self._open:
            self._open.append(hop)
            self._change("START", hop)

    def ends(self, hop: Hop) -> None:
        """A hop has come to its end; one that had nothing to do never started."""
        if hop in self._open:
            self._open.remove(hop)
            self._change("COMPLETE", hop)

    def failed(self, hop: Hop, error: Exception) -> None:
        """A hop stopped, or did not start."""
        self.starts(hop)
        self._open.remove(hop)
        self._error = first_line(error)
        self._change("FAIL", hop, self._error)

    def close(self) -> None:
        """End what is open, and give the backend a moment to take it."""
        for hop in self._open:
            self._change("ABORT" if self._error else "COMPLETE", hop)
        state: State = "FAIL" if self._error else "COMPLETE"
        self._queue.put(_Change(state, None, now(), error=self._error))
        self._queue.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _change(self, state: State, hop: Hop, error: str = "") -> None:
        # Now, since the thread may be busy with the backend while the tables go on.
        versions = {table.name: newest_version(table) for table in self._writes(hop)}
        self._queue.put(_Change(state, hop, now(), versions, error))

    def _writes(self, hop: Hop) -> list[Table]:
        return [one.table for one in self._flow(hop).outputs if one.table is not None]

    def _flow(self, hop: Hop) -> Flow:
        return flow_of(self._run.lake, self._run.pipeline, hop)

    def _work(self) -> None:
        is_well = True
        while (change := self._queue.get()) is not None:
            if not is_well:
                continue
            try:
                self._client.emit(self._event(change))
            except Exception as error:
                # Whatever the backend or its client do, the run goes on. The error's text may hold
                # the backend's address, which is a secret: its kind has to do.
                is_well = False
                self._run.progress.say(
                    f"lineage: the backend takes no events ({type(error).__name__}). "
                    "The run goes on without."
                )
        self._client.close(0)

    def _event(self, change: _Change) -> Any:
        hop = change.hop
        if hop is None:
            told = Told(error=change.error)
            return event_of(self._lineage, self._job, change.state, change.at, told)
        if change.state == "START":
            job = Job(f"{self._job.name}.{hop}", new_run_id(), self._job.streams, self._job)
            self._jobs[hop], self._before[hop] = job, change.versions
        written = {} if change.state == "START" else self._written(hop, change.versions)
        flow = self._flow(hop)
        told = Told(flow, self._schemas(flow), written, change.error)
        return event_of(self._lineage, self._jobs[hop], change.state, change.at, told)

    def _written(self, hop: Hop, versions: Mapping[str, int]) -> dict[str, Written]:
        """Count what came into each table since the hop started; what a merge moved is none."""
        before = self._before[hop]
        return {
            table.name: Written(
                sum(
                    commit.brought - commit.copied
                    for commit in commits(table, up_to=versions[table.name])
                    if commit.version > before[table.name] and commit.batch >= 0
                ),
                versions[table.name],
            )
            for table in self._writes(hop)
            if versions[table.name] >= 0
        }

    def _schemas(self, flow: Flow) -> dict[str, list[tuple[str, str]]]:
        """Read the columns of the tables that there are; none where Spark is gone already."""
        tables = [one.table for one in (*flow.inputs, *flow.outputs) if one.table is not None]
        try:
            return {
                table.name: [
                    (column.name, column.dataType.simpleString())
                    for column in load(self._run.spark, table).schema.fields
                ]
                for table in tables
                if table.exists
            }
        except FOREIGN:
            return {}
