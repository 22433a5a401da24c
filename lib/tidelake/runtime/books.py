"""Copy commit notes to ``ops.books``, where they outlive the log."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any

from pyspark.sql import functions as F

from tidelake.config.standard import BOOKS_COLUMNS
from tidelake.delta.access import load
from tidelake.delta.append import append, ensure_table
from tidelake.delta.generations import CREATION, FIRST_GENERATION
from tidelake.delta.log import Commit, commits, last_commit, oldest_version
from tidelake.delta.notes import FateCount
from tidelake.delta.tables import Hop, Table
from tidelake.runtime.landing import LandedFile
from tidelake.runtime.run import Run
from tidelake.runtime.schemas import from_ddl

_NOTES = 50
_DDL = ", ".join(f"{name} {kind}" for name, kind in BOOKS_COLUMNS.items())
_STRUCT = ", ".join(f"{name}: {kind}" for name, kind in BOOKS_COLUMNS.items())


def copy_books(run: Run, hops: Sequence[Hop]) -> None:
    """Copy what the hops' tables say since the last copy; nothing when there is nothing new.

    Only hops whose lock this process holds may be copied, so that no commit comes in twice.
    """
    books = run.lake.books()
    fresh: list[dict[str, Any]] = []
    copied: dict[str, int] = {}
    for table in _tables(run, hops):
        newest = _copied(books, table)
        new = [commit for commit in commits(table) if commit.version > newest]
        if new:
            copied[table.name] = new[0].version
            fresh += [_row(table, commit) for commit in reversed(new)]
    if not fresh:
        return
    schema = from_ddl(run.spark, _DDL)
    stamp = {"pipeline": run.pipeline.name, "hop": "books", "generation": FIRST_GENERATION}
    ensure_table(run.spark, books, schema, {**stamp, "batch": CREATION, "copied": {}})
    last = last_commit(books)
    # Carried on, so that a table that rests is not forgotten when the books' own log is cleaned.
    known = last.note["copied"] if last else {}
    note = {**stamp, "batch": last.batch + 1 if last else 0, "copied": {**known, **copied}}
    # As text, which Spark parses: a list of Python rows would go through a Python worker.
    text = F.lit(json.dumps(fresh))
    rows = run.spark.range(1).select(F.inline(F.from_json(text, f"array<struct<{_STRUCT}>>")))
    append(rows, books, note)


def taken_before(run: Run, bronze: Table, paths: Collection[str]) -> dict[str, LandedFile]:
    """Find files that bronze took in commits which are in ``ops.books`` alone.

    Args:
        run: What the run works with.
        bronze: The table; its log has lost its oldest commits, or there is nothing to look up.
        paths: Of the files to find.
    """
    oldest = oldest_version(bronze) if paths else 0
    books = run.lake.books()
    if not oldest or not books.exists:
        return {}
    notes = load(run.spark, books).where(
        (F.col("table_name") == bronze.name) & (F.col("version") < oldest)
    )
    # An entry of a note has fields of several types: it stays the text that it is.
    entries = F.from_json("note", "files array<string>")["files"]
    named = notes.select(F.explode(entries).alias("entry")).select(
        "entry", F.get_json_object("entry", "$[0]").alias("path")
    )
    # As text, which Spark parses: a list of Python rows would go through a Python worker.
    text = F.lit(json.dumps(sorted(paths)))
    wanted = run.spark.range(1).select(F.explode(F.from_json(text, "array<string>")).alias("path"))
    found = named.join(F.broadcast(wanted), on="path", how="left_semi").select("entry").collect()
    files = (json.loads(row["entry"]) for row in found)
    return {path: LandedFile(path, size, modified) for path, size, modified, _ in files}


def _tables(run: Run, hops: Iterable[Hop]) -> list[Table]:
    lake, name = run.lake, run.pipeline.name
    of_hop: dict[Hop, list[Table]] = {
        "bronze": [lake.bronze(name)],
        "silver": [
            lake.requeue(name),
            lake.quarantine(name),
            lake.discarded(name),
            lake.late(name),
            lake.silver(name),
        ],
        "gold": [lake.table(name) for name in run.pipeline.gold_names],
    }
    return [table for hop in hops for table in of_hop[hop] if table.exists]


def _copied(books: Table, table: Table) -> int:
    """Find the newest version of a table that is in the books already."""
    if not books.exists:
        return -1
    # More than one note, since two hops may copy at the same moment.
    notes = islice(commits(books), _NOTES)
    return max((int(commit.note["copied"].get(table.name, -1)) for commit in notes), default=-1)


def _row(table: Table, commit: Commit) -> dict[str, Any]:
    note = commit.note
    return {
        "pipeline": note["pipeline"],
        "table_name": table.name,
        "hop": note["hop"],
        "generation": commit.generation,
        "batch": commit.batch,
        "version": commit.version,
        "committed_at": commit.written_at.isoformat(),
        "rows": commit.rows,
        "watermark": note.get("watermark"),
        "taken": note.get("taken"),
        "counts": [FateCount(*count)._asdict() for count in note.get("counts", [])],
        "note": json.dumps(note, sort_keys=True),
    }
