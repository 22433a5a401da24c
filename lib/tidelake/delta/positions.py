"""Say what lies between two positions of a reader in a table's log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from urllib.parse import unquote

from tidelake.delta.log import Added
from tidelake.delta.tables import Table
from tidelake.folders import Folder

# A commit and the last of its files that a reader took; negative for none of them. In a catalog
# it is always negative: streams take a commit whole there.
Position = tuple[int, int]
BEGINNING: Position = (0, -1)


def rewritten_after(table: Table, position: Position) -> int | None:
    """Find the newest version after a position that took rows out or replaced some, if any."""
    since = takewhile(lambda entry: entry.version >= position[0], table.store.entries())
    return next((entry.version for entry in since if entry.takes_out()), None)


def version_at(table: Table, position: Position) -> int | None:
    """Find the newest version that holds exactly what a reader of a growing table has taken.

    Commits that brought no row, a compaction's for example, are behind the reader as well. None
    where it is within a commit, or the log does not tell any more.
    """
    version, taken = position[0] - 1, max(position[1] + 1, 0)
    since = list(takewhile(lambda one: one.version > version, table.store.entries()))
    for entry in reversed(since):
        added = len(entry.added()) - (taken if entry.version == position[0] else 0)
        if entry.version != version + 1 or added > 0 or entry.takes_out():
            break
        version = entry.version
    is_whole = version >= position[0] or not taken
    return version if is_whole and version >= 0 else None


def rows_between(table: Table, after: Position, until: Position | None = None) -> int:
    """Count the rows that came into a table between two positions, by Delta's own statistics.

    From :data:`BEGINNING` where the reader has taken nothing yet, to the newest commit without
    ``until``. What commits only rearranged does not count.
    """
    return sum(one.rows for one in _added_between(table, after, until))


def bytes_between(table: Table, after: Position, until: Position | None = None) -> int:
    """Add up the sizes of the files that came into a table between two positions.

    This is what Delta's limit on a batch counts; in a catalog with files that had no row and were
    left out.
    """
    return sum(one.size for one in _added_between(table, after, until))


def size_between(table: Table, after: Position, until: Position) -> tuple[int, int]:
    """Give both, rows and bytes, in one look at the log."""
    came = list(_added_between(table, after, until))
    return sum(one.rows for one in came), sum(one.size for one in came)


def files_between(table: Table, after: Position, until: Position) -> list[Folder]:
    """List the data files that came into a table between two positions; not in a catalog."""
    return [table.path / unquote(one.path) for one in _added_between(table, after, until)]


def _added_between(table: Table, after: Position, until: Position | None) -> Iterator[Added]:
    # The newest version of which the position lies behind a file.
    up_to = None if until is None else until[0] if until[1] >= 0 else until[0] - 1
    for entry in table.store.entries(up_to):
        version = entry.version
        if version < after[0]:
            break
        added = entry.added()
        first = max(after[1] + 1, 0) if version == after[0] else 0
        past = max(until[1] + 1, 0) if until is not None and version == until[0] else len(added)
        yield from added[first:past]
