"""Read from a table's log how far its changes are published to a topic, and which are not.

The position is in the metadata of a commit without rows, under a key of its own: no batch wrote it,
so readers of batches skip it. It says that all changes up to a version of the table are in the
topic.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import takewhile
from typing import NamedTuple

import msgspec

from tidelake.delta.log import Entry, encode, last_commit, note_of
from tidelake.delta.tables import Table
from tidelake.errors import RefusedError

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
    """

    topic: str
    topic_id: str
    key: tuple[str, ...]
    version: int
    begun: bool = False

    def options(self, table: Table) -> dict[str, str]:
        """Return the writer options of the commit that records the position in a table."""
        # Delta omits a commit that has neither rows nor a transaction id, and skips one whose
        # transaction version is not above the last.
        step = 2 * self.version + (not self.begun)
        return {
            "userMetadata": encode(asdict(self), key=_KEY),
            "txnAppId": f"{table.name}/published/{self.topic}/{self.topic_id}",
            "txnVersion": str(step),
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


def _position_entry(table: Table) -> Entry | None:
    return next((entry for entry in table.entries() if note_of(entry, key=_KEY)), None)


def unpublished(table: Table, after: int) -> list[TableChange]:
    """List the closed versions after a version that changed rows, oldest first.

    A version is closed by the first commit at or after it that has a batch's metadata: on compute
    that refuses the metadata of a MERGE that is the next one, and after a user's commit too. A
    RESTORE that no such commit follows is closed by the batch that it restored: after the rollback
    of a single table there may never be another.

    Raises:
        RefusedError: The log no longer has all versions.
    """
    newer = list(takewhile(lambda entry: entry.version > after, table.entries()))
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
