"""Hear from Spark what each trigger of a streaming query took."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

# The phase in which foreachBatch runs; a trigger without it only looked for something to do.
WRITING = "addBatch"


@dataclass(frozen=True)
class Trigger:
    """What Spark says of a trigger that took a batch.

    Attributes:
        query: The query's name.
        batch: The batch.
        started_at: When it fired (UTC).
        phases: Milliseconds by phase, in Spark's names.
        state_rows: Keys that stateful operators hold; None where there is none.
        state_bytes: Memory that they take.
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


class TriggerListener(StreamingQueryListener):
    """Passes on each trigger that took a batch; Spark calls it after the batch, in its own thread.

    Nothing that it does may raise or take time: Spark's bus waits for it.
    """

    def __init__(self, hears: Callable[[Trigger], None]) -> None:
        """Keep who hears of triggers."""
        self._hears = hears

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Pass on a trigger."""
        if WRITING in event.progress.durationMs:
            self._hears(trigger_of(event.progress))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Is told by the run itself."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing came: no batch."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Is told by the run itself, which knows the error by its own name."""


def trigger_of(progress: StreamingQueryProgress) -> Trigger:
    """Take from Spark's report what is its own; rows are not: it counts them once a read."""
    states = list(progress.stateOperators)
    return Trigger(
        query=progress.name or "",
        batch=progress.batchId,
        started_at=datetime.fromisoformat(progress.timestamp).astimezone(UTC),
        phases={str(name): int(took) for name, took in progress.durationMs.items()},
        state_rows=sum(one.numRowsTotal for one in states) if states else None,
        state_bytes=sum(one.memoryUsedBytes for one in states) if states else None,
    )
