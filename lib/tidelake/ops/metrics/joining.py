"""Join a batch with its trigger, and with what the commits' notes say of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tidelake.config import Pipeline
from tidelake.delta.log import Commit, commits
from tidelake.delta.notes import SilverNote
from tidelake.delta.tables import HOPS, Hop, Lake, Table
from tidelake.kafka.topic_offsets import total
from tidelake.ops.backlogs import Backlog, TakenFiles, landing_backlog, table_backlog
from tidelake.ops.metrics.listener import Trigger
from tidelake.ops.metrics.measured import Measured
from tidelake.ops.metrics.messages import Closed, Failed, Message, Started

# How far back the log is looked through for a batch that was closed a moment ago.
_NEWEST = 20
# A backlog is what waits now; how it moved lately is the alerts' matter.
_NO_TIME = timedelta(0)


@dataclass
class Joining:
    """Remembers of a run what tells of its next batches.

    Attributes:
        lake: Where the tables are.
        pipeline: The definition.
        run: The run's id.
        interval: How long a batch may take, in seconds; None where nobody waits.
    """

    lake: Lake
    pipeline: Pipeline
    run: str
    interval: float | None
    _open: dict[tuple[Hop, int], Closed] = field(default_factory=dict)
    _reported: dict[Hop, Trigger] = field(default_factory=dict)
    _started: dict[Hop, Started] = field(default_factory=dict)
    _began: dict[Hop, datetime] = field(default_factory=dict)
    _last: dict[Hop, int] = field(default_factory=dict)
    _mark: tuple[datetime | None, datetime] | None = None

    def __post_init__(self) -> None:
        """Know no file yet."""
        self._taken = TakenFiles(self.lake, self.pipeline)

    @property
    def waits(self) -> bool:
        """Tell whether a batch waits for Spark's report on its trigger."""
        return bool(self._open)

    def take(self, message: Message) -> Measured | None:
        """Take a message.

        Returns:
            What it completes; None where something is missing still.
        """
        if isinstance(message, Started):
            self._started[message.hop] = message
            return None
        if isinstance(message, Failed):
            return self._failure(message)
        if isinstance(message, Closed):
            self._open[message.hop, message.batch] = message
            return self._joined(message.hop)
        hop = self._hop(message.query)
        if hop is None:
            return None
        # Through Spark Connect the run may hear of a batch after its trigger is over.
        self._reported[hop] = message
        return self._joined(hop)

    def rest(self, *, until: datetime | None = None) -> Iterator[Measured]:
        """Give the batches whose trigger Spark did not report: they tell what the run knows.

        Args:
            until: Only those that were closed before; None for all.
        """
        for key, closed in sorted(self._open.items(), key=lambda one: one[1].at):
            if until is None or closed.at < until:
                del self._open[key]
                yield self._measured(closed, None)

    def _joined(self, hop: Hop) -> Measured | None:
        """Join a hop's newest trigger with its batch; None where the run told of no such batch.

        A trigger that stays alone wrote nothing: an earlier run closed the batch and counted it.
        """
        trigger = self._reported.get(hop)
        closed = self._open.pop((hop, trigger.batch), None) if trigger else None
        return None if closed is None else self._measured(closed, trigger)

    def _hop(self, query: str) -> Hop | None:
        return next((hop for hop in HOPS if query == f"{self.pipeline.name}-{hop}"), None)

    def _failure(self, failed: Failed) -> Measured:
        started = self._started.get(failed.hop)
        return Measured(
            pipeline=self.pipeline.name,
            hop=failed.hop,
            generation=started.generation if started else "",
            batch=self._last.get(failed.hop, -1) + 1 if failed.hop in self._last else -1,
            run=self.run,
            started_at=failed.at,
            ended_at=failed.at,
            interval_seconds=self.interval,
            error_class=failed.kind,
            error=failed.told,
        )

    def _measured(self, closed: Closed, trigger: Trigger | None) -> Measured:
        hop, started = closed.hop, self._started.get(closed.hop)
        begun = closed.at - timedelta(seconds=closed.seconds)
        # A batch that changed its own limit fails after it was closed; Spark reports a second
        # pass over it, which began later and wrote nothing.
        is_whole = trigger is not None and trigger.started_at <= closed.at
        phases = trigger.phases if trigger else {}
        seconds = trigger.seconds if trigger and is_whole else closed.seconds
        started_at = trigger.started_at if trigger and is_whole else begun
        before = self._began.get(hop)
        since = (started_at - before).total_seconds() if before else 0.0
        self._began[hop], self._last[hop] = started_at, closed.batch
        ended_at = started_at + timedelta(seconds=seconds)
        waiting, lag = self._waiting(hop, closed.batch, ended_at)
        return Measured(
            pipeline=self.pipeline.name,
            hop=hop,
            generation=started.generation if started else "",
            batch=closed.batch,
            run=self.run,
            started_at=started_at,
            ended_at=ended_at,
            seconds=seconds,
            interval_seconds=self.interval,
            rows=closed.rows,
            input_rows_per_second=closed.rows / since if since > 0 else None,
            processed_rows_per_second=closed.rows / seconds if seconds else None,
            phases=phases,
            checkpoint_seconds=trigger.checkpoint_seconds if trigger else 0.0,
            waiting=waiting,
            lag_seconds=lag,
            limit=started.limit if started else None,
            **self._noted(hop, closed.batch, trigger, ended_at),
        )

    def _noted(
        self, hop: Hop, batch: int, trigger: Trigger | None, ended_at: datetime
    ) -> dict[str, Any]:
        """Take from the batch's note what only silver has: fates, watermark, state."""
        state = {
            "state_rows": trigger.state_rows if trigger else None,
            "state_bytes": trigger.state_bytes if trigger else None,
        }
        if hop != "silver":
            return state
        note = SilverNote.of(_of_batch(self.lake.silver(self.pipeline.name), batch))
        mark = note.watermark
        if self._mark is None or self._mark[0] != mark:
            self._mark = mark, ended_at
        age = (ended_at - self._mark[1]).total_seconds()
        # The ids that were compared with are the state, unless an operator keeps one in front.
        state["state_rows"] = note.searched + (state["state_rows"] or 0)
        return {
            **state,
            "fates": dict(note.total()),
            "watermark": mark,
            "event_time_lag_seconds": (ended_at - mark).total_seconds() if mark else None,
            "watermark_age_seconds": age if mark else None,
        }

    def _waiting(self, hop: Hop, batch: int, at: datetime) -> tuple[int | None, float | None]:
        """Tell what waits for a hop after its batch, and for how long the oldest has waited."""
        backlog = self._backlog(hop, at)
        if backlog is not None:
            return backlog.waiting, backlog.seconds(at)
        commit = _of_batch(self.lake.bronze(self.pipeline.name), batch)
        behind = commit.note.get("behind") if commit else None
        # The broker told how many; since when, only the records could tell.
        return (None, None) if behind is None else (total(behind), None)

    def _backlog(self, hop: Hop, at: datetime) -> Backlog | None:
        """Find what waits for a hop; None for sources that are no files."""
        lake, name = self.lake, self.pipeline.name
        if hop == "bronze":
            return landing_backlog(self.pipeline, self._taken, now=at, lately=_NO_TIME)
        reader = lake.silver(name) if hop == "silver" else lake.table(self.pipeline.gold_names[0])
        key, followed = {
            "silver": ("bronze", lake.bronze(name)),
            "gold": ("silver", lake.silver(name)),
        }[hop]
        return table_backlog(hop, followed, reader, key=key, now=at, lately=_NO_TIME)


def _of_batch(table: Table, batch: int) -> Commit | None:
    for number, commit in enumerate(commits(table)):
        if commit.batch == batch:
            return commit
        if number >= _NEWEST:
            break
    return None
