"""Positions of readers in a table's log, the rows between two, and what a topic has of a table.

The position of a topic is in the metadata of a commit without rows, under a key of its own: no
batch wrote it, so readers of batches skip it. It says that all changes up to a version of the table
are in the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import NamedTuple
from urllib.parse import unquote

import msgspec

from tidelake.delta.log import (
    CREATION,
    REBUILT,
    TABLES,
    Added,
    Commit,
    Entry,
    batch_reached,
    encode,
    entries_since,
    last_commit,
    live_files,
    note_of,
    oldest_version,
    written_at,
)
from tidelake.delta.tables import Table
from tidelake.errors import RefusedError
from tidelake.folders import Folder
from tidelake.kafka.client import may_share_cluster

# A version and the index of the last of its files that was read; negative for none of them. In a
# catalog the index is always negative, because streams read whole commits there.
Position = tuple[int, int]
BEGINNING: Position = (0, -1)
RECREATED = "was recreated: it is not the table that was read"
# The clocks of the machines that write a table and read it may differ by this much.
_CLOCKS_DIFFER = timedelta(minutes=1)


class Break(NamedTuple):
    """Why a reader cannot go on in a table, and the commit that deleted or replaced rows."""

    reason: str
    rewriting: Entry | None = None


def stream_breaks(
    table: Table, hop: str, position: Position, since: datetime | None
) -> Iterator[Break]:
    """Yield why a hop cannot follow a table from a position, reached at ``since`` (UTC).

    ``since`` is None if no batch has read the table yet.
    """
    if since is not None and position > BEGINNING and is_recreated(table, since):
        yield Break(f"{table.name} {RECREATED}")
    elif since is not None and lacks_read(table, position, since):
        yield Break(
            f"{table.name} lacks commits that hop {hop} has read: it is an older copy, or was one "
            "when it was written on (or the clock went back)"
        )
    if is_cut_off(table, position):
        yield Break(f"commits of {table.name} that hop {hop} has not read are gone")
    if (found := rewriting(table, position)) is not None:
        yield Break(f"{table.name} was rewritten", found)


def rewriting(table: Table, position: Position) -> Entry | None:
    """Return the newest commit at or after a position that deleted or replaced rows, if any."""
    return next((one for one in entries_since(table, position[0]) if one.removes_rows()), None)


def lacks_read(table: Table, position: Position, since: datetime) -> bool:
    """Return whether a table lacks commits that a reader had read at ``since`` (UTC).

    It is an older copy then, which ends before the reader's ``position``; or one that was written
    on: it has other commits of those versions. False if its log no longer has them.
    """
    read = position[0] - (position[1] < 0)
    if read < 0:
        return False
    entries = list(entries_since(table, read))
    if not entries:
        return table.exists
    return entries[-1].version == read and entries[-1].info.written_at > since + _CLOCKS_DIFFER


def is_cut_off(table: Table, position: Position) -> bool:
    """Return whether a log no longer has the commit at a position, so that no stream can continue.

    False if it has no commit from the position on: the reader has read the whole table.
    """
    since = entries_since(table, position[0])
    return min((entry.version for entry in since), default=0) > position[0]


def has_gap(table: Table) -> bool:
    """Return whether the log of a table under a root lacks a commit that readers need.

    They need none before its last checkpoint. No commit is read where none is missing.
    """
    versions = [entry.version for entry in table.entries()]
    if not versions or len(versions) > versions[0] - versions[-1]:
        return False
    try:
        return not live_files(table, dict)
    except (OSError, ValueError):
        return True


def is_recreated(table: Table, since: datetime) -> bool:
    """Return whether a table was created after an instant (UTC); False if its log lacks version 0.

    Positions recorded before that instant belong to an earlier table of the same name.
    """
    made = written_at(table, 0) if oldest_version(table) == 0 else None
    return made is not None and made > since


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
        if table in behind or (table not in filled and not added_between(table, _since(one)).size)
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
    """Return the newest version of an append-only table with exactly the rows before a position.

    Following commits without rows, such as compactions, are included. None if the position is
    inside a commit or nothing was read. The log may no longer have the version.
    """
    version, read = position[0] - 1, max(position[1] + 1, 0)
    for entry in reversed(list(entries_since(table, version + 1))):
        unread = len(entry.added()) - (read if entry.version == position[0] else 0)
        if entry.version != version + 1 or unread > 0 or entry.removes_rows():
            break
        version = entry.version
    is_whole = version >= position[0] or not read
    return version if is_whole and version >= 0 else None


def added_between(table: Table, after: Position, until: Position | None = None) -> Added:
    """Return the rows, by Delta's statistics, and bytes added to a table between two positions.

    ``after`` is :data:`BEGINNING` where nothing was read yet; without ``until``, up to the newest
    commit. Rewritten rows do not count. Delta's limit on a batch counts the same bytes. In a
    catalog they include empty files that Delta omitted.
    """
    return _total(_files_added(table, after, until))


def unread(inputs: Mapping[str, Table], reached: Mapping[str, Position]) -> Added:
    """Add up what a reader has not read of its inputs.

    ``reached`` has the reader's positions by the keys of the inputs; one without a position was not
    read yet.
    """
    return _total(
        added_between(table, reached.get(key, BEGINNING)) for key, table in inputs.items()
    )


def _total(added: Iterable[Added]) -> Added:
    found = list(added)
    return Added(sum(one.rows for one in found), sum(one.size for one in found))


def has_bytes(table: Table, size: int, *, after: Position) -> bool:
    """Return whether the files added after a position have at least ``size`` bytes in total.

    Reads the log from its end, and no further than that total.
    """
    added = _files_added(table, after, None)
    return any(total >= size for total in accumulate(item.size for item in added))


def files_between(table: Table, after: Position, until: Position) -> list[Folder]:
    """List the data files added to a table between two positions; not for a catalog."""
    return [table.path / unquote(added.path) for added in _files_added(table, after, until)]


def _files_added(table: Table, after: Position, until: Position | None) -> Iterator[Added]:
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


_KEY = "tidelake_published"
# Operations beside appends and merges that leave the columns as they are.
_KEEP_SCHEMA = ("OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "CLUSTER BY")


@dataclass(frozen=True)
class TopicPosition:
    """How far a table is published to a topic.

    Attributes:
        topic: The topic's name.
        topic_id: The broker's id of it, empty where unknown: a recreated topic has another.
        key: The columns of the records' key.
        version: The table version up to which changes are published.
        begun: Whether the rows of ``version``, with which a topic begins, may be missing yet.
        bootstrap: The brokers, as the pipeline file names them: a reference is not resolved. Empty
            in positions that earlier versions wrote.
    """

    topic: str
    topic_id: str
    key: tuple[str, ...]
    version: int
    begun: bool = False
    bootstrap: str = ""

    def is_in(self, topic: str, topic_id: str, bootstrap: str) -> bool:
        """Return whether it is a position in a topic, whose id is empty where it is unknown.

        Without both ids the brokers are compared.
        """
        if self.topic != topic:
            return False
        if self.topic_id and topic_id:
            return self.topic_id == topic_id
        return may_share_cluster(self.bootstrap, bootstrap)

    def options(self, table: Table) -> dict[str, str]:
        """Return the writer options of the commit that records the position in a table."""
        # Delta omits a commit that has neither rows nor a transaction id, and skips one whose
        # transaction version is not above the last.
        return {
            "userMetadata": encode(asdict(self), key=_KEY),
            "txnAppId": f"{table.name}/published/{self.topic}/{self.topic_id}",
            "txnVersion": str(2 * self.version + (not self.begun)),
        }


class TableChange(NamedTuple):
    """A table version with changed rows, and the generation and batch that closed it.

    ``rows`` is at least the number of rows written. Delta's change feed has the changed rows if
    ``is_fed``; else the version is to be compared with the one before. The feed is read in the
    table's newest schema, so it does not have versions before a change of the schema.
    """

    version: int
    generation: str
    batch: int
    rows: int
    is_fed: bool


def published_to(table: Table) -> TopicPosition | None:
    """Read how far a table is published; None if it never was."""
    entry = _position_entry(table)
    return None if entry is None else msgspec.convert(note_of(entry, key=_KEY), TopicPosition)


def recorded_at(table: Table) -> datetime | None:
    """Read when the position was committed (UTC); None if the table was never published."""
    entry = _position_entry(table)
    return None if entry is None else entry.info.written_at


def topics_of(table: Table) -> list[str]:
    """List the topics to which a table was published, the newest first, as far as its log goes."""
    notes = (note_of(entry, key=_KEY) for entry in table.entries())
    return list(dict.fromkeys(note["topic"] for note in notes if note))


def waiting_since(table: Table) -> tuple[int, datetime | None]:
    """Count the versions of a table that its topic lacks, and tell since when (UTC) one waits.

    None if no version waits, or the table was never published.

    Raises:
        RefusedError: The log no longer has all versions.
    """
    reached = published_to(table)
    if reached is None:
        return 0, None
    waiting = unpublished(table, reached.version)
    if reached.begun:
        # The version may be old, but the topic begins now.
        return 1 + len(waiting), recorded_at(table)
    return len(waiting), written_at(table, waiting[0].version) if waiting else None


def _position_entry(table: Table) -> Entry | None:
    return next((entry for entry in table.entries() if note_of(entry, key=_KEY)), None)


def unpublished(table: Table, after: int) -> list[TableChange]:
    """List the closed versions after a version that changed rows, oldest first.

    A version is closed by the first commit at or after it that has a batch's metadata. That is a
    later commit after a user's commit, and on compute where a MERGE cannot have metadata. A
    RESTORE that no such commit follows is closed by the batch that it restored: after the rollback
    of a single table there may never be another.

    Raises:
        RefusedError: The log no longer has all versions.
    """
    newer = list(entries_since(table, after + 1))
    if newer and newer[-1].version != after + 1:
        raise RefusedError(
            f"{table.name} is published up to version {after}, and its log begins at version "
            f"{newer[-1].version}: the changes in between are gone"
        )
    found: list[TableChange] = []
    closing, has_newest_schema = None, True
    for entry in newer:
        closing = note_of(entry) or closing
        if closing is None and entry.info.operation == "RESTORE":
            restored = last_commit(table, up_to=entry.version)
            closing = restored.note if restored else None
        operation, mode = entry.info.operation, entry.info.parameters.get("mode")
        only_rows = operation == "MERGE" or (operation == "WRITE" and mode == "Append")
        added = entry.added()
        if closing and (added or entry.removes_rows()):
            found.append(
                TableChange(
                    entry.version,
                    str(closing["generation"]),
                    int(closing["batch"]),
                    sum(one.rows for one in added),
                    is_fed=has_newest_schema and only_rows,
                )
            )
        has_newest_schema &= only_rows or operation in _KEEP_SCHEMA
    return found[::-1]
