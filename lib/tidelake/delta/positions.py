"""Compute rows, bytes and files between two positions of a reader in a table's log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from urllib.parse import unquote

from tidelake.delta.log import CREATION, REBUILT, TABLES, Added, Commit, batch_reached, last_commit
from tidelake.delta.tables import Table
from tidelake.folders import Folder

# A version and the index of the last of its files that was read; negative for none of them. In a
# catalog the index is always negative, because streams read whole commits there.
Position = tuple[int, int]
BEGINNING: Position = (0, -1)


def rewritten_after(table: Table, position: Position) -> int | None:
    """Return the newest version at or after a position that deleted or replaced rows, if any."""
    since = takewhile(lambda entry: entry.version >= position[0], table.entries())
    return next((entry.version for entry in since if entry.removes_rows()), None)


def unfilled_tables(tables: Sequence[Table]) -> list[Table]:
    """List the tables of a hop that the next run fills from its inputs, while others hold batches.

    They hold no row and no batch: they were added to the definition, deleted, or emptied by a
    rollback. Or they are behind, and the newest batch of the others did not fill them: they were
    removed from the definition, and added again. A table without metadata that holds rows is not
    among them, nor one that was RESTOREd: they would be overwritten.
    """
    last = {table: last_commit(table) for table in tables}
    filled = {table: one for table, one in last.items() if one and one.batch > CREATION}
    if not filled:
        return []
    behind = _left_behind(filled)
    return [
        table
        for table, one in last.items()
        if table in behind or (table not in filled and not bytes_between(table, _since(one)))
    ]


def _left_behind(filled: Mapping[Table, Commit]) -> set[Table]:
    """Find the tables that are not at the newest batch, because it did not fill them."""
    if len({one.note.get("pipeline") for one in filled.values()}) > 1:
        # Another pipeline fills one of them, and its batches are not of this one.
        return set()
    newest = max(filled.values(), key=lambda one: one.written_at)
    batch = max(one.batch for one in filled.values() if one.generation == newest.generation)
    reached = newest.generation, batch
    closing = [one for one in filled.values() if (one.generation, one.batch) == reached]
    # Commits of earlier versions do not say which tables their batch fills.
    known = [set(one.note[TABLES]) for one in closing if TABLES in one.note]
    return {
        table
        for table, one in filled.items()
        if (one.generation, one.batch) != reached and any(table.name not in own for own in known)
    }


def slowest_of(tables: Sequence[Table]) -> Table | None:
    """Return the table whose last batch is the oldest: it determines the progress of its hop.

    Tables that the next run fills, or without a batch, count only if there are no others.
    """
    unfilled = unfilled_tables(tables)
    filled = [one for one in tables if one not in unfilled and batch_reached(one) > CREATION]
    return min(filled or tables, key=batch_reached, default=None)


def _since(last: Commit | None) -> Position:
    """Return the position after the commit that emptied a table; its beginning without one."""
    return (last.version + 1, -1) if last and last.note.get(REBUILT) else BEGINNING


def version_at(table: Table, position: Position) -> int | None:
    """Return the newest version that has exactly the rows a reader of an append-only table read.

    Following commits without rows, such as compactions, are included. None where the position is
    within a commit, or the log no longer has it.
    """
    version, read = position[0] - 1, max(position[1] + 1, 0)
    since = list(takewhile(lambda entry: entry.version > version, table.entries()))
    for entry in reversed(since):
        unread = len(entry.added()) - (read if entry.version == position[0] else 0)
        if entry.version != version + 1 or unread > 0 or entry.removes_rows():
            break
        version = entry.version
    is_whole = version >= position[0] or not read
    return version if is_whole and version >= 0 else None


def rows_between(table: Table, after: Position, until: Position | None = None) -> int:
    """Count the rows added to a table between two positions, from Delta's statistics.

    ``after`` is :data:`BEGINNING` where nothing was read yet; without ``until``, up to the newest
    commit. Rewritten rows do not count.
    """
    return size_between(table, after, until)[0]


def bytes_between(table: Table, after: Position, until: Position | None = None) -> int:
    """Sum the bytes of the files added to a table between two positions.

    Delta's limit on a batch counts the same bytes. In a catalog the sum includes empty files that
    Delta omitted.
    """
    return size_between(table, after, until)[1]


def size_between(table: Table, after: Position, until: Position | None) -> tuple[int, int]:
    """Return the rows and the bytes between two positions, reading the log once."""
    added = list(_added_between(table, after, until))
    return sum(item.rows for item in added), sum(item.size for item in added)


def files_between(table: Table, after: Position, until: Position) -> list[Folder]:
    """List the data files added to a table between two positions; not for a catalog."""
    return [table.path / unquote(added.path) for added in _added_between(table, after, until)]


def _added_between(table: Table, after: Position, until: Position | None) -> Iterator[Added]:
    # The newest version of which at least one file is before the end position.
    up_to = None if until is None else until[0] if until[1] >= 0 else until[0] - 1
    for entry in table.entries(up_to):
        version = entry.version
        if version < after[0]:
            break
        added = entry.added()
        first = max(after[1] + 1, 0) if version == after[0] else 0
        end = max(until[1] + 1, 0) if until is not None and version == until[0] else len(added)
        yield from added[first:end]
