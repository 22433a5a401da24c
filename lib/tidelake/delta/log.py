"""Read a table's Delta log, which is the ledger: each commit carries metadata.

Under a root the JSON files in ``_delta_log`` are read without Spark. The folder is listed once:
commits are numbered without gaps, so the file name of the next one is known.

Tidelake's commits carry a JSON object under ``tidelake`` in their user metadata. Other commits,
such as compactions, are skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tidelake.errors import DamagedError
from tidelake.folders import Folder, Listed, list_folder

if TYPE_CHECKING:
    from tidelake.delta.tables import Table

# The session setting for the metadata of commits by SQL, which accept no writer option.
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_NOTE = "tidelake"
# The batch number of the commit that creates a table, and the first generation of a hop.
CREATION, FIRST_GENERATION = -1, "g1"
# Metadata key of a commit that replaced all rows of a table.
REBUILT = "rebuilt"
# Metadata key of a commit that continues a table's rows: the version of the commit before it. Those
# in between were undone by a RESTORE that may no longer be in the log.
FOLLOWS = "follows"
# Metadata key of a gold commit: the names of all tables that its batch fills.
TABLES = "tables"
# Metadata key of a commit that deletes rows for an erasure, or follows one: the erased rows.
ERASED = "erased"


class Added(NamedTuple):
    """Rows (from Delta's statistics) and bytes of one added data file, or of a whole commit.

    ``path`` is relative to the table; empty for a commit.
    """

    rows: int
    size: int
    path: str = ""


@dataclass(frozen=True)
class Info:
    """A commit's info: Delta's operation with its metrics, and the writer's metadata."""

    written_at: datetime
    operation: str
    parameters: Mapping[str, Any]
    metrics: Mapping[str, Any]
    metadata: str | None
    # Delta's isBlindAppend, in a catalog: it removed no file, and read none.
    adds_only: bool = False


_File = TypeVar("_File")
_COMMIT_FILE = re.compile(r"[0-9]{20}\.json")


@dataclass(frozen=True)
class LogFile:
    """A commit file of the log, read lazily."""

    file: Listed

    @property
    def version(self) -> int:
        """The table version that it created."""
        return int(self.file.path.stem)

    @cached_property
    def info(self) -> Info:
        """The commit's info; empty where the file has none."""
        action: dict[str, Any] = next(self.actions("commitInfo"), {})
        return Info(
            written_at=datetime.fromtimestamp(action.get("timestamp", 0) / 1000, tz=UTC),
            operation=action.get("operation", ""),
            parameters=action.get("operationParameters", {}),
            metrics=action.get("operationMetrics", {}),
            metadata=action.get("userMetadata"),
        )

    def added(self) -> list[Added]:
        """List the data files that it added, in stream order; without rewritten rows."""
        return [
            Added(
                int(json.loads(add["stats"])["numRecords"]) if add.get("stats") else 0,
                int(add["size"]),
                add["path"],
            )
            for add in self.actions("add")
            if add.get("dataChange")
        ]

    def removes_rows(self) -> bool:
        """Return whether it removed a data file other than by rewriting its rows."""
        return any(remove.get("dataChange", True) for remove in self.actions("remove"))

    def apply(self, files: dict[str, _File], read: Callable[[dict[str, Any]], _File]) -> None:
        """Update a table's data files, by path, to this version; ``read`` takes an ``add``.

        Raises:
            ValueError: It removes a file that is not among them.
        """
        for remove in self.actions("remove"):
            if files.pop(remove["path"], None) is None:
                raise ValueError(f"version {self.version} removes an unknown file")
        files.update((add["path"], read(add)) for add in self.actions("add"))

    def changed_files(self) -> set[tuple[str, str]]:
        """Return the data files, by path and deletion vector, that it added or removed.

        Files that the table had, and of which only the statistics are new, are not included.
        """
        changed = list(self.actions("remove"))
        replaces = bool(changed)
        changed += [add for add in self.actions("add") if replaces or add.get("dataChange", True)]
        return {
            (action["path"], json.dumps(action.get("deletionVector"), sort_keys=True))
            for action in changed
        }

    def redefines(self) -> bool:
        """Return whether it changed the table's schema, properties or features."""
        return any(self.actions("metaData")) or any(self.actions("protocol"))

    def actions(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield its actions of one kind; raise a DamagedError if it is no commit."""
        is_empty = True
        try:
            # Not splitlines(): texts in JSON may have other ends of lines, such as U+0085. Parsed
            # only as far as the caller reads: the commit's info is in the first line.
            for line in self.file.text().split("\n"):
                if not line.strip():
                    continue
                is_empty = False
                action = json.loads(line).get(kind)
                if action is not None:
                    yield action
        except (ValueError, AttributeError) as error:
            raise DamagedError(f"{self.file.path} cannot be read") from error
        if is_empty:
            raise DamagedError(f"{self.file.path} is empty")


# Operations that neither add nor remove rows: all of Delta 4.4's, and some of other engines'.
_REARRANGES = {
    *("OPTIMIZE", "AUTO COMPACTION", "REORG", "REORG TABLE UPGRADE UNIFORM", "OPTIMIZE CHECKPOINT"),
    *("VACUUM START", "VACUUM END", "CREATE TABLE", "CLUSTER BY", "UPDATE SCHEMA", "SET OWNER"),
    *("ADD COLUMNS", "CHANGE COLUMN", "CHANGE COLUMNS", "RENAME COLUMN", "DROP COLUMNS"),
    *("REPLACE COLUMNS", "REMOVE COLUMN MAPPING", "ADD CONSTRAINT", "DROP CONSTRAINT"),
    *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPGRADE PROTOCOL", "DROP FEATURE"),
    *("ROW TRACKING BACKFILL", "ROW TRACKING UNBACKFILL", "DOMAIN METADATA CLEANUP"),
    *("ADD DELETION VECTOR TOMBSTONES", "Deletion Vector Tombstones", "Empty Commit"),
    *("COMPUTE STATS", "ANALYZE TABLE", "MANUAL UPDATE STATS", "CHANGE DATA CAPTURE"),
}
_REMOVAL_METRICS = (
    *("numRemovedFiles", "numDeletionVectorsAdded", "numDeletionVectorsUpdated"),
    *("numTargetFilesRemoved", "numTargetDeletionVectorsAdded"),
    # As delta-rs spells them.
    *("num_removed_files", "num_target_files_removed"),
    # A RESTORE that only brings files back replaces the state that readers know, too.
    *("numTargetDeletionVectorsUpdated", "numRestoredFiles"),
)


@dataclass(frozen=True)
class HistoryEntry:
    """A commit in a catalog table's history."""

    version: int
    info: Info

    def added(self) -> list[Added]:
        """Return the rows and bytes it added as one item; streams read whole commits.

        Decided by the row count: Delta also counts empty files, which it then omits. A commit
        without metrics may have added rows, and yields one item.
        """
        metrics = self.info.metrics
        if self.info.operation in _REARRANGES or (metrics and not self._metric("numOutputRows")):
            return []
        size = self._metric("numOutputBytes", "numTargetBytesAdded")
        return [Added(self._metric("numOutputRows"), size)]

    def removes_rows(self) -> bool:
        """Return whether it deleted or replaced rows, or may have done so.

        Decided by the counts of removed files, which all operations of Delta 4.4 have that remove
        rows. Without them, as in replacements by older versions, true unless it only added.
        """
        info = self.info
        is_write = info.operation in ("WRITE", "STREAMING UPDATE", "CREATE TABLE AS SELECT")
        mode = info.parameters.get("mode", info.parameters.get("outputMode", "Append"))
        if info.operation in _REARRANGES or (is_write and mode == "Append"):
            return False
        counts = [self._metric(name) for name in _REMOVAL_METRICS if name in info.metrics]
        return any(counts) if counts else not info.adds_only

    def _metric(self, *names: str) -> int:
        metrics = self.info.metrics
        return next((int(metrics[name]) for name in names if name in metrics), 0)


# One commit of a log, by any writer.
Entry = LogFile | HistoryEntry


def files_of(folder: Folder, newest: dict[Path, int]) -> Iterator[LogFile]:
    """Yield a table's commit files, newest first, without log checkpoints and compacted logs.

    ``newest`` has the newest version seen in each log, which avoids listing the folder again; it is
    updated.
    """
    log = folder / "_delta_log"
    if not isinstance(log, Path):
        yield from _listed(log)
        return
    version = newest.get(log, -1)
    if version < 0 or not _commit_file(log, version).exists():
        # First read of this log, or the table was recreated.
        version = next((file.version for file in _listed(log)), -1)
    while version >= 0 and _commit_file(log, version + 1).exists():
        version += 1
    newest[log] = version
    while version >= 0 and (file := _commit_file(log, version)).exists():
        yield LogFile(Listed(file))
        version -= 1
    if version >= 0:
        # The oldest were cleaned up, or a file is missing.
        yield from (file for file in _listed(log) if file.version < version)


def created_id(folder: Folder) -> str | None:
    """Return the table's id, from its first commit or its checkpoint; None if both are gone."""
    file = _commit_file(folder / "_delta_log", 0)
    if not file.exists():
        found = checkpointed_metadata(folder / "_delta_log", "id")
        return None if found is None else str(found[1])
    return next((str(one["id"]) for one in LogFile(Listed(file)).actions("metaData")), None)


def checkpointed_metadata(log: Folder, key: str) -> tuple[int, Any] | None:
    """Return the version of a log's last checkpoint, and a value of its metadata; None without."""
    found = _last_checkpoint(log)
    if found is None or found[1] is None:
        return None
    try:
        rows = _rows_of(found[1], f"metaData.{key}")
    except (OSError, ValueError):
        return None
    return next(((found[0], row["metaData"][key]) for row in rows if row["metaData"]), None)


def _listed(log: Folder) -> Iterator[LogFile]:
    found = [file for file in list_folder(log) if _COMMIT_FILE.fullmatch(file.name)]
    return map(LogFile, sorted(found, key=lambda file: file.name, reverse=True))


def _commit_file(log: Folder, version: int) -> Folder:
    return log / f"{version:020d}.json"


def commits_after(table: Table, version: int) -> list[LogFile] | None:
    """List a table's commits after a version, oldest first; None if the log lacks one."""
    files = (entry for entry in table.entries() if isinstance(entry, LogFile))
    newer = list(takewhile(lambda file: file.version > version, files))[::-1]
    is_complete = all(file.version == number for number, file in enumerate(newer, version + 1))
    return newer if is_complete else None


def live_files(
    table: Table, read: Callable[[dict[str, Any]], _File]
) -> tuple[int, dict[str, _File]] | None:
    """Read the version of a table on a disk, and its data files by their path in the log.

    Delta finds them with a Spark job. Here the last checkpoint is read, and the commits after it.
    None if these are not enough: the log was cleaned up, or its checkpoint is of several files.
    ``read`` converts a file's ``add`` action, of which only path and statistics can be relied on.

    Raises:
        OSError, ValueError: The log cannot be read.
    """
    found = _last_checkpoint(table.path / "_delta_log")
    if found is None:
        return None
    version, file = found
    rows = [] if file is None else _rows_of(file, "add.path", "add.stats", "sidecar.path")
    newer = commits_after(table, version)
    if newer is None or any(row.get("sidecar") for row in rows):
        return None
    files = {add["path"]: read(add) for row in rows if (add := row["add"])}
    for commit in newer:
        commit.apply(files, read)
        version = commit.version
    return version, files


def _rows_of(checkpoint: Folder, *columns: str) -> list[dict[str, Any]]:
    # Imported here: commands that read no checkpoint do not load Arrow.
    import pyarrow.parquet as pq  # noqa: PLC0415

    with checkpoint.open("rb") as file:
        rows: list[dict[str, Any]] = pq.ParquetFile(file).read(columns=columns).to_pylist()
        return rows


def _last_checkpoint(log: Folder) -> tuple[int, Folder | None] | None:
    """Return the last checkpoint's version and file; -1 and None if there is no checkpoint.

    None if there is one of several files.
    """
    try:
        version = int(json.loads((log / "_last_checkpoint").read_text())["version"])
    except FileNotFoundError:
        return -1, None
    except (KeyError, TypeError, ValueError):
        return None
    file = log / f"{version:020d}.checkpoint.parquet"
    # One of several parts has other names; one of the V2 format may refer to sidecar files.
    return (version, file) if file.exists() else None


@dataclass(frozen=True)
class Commit:
    """A commit by Tidelake: its version, the time (UTC) and its metadata (``note``).

    ``rows`` is the number of rows written, None where Delta did not report it. ``copied`` is the
    number of unchanged rows that a merge rewrote because their files held changed ones.
    """

    version: int
    written_at: datetime
    rows: int | None
    note: dict[str, Any]
    copied: int = 0

    @property
    def batch(self) -> int:
        """The micro-batch that it committed; -1 for the commit that created the table."""
        return int(self.note["batch"])

    @property
    def generation(self) -> str:
        """The generation that it belongs to."""
        return str(self.note["generation"])

    @property
    def order(self) -> tuple[int, int]:
        """The numbers of its generation and batch."""
        return number_of(self.generation), self.batch

    @property
    def added_rows(self) -> int:
        """The number of rows added; 0 for an erasure, even though it rewrites rows."""
        return 0 if ERASED in self.note else self.rows or 0


def number_of(generation: str) -> int:
    """Return the number in a generation's name; 0 for another name."""
    number = generation[1:]
    return int(number) if number.isdecimal() else 0


def encode(note: dict[str, Any], *, key: str = _NOTE) -> str:
    """Encode commit metadata as Delta user metadata; under another key it belongs to no batch."""
    return json.dumps({key: note}, separators=(",", ":"), sort_keys=True)


def commits(table: Table, *, up_to: int | None = None) -> Iterator[Commit]:
    """Yield Tidelake's commits of a table up to a version, newest first; none without a table.

    Commits undone by a RESTORE and commits before a rebuild are omitted: the table no longer holds
    their rows.
    """
    is_undone: Callable[[Entry], bool] | None = None
    for entry in table.entries(up_to):
        if is_undone is not None and is_undone(entry):
            continue
        version, info = entry.version, entry.info
        if info.operation == "RESTORE":
            is_undone = _undone_by(entry)
            continue
        note = note_of(entry)
        if note is not None:
            rows = info.metrics.get("numOutputRows")
            copied = int(info.metrics.get("numTargetRowsCopied", 0))
            written = None if rows is None else int(rows)
            yield Commit(version, info.written_at, written, note, copied)
            if note.get(REBUILT):
                return


def repeated(commits: Iterable[Commit]) -> dict[tuple[str, int], list[int]]:
    """Find batches that were committed more than once, for example by two writers without a lock.

    Returns the versions by generation and batch, oldest first.
    """
    found: dict[tuple[str, int], set[int]] = {}
    for commit in commits:
        # An erasure's commit carries the metadata of the last batch.
        if commit.batch >= 0 and ERASED not in commit.note:
            found.setdefault((commit.generation, commit.batch), set()).add(commit.version)
    duplicates = [(key, sorted(versions)) for key, versions in found.items() if len(versions) > 1]
    return dict(sorted(duplicates, key=lambda item: item[1]))


def last_commit(table: Table, *, up_to: int | None = None) -> Commit | None:
    """Return Tidelake's newest commit of a table up to a version."""
    return next(commits(table, up_to=up_to), None)


def batch_reached(table: Table) -> int:
    """Read the number of a table's last committed batch; -1 for none."""
    last = last_commit(table)
    return -1 if last is None else last.batch


def oldest_version(table: Table) -> int:
    """Return the oldest version in the log; 0 if it is complete, or the table does not exist."""
    return min((entry.version for entry in table.entries()), default=0)


def newest_version(table: Table) -> int:
    """Return the newest version, by any writer; -1 for a missing table."""
    return next((entry.version for entry in table.entries()), -1)


def entries_since(table: Table, version: int) -> Iterator[Entry]:
    """Yield the commits from a version on, newest first, by any writer."""
    return takewhile(lambda entry: entry.version >= version, table.entries())


def written_at(table: Table, version: int) -> datetime | None:
    """Return when a version was written (UTC), by any writer; None where the log lacks it."""
    since = list(entries_since(table, version))
    return since[-1].info.written_at if since else None


def _undone_by(restore: Entry) -> Callable[[Entry], bool]:
    """Return a predicate: whether a RESTORE undid a commit. Call it on older ones, newest first.

    It undid those after the version that it names. With a timestamp instead, whose zone is not
    stored: those after the newest version with the same files, or, in a history, where files are
    not listed, those after that time (UTC).
    """
    version, instant = (restore.info.parameters.get(key) for key in ("version", "timestamp"))
    if version is not None:
        return lambda entry: entry.version > int(version)
    if isinstance(restore, LogFile):
        differing = restore.changed_files()

        def has_other_files(entry: Entry) -> bool:
            is_other = bool(differing)
            if is_other and isinstance(entry, LogFile):
                differing.symmetric_difference_update(entry.changed_files())
            return is_other

        return has_other_files
    try:
        until = datetime.fromisoformat(str(instant).strip('"'))
    except ValueError:
        # No older commit can be trusted then: all are omitted, and the table is refused.
        return lambda _: True
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return lambda entry: entry.info.written_at > until


def note_of(entry: Entry, *, key: str = _NOTE) -> dict[str, Any] | None:
    """Return the metadata that Tidelake wrote with a commit under ``key``; None for other commits.

    A compaction in a merge's session inherits the metadata of the merge, and has none here.
    """
    if entry.info.operation == "OPTIMIZE":
        return None
    try:
        data = json.loads(entry.info.metadata or "null")
    except ValueError:
        return None
    note = data.get(key) if isinstance(data, dict) else None
    return note if isinstance(note, dict) else None
