"""Backlogs: what waits for each hop, since when, and whether less is taken than comes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from tidelake.config import FilesSource, Pipeline
from tidelake.delta.log import commits, last_commit
from tidelake.delta.notes import position
from tidelake.delta.positions import Position, rows_between
from tidelake.delta.tables import Hop, Lake, Table
from tidelake.errors import SourceError
from tidelake.ops.history import history
from tidelake.runtime.landing import LandedFile, list_files, taken_files


@dataclass(frozen=True)
class Backlog:
    """How many files or rows wait for a hop, since when (UTC); how many lately came and went."""

    hop: str
    unit: str
    waiting: int
    oldest: datetime | None
    came: int
    taken: int

    @property
    def falls(self) -> bool:
        """Whether more was taken lately than came."""
        return self.taken > self.came

    def seconds(self, now: datetime) -> float:
        """Give how long the oldest has waited; 0 where nothing waits."""
        return 0.0 if self.oldest is None else max((now - self.oldest).total_seconds(), 0.0)


class TakenFiles:
    """The files that bronze's commits name, read once and then only what is new."""

    def __init__(self, lake: Lake, pipeline: Pipeline) -> None:
        """Know nothing yet."""
        self._lake = lake
        self._table = lake.bronze(pipeline.name)
        self._known: list[tuple[datetime, Mapping[str, LandedFile]]] = []
        self._version = -1

    def read(self) -> list[tuple[datetime, Mapping[str, LandedFile]]]:
        """Give for each commit when it was written and what it took, newest first."""
        if self._version < 0:
            new = history(self._lake, self._table)
        else:
            new = list(takewhile(lambda one: one.version > self._version, commits(self._table)))
        if new:
            self._version = new[0].version
            self._known[:0] = [(one.written_at, taken_files([one])) for one in new]
        return self._known

    def by_path(self) -> dict[str, LandedFile]:
        """Give all of them by their paths."""
        newest_first = self.read()
        return {path: file for _, files in reversed(newest_first) for path, file in files.items()}


def hop_backlog(
    lake: Lake,
    pipeline: Pipeline,
    hop: Hop,
    reader: Table | None,
    *,
    taken: TakenFiles,
    now: datetime,
    lately: timedelta,
) -> Backlog | None:
    """Count what waits for a hop: files for bronze, else rows of the table that it follows.

    A file waits since its last change: one that is copied with its old time stands as old.
    ``reader`` is the hop's table whose notes say how far it has come, None before it was made.

    Returns:
        None for bronze where its source is no files or the folder cannot be listed, and for a hop
        whose input does not exist yet.
    """
    since = now - lately
    if hop == "bronze":
        return _landing_backlog(pipeline, taken, since)
    name = pipeline.name
    key = "bronze" if hop == "silver" else "silver"
    followed = lake.bronze(name) if hop == "silver" else lake.silver(name)
    if not followed.exists:
        return None
    reached = position(last_commit(reader) if reader else None, key)
    closed = commits(reader) if reader else iter(())
    earlier = next((one for one in closed if one.written_at < since), None)
    was = position(earlier, key)
    waiting = rows_between(followed, reached)
    lately_came = takewhile(lambda one: one.written_at >= since, commits(followed))
    return Backlog(
        hop=hop,
        unit="rows",
        waiting=waiting,
        oldest=_oldest(followed, reached) if waiting else None,
        came=sum(one.brought for one in lately_came),
        taken=rows_between(followed, was, reached) if was <= reached else 0,
    )


def _landing_backlog(pipeline: Pipeline, taken: TakenFiles, since: datetime) -> Backlog | None:
    if not isinstance(pipeline.source, FilesSource):
        return None
    try:
        offered = list_files(pipeline.source.path)
    except SourceError:
        return None
    by_commit, known = taken.read(), taken.by_path()
    waiting = [file for path, file in offered.items() if path not in known]
    return Backlog(
        hop="bronze",
        unit="files",
        waiting=len(waiting),
        oldest=min((_instant(file.modified) for file in waiting), default=None),
        came=sum(_instant(file.modified) >= since for file in {**known, **offered}.values()),
        taken=sum(len(files) for at, files in by_commit if at >= since),
    )


def _oldest(followed: Table, reached: Position) -> datetime | None:
    """Find when the first commit was written that a reader has not wholly taken."""
    newer = takewhile(lambda one: one.version >= reached[0], commits(followed))
    behind = [one for one in newer if one.brought]
    # The reader may have taken all files of the commit at which it stands.
    if behind and behind[-1].version == reached[0]:
        left = rows_between(followed, reached, (reached[0] + 1, -1))
        behind = behind if left else behind[:-1]
    return behind[-1].written_at if behind else None


def _instant(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)
