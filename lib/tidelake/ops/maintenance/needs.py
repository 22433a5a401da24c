"""Find out how far back somebody still reads a table: streams, epochs, rollbacks.

A file that a commit took out of a table lies there until it is vacuumed. Whoever reads an older
version, or the commits since, needs it: a stream that lags behind, a gold batch that looks at
silver as far as it has come, a statement at the last epoch, a rollback.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tidelake.delta.log import last_commit, newest_version, written_at
from tidelake.delta.notes import positions
from tidelake.delta.positions import BEGINNING, version_at
from tidelake.delta.tables import Lake, Table
from tidelake.folders import matching
from tidelake.ops.query import ask

# How gold's notes name the silver of its own pipeline.
_OWN = "silver"


@dataclass(frozen=True)
class Need:
    """A version of a table that somebody reads, though newer ones exist.

    Attributes:
        table: Which.
        version: The oldest that is needed.
        since: When it was written (UTC): files taken out later must stay.
        by: Who.
        remedy: What makes the need go away.
    """

    table: Table
    version: int
    since: datetime
    by: str
    remedy: str


def needs_of(lake: Lake, tables: Sequence[Table], *, rollbacks_since: datetime) -> list[Need]:
    """List who needs an older version of some tables.

    Args:
        lake: Where the tables are.
        tables: Which.
        rollbacks_since: A backfill that was promoted before is not taken back any more.
    """
    wanted = {table.name for table in tables}
    found = [*_readers(lake), *_epochs(lake), *_backfills(lake, rollbacks_since)]
    return [need for need in found if need.table.name in wanted]


def _readers(lake: Lake) -> Iterator[Need]:
    """Look where each hop stands in what it follows: in the notes of the tables that it fills."""
    for filled in lake.existing():
        last = last_commit(filled)
        if last is None or last.note.get("hop") not in ("silver", "gold") or "__" in filled.name:
            continue
        pipeline, hop = str(last.note["pipeline"]), str(last.note["hop"])
        followed = _followed(lake, pipeline, hop)
        reached = positions(last)
        followed |= {key: lake.table(key) for key in reached if key.startswith("silver.")}
        for key, table in followed.items():
            position = reached.get(key, BEGINNING)
            # A reader that has all rows is not started for a compaction alone.
            version = version_at(table, position) if table.exists else None
            version = position[0] - 1 if version is None else version
            command = f"tidelake run {pipeline} --hop {hop}"
            yield from _need(table, version, f"{filled.name} has not read further", command)


def _followed(lake: Lake, pipeline: str, hop: str) -> dict[str, Table]:
    if hop == "gold":
        return {_OWN: lake.silver(pipeline)}
    return {"bronze": lake.bronze(pipeline), "requeue": lake.requeue(pipeline)}


def _epochs(lake: Lake) -> Iterator[Need]:
    """Take the newest epoch of each pipeline."""
    if not lake.epochs().exists:
        return
    newest = ask(
        lake,
        f"SELECT pipeline, max(epoch), arg_max(versions, epoch) FROM {lake.epochs().name} "
        "GROUP BY 1",
    )
    for pipeline, number, versions in newest.rows:
        for name, version in versions.items():
            by = f"epoch {number} of {pipeline}"
            yield from _need(lake.table(name), version, by, f"tidelake run {pipeline}")


def _backfills(lake: Lake, since: datetime) -> Iterator[Need]:
    """Take the versions that a rollback would restore."""
    for file in matching(lake.root, "backfill/*/backfill.json"):
        state = json.loads(file.read_text(encoding="utf-8"))
        swapped = state["stage"] in ("promoting", "promoted", "rolling back")
        if not swapped or datetime.fromtimestamp(file.stat().st_mtime, tz=UTC) < since:
            continue
        pipeline = file.parent.name
        versions = [*state["before"].items()]
        if state.get("requeue") is not None:
            # What was requeued since is read from it when the rollback goes on.
            versions.append((lake.requeue(pipeline).name, state["requeue"]))
        for name, version in versions:
            by = f"the rollback of {pipeline}'s backfill"
            yield from _need(lake.table(name), version, by, "wait until the horizon has passed")


def _need(table: Table, version: int, by: str, remedy: str) -> Iterator[Need]:
    """Say that a version is needed, if it is not the newest one anyway."""
    if not table.exists or version >= newest_version(table):
        return
    first = max(version, 0)
    at = written_at(table, first)
    if at is not None:
        yield Need(table, first, at, by, remedy)
