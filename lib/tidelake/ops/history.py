"""What every report begins with: that a pipeline has run, its tables' commits, its landed files."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tidelake.config import FilesSource, Pipeline
from tidelake.delta.log import REBUILT, Commit, commits, oldest_version
from tidelake.delta.tables import Lake, Table
from tidelake.errors import SourceError, UsageError
from tidelake.ops.query import ask
from tidelake.runtime.landing import LandedFile, list_files


def require_tables(lake: Lake, pipeline: str) -> None:
    """Raise a UsageError for a pipeline that has not run, having no tables under this root."""
    if not lake.bronze(pipeline).exists:
        raise UsageError(
            f"{pipeline} has no tables {lake.place}. Fill them with: tidelake run {pipeline}"
        )


def history(lake: Lake, table: Table) -> list[Commit]:
    """List our commits of a table, newest first.

    The log has the newest; what is beyond its retention comes from ``ops.books``, to which each
    run copies the metadata of commits.
    """
    logged = list(commits(table))
    oldest = oldest_version(table)
    begins = bool(logged) and bool(logged[-1].note.get(REBUILT))
    if not oldest or begins or not lake.books().exists:
        return logged
    kept = ask(
        lake,
        f"SELECT version, committed_at, rows, note FROM {lake.books().name} "
        f"WHERE table_name = '{table.name}' AND version < {oldest} ORDER BY version DESC",
    )
    for version, committed_at, rows, note in kept.rows:
        logged.append(Commit(version, committed_at, rows, json.loads(note)))
        # What came before the table was rebuilt is no longer in it.
        if logged[-1].note.get(REBUILT):
            break
    return logged


def offered_files(pipeline: Pipeline) -> Mapping[str, LandedFile] | None:
    """List the landing folder; None where it cannot be listed, and for other sources."""
    if not isinstance(pipeline.source, FilesSource):
        return None
    try:
        return list_files(pipeline.source.path)
    except SourceError:
        # Reports on the tables are of use even where the landing folder is gone.
        return None
