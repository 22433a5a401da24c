"""Tell what waits for each hop, since when, and whether less is taken than comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tidelake.config import FilesSource, Pipeline
from tidelake.errors import SourceError
from tidelake.ops.books import history
from tidelake.runtime.landing import list_files, taken_files
from tidelake.sinks.commits import BEGINNING, Commit, commits, rows_between
from tidelake.sinks.notes import position
from tidelake.tables import Lake, Table


@dataclass(frozen=True)
class Backlog:
    """What waits for a hop.

    Attributes:
        hop: Which.
        unit: What is counted.
        waiting: How many.
        oldest: Since when the oldest of it waits (UTC); None where nothing does.
        came: How many came lately.
        taken: How many were taken lately.
    """

    hop: str
    unit: str
    waiting: int
    oldest: datetime | None
    came: int
    taken: int

    @property
    def falls(self) -> bool:
        """Tell whether more was taken lately than came."""
        return self.taken > self.came

    def seconds(self, now: datetime) -> float:
        """Tell how long the oldest has waited; 0 where nothing waits."""
        return 0.0 if self.oldest is None else max((now - self.oldest).total_seconds(), 0.0)


def landing_backlog(
    lake: Lake, pipeline: Pipeline, *, now: datetime, lately: timedelta
) -> Backlog | None:
    """Tell which files wait for bronze.

    A file waits since its last change: one that is copied with its old time stands as old.

    Returns:
        None for sources that are no files, and where the folder cannot be listed.
    """
    if not isinstance(pipeline.source, FilesSource):
        return None
    try:
        offered = list_files(pipeline.source.path)
    except SourceError:
        return None
    arrived = history(lake, lake.bronze(pipeline.name))
    known = taken_files(arrived)
    since = now - lately
    waiting = [file for path, file in offered.items() if path not in known]
    return Backlog(
        hop="bronze",
        unit="files",
        waiting=len(waiting),
        oldest=min((_instant(file.modified) for file in waiting), default=None),
        came=sum(_instant(file.modified) >= since for file in {**known, **offered}.values()),
        taken=sum(len(one.note.get("files", [])) for one in arrived if one.written_at >= since),
    )


def table_backlog(
    hop: str, followed: Table, reader: Table | None, *, key: str, now: datetime, lately: timedelta
) -> Backlog:
    """Tell which rows of a table wait for the hop that follows it.

    Args:
        hop: The hop.
        followed: The table that it reads.
        reader: The table whose notes say how far it has come; None before it was made.
        key: The name that the notes have for the table that is read.
        now: The moment, in UTC.
        lately: How far back to count what came and what was taken.
    """
    since = now - lately
    closed = list(commits(reader)) if reader else []
    reached = position(closed[0] if closed else None, key)
    earlier = next((one for one in closed if one.written_at < since), None)
    was = position(earlier, key) if earlier else BEGINNING
    waiting = rows_between(followed, reached)
    arrived = list(commits(followed))
    return Backlog(
        hop=hop,
        unit="rows",
        waiting=waiting,
        oldest=_oldest(followed, arrived, reached) if waiting else None,
        came=sum(one.brought for one in arrived if one.written_at >= since),
        taken=rows_between(followed, was, reached) if was <= reached else 0,
    )


def _oldest(
    followed: Table, newest_first: Sequence[Commit], reached: tuple[int, int]
) -> datetime | None:
    """Find when the first commit was written that a reader has not wholly taken."""
    behind = [one for one in newest_first if one.version >= reached[0] and one.brought]
    # The reader may have taken all files of the commit at which it stands.
    if behind and behind[-1].version == reached[0]:
        left = rows_between(followed, reached, (reached[0] + 1, -1))
        behind = behind if left else behind[:-1]
    return behind[-1].written_at if behind else None


def _instant(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)
