"""Write what a run records beyond its tables: epochs, and copies of commit metadata.

An epoch, in ``ops.epochs``, is a consistent set of table versions of a pipeline. Gold's commit
metadata has its positions in silver, silver's its positions in bronze and the requeue. If each of
these positions is the end of a commit, there is a version of every table from which the others were
computed exactly, whatever was written since. ``ops.books`` keeps commit metadata longer than the
tables' logs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from itertools import islice, takewhile
from typing import Any, NamedTuple

from pyspark.sql import functions as F

from tidelake.config.standard_tables import BOOKS_COLUMNS, EPOCHS_COLUMNS
from tidelake.delta.access import load
from tidelake.delta.commit_metadata import (
    FateCount,
    Final,
    SilverNote,
    last_epochs,
    positions,
    recent_epochs,
)
from tidelake.delta.holders import WAIT_SECONDS, Waiting
from tidelake.delta.locks import hold
from tidelake.delta.log import (
    CREATION,
    Commit,
    commits,
    last_commit,
    newest_version,
    oldest_version,
)
from tidelake.delta.positions import BEGINNING, Position, unfilled_tables, version_at
from tidelake.delta.tables import Hop, Lake, Table
from tidelake.instants import now_after
from tidelake.runtime.gold_settings import ensure_views
from tidelake.runtime.hop import Run
from tidelake.runtime.landed_files import LandedFile
from tidelake.runtime.schemas import append_records, from_records

_EPOCHS_DDL = ", ".join(f"{name} {kind}" for name, kind in EPOCHS_COLUMNS.items())


class Boundary(NamedTuple):
    """Consistent table versions of a pipeline, with gold's batch and silver's watermark (UTC)."""

    generation: str
    batch: int
    watermark: datetime | None
    versions: Mapping[str, int]


def close_epoch(run: Run, *, shows: bool = True, seconds: float = WAIT_SECONDS) -> None:
    """Close an epoch if the tables are at a new boundary; only the writes need Spark.

    In a catalog, the first epoch creates the ``__final`` views. With ``shows``, and if the
    environment sets ``consistent_views``, the ``__consistent`` views are updated too.

    Raises a LockedError if others hold the lock of ``ops.epochs`` for so many ``seconds``.
    """
    number = _close(run, seconds)
    follows = shows and run.environment.consistent_views
    # The `__final` views read the newest epoch themselves, so they are created once.
    if follows or number == 1:
        ensure_views(run, consistent=follows)


def _close(run: Run, seconds: float) -> int | None:
    """Close an epoch, and return its number; None if the tables are at no new boundary."""
    lake, name = run.lake, run.pipeline.name
    epochs = lake.epochs()
    # Hops may run in separate processes, each of which closes epochs. Without locks, a commit may
    # lack what another pipeline wrote meanwhile: that is found in the commits before it.
    waits = Waiting(run.progress.say_once, run.stop, seconds)
    with hold(lake.lock_of(epochs), epochs.name, waits=waits, optional=True):
        closing = lake.closing_tables(run.pipeline, "gold")
        found = find_boundary(lake, name, closing)
        recent = recent_epochs(lake)
        last = recent[0] if recent else None
        # Repeated in each commit, so that each pipeline's last epoch outlasts log cleanup.
        known = last_epochs(recent)
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

    Without gold tables it is at silver's newest batch. None if that hop has not run, if the next
    run is still to fill a table, if the tables have no batch in common, or if a position that the
    batch has read up to lies inside a commit, so that no version ends there. Safe during writes:
    each log is read up to a fixed version.
    """
    silver = lake.silver(pipeline)
    newest = {table: newest_version(table) for table in closing or (silver,)}
    heads = [last_commit(table, up_to=version) for table, version in newest.items()]
    # Compare first: in a catalog, the tables' histories are requested for this once more.
    if len({head.batch if head else CREATION for head in heads}) > 1 and unfilled_tables(closing):
        # The newest batch that such a table holds, if any, is older than the last epoch.
        return None
    common = min((head.batch for head in heads if head), default=CREATION)
    newest = {table: _closed(table, version, common) for table, version in newest.items()}
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
        side: _before(side, newest_version(side), lambda commit: commit.order <= closed.order)
        for side in (lake.quarantine(pipeline), lake.late(pipeline))
    }
    sides[lake.discarded(pipeline)] = newest_version(lake.discarded(pipeline))
    looked_up = {lake.table(use.table): use.version for use in books.dimensions}
    found = {**decided, **sides, **read, **looked_up, **newest}
    versions = {table.name: version for table, version in found.items() if version >= 0}
    return Boundary(first.generation, first.batch, books.watermark, versions)


def _closed(table: Table, version: int, batch: int) -> int:
    """Return the newest version, at most ``version``, without rows of a later batch.

    Where compute refuses commit metadata, the rows of an open batch are in commits without any.
    """
    version = _before(table, version, lambda commit: commit.batch <= batch)
    closed = last_commit(table, up_to=version)
    if closed is None:
        return version
    # A RESTORE gives back the rows of the closed batch.
    later = takewhile(
        lambda entry: entry.version > closed.version and entry.info.operation != "RESTORE",
        table.entries(version),
    )
    for entry in reversed(list(later)):
        if entry.added() or entry.removes_rows():
            return entry.version - 1
    return version


def _before(table: Table, version: int, holds: Callable[[Commit], bool]) -> int:
    """Return the newest version, at most ``version``, whose commit satisfies ``holds``."""
    for commit in takewhile(lambda commit: not holds(commit), commits(table, up_to=version)):
        version = commit.version - 1
    return version


def _batch_of(note: Commit) -> tuple[str, int, dict[str, Position]]:
    return note.generation, note.batch, positions(note)


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


_NOTES = 50
# The rows of one commit, and the paths that are looked up at once: they go to Spark as one text, of
# which Spark Connect takes 128 MiB. The row of a batch of a thousand files has 100 KB.
_ROWS, _PATHS = 100, 100_000
# Keys of the metadata: the newest copied version of each table, and the table's id.
_COPIED, _IDS = "copied", "ids"
_BOOKS_DDL = ", ".join(f"{name} {kind}" for name, kind in BOOKS_COLUMNS.items())


def copy_books(run: Run, hops: Sequence[Hop], *, seconds: float = WAIT_SECONDS) -> None:
    """Copy the metadata of the hops' commits since the last copy, under the locks of the hops.

    Raises a LockedError if others hold the lock of ``ops.books`` for so many ``seconds``.
    """
    books = run.lake.books()
    # Hops may run in separate processes, each of which copies. One that had read older notes would
    # repeat them, and the commits that another one copied meanwhile would be copied again.
    waits = Waiting(run.progress.say_once, run.stop, seconds)
    with hold(run.lake.lock_of(books), books.name, waits=waits, optional=True):
        _copy(run, hops, books)


def _copy(run: Run, hops: Sequence[Hop], books: Table) -> None:
    lake, name = run.lake, run.pipeline.name
    of_silver = (lake.requeue, lake.quarantine, lake.discarded, lake.late, lake.silver)
    of_hop: dict[Hop, list[Table]] = {
        "bronze": [lake.bronze(name)],
        "silver": [of(name) for of in of_silver],
        "gold": lake.closing_tables(run.pipeline, "gold"),
    }
    # Several commits, since earlier versions copied without a lock.
    notes = [commit.note for commit in islice(commits(books), _NOTES)]
    fresh: list[dict[str, Any]] = []
    new_ids: dict[str, str] = {}
    for table in (table for hop in hops for table in of_hop[hop]):
        last = last_commit(table)
        if last is None or last.version == _copied_to(table, notes):
            continue
        # The versions of a table that was deleted and filled again begin anew.
        table_id = table.id
        newest = _copied_to(table, notes, table_id)
        new = [commit for commit in commits(table) if commit.version > newest]
        new_ids |= {table.name: table_id} if table_id else {}
        fresh += [_row(table, commit) for commit in reversed(new)]
    # Repeated in each commit, so that idle tables outlast the cleanup of this table's log.
    copied, ids = (dict(notes[0].get(key, {})) if notes else {} for key in (_COPIED, _IDS))
    for first in range(0, len(fresh), _ROWS):
        rows = fresh[first : first + _ROWS]
        copied |= {row["table_name"]: row["version"] for row in rows}
        ids |= {one: new_ids[one] for one in {row["table_name"] for row in rows} & new_ids.keys()}
        append_records(
            run.spark,
            books,
            rows,
            _BOOKS_DDL,
            newest=last_commit(books),
            pipeline=name,
            hop="books",
            copied=copied,
            ids=ids,
        )


def _copied_to(
    table: Table, notes: Sequence[Mapping[str, Any]], table_id: str | None = None
) -> int:
    """Return the newest version of a table that was copied; -1 for none.

    With ``table_id`` notes of another table of this name do not count, nor do versions that the
    table does not have.
    """
    end = newest_version(table)
    found = [
        int(note.get(_COPIED, {}).get(table.name, -1))
        for note in notes
        if table_id is None or note.get(_IDS, {}).get(table.name, table_id) == table_id
    ]
    return max((version for version in found if version <= end), default=-1)


def taken_before(run: Run, bronze: Table, paths: Collection[str]) -> dict[str, LandedFile]:
    """Find which files bronze ingested in commits that only ``ops.books`` still has."""
    oldest = oldest_version(bronze) if paths else 0
    books = run.lake.books()
    if not oldest or not books.exists:
        return {}
    notes = load(run.spark, books).where(
        (F.col("table_name") == bronze.name) & (F.col("version") < oldest)
    )
    # An entry is a JSON array of several types, so it is read as text.
    entries = F.from_json("note", "files array<string>")["files"]
    named = notes.select(F.explode(entries).alias("entry")).select(
        "entry", F.get_json_object("entry", "$[0]").alias("path")
    )
    found, ordered = {}, sorted(paths)
    for first in range(0, len(ordered), _PATHS):
        some = [{"path": path} for path in ordered[first : first + _PATHS]]
        wanted = F.broadcast(from_records(run.spark, some, "path string"))
        for row in named.join(wanted, on="path", how="left_semi").select("entry").collect():
            path, size, modified, _ = json.loads(row["entry"])
            found[path] = LandedFile(path, size, modified)
    return found


def _row(table: Table, commit: Commit) -> dict[str, Any]:
    note = commit.note
    return {
        "pipeline": note["pipeline"],
        "table_name": table.name,
        "hop": note["hop"],
        "generation": commit.generation,
        "batch": commit.batch,
        "version": commit.version,
        "committed_at": commit.written_at,
        "rows": commit.rows,
        "watermark": note.get("watermark"),
        "taken": note.get("taken"),
        "counts": [FateCount(*count)._asdict() for count in note.get("counts", [])],
        "note": json.dumps(note, sort_keys=True),
    }
