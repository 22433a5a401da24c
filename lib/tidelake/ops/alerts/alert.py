"""One thing about a pipeline that somebody should look at."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from tidelake.instants import to_json
from tidelake.visible import visible

# Critical: a table is wrong or stands still. Warning: look at it today.
Severity = Literal["critical", "warning"]
# What each rule watches; those that may be critical first, as people read them.
RULES = {
    "books_unbalanced": "the books do not add up",
    "hop_refused": "a hop would refuse to go on",
    "hop_failed": "the last run of a hop stopped with an error",
    "checkpoint_failing": "a batch is in the tables and its checkpoint does not close it",
    "latency_over_sla": "records take longer into gold than agreed",
    "stale": "no batch was closed for long",
    "lag_growing": "more comes than is taken",
    "batch_over_interval": "batches take longer than their interval",
    "watermark_stuck": "rows come and the watermark does not move",
    "quarantine_rate": "too many rows are quarantined",
    "late_rate": "too many rows come too late",
    "expression_failed": "an expression of a gold table fails on events",
}


@dataclass(frozen=True)
class Alert:
    """An open alert.

    Attributes:
        rule: One of :data:`RULES`.
        pipeline: Whose.
        hop: At which hop; None for all of the pipeline.
        severity: How bad it is.
        message: What was found, with its figures.
        since: Since when it is so, as far as the tables tell (UTC).
        command: What to type next.
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
