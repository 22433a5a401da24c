"""Close epochs in ``ops.epochs``: consistent sets of table versions of a pipeline.

Gold's commit metadata has its positions in silver, silver's its positions in bronze and the
requeue. If each of these positions is the end of a commit, there is a version of every table from
which the others were computed exactly, whatever was written since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any, NamedTuple

from tidelake.config.standard import EPOCHS_COLUMNS
from tidelake.delta.locks import hold
from tidelake.delta.log import CREATION, Commit, commits, last_commit, newest_version
from tidelake.delta.notes import Final, SilverNote, positions
from tidelake.delta.positions import BEGINNING, Position, version_at
from tidelake.delta.tables import Lake, Table
from tidelake.instants import now_after
from tidelake.runtime.gold_settings import ensure_views
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import append_records

_EPOCHS_DDL = ", ".join(f"{name} {kind}" for name, kind in EPOCHS_COLUMNS.items())


class Boundary(NamedTuple):
    """Consistent table versions of a pipeline, with gold's batch and silver's watermark (UTC)."""

    generation: str
    batch: int
    watermark: datetime | None
    versions: Mapping[str, int]


def close_epoch(run: Run, *, shows: bool = True) -> None:
    """Close an epoch if the tables are at a new boundary; only the writes need Spark.

    In a catalog, views of final rows are made with the first one. With ``shows`` those of an epoch
    follow, where the environment wants them.
    """
    number = _close(run)
    follows = shows and run.environment.consistent_views
    # Views of final rows look the newest epoch up, so they need the first one and no other.
    if follows or number == 1:
        ensure_views(run, consistent=follows)


def _close(run: Run) -> int | None:
    """Close an epoch, and return its number; None if the tables are at no new boundary."""
    lake, name = run.lake, run.pipeline.name
    epochs = lake.epochs()
    # Hops may run in separate processes, each of which closes epochs.
    with hold(lake.marks("ops"), epochs.name, waits=True, optional=True):
        closing = lake.closing_tables(run.pipeline, "gold")
        found = find_boundary(lake, name, closing)
        last = last_commit(epochs)
        # Repeated in each commit, so that each pipeline's last epoch outlasts log cleanup.
        known: dict[str, Any] = last.note.get("last", {}) if last else {}
        before = known.get(name, {"epoch": 0, "versions": {}})
        if found is None or found.versions == before["versions"]:
            return None
        closed_at = now_after(last.note.get("closed_at") if last else None).isoformat()
        number = int(before["epoch"]) + 1
        # Up to when rows are final, in tables whose rows become final.
        finals = {
            table.name: final.until
            for table in closing
            if table.name in found.versions
            and (final := Final.of(last_commit(table, up_to=found.versions[table.name])))
        }
        row = {
            "pipeline": name,
            "epoch": number,
            "closed_at": closed_at,
            "watermark": found.watermark,
            "generation": found.generation,
            "batch": found.batch,
            "versions": found.versions,
            "final": finals,
        }
        append_records(
            run.spark,
            epochs,
            [row],
            _EPOCHS_DDL,
            newest=last,
            pipeline=name,
            hop="epochs",
            closed_at=closed_at,
            last={**known, name: {"epoch": number, "versions": found.versions}},
        )
    return number


def find_boundary(lake: Lake, pipeline: str, closing: Sequence[Table]) -> Boundary | None:
    """Find a pipeline's boundary at the newest batch that all gold tables, ``closing``, hold.

    Without gold tables it is at silver's newest batch. None if that hop has not run, if the tables
    have no batch in common (a new table is not filled yet), or if a position that the batch has
    read up to lies inside a commit, so that no version ends there. Safe during writes: each log is
    read up to a fixed version.
    """
    silver = lake.silver(pipeline)
    newest = {table: newest_version(table) for table in closing or (silver,)}
    heads = [last_commit(table, up_to=version) for table, version in newest.items()]
    common = min((head.batch for head in heads if head), default=CREATION)
    newest = {
        table: _before(table, version, lambda commit: commit.batch <= common)
        for table, version in newest.items()
    }
    notes = [last_commit(table, up_to=version) for table, version in newest.items()]
    first = notes[0]
    if first is None or any(note is None or _batch_of(note) != _batch_of(first) for note in notes):
        return None
    begun = {"silver": BEGINNING, **positions(first)}
    read = _versions_at(lake, pipeline, begun) if closing else newest
    closed = None if read is None else last_commit(silver, up_to=read[silver])
    if read is None or closed is None:
        return None
    books = SilverNote.of(closed)
    arrived = {"bronze": BEGINNING, "requeue": BEGINNING, **books.until}
    decided = _versions_at(lake, pipeline, arrived)
    if decided is None:
        return None
    # The newest versions of the side tables without rows of a batch after silver's.
    sides = {
        side: _before(side, newest_version(side), lambda commit: _order(commit) <= _order(closed))
        for side in (lake.quarantine(pipeline), lake.late(pipeline))
    }
    sides[lake.discarded(pipeline)] = newest_version(lake.discarded(pipeline))
    looked_up = {lake.table(use.table): use.version for use in books.dimensions}
    found = {**decided, **sides, **read, **looked_up, **newest}
    versions = {table.name: version for table, version in found.items() if version >= 0}
    return Boundary(first.generation, first.batch, books.watermark, versions)


def _before(table: Table, version: int, holds: Callable[[Commit], bool]) -> int:
    """Return the newest version, at most ``version``, whose commit satisfies ``holds``."""
    for commit in takewhile(lambda commit: not holds(commit), commits(table, up_to=version)):
        version = commit.version - 1
    return version


def _batch_of(note: Commit) -> tuple[str, int, dict[str, Position]]:
    return note.generation, note.batch, positions(note)


def _order(commit: Commit) -> tuple[int, int]:
    """Sort key of a commit: generation number, then batch; unknown generation names come first."""
    number = commit.generation[1:]
    return int(number) if number.isdecimal() else 0, commit.batch


def _versions_at(
    lake: Lake, pipeline: str, until: Mapping[str, Position]
) -> dict[Table, int] | None:
    """Convert positions to table versions; None if one is inside a commit."""
    own = {**lake.silver_inputs(pipeline), "silver": lake.silver(pipeline)}
    found: dict[Table, int] = {}
    for key, position in until.items():
        table = own.get(key) or lake.table(key)
        version = version_at(table, position) if table.exists else -1
        if version is None:
            return None
        found[table] = version
    return found
