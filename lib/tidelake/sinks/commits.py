"""Read what each commit of a table says about itself: Delta's log is the ledger.

Tidelake's commits carry a JSON object under ``tidelake`` in their user metadata. Others, a
compaction's for example, are passed over. Only the log's JSON files are read, never Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from tidelake.store.files import Listed, list_folder
from tidelake.store.folders import Folder
from tidelake.tables import Table

_KEY = "tidelake"
# In the note of a commit that replaced all of a table's rows.
REBUILT = "rebuilt"
# In the note of a commit that follows an erasure, or that takes rows out by one: what left.
ERASED = "erased"
_COMMIT_FILE = re.compile(r"[0-9]{20}\.json")

# A commit and the last of its files that a reader took; negative for none of them.
Position = tuple[int, int]
BEGINNING: Position = (0, -1)


@dataclass(frozen=True)
class Commit:
    """One of our commits.

    Attributes:
        version: The table's version that it made.
        written_at: When (UTC).
        rows: Rows written, as Delta counted them; None where Delta did not say.
        copied: Rows that a merge wrote again unchanged, since they lay in files with others.
        note: What we wrote into its metadata.
    """

    version: int
    written_at: datetime
    rows: int | None
    note: dict[str, Any]
    copied: int = 0

    @property
    def batch(self) -> int:
        """The micro-batch that it closed; -1 for the commit that made the table."""
        return int(self.note["batch"])

    @property
    def generation(self) -> str:
        """The generation that it belongs to."""
        return str(self.note["generation"])

    @property
    def brought(self) -> int:
        """Rows that came in with it: none where it took rows out, whatever it wrote again."""
        return 0 if ERASED in self.note else self.rows or 0


def encode(note: dict[str, Any]) -> str:
    """Write a note as user metadata."""
    return json.dumps({_KEY: note}, separators=(",", ":"), sort_keys=True)


def commits(table: Table, *, up_to: int | None = None) -> Iterator[Commit]:
    """Yield our commits of a table, newest first; nothing where the table does not exist.

    Commits that a RESTORE undid are left out, and those before a rebuild: the table does not hold
    what they say.

    Args:
        table: Whose log is read.
        up_to: See the table as this version had it; None for as it is.
    """
    newest: int | None = None
    until: datetime | None = None
    for file in _log_files(table):
        version = int(file.stem)
        if up_to is not None and version > up_to:
            continue
        info = _commit_info(file)
        written = _instant(info)
        undone = (newest is not None and version > newest) or (
            until is not None and written > until
        )
        if undone:
            continue
        if info.get("operation") == "RESTORE":
            newest, until = _restored(info)
            continue
        # In the session of a merge, a compaction takes the merge's metadata for its own.
        mine = info.get("operation") != "OPTIMIZE"
        note = _note(info.get("userMetadata")) if mine else None
        if note is not None:
            metrics = info.get("operationMetrics", {})
            rows = metrics.get("numOutputRows")
            copied = int(metrics.get("numTargetRowsCopied", 0))
            yield Commit(version, written, None if rows is None else int(rows), note, copied)
            if note.get(REBUILT):
                return


def last_commit(table: Table, *, up_to: int | None = None) -> Commit | None:
    """Give our newest commit of a table, or of one of its versions."""
    return next(commits(table, up_to=up_to), None)


def oldest_version(table: Table) -> int:
    """Give the oldest version whose commit the log still has; 0 for all, and for no table."""
    return min((int(file.stem) for file in _log_files(table)), default=0)


def table_id(table: Table) -> str | None:
    """Give the id with which a table was made; None where the log has its first commit no more."""
    first = next(iter(_log_files(table)[-1:]), None)
    if first is None or int(first.stem):
        return None
    return next((str(action["id"]) for action in _actions(first, "metaData")), None)


def newest_version(table: Table) -> int:
    """Give the newest version, whoever wrote it; -1 for no table."""
    return max((int(file.stem) for file in _log_files(table)), default=-1)


def written_at(table: Table, version: int) -> datetime | None:
    """Tell when a version was written (UTC), whoever wrote it; None where the log has it no more.

    What came before it is then older than the oldest that the log has.
    """
    for file in reversed(_log_files(table)):
        if int(file.stem) >= version:
            return _instant(_commit_info(file))
    return None


def rewritten_after(table: Table, position: Position) -> int | None:
    """Find a version after a position that took rows out of a table, or put others in place.

    Args:
        table: A table that is only to grow.
        position: Where its reader stands.

    Returns:
        The newest such version; None where the table only grew.
    """
    for file in _log_files(table):
        version = int(file.stem)
        if version < position[0]:
            return None
        if _takes_out(file):
            return version
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
    for file in reversed(_log_files(table)):
        number = int(file.stem)
        if number <= version:
            continue
        added = len(_added(file)) - (taken if number == position[0] else 0)
        if number != version + 1 or added > 0 or _takes_out(file):
            break
        version = number
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
    return sum(
        int(json.loads(add["stats"])["numRecords"]) for add in _added_between(table, after, until)
    )


def bytes_between(table: Table, after: Position, until: Position | None = None) -> int:
    """Add up the sizes of the files that came into a table between two positions.

    This is what Delta's limit on a batch counts. Arguments as for :func:`rows_between`.
    """
    return sum(int(add["size"]) for add in _added_between(table, after, until))


def files_between(table: Table, after: Position, until: Position) -> list[Folder]:
    """List the data files that came into a table between two positions."""
    return [table.path / unquote(add["path"]) for add in _added_between(table, after, until)]


def _added_between(
    table: Table, after: Position, until: Position | None
) -> Iterator[dict[str, Any]]:
    for file in _log_files(table):
        version = int(file.stem)
        if version < after[0]:
            break
        if until is not None and version > until[0]:
            continue
        adds = _added(file)
        first = max(after[1] + 1, 0) if version == after[0] else 0
        past = max(until[1] + 1, 0) if until is not None and version == until[0] else len(adds)
        yield from adds[first:past]


def _added(file: Listed) -> list[dict[str, Any]]:
    """List the data files that a commit brought, in the order in which a stream takes them."""
    return [add for add in _actions(file, "add") if add.get("dataChange")]


def _takes_out(file: Listed) -> bool:
    return any(remove.get("dataChange", True) for remove in _actions(file, "remove"))


def _actions(file: Listed, kind: str) -> Iterator[dict[str, Any]]:
    for line in file.text().splitlines():
        action = json.loads(line).get(kind)
        if action is not None:
            yield action


def _log_files(table: Table) -> list[Listed]:
    """List a log's commit files, newest first; checkpoints and compacted logs are none."""
    files = list_folder(table.path / "_delta_log")
    found = (file for file in files if _COMMIT_FILE.fullmatch(file.name))
    return sorted(found, key=lambda file: file.name, reverse=True)


def _commit_info(file: Listed) -> dict[str, Any]:
    return dict(next(_actions(file, "commitInfo"), {}))


def _instant(info: dict[str, Any]) -> datetime:
    return datetime.fromtimestamp(info.get("timestamp", 0) / 1000, tz=UTC)


def _restored(info: dict[str, Any]) -> tuple[int | None, datetime | None]:
    """Read to which version, or to which instant, a RESTORE went back."""
    asked = info.get("operationParameters", {})
    version, instant = asked.get("version"), asked.get("timestamp")
    if version is not None:
        return int(version), None
    try:
        until = datetime.fromisoformat(str(instant).strip('"'))
    except ValueError:
        # Nothing older than the RESTORE is certain then, and the fence will refuse the table.
        return -1, None
    return None, until if until.tzinfo else until.replace(tzinfo=UTC)


def _note(text: str | None) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        data = json.loads(text)
    except ValueError:
        return None
    note = data.get(_KEY) if isinstance(data, dict) else None
    return note if isinstance(note, dict) else None
