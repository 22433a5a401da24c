"""Read a table's commit notes beyond the log's retention: what each run copied to ``ops.books``."""

from __future__ import annotations

import json
from typing import Any

from tidelake.delta.log import REBUILT, Commit, commits, oldest_version
from tidelake.delta.tables import Lake, Table
from tidelake.errors import UsageError
from tidelake.ops.query import ask


def require_tables(lake: Lake, pipeline: str) -> None:
    """Want a pipeline that has run.

    Raises:
        UsageError: It has no tables under this root.
    """
    if not lake.bronze(pipeline).exists:
        raise UsageError(
            f"{pipeline} has no tables {lake.place}. Fill them with: tidelake run {pipeline}"
        )


def history(lake: Lake, table: Table) -> list[Commit]:
    """List our commits of a table, newest first.

    The log has the newest; what it no longer has comes from the books.
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
    return logged + _since_rebuilt([_commit(row) for row in kept.rows])


def _since_rebuilt(newest_first: list[Commit]) -> list[Commit]:
    for number, commit in enumerate(newest_first):
        if commit.note.get(REBUILT):
            return newest_first[: number + 1]
    return newest_first


def _commit(row: tuple[Any, ...]) -> Commit:
    version, committed_at, rows, note = row
    return Commit(version, committed_at, rows, json.loads(note))
