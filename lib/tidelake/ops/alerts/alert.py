"""One open alert, and what the rules read to find it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Literal

from tidelake.config import Alerts, Pipeline
from tidelake.delta.log import Commit, commits
from tidelake.delta.notes import FRESH, FateCount, SilverNote
from tidelake.delta.tables import HOPS, Hop, Lake, Table
from tidelake.instants import to_json
from tidelake.ops.backlogs import Backlog, TakenFiles, hop_backlog
from tidelake.ops.metrics.table import Measured
from tidelake.ops.status import batch_reached
from tidelake.typed import Typed
from tidelake.visible import visible

# Critical: a table is wrong or stands still. Warning: look at it today.
Severity = Literal["critical", "warning"]
# Rates are those of the hour before the newest batch.
_LATELY = timedelta(hours=1)


@dataclass(frozen=True)
class Alert:
    """An open alert; without a hop it is the whole pipeline's.

    ``since`` (UTC) is when it began, as far as the tables tell; ``command`` is what to type next.
    """

    rule: str
    pipeline: str
    hop: str | None
    severity: Severity
    message: str
    since: datetime | None
    command: str

    @property
    def key(self) -> str:
        """Name the alert: two with the same name are one that goes on."""
        return "/".join((self.pipeline, self.hop or "-", self.rule))

    def __str__(self) -> str:
        """Give the alert as one line, the command last."""
        place = f"{self.pipeline}, hop {self.hop}" if self.hop else self.pipeline
        line = f"{self.severity} {self.rule}: {place}: {self.message}. See: {self.command}"
        return visible(line)

    def to_json(self) -> dict[str, Any]:
        """Give the alert with its instant as ISO 8601."""
        shown = {"message": visible(self.message), "since": to_json(self.since)}
        return asdict(self) | shown


@dataclass(frozen=True)
class AlertContext:
    """What the rules read of a pipeline; each part is read once.

    ``now`` is in UTC, ``measures`` are the batches of the last minutes, oldest first, or empty
    where no run keeps them; ``typed`` completes the commands that alerts name.
    """

    lake: Lake
    pipeline: Pipeline
    now: datetime
    measures: Sequence[Measured]
    taken: TakenFiles
    typed: Typed

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.pipeline.name

    @property
    def limits(self) -> Alerts:
        """The limits of the definition."""
        return self.pipeline.alerts

    @cached_property
    def closing(self) -> Mapping[Hop, list[Table]]:
        """The existing tables whose commits close a batch, by hop; hops without one left out."""
        tables: dict[Hop, list[Table]] = {
            "bronze": [self.lake.bronze(self.name)],
            "silver": [self.lake.silver(self.name)],
            "gold": [self.lake.table(one) for one in self.pipeline.gold_names],
        }
        found = {hop: [table for table in tables[hop] if table.exists] for hop in HOPS}
        return {hop: existing for hop, existing in found.items() if existing}

    @cached_property
    def slowest(self) -> Mapping[Hop, Table]:
        """The table of each hop that is furthest behind."""
        return {hop: min(tables, key=batch_reached) for hop, tables in self.closing.items()}

    @cached_property
    def fresh(self) -> tuple[list[FateCount], datetime | None]:
        """The fates of rows from bronze in silver's recent batches, and when those began."""
        batches = recent(self.lake.silver(self.name))
        counts = [count for commit in batches for count in SilverNote.of(commit).counts]
        since = batches[-1].written_at if batches else None
        return [count for count in counts if count.origin == FRESH], since

    @cached_property
    def waiting(self) -> tuple[Backlog, ...]:
        """The backlog of each hop; a topic's records are judged by ``lag_growing`` itself."""
        lately = timedelta(seconds=self.limits.lag_seconds or 300.0)
        found = (
            # A hop that has no table yet holds nothing of what it follows.
            hop_backlog(
                self.lake,
                self.pipeline,
                hop,
                self.slowest.get(hop),
                taken=self.taken,
                now=self.now,
                lately=lately,
            )
            for hop in HOPS
        )
        return tuple(one for one in found if one is not None)


def recent(table: Table) -> list[Commit]:
    """List a table's batches of the last hour in which there were any, newest first."""
    found: list[Commit] = []
    for commit in commits(table):
        if commit.batch < 0 or (found and found[0].written_at - commit.written_at > _LATELY):
            break
        found.append(commit)
    return found


def lasting(length: timedelta | float) -> str:
    """Write a length of time for people: its largest unit, to the tenth where it is small."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds" if seconds >= 10 else f"{seconds:.1f} seconds"
