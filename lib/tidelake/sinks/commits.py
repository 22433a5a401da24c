"""Read what each commit of a table says about itself: Delta's log is the ledger.

Tidelake's commits carry a JSON object under ``tidelake`` in their user metadata. Others, a
compaction's for example, are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

from tidelake.sinks.entries import Info
from tidelake.sinks.log import entries, versions
from tidelake.tables import Table

# The session's setting for the notes of commits that take no option.
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_KEY = "tidelake"
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
    note = data.get(_KEY) if isinstance(data, dict) else None
    return note if isinstance(note, dict) else None
