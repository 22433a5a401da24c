"""Read a table's log, commit by commit: it is the ledger, and each commit carries its metadata.

Under a root the JSON files under ``_delta_log`` are read, without Spark. The folder is listed once:
commits are numbered without a gap, so the next one has a name to look for. Nobody may touch the
files of a table in a catalog: there Spark is asked for the table's history
(:mod:`tidelake.delta.history`), which says how much each commit brought, but not in which files.

Tidelake's commits carry a JSON object under ``tidelake`` in their user metadata. Others, a
compaction's for example, are passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tidelake.folders import Folder, Listed, list_folder

if TYPE_CHECKING:
    from tidelake.delta.tables import Table


class Added(NamedTuple):
    """What came into a table, in one data file or in all of a commit.

    Attributes:
        rows: How many, by Delta's own statistics.
        size: Bytes.
        path: Of the file, relative to the table; empty where only sums are known.
    """

    rows: int
    size: int
    path: str = ""


@dataclass(frozen=True)
class Info:
    """What a commit says of itself.

    Attributes:
        written_at: When (UTC).
        operation: Delta's word for what was done.
        parameters: Of the operation.
        metrics: What Delta counted.
        metadata: What the writer wrote into it.
    """

    written_at: datetime
    operation: str
    parameters: Mapping[str, Any]
    metrics: Mapping[str, Any]
    metadata: str | None


class Entry(Protocol):
    """One commit of a log, whoever wrote it."""

    @property
    def version(self) -> int:
        """The table's version that it made."""

    @property
    def info(self) -> Info:
        """What it says of itself."""

    def added(self) -> Sequence[Added]:
        """List what it brought in the order in which a stream takes it; not what it rearranged."""

    def takes_out(self) -> bool:
        """Tell whether it took rows out of the table, or put others in their place."""


_COMMIT_FILE = re.compile(r"[0-9]{20}\.json")


@dataclass(frozen=True)
class LogFile:
    """A commit's file; read when it is asked."""

    file: Listed

    @property
    def version(self) -> int:
        """The table's version that it made."""
        return int(self.file.stem)

    @cached_property
    def info(self) -> Info:
        """What the commit says of itself."""
        told: dict[str, Any] = next(self._actions("commitInfo"), {})
        return Info(
            written_at=datetime.fromtimestamp(told.get("timestamp", 0) / 1000, tz=UTC),
            operation=told.get("operation", ""),
            parameters=told.get("operationParameters", {}),
            metrics=told.get("operationMetrics", {}),
            metadata=told.get("userMetadata"),
        )

    def added(self) -> list[Added]:
        """List the data files that it brought."""
        return [
            Added(_records(add), int(add["size"]), add["path"])
            for add in self._actions("add")
            if add.get("dataChange")
        ]

    def takes_out(self) -> bool:
        """Tell whether it took out a data file for more than to rearrange its rows."""
        return any(remove.get("dataChange", True) for remove in self._actions("remove"))

    def only_appends(self) -> bool:
        """Tell whether it brought rows and did nothing else, so that what was read stays valid."""
        others = (any(self._actions(kind)) for kind in ("remove", "metaData", "protocol"))
        rearranged = any(not add.get("dataChange") for add in self._actions("add"))
        return not rearranged and not any(others)

    @property
    def id(self) -> str | None:
        """The id of the table, where the commit wrote it."""
        return next((str(action["id"]) for action in self._actions("metaData")), None)

    def _actions(self, kind: str) -> Iterator[dict[str, Any]]:
        for line in self.file.text().splitlines():
            action = json.loads(line).get(kind)
            if action is not None:
                yield action


def files_of(folder: Folder) -> Iterator[LogFile]:
    """Yield a folder's commit files, newest first; checkpoints and compacted logs are none."""
    log = folder / "_delta_log"
    if not isinstance(log, Path):
        yield from _listed(log)
        return
    version = _newest(log)
    while version >= 0 and (file := _commit_file(log, version)).exists():
        yield LogFile(Listed(file))
        version -= 1
    if version >= 0:
        # The oldest were cleaned up, or somebody took one out.
        yield from (file for file in _listed(log) if file.version < version)


def commits_after(folder: Folder, version: int) -> list[LogFile]:
    """List the commits of a table in a folder that came after a version, newest first."""
    return list(takewhile(lambda file: file.version > version, files_of(folder)))


def first_id(folder: Folder) -> str | None:
    """Give the id with which a table was made; None where the log has its first commit no more."""
    if isinstance(folder, Path):
        file = _commit_file(folder / "_delta_log", 0)
        return LogFile(Listed(file)).id if file.exists() else None
    *_, first = [None, *files_of(folder)]
    return None if first is None or first.version else first.id


# The newest version that was seen in a log; only where to look from, never what is there.
_seen: dict[Path, int] = {}


def _newest(log: Path) -> int:
    """Find the newest version; -1 for none."""
    newest = _seen.get(log, -1)
    if newest < 0 or not _commit_file(log, newest).exists():
        # Looked at for the first time, or made anew since.
        newest = next((file.version for file in _listed(log)), -1)
    while newest >= 0 and _commit_file(log, newest + 1).exists():
        newest += 1
    _seen[log] = newest
    return newest


def _listed(log: Folder) -> Iterator[LogFile]:
    found = [file for file in list_folder(log) if _COMMIT_FILE.fullmatch(file.name)]
    return map(LogFile, sorted(found, key=lambda file: file.name, reverse=True))


def _commit_file(log: Path, version: int) -> Path:
    return log / f"{version:020d}.json"


def _records(add: dict[str, Any]) -> int:
    stats = add.get("stats")
    return int(json.loads(stats)["numRecords"]) if stats else 0


def entries(table: Table, *, up_to: int | None = None) -> Iterator[Entry]:
    """Yield a log's commits, newest first; none where the table does not exist.

    Args:
        table: Whose log is read.
        up_to: The newest version that is looked at; None for the newest there is. What is known of
            older ones of a catalog's need not be asked for again.
    """
    return table.store.entries(up_to)


def versions(table: Table) -> list[int]:
    """List the versions whose commits the log has, newest first."""
    return [entry.version for entry in entries(table)]


# The session's setting for the notes of commits that take no option.
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_NOTE = "tidelake"
# In the note of a commit that replaced all of a table's rows.
REBUILT = "rebuilt"
# In the note of a commit that follows an erasure, or that takes rows out by one: what left.
ERASED = "erased"


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
    return json.dumps({_NOTE: note}, separators=(",", ":"), sort_keys=True)


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
    for entry in entries(table, up_to=up_to):
        version = entry.version
        info = entry.info
        written = info.written_at
        undone = (newest is not None and version > newest) or (
            until is not None and written > until
        )
        if undone:
            continue
        if info.operation == "RESTORE":
            newest, until = _restored(info)
            continue
        # In the session of a merge, a compaction takes the merge's metadata for its own.
        mine = info.operation != "OPTIMIZE"
        note = _note(info.metadata) if mine else None
        if note is not None:
            rows = info.metrics.get("numOutputRows")
            copied = int(info.metrics.get("numTargetRowsCopied", 0))
            yield Commit(version, written, None if rows is None else int(rows), note, copied)
            if note.get(REBUILT):
                return


def repeated(commits: Iterable[Commit]) -> dict[tuple[str, int], list[int]]:
    """Find batches that were committed more than once, as by two writers without a lock.

    Returns:
        The versions by generation and batch, oldest first.
    """
    found: dict[tuple[str, int], set[int]] = {}
    for commit in commits:
        # The commit that takes rows out carries the metadata of the last batch.
        if commit.batch >= 0 and ERASED not in commit.note:
            found.setdefault((commit.generation, commit.batch), set()).add(commit.version)
    twice = [(key, sorted(versions)) for key, versions in found.items() if len(versions) > 1]
    return dict(sorted(twice, key=lambda one: one[1]))


def last_commit(table: Table, *, up_to: int | None = None) -> Commit | None:
    """Give our newest commit of a table, or of one of its versions."""
    return next(commits(table, up_to=up_to), None)


def oldest_version(table: Table) -> int:
    """Give the oldest version whose commit the log still has; 0 for all, and for no table."""
    return min(versions(table), default=0)


def newest_version(table: Table) -> int:
    """Give the newest version, whoever wrote it; -1 for no table."""
    return next((entry.version for entry in entries(table)), -1)


def written_at(table: Table, version: int) -> datetime | None:
    """Tell when a version was written (UTC), whoever wrote it; None where the log has it no more.

    What came before it is then older than the oldest that the log has.
    """
    since = list(takewhile(lambda entry: entry.version >= version, entries(table)))
    return since[-1].info.written_at if since else None


def _restored(info: Info) -> tuple[int | None, datetime | None]:
    """Read to which version, or to which instant, a RESTORE went back."""
    version, instant = info.parameters.get("version"), info.parameters.get("timestamp")
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
    note = data.get(_NOTE) if isinstance(data, dict) else None
    return note if isinstance(note, dict) else None
