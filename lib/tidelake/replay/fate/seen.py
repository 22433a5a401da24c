"""Read what silver and its side tables hold of some records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidelake.config import Pipeline
from tidelake.delta.log import commits, last_commit
from tidelake.delta.notes import SilverNote
from tidelake.delta.positions import BEGINNING, Position, version_at
from tidelake.delta.tables import Lake, Table
from tidelake.ops.query import ask
from tidelake.ops.side import closed_batch, in_closed_batch
from tidelake.replay.fate.texts import listed


@dataclass(frozen=True)
class Seen:
    """What the tables hold of some records, by record id, the newest row of each.

    Attributes:
        silver: Accepted rows.
        late: Rows that came too late.
        quarantine: Rows that broke a rule.
        requeue: Rows that were sent again.
        discarded: Rows that somebody gave up.
        waiting: When those records arrived, or were sent, that silver has not taken yet.
    """

    silver: Mapping[str, Mapping[str, Any]]
    late: Mapping[str, Mapping[str, Any]]
    quarantine: Mapping[str, Mapping[str, Any]]
    requeue: Mapping[str, Mapping[str, Any]]
    discarded: Mapping[str, Mapping[str, Any]]
    waiting: frozenset[datetime]

    @staticmethod
    def of(lake: Lake, pipeline: Pipeline, records: Sequence[str]) -> Seen:
        """Look them up."""
        name = pipeline.name
        inside = f"q.record_id IN ({listed(records)})"
        closed = f"{inside} AND {in_closed_batch(closed_batch(lake, name))}"

        def newest(table: Table, condition: str, order: str) -> dict[str, dict[str, Any]]:
            if not table.exists:
                return {}
            sql = f"SELECT q.* FROM {table.name} q WHERE {condition} ORDER BY {order}"
            return {row["record_id"]: row for row in ask(lake, sql).as_dicts()}

        return Seen(
            silver=newest(lake.silver(name), inside, "q._batch"),
            late=newest(lake.late(name), closed, "q._batch"),
            quarantine=newest(lake.quarantine(name), closed, "q._batch"),
            requeue=newest(lake.requeue(name), inside, "q.requeued_at"),
            discarded=newest(lake.discarded(name), inside, "q.discarded_at"),
            waiting=_waiting(lake, name),
        )


def _waiting(lake: Lake, pipeline: str) -> frozenset[datetime]:
    """List the arrivals, in bronze and in the requeue, that silver has not taken whole."""
    until = SilverNote.of(last_commit(lake.silver(pipeline))).until
    instants: list[str | None] = []
    for key, table, stamp in (
        ("bronze", lake.bronze(pipeline), "ingested_at"),
        ("requeue", lake.requeue(pipeline), "requeued_at"),
    ):
        taken = _whole(table, until.get(key, BEGINNING))
        for commit in commits(table) if table.exists else ():
            if commit.version <= taken:
                break
            instants.append(commit.note.get(stamp))
    return frozenset(datetime.fromisoformat(one) for one in instants if one)


def _whole(table: Table, position: Position) -> int:
    """Give the newest version that a reader has taken whole."""
    whole = version_at(table, position) if table.exists else None
    return position[0] - 1 if whole is None else whole
