"""Read a table's log, commit by commit: from its files, or in a catalog from its history.

Nobody may touch the files of a table in a catalog. There Spark is asked for the table's history,
which says of each commit how much it brought, but not in which files.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelake.sinks.entries import Entry
from tidelake.sinks.log_files import files_of, first_id
from tidelake.tables import CatalogName, Table


def entries(table: Table, *, up_to: int | None = None) -> Iterator[Entry]:
    """Yield a log's commits, newest first; none where the table does not exist.

    Args:
        table: Whose log is read.
        up_to: The newest version that is looked at; None for the newest there is. What is known of
            older ones of a catalog's need not be asked for again.
    """
    if isinstance(table.place, CatalogName):
        from tidelake.sinks.log_history import commits_of  # noqa: PLC0415  imports Spark

        return commits_of(table.place, up_to)
    files = files_of(table.place)
    return (file for file in files if up_to is None or file.version <= up_to)


def versions(table: Table) -> list[int]:
    """List the versions whose commits the log has, newest first."""
    return [entry.version for entry in entries(table)]


def table_id(table: Table) -> str | None:
    """Give the id with which a table was made; None where the log does not tell it any more."""
    if isinstance(table.place, CatalogName):
        from tidelake.sinks.log_history import id_of  # noqa: PLC0415  imports Spark

        return id_of(table.place)
    return first_id(table.place)
