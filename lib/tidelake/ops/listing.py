"""List what lies in the side tables, without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

from tidelake.config import Pipeline
from tidelake.delta.tables import Lake
from tidelake.ops.books import require_tables
from tidelake.ops.query import ask
from tidelake.ops.side import closed_batch, in_closed_batch, still_there

# How many of the newest batches the trend shows.
TREND = 8


@dataclass(frozen=True)
class LateDay:
    """The late rows of one event date.

    Attributes:
        event_date: The date.
        rows: All of them.
        waiting: Those not applied.
        least_seconds: The least lateness.
        median_seconds: The median.
        most_seconds: The most.
        watermark: The newest watermark that made one of them late (UTC).
    """

    event_date: date
    rows: int
    waiting: int
    least_seconds: float
    median_seconds: float
    most_seconds: float
    watermark: datetime


@dataclass(frozen=True)
class Group:
    """Quarantined rows that are still there, by one of their reasons.

    Attributes:
        stage: Where they failed.
        reason: Why; a row with several reasons is in several groups.
        rows: How many.
        discarded: Those that somebody gave up.
        attempts: How often rows of it were sent again and came back.
        first: Arrival of the first (UTC).
        last: Arrival of the last.
        trend: Rows in each of silver's newest batches, oldest first.
        example: The payload of the newest.
    """

    stage: str
    reason: str
    rows: int
    discarded: int
    attempts: int
    first: datetime
    last: datetime
    trend: tuple[int, ...]
    example: bytes


def list_late(lake: Lake, pipeline: Pipeline) -> list[LateDay]:
    """List a pipeline's late rows by event date.

    Raises:
        UsageError: It has not run under this root.
    """
    require_tables(lake, pipeline.name)
    late = lake.late(pipeline.name)
    if not late.exists:
        return []
    closed = closed_batch(lake, pipeline.name)
    there = still_there(late, lake.requeue(pipeline.name), closed)
    rows = ask(
        lake,
        "SELECT l.event_date, count(*), count(w.record_id), min(l.lateness_seconds), "
        "median(l.lateness_seconds), max(l.lateness_seconds), max(l.watermark) "
        f"FROM (SELECT q.* FROM {late.name} q WHERE {in_closed_batch(closed)}) l "
        f"LEFT JOIN ({there}) w "
        "ON w.record_id = l.record_id AND w._batch = l._batch GROUP BY 1 ORDER BY 1",
    ).rows
    return [LateDay(*row) for row in rows]


def list_quarantine(
    lake: Lake, pipeline: Pipeline, *, stage: str | None = None, rule: str | None = None
) -> list[Group]:
    """List a pipeline's quarantined rows by stage and reason, the most frequent first.

    Args:
        lake: Where the tables are.
        pipeline: Whose.
        stage: Only those that failed there.
        rule: Only reasons that hold this text.

    Raises:
        UsageError: It has not run under this root.
    """
    require_tables(lake, pipeline.name)
    name = pipeline.name
    quarantine, requeue, discarded = lake.quarantine(name), lake.requeue(name), lake.discarded(name)
    if not quarantine.exists:
        return []
    closed = closed_batch(lake, name)
    given_up = (
        f"EXISTS (SELECT 1 FROM {discarded.name} d WHERE d.record_id = q.record_id)"
        if discarded.exists
        else "FALSE"
    )
    newest = range(closed.batch - TREND + 1, closed.batch + 1)
    rows = ask(
        lake,
        "SELECT stage, reason, count(*), count_if(given_up), sum(attempts), min(ingested_at), "
        "max(ingested_at), arg_max(payload, ingested_at), "
        + ", ".join(f"count_if(_batch = {batch})" for batch in newest)
        + f" FROM (SELECT q.*, unnest(q.reasons) AS reason, {given_up} AS given_up, "
        f"(SELECT count(*) FROM {requeue.name} r WHERE r.record_id = q.record_id) AS attempts "
        f"FROM ({still_there(quarantine, requeue, closed)}) q) "
        "GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2",
    ).rows
    groups = [
        Group(s, why, n, gone, int(tries), first, last, tuple(trend), bytes(payload or b""))
        for s, why, n, gone, tries, first, last, payload, *trend in rows
    ]
    return [g for g in groups if stage in (None, g.stage) and (rule is None or rule in g.reason)]
