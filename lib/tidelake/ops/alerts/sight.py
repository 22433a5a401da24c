"""What every rule looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidelake.config import Alerts, Pipeline
from tidelake.delta.log import last_commit
from tidelake.delta.tables import HOPS, Hop, Lake, Table
from tidelake.ops.alerts.alert import Alert, Severity
from tidelake.ops.backlogs import TakenFiles
from tidelake.ops.metrics.measured import Measured
from tidelake.typed import Typed


@dataclass(frozen=True)
class Sight:
    """A pipeline as the rules see it.

    Attributes:
        lake: Where the tables are.
        pipeline: The definition, with the limits.
        now: The moment, in UTC.
        measures: Batches of the last minutes, oldest first; empty where no run keeps them.
        taken: The files that bronze took.
        typed: Completes the commands that alerts name.
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
        """When somebody wants to be told."""
        return self.pipeline.alerts

    def closing(self) -> Mapping[Hop, list[Table]]:
        """The tables whose commits close a batch of each hop, those that exist."""
        lake, name = self.lake, self.name
        tables: dict[Hop, list[Table]] = {
            "bronze": [lake.bronze(name)],
            "silver": [lake.silver(name)],
            "gold": [lake.table(one) for one in self.pipeline.gold_names],
        }
        found = {hop: [table for table in tables[hop] if table.exists] for hop in HOPS}
        return {hop: existing for hop, existing in found.items() if existing}

    def slowest(self) -> Mapping[Hop, Table]:
        """The table of each hop that is furthest behind."""
        return {hop: min(tables, key=_batch) for hop, tables in self.closing().items()}

    def alert(
        self,
        rule: str,
        severity: Severity,
        message: str,
        command: str,
        *,
        options: str = "",
        hop: str | None = None,
        since: datetime | None = None,
    ) -> Alert:
        """Open an alert of this pipeline; its name comes between the command and the options."""
        typed = self.typed(f"tidelake {command}", self.name, options)
        return Alert(rule, self.name, hop, severity, message, since, typed)


def lasting(length: timedelta | float) -> str:
    """Write a length of time for people: its largest unit, to the tenth where it is small."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds" if seconds >= 10 else f"{seconds:.1f} seconds"


def _batch(table: Table) -> int:
    last = last_commit(table)
    return -1 if last is None else last.batch
