"""Read a table's log, commit by commit: it is the ledger, and each commit carries its metadata.

Under a root the JSON files under ``_delta_log`` are read, without Spark. The folder is listed once:
commits are numbered without a gap, so the next one has a name to look for.

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

# The session's setting for the metadata of commits that take no option.
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_NOTE = "tidelake"
# The batch of the commit that makes a table, and the generation that a hop begins with.
CREATION, FIRST_GENERATION = -1, "g1"
# In the metadata of a commit that replaced all of a table's rows.
REBUILT = "rebuilt"
# In that of a commit that follows an erasure, or that takes rows out by one: what left.
ERASED = "erased"


class Added(NamedTuple):
    """What came into a table: rows, by Delta's own statistics, and bytes.

    In one data file, with its path relative to the table, or in all of a commit.
    """

    rows: int
    size: int
    path: str = ""


@dataclass(frozen=True)
class Info:
    """What a commit says of itself: Delta's operation with its metrics, the writer's metadata."""

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
        return int(self.file.path.stem)

    @cached_property
    def info(self) -> Info:
        """What the commit says of itself."""
        told: dict[str, Any] = next(self.actions("commitInfo"), {})
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
            Added(
                int(json.loads(add["stats"])["numRecords"]) if add.get("stats") else 0,
                int(add["size"]),
                add["path"],
            )
            for add in self.actions("add")
            if add.get("dataChange")
        ]

    def takes_out(self) -> bool:
        """Tell whether it took out a data file for more than to rearrange its rows."""
        return any(remove.get("dataChange", True) for remove in self.actions("remove"))

    def only_appends(self) -> bool:
        """Tell whether it brought rows and did nothing else, so that what was read stays valid."""
        others = (any(self.actions(kind)) for kind in ("remove", "metaData", "protocol"))
        rearranged = any(not add.get("dataChange") for add in self.actions("add"))
        return not rearranged and not any(others)

    def actions(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield its actions of a kind."""
        for line in self.file.text().splitlines():
            action = json.loads(line).get(kind)
            if action is not None:
                yield action


def files_of(folder: Folder, newest: dict[Path, int]) -> Iterator[LogFile]:
    """Yield a table's commit files, newest first; checkpoints and compacted logs are none.

    ``newest`` has the newest version that was seen in each log, so that the folder need not be
    listed again; it is kept up to date.
    """
    log = folder / "_delta_log"
    if not isinstance(log, Path):
        yield from _listed(log)
        return
    version = newest.get(log, -1)
    if version < 0 or not _commit_file(log, version).exists():
        # Looked at for the first time, or made anew since.
        version = next((file.version for file in _listed(log)), -1)
    while version >= 0 and _commit_file(log, version + 1).exists():
        version += 1
    newest[log] = version
    while version >= 0 and (file := _commit_file(log, version)).exists():
        yield LogFile(Listed(file))
        version -= 1
    if version >= 0:
        # The oldest were cleaned up, or somebody took one out.
        yield from (file for file in _listed(log) if file.version < version)


def created_id(folder: Folder) -> str | None:
    """Give the id with which a table was made; None where the log has its first commit no more."""
    file = _commit_file(folder / "_delta_log", 0)
    if not file.exists():
        return None
    return next((str(action["id"]) for action in LogFile(Listed(file)).actions("metaData")), None)


def _listed(log: Folder) -> Iterator[LogFile]:
    found = [file for file in list_folder(log) if _COMMIT_FILE.fullmatch(file.name)]
    return map(LogFile, sorted(found, key=lambda file: file.name, reverse=True))


def _commit_file(log: Folder, version: int) -> Folder:
    return log / f"{version:020d}.json"


def commits_after(table: Table, version: int) -> list[LogFile]:
    """List the commits of a table in a folder that came after a version, newest first."""
    files = (entry for entry in table.store.entries() if isinstance(entry, LogFile))
    return list(takewhile(lambda file: file.version > version, files))


@dataclass(frozen=True)
class Commit:
    """One of our commits: the metadata that we wrote into it, the version that it made, when (UTC).

    ``rows`` are those written, None where Delta did not say. ``copied`` are those that a merge
    wrote again unchanged, since they lay in files with others.
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
    """Yield our commits of a table, or of one of its versions, newest first; none without a table.

    Commits that a RESTORE undid are left out, and those before a rebuild: the table does not hold
    what they say.
    """
    newest: int | None = None
    until: datetime | None = None
    for entry in table.store.entries(up_to):
        version, info = entry.version, entry.info
        undone = (newest is not None and version > newest) or (
            until is not None and info.written_at > until
        )
        if undone:
            continue
        if info.operation == "RESTORE":
            newest, until = _restored(info)
            continue
        # In the session of a merge, a compaction takes the merge's metadata for its own.
        note = None if info.operation == "OPTIMIZE" else _note(info.metadata)
        if note is not None:
            rows = info.metrics.get("numOutputRows")
            copied = int(info.metrics.get("numTargetRowsCopied", 0))
            written = None if rows is None else int(rows)
            yield Commit(version, info.written_at, written, note, copied)
            if note.get(REBUILT):
                return


def repeated(commits: Iterable[Commit]) -> dict[tuple[str, int], list[int]]:
    """Find batches that were committed more than once, as by two writers without a lock.

    Returns the versions by generation and batch, oldest first.
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
    return min((entry.version for entry in table.store.entries()), default=0)


def newest_version(table: Table) -> int:
    """Give the newest version, whoever wrote it; -1 for no table."""
    return next((entry.version for entry in table.store.entries()), -1)


def written_at(table: Table, version: int) -> datetime | None:
    """Tell when a version was written (UTC), whoever wrote it; None where the log lacks it."""
    since = list(takewhile(lambda entry: entry.version >= version, table.store.entries()))
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
    try:
        data = json.loads(text or "null")
    except ValueError:
        return None
    note = data.get(_NOTE) if isinstance(data, dict) else None
    return note if isinstance(note, dict) else None
