"""Tell which rows of quarantine and late are still there: not sent again since they came in.

A side table only grows. A row that is sent into silver once more stays where it is, and its row
in the requeue marks it; if it fails again, a new row with the new reasons takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelake.delta.log import last_commit
from tidelake.delta.tables import Lake, Table


@dataclass(frozen=True)
class Closed:
    """The last batch that silver closed: rows of a later one may still be written again."""

    generation: str
    batch: int


def closed_batch(lake: Lake, pipeline: str) -> Closed:
    """Find silver's last closed batch."""
    last = last_commit(lake.silver(pipeline))
    return Closed("", -1) if last is None else Closed(last.generation, last.batch)


def still_there(side: Table, requeue: Table, closed: Closed) -> str:
    """Write the query for a side table's rows that count; for Spark and for DuckDB alike."""
    return (
        f"SELECT q.* FROM {side.name} q WHERE {in_closed_batch(closed)} AND NOT EXISTS ("
        f"SELECT 1 FROM {requeue.name} r WHERE r.record_id = q.record_id "
        "AND (q._requeued_at IS NULL OR r.requeued_at > q._requeued_at))"
    )


def in_closed_batch(closed: Closed) -> str:
    """Write the condition that leaves out an open batch's rows of ``q``."""
    # A generation's name comes from our own notes: a letter and digits.
    return f"NOT (q._generation = '{closed.generation}' AND q._batch > {closed.batch})"


def unless_discarded(query: str, discarded: Table) -> str:
    """Leave out of a query the rows that somebody gave up."""
    if not discarded.exists:
        return query
    return (
        f"SELECT w.* FROM ({query}) w WHERE NOT EXISTS "
        f"(SELECT 1 FROM {discarded.name} d WHERE d.record_id = w.record_id)"
    )
