"""Find the versions of a pipeline's tables that belong together, in the notes of their commits.

Gold's notes say how far its tables went in silver, silver's how far it went in bronze and in the
requeue. Where each of these positions is the end of a commit, a version of every table holds
exactly what the others were made of, whatever was written since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tidelake.delta.generations import CREATION, generation_number
from tidelake.delta.log import Commit, commits, last_commit, newest_version
from tidelake.delta.notes import SilverNote, positions
from tidelake.delta.positions import BEGINNING, Position, version_at
from tidelake.delta.tables import Lake, Table


@dataclass(frozen=True)
class Boundary:
    """Where all tables of a pipeline stand together.

    Attributes:
        generation: Gold's.
        batch: The last one that gold holds.
        watermark: Of the silver that gold holds (UTC).
        versions: By the table's logical name.
    """

    generation: str
    batch: int
    watermark: datetime | None
    versions: Mapping[str, int]


def find_boundary(lake: Lake, pipeline: str, closing: Sequence[Table]) -> Boundary | None:
    """Find the newest boundary of a pipeline.

    Safe while the tables are written: each log is looked at up to one version.

    Args:
        lake: Where the tables are.
        pipeline: The pipeline's name.
        closing: The tables that its gold hop fills.

    Returns:
        That of the newest batch which all of gold's tables hold. None where its position lies
        within a commit, and where gold has not run.
    """
    newest = {table: newest_version(table) for table in closing}
    heads = [last_commit(table, up_to=version) for table, version in newest.items()]
    common = min((head.batch for head in heads if head), default=CREATION)
    newest = {table: _before(table, version, common) for table, version in newest.items()}
    notes = [last_commit(table, up_to=version) for table, version in newest.items()]
    first = notes[0] if notes else None
    if first is None or any(note is None or _stand(note) != _stand(first) for note in notes):
        return None
    silver = lake.silver(pipeline)
    read = _versions_at(lake, pipeline, {"silver": BEGINNING, **positions(first)})
    if read is None:
        return None
    closed = last_commit(silver, up_to=read[silver])
    if closed is None:
        return None
    books = SilverNote.of(closed)
    begun = {"bronze": BEGINNING, "requeue": BEGINNING}
    decided = _versions_at(lake, pipeline, {**begun, **books.until})
    if decided is None:
        return None
    beside = {
        side: _side_version(side, closed)
        for side in (lake.quarantine(pipeline), lake.late(pipeline))
    }
    beside[lake.discarded(pipeline)] = newest_version(lake.discarded(pipeline))
    looked_up = {lake.table(use.table): use.version for use in books.dimensions}
    found = {**decided, **beside, **read, **looked_up, **newest}
    versions = {table.name: version for table, version in found.items() if version >= 0}
    return Boundary(first.generation, first.batch, books.watermark, versions)


def _before(table: Table, version: int, batch: int) -> int:
    """Find a table's newest version that holds no batch after one."""
    for commit in commits(table, up_to=version):
        if commit.batch <= batch:
            break
        version = commit.version - 1
    return version


def _stand(note: Commit) -> tuple[str, int, dict[str, Position]]:
    return note.generation, note.batch, positions(note)


def _versions_at(
    lake: Lake, pipeline: str, until: Mapping[str, Position]
) -> dict[Table, int] | None:
    """Turn positions into versions; None where one of them is no version."""
    own = {
        "bronze": lake.bronze(pipeline),
        "requeue": lake.requeue(pipeline),
        "silver": lake.silver(pipeline),
    }
    found: dict[Table, int] = {}
    for key, position in until.items():
        table = own.get(key) or lake.table(key)
        version = version_at(table, position) if table.exists else -1
        if version is None:
            return None
        found[table] = version
    return found


def _side_version(side: Table, closed: Commit) -> int:
    """Give the newest version of a side table without a row of a batch after silver's."""
    version = newest_version(side)
    for commit in commits(side, up_to=version):
        if _order(commit) <= _order(closed):
            break
        version = commit.version - 1
    return version


def _order(commit: Commit) -> tuple[int, int]:
    return generation_number(commit.generation), commit.batch
