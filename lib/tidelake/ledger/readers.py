"""List the readers of older versions of tables, whose files must not be deleted yet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import NamedTuple

from tidelake.delta.log import last_commit, newest_version, written_at
from tidelake.delta.notes import positions
from tidelake.delta.positions import BEGINNING, version_at
from tidelake.delta.publications import published_to, unpublished
from tidelake.delta.tables import Lake, Table
from tidelake.errors import RefusedError
from tidelake.folders import matching
from tidelake.ledger.query import ask
from tidelake.typed import runnable


@dataclass(frozen=True)
class Need:
    """An old version of a table that the reader ``by`` needs until ``remedy`` has been run.

    It was written at ``since`` (UTC): files removed from the table after that must be kept.
    ``runs``: the pipeline whose next run is the remedy; None if another command is.
    """

    table: Table
    since: datetime
    by: str
    remedy: str
    runs: str | None = None


class _VersionReader(NamedTuple):
    """A reader of a table's version; the other fields are those of :class:`Need`."""

    table: Table
    version: int
    by: str
    remedy: str
    runs: str | None = None


def needs_of(
    lake: Lake,
    tables: Sequence[Table],
    *,
    rollbacks_since: datetime,
    published: Sequence[str] = (),
) -> list[Need]:
    """List the readers of older versions of some tables.

    A backfill promoted before ``rollbacks_since`` can no longer be rolled back. ``published`` are
    the names of tables whose changes go to topics.
    """
    wanted = {table.name for table in tables}
    needed = chain(
        _readers(lake),
        _epochs(lake),
        _backfills(lake, rollbacks_since),
        _topics(table for table in tables if table.name in published),
    )
    return [
        Need(one.table, at, one.by, one.remedy, one.runs)
        for one in needed
        # Files of the newest version are never deleted.
        if one.table.name in wanted and one.table.exists and one.version < newest_version(one.table)
        if (at := written_at(one.table, max(one.version, 0))) is not None
    ]


def _readers(lake: Lake) -> Iterator[_VersionReader]:
    """Yield the position of each hop in its inputs, from the commits of its tables."""
    for filled in lake.existing():
        last = last_commit(filled)
        if last is None or last.note.get("hop") not in ("silver", "gold") or "__" in filled.name:
            continue
        pipeline, hop = str(last.note["pipeline"]), str(last.note["hop"])
        # Gold's commits record the silver of its own pipeline under this key.
        silver = {"silver": lake.silver(pipeline)}
        followed = silver if hop == "gold" else lake.silver_inputs(pipeline)
        reached = positions(last)
        followed |= {key: lake.table(key) for key in reached if key.startswith("silver.")}
        for key, table in followed.items():
            position = reached.get(key, BEGINNING)
            # A reader that has read all rows does not need the version before a compaction.
            version = version_at(table, position) if table.exists else None
            version = position[0] - 1 if version is None else version
            by = f"{filled.name} has not read further"
            remedy = runnable("tidelake run", pipeline, f"--hop {hop}")
            yield _VersionReader(table, version, by, remedy, pipeline)


def _epochs(lake: Lake) -> Iterator[_VersionReader]:
    """Yield the versions of the newest epoch of each pipeline."""
    if not lake.epochs().exists:
        return
    columns = "pipeline, max(epoch), arg_max(versions, epoch)"
    newest = ask(lake, f"SELECT {columns} FROM {lake.epochs().name} GROUP BY 1")
    for pipeline, number, versions in newest.rows:
        for name, version in versions.items():
            by = f"epoch {number} of {pipeline}"
            remedy = runnable("tidelake run", pipeline)
            yield _VersionReader(lake.table(name), version, by, remedy, pipeline)


def _topics(tables: Iterable[Table]) -> Iterator[_VersionReader]:
    """Yield the version before the first change that a table's topic lacks."""
    for table in tables:
        reached, last = published_to(table), last_commit(table)
        if reached is None or last is None:
            continue
        # If changes are gone already, no file can bring them back.
        with suppress(RefusedError):
            waiting = unpublished(table, reached.version)
            if reached.begun or waiting:
                version = reached.version if reached.begun else waiting[0].version - 1
                by = f"topic {reached.topic} has not got further"
                pipeline = str(last.note["pipeline"])
                remedy = runnable("tidelake run", pipeline, "--hop gold")
                yield _VersionReader(table, version, by, remedy, pipeline)


def _backfills(lake: Lake, since: datetime) -> Iterator[_VersionReader]:
    """Yield the versions that a rollback would restore."""
    for file in matching(lake.root, "backfill/*/backfill.json"):
        state = json.loads(file.read_text(encoding="utf-8"))
        swapped = state["stage"] in ("promoting", "promoted", "rolling back")
        if not swapped or datetime.fromtimestamp(file.stat().st_mtime, tz=UTC) < since:
            continue
        pipeline = file.parent.name
        versions = dict(state["before"])
        if state.get("requeue") is not None:
            # The rollback also reads the rows that were requeued since.
            versions[lake.requeue(pipeline).name] = state["requeue"]
        for name, version in versions.items():
            by = f"the rollback of {pipeline}'s backfill"
            remedy = "wait until the recovery horizon has passed"
            yield _VersionReader(lake.table(name), version, by, remedy)
