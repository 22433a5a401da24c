"""Say what lies between two positions of a reader in a table's log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from urllib.parse import unquote

from tidelake.delta.log import Added, entries
from tidelake.delta.tables import Table
from tidelake.folders import Folder

# A commit and the last of its files that a reader took; negative for none of them. In a catalog
# it is always negative: streams take a commit whole there.
Position = tuple[int, int]
BEGINNING: Position = (0, -1)


def rewritten_after(table: Table, position: Position) -> int | None:
    """Find a version after a position that took rows out of a table, or put others in place.

    Args:
        table: A table that is only to grow.
        position: Where its reader stands.

    Returns:
        The newest such version; None where the table only grew.
    """
    for entry in entries(table):
        if entry.version < position[0]:
            return None
        if entry.takes_out():
            return entry.version
    return None


def version_at(table: Table, position: Position) -> int | None:
    """Find the newest version that holds exactly what a reader of a table has taken.

    Args:
        table: A table that is only to grow.
        position: Where its reader stands.

    Returns:
        The version; commits that brought no row, a compaction's for example, are behind the
        reader as well. None where it stands within a commit, or the log does not tell any more.
    """
    version, taken = position[0] - 1, max(position[1] + 1, 0)
    since = [entry for entry in takewhile(lambda one: one.version > version, entries(table))]
    for entry in reversed(since):
        added = len(entry.added()) - (taken if entry.version == position[0] else 0)
        if entry.version != version + 1 or added > 0 or entry.takes_out():
            break
        version = entry.version
    is_whole = version >= position[0] or not taken
    return version if is_whole and version >= 0 else None


def rows_between(table: Table, after: Position, until: Position | None = None) -> int:
    """Count the rows that came into a table between two positions, by Delta's own statistics.

    Args:
        table: The table that is read; what its commits only rearranged does not count.
        after: Where the reader stood; :data:`BEGINNING` for nowhere yet.
        until: Where it stands now; None for the newest commit.

    Returns:
        The rows of the files in between.
    """
    return sum(one.rows for one in _added_between(table, after, until))


def bytes_between(table: Table, after: Position, until: Position | None = None) -> int:
    """Add up the sizes of the files that came into a table between two positions.

    This is what Delta's limit on a batch counts; in a catalog with files that had no row and were
    left out. Arguments as for :func:`rows_between`.
    """
    return sum(one.size for one in _added_between(table, after, until))


def size_between(table: Table, after: Position, until: Position) -> tuple[int, int]:
    """Give both, rows and bytes, in one look at the log. Arguments as for :func:`rows_between`."""
    came = list(_added_between(table, after, until))
    return sum(one.rows for one in came), sum(one.size for one in came)


def files_between(table: Table, after: Position, until: Position) -> list[Folder]:
    """List the data files that came into a table between two positions; not in a catalog."""
    return [table.path / unquote(one.path) for one in _added_between(table, after, until)]


def _added_between(table: Table, after: Position, until: Position | None) -> Iterator[Added]:
    for entry in entries(table, up_to=None if until is None else _last(until)):
        version = entry.version
        if version < after[0]:
            break
        added = entry.added()
        first = max(after[1] + 1, 0) if version == after[0] else 0
        past = max(until[1] + 1, 0) if until is not None and version == until[0] else len(added)
        yield from added[first:past]


def _last(position: Position) -> int:
    """Give the newest version of which a position lies behind a file."""
    return position[0] if position[1] >= 0 else position[0] - 1
