"""Read quarantine and late without Spark: count and list the rows that were not requeued.

A side table only grows. A requeued row stays in it and is excluded because of its row in the
requeue; if it fails again, a new row with the new reasons is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime

from tidelake.config import Pipeline
from tidelake.delta.log import CREATION, Commit, last_commit
from tidelake.delta.tables import Lake, Table
from tidelake.errors import UsageError
from tidelake.instants import ALWAYS, Range
from tidelake.ledger.history import require_tables
from tidelake.ledger.query import ask
from tidelake.typed import runnable

# The number of newest batches in the trend.
_TREND = 8


@dataclass(frozen=True)
class LateDay:
    """Late rows of one event date: all and waiting ones, lateness, and the newest watermark."""

    event_date: date
    rows: int
    waiting: int
    least_seconds: float
    median_seconds: float
    most_seconds: float
    watermark: datetime


@dataclass(frozen=True)
class ReasonGroup:
    """Quarantined rows of one reason, without requeued ones; a row may be in several groups.

    ``attempts`` is how often rows of the group were requeued and failed again, ``first`` and
    ``last`` the arrival (UTC) of the first and the newest row, whose payload is ``example``, and
    ``trend`` the rows in each of silver's newest batches, oldest first.
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


def in_closed_batch(closed: Commit | None) -> str:
    """Return the SQL condition that excludes rows of ``q`` of uncommitted batches.

    These are later than the batch of ``closed``, silver's newest commit (None if it has none), and
    will be retried. It keeps rows of no batch, which another writer inserted.
    """
    generation, batch = (closed.generation, closed.batch) if closed else ("", CREATION)
    # A generation's name is generated, a letter and digits, so it needs no quoting.
    open_batch = f"q._generation = '{generation}' AND q._batch > {batch}"
    return f"({open_batch}) IS NOT TRUE"


def not_requeued(side: Table, requeue: Table, closed: Commit | None) -> str:
    """Return SQL, for Spark and DuckDB, for a side table's rows that were not requeued since.

    Rows of batches after the one of ``closed``, a commit of silver, are left out.

    Raises:
        UsageError: One of the tables was deleted.
    """
    for table in (side, requeue):
        if not table.exists:
            name = table.bare.partition("__")[0]
            # A backfill needs the table, if only an empty one.
            anew = (
                f"create it again as an empty table with: {runnable('tidelake run', name)}. If it "
                f"held rows, recompute silver then with: {runnable('tidelake backfill run', name)}"
            )
            if table == requeue:
                # Silver runs only with the requeue table that it has read from.
                repair = runnable("tidelake repair", name, "--hop silver")
                anew = f"run the pipeline, and recompute silver from bronze with: {repair}"
            raise UsageError(
                f"{table.name} is gone, although silver has run. Restore its folder from a backup; "
                f"or {anew}"
            )
    return (
        f"SELECT q.* FROM {side.name} q WHERE {in_closed_batch(closed)} AND NOT EXISTS ("
        f"SELECT 1 FROM {requeue.name} r WHERE r.record_id = q.record_id "
        "AND (q._requeued_at IS NULL OR r.requeued_at > q._requeued_at))"
    )


def unless_discarded(query: str, discarded: Table) -> str:
    """Return a query without the discarded rows of another."""
    if not discarded.exists:
        return query
    return (
        f"SELECT w.* FROM ({query}) w WHERE NOT EXISTS "
        f"(SELECT 1 FROM {discarded.name} d WHERE d.record_id = w.record_id)"
    )


def side_rows(
    lake: Lake, name: str, closed: Commit | None, versions: Mapping[str, int]
) -> dict[str, int]:
    """Count the side tables' rows that were not requeued, up to a batch; versions by table name."""
    if not lake.silver(name).exists:
        return {"quarantined": 0, "late": 0, "discarded": 0}
    requeue = lake.requeue(name)
    there = not_requeued(lake.quarantine(name), requeue, closed)
    kept = unless_discarded(there, lake.discarded(name))
    late = not_requeued(lake.late(name), requeue, closed)
    counts = ", ".join(f"(SELECT count(*) FROM ({query}))" for query in (there, kept, late))
    quarantined, left, too_late = ask(lake, f"SELECT {counts}", versions).rows[0]
    return {"quarantined": quarantined, "late": too_late, "discarded": quarantined - left}


def quarantined_by(
    lake: Lake, name: str, expression: str, closed: Commit | None, versions: Mapping[str, int]
) -> dict[str, int]:
    """Count the rows of quarantine among :func:`side_rows`, by an SQL expression over them."""
    if not lake.silver(name).exists:
        return {}
    there = not_requeued(lake.quarantine(name), lake.requeue(name), closed)
    named = f"SELECT {expression} AS what FROM ({there})"
    counted = f"SELECT what, count(*) FROM ({named}) GROUP BY 1 ORDER BY 2 DESC, 1"
    return {str(what): int(count) for what, count in ask(lake, counted, versions).rows}


def _has_no_rows(side: Table, closed: Commit | None) -> bool:
    """Return whether a side table is missing because silver has committed no batch yet."""
    return not side.exists and (closed is None or closed.batch <= CREATION)


def list_late(lake: Lake, pipeline: Pipeline, within: Range = ALWAYS) -> list[LateDay]:
    """List late rows by event date, those ``within`` a range of event time.

    Raises:
        UsageError: The pipeline has not run, or one of the tables was deleted.
    """
    require_tables(lake, pipeline.name)
    late = lake.late(pipeline.name)
    closed = last_commit(lake.silver(pipeline.name))
    if _has_no_rows(late, closed):
        return []
    there = not_requeued(late, lake.requeue(pipeline.name), closed)
    rows = ask(
        lake,
        "SELECT l.event_date, count(*), count(w.record_id), min(l.lateness_seconds), "
        "median(l.lateness_seconds), max(l.lateness_seconds), max(l.watermark) "
        f"FROM (SELECT q.* FROM {late.name} q WHERE {in_closed_batch(closed)} "
        f"AND {within.holds('q.event_time')}) l "
        f"LEFT JOIN ({there}) w "
        "ON w.record_id = l.record_id AND w._batch = l._batch GROUP BY 1 ORDER BY 1",
    ).rows
    return [LateDay(*row) for row in rows]


def list_quarantine(
    lake: Lake,
    pipeline: Pipeline,
    *,
    stage: str | None = None,
    rule: str | None = None,
    within: Range = ALWAYS,
) -> list[ReasonGroup]:
    """List quarantined rows by stage and reason, the most frequent first.

    ``stage`` and ``rule`` limit them to a stage and to reasons that contain a text, ``within`` to a
    range of arrival.

    Raises:
        UsageError: The pipeline has not run, or one of the tables was deleted.
    """
    require_tables(lake, pipeline.name)
    name = pipeline.name
    quarantine, requeue, discarded = lake.quarantine(name), lake.requeue(name), lake.discarded(name)
    closed = last_commit(lake.silver(name))
    if _has_no_rows(quarantine, closed):
        return []
    given_up = "FALSE"
    if discarded.exists:
        given_up = f"EXISTS (SELECT 1 FROM {discarded.name} d WHERE d.record_id = q.record_id)"
    last = closed.batch if closed else CREATION
    newest = range(last - _TREND + 1, last + 1)
    rows = ask(
        lake,
        "SELECT stage, reason, count(*), count_if(given_up), sum(attempts), min(ingested_at), "
        "max(ingested_at), arg_max(payload, ingested_at), "
        + ", ".join(f"count_if(_batch = {batch})" for batch in newest)
        + f" FROM (SELECT q.*, unnest(q.reasons) AS reason, {given_up} AS given_up, "
        f"(SELECT count(*) FROM {requeue.name} r WHERE r.record_id = q.record_id) AS attempts "
        f"FROM ({not_requeued(quarantine, requeue, closed)}) q "
        f"WHERE {within.holds('q.ingested_at')}) "
        "GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2",
    ).rows
    groups = [
        ReasonGroup(s, why, n, gone, int(tries), first, last, tuple(trend), bytes(payload or b""))
        for s, why, n, gone, tries, first, last, payload, *trend in rows
    ]
    return [g for g in groups if stage in (None, g.stage) and (rule is None or rule in g.reason)]
