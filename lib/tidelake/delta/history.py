"""Read the log of a table in a catalog from its history, each commit once.

A commit never changes, so what was read is kept, and later questions ask Spark for the newest few.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from tidelake.delta.log import Added, Info
from tidelake.delta.store import CatalogStore
from tidelake.instants import from_micros

# How many commits are asked for before all are: most questions come after one or two more.
_NEWEST = 8
_WRITES = ("WRITE", "STREAMING UPDATE")
# Move or describe rows, and change none.
_REARRANGES = frozenset(
    {
        "OPTIMIZE",
        "AUTO COMPACTION",
        "REORG",
        "VACUUM START",
        "VACUUM END",
        "CREATE TABLE",
        "ADD COLUMNS",
        "CHANGE COLUMN",
        "RENAME COLUMN",
        "DROP COLUMNS",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "CLUSTER BY",
        "UPGRADE PROTOCOL",
        "ADD DELETION VECTOR TOMBSTONES",
        "DROP FEATURE",
        "COMPUTE STATS",
        "ANALYZE TABLE",
        "CHANGE DATA CAPTURE",
        "SET OWNER",
        "MANUAL UPDATE STATS",
    }
)
_TAKEN_OUT = (
    "numRemovedFiles",
    "numDeletionVectorsAdded",
    "numDeletionVectorsUpdated",
    "numTargetFilesRemoved",
    "numTargetDeletionVectorsAdded",
    "numTargetDeletionVectorsUpdated",
)
_COLUMNS = ("version", "operation", "operationParameters", "operationMetrics", "userMetadata")


@dataclass(frozen=True)
class HistoryEntry:
    """A commit, by what the history says of it."""

    version: int
    info: Info

    def added(self) -> list[Added]:
        """Give what it brought as one sum; streams take a commit whole.

        Delta counts a file without a row that it then leaves out, so the rows decide. Where it
        counted nothing, something may have come.
        """
        told = self.info.metrics
        if self.info.operation in _REARRANGES or (told and not self._number("numOutputRows")):
            return []
        size = self._number("numOutputBytes", "numTargetBytesAdded")
        return [Added(self._number("numOutputRows"), size)]

    def takes_out(self) -> bool:
        """Tell whether it took rows out, or put others in their place.

        Where Delta counted nothing, that is taken to be so for all but plain appends.
        """
        info = self.info
        if info.operation in _REARRANGES:
            return False
        if info.operation in _WRITES and info.parameters.get("mode", "Append") == "Append":
            return False
        return not info.metrics or any(self._number(name) for name in _TAKEN_OUT)

    def _number(self, *names: str) -> int:
        return next(
            (int(self.info.metrics[name]) for name in names if name in self.info.metrics), 0
        )


def commits_of(name: CatalogStore, up_to: int | None) -> Iterator[HistoryEntry]:
    """Yield a table's commits up to a version, newest first; none where it does not exist."""
    with _lock:
        known = _known.get(name, {})
    if up_to is None or up_to not in known:
        known = _refreshed(name)
    wanted = [version for version in known if up_to is None or version <= up_to]
    return iter([known[version] for version in sorted(wanted, reverse=True)])


def _refreshed(name: CatalogStore) -> dict[int, HistoryEntry]:
    """Bring what is known of a table to what it is now."""
    newest = _asked(name, _NEWEST)
    with _lock:
        known = _known.get(name, {})
        goes_on = bool(newest) and _same(known.get(newest[-1].version), newest[-1])
    # From the first commit on, or from one that is known: nothing is missing in between.
    whole = not newest or newest[-1].version == 0 or goes_on
    fresh = newest if whole else _asked(name, None)
    found = {entry.version: entry for entry in fresh}
    if goes_on:
        found |= {version: entry for version, entry in known.items() if version not in found}
    with _lock:
        _known[name] = found
    return found


def id_of(name: CatalogStore) -> str | None:
    """Give the id of a table; None where it does not exist."""
    try:
        detail = DeltaTable.forName(name.catalog.session(), str(name)).detail()
        return str(detail.select("id").collect()[0]["id"])
    except AnalysisException:
        return None


_known: dict[CatalogStore, dict[int, HistoryEntry]] = {}
_lock = threading.Lock()


def _asked(name: CatalogStore, limit: int | None) -> list[HistoryEntry]:
    """Ask for the newest commits, newest first."""
    try:
        table = DeltaTable.forName(name.catalog.session(), str(name))
        history = table.history() if limit is None else table.history(limit)
        rows = history.select(*_COLUMNS, F.unix_micros("timestamp").alias("at")).collect()
    except AnalysisException:
        # Told apart only now: most tables that are asked for exist.
        if name.catalog.session().catalog.tableExists(str(name)):
            raise
        return []
    entries = [_entry(row.asDict()) for row in rows]
    return sorted(entries, key=lambda entry: entry.version, reverse=True)


def _entry(row: dict[str, Any]) -> HistoryEntry:
    written = from_micros(row["at"])
    assert written is not None
    info = Info(
        written,
        row["operation"],
        row["operationParameters"] or {},
        row["operationMetrics"] or {},
        row["userMetadata"],
    )
    return HistoryEntry(int(row["version"]), info)


def _same(one: HistoryEntry | None, other: HistoryEntry) -> bool:
    """Tell whether two looks saw one commit, and not that of a table made anew by that name."""
    return one is not None and one.info == other.info
