"""Copy commit metadata to ``ops.books``, which keeps it longer than the tables' logs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

from pyspark.sql import functions as F

from tidelake.config.standard import BOOKS_COLUMNS
from tidelake.delta.access import load
from tidelake.delta.log import Commit, commits, last_commit, newest_version, oldest_version
from tidelake.delta.notes import FateCount
from tidelake.delta.tables import Hop, Table
from tidelake.runtime.hop import Run
from tidelake.runtime.landed_files import LandedFile
from tidelake.runtime.schemas import append_records, from_records

_NOTES = 50
# Keys of the metadata: the newest copied version of each table, and the table's id.
_COPIED, _IDS = "copied", "ids"
_BOOKS_DDL = ", ".join(f"{name} {kind}" for name, kind in BOOKS_COLUMNS.items())


def copy_books(run: Run, hops: Sequence[Hop]) -> None:
    """Copy the metadata of the hops' commits since the last copy, under the locks of the hops."""
    lake, name, books = run.lake, run.pipeline.name, run.lake.books()
    of_silver = (lake.requeue, lake.quarantine, lake.discarded, lake.late, lake.silver)
    of_hop: dict[Hop, list[Table]] = {
        "bronze": [lake.bronze(name)],
        "silver": [of(name) for of in of_silver],
        "gold": lake.closing_tables(run.pipeline, "gold"),
    }
    # Several commits, since two hops may copy concurrently.
    recent = list(islice(commits(books), _NOTES))
    notes = [commit.note for commit in recent]
    fresh: list[dict[str, Any]] = []
    copied: dict[str, int] = {}
    ids: dict[str, str] = {}
    for table in (table for hop in hops for table in of_hop[hop]):
        last = last_commit(table)
        if last is None or last.version == _copied_to(table, notes):
            continue
        # The versions of a table that was deleted and filled again begin anew.
        table_id = table.id
        newest = _copied_to(table, notes, table_id)
        new = [commit for commit in commits(table) if commit.version > newest]
        if new:
            copied[table.name] = new[0].version
            ids |= {table.name: table_id} if table_id else {}
            fresh += [_row(table, commit) for commit in reversed(new)]
    if not fresh:
        return
    # Repeated in each commit, so that idle tables outlast the cleanup of this table's log.
    copied = {**(notes[0].get(_COPIED, {}) if notes else {}), **copied}
    ids = {**(notes[0].get(_IDS, {}) if notes else {}), **ids}
    append_records(
        run.spark,
        books,
        fresh,
        _BOOKS_DDL,
        newest=recent[0] if recent else None,
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
    wanted = from_records(run.spark, [{"path": path} for path in sorted(paths)], "path string")
    found = named.join(F.broadcast(wanted), on="path", how="left_semi").select("entry").collect()
    files = (json.loads(row["entry"]) for row in found)
    return {path: LandedFile(path, size, modified) for path, size, modified, _ in files}


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
