"""Ask cheaply whether anything changed: no table is read, no commit is parsed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidelake.config import FilesSource, Pipeline
from tidelake.delta.locks import writer
from tidelake.delta.log import newest_version
from tidelake.delta.tables import HOPS, Lake, Table
from tidelake.errors import SourceError
from tidelake.folders import Folder, list_folder, matching
from tidelake.runtime.landing import list_files


@dataclass(frozen=True)
class Pulse:
    """What two moments of a pipeline differ in, if they differ.

    Attributes:
        versions: The newest version of each table, by listing its log; -1 where there is none.
        beside: The rest: files on offer, checkpoints, who writes, what was interrupted.
    """

    versions: tuple[int, ...]
    beside: tuple[object, ...]


def pulse_of(lake: Lake, pipeline: Pipeline) -> Pulse:
    """Feel a pipeline's pulse."""
    name = pipeline.name
    return Pulse(
        tuple(newest_version(table) for table in _tables(lake, pipeline)),
        (
            _offered(pipeline),
            tuple(writer(lake, name, hop) for hop in HOPS),
            lake.swap(name).exists(),
            lake.erasure(name).exists(),
            *(mark for hop in HOPS for mark in _checkpoint(lake.checkpoints(name, hop))),
        ),
    )


def _tables(lake: Lake, pipeline: Pipeline) -> Iterator[Table]:
    name = pipeline.name
    yield from (lake.bronze(name), lake.requeue(name), lake.silver(name))
    yield from (lake.quarantine(name), lake.late(name), lake.discarded(name))
    yield from map(lake.table, pipeline.gold_names)
    yield lake.progress()


def _offered(pipeline: Pipeline) -> tuple[int, int, int]:
    """Tell how many files are on offer, how large they are and when the last of them changed."""
    if not isinstance(pipeline.source, FilesSource):
        return (0, 0, 0)
    try:
        files = list_files(pipeline.source.path).values()
    except SourceError:
        return (-1, 0, 0)
    return len(files), sum(file.size for file in files), max(file.modified for file in files)


def _checkpoint(folder: Folder) -> Iterator[tuple[str, object]]:
    """Name each generation's logs and when a file last came or went there."""
    for log in matching(folder, "*/*"):
        # Files come and go under a run.
        with contextlib.suppress(FileNotFoundError):
            yield f"{log.parent.name}/{log.name}", _mark(log)


def _mark(log: Folder) -> object:
    # Folders of a store have no time of their own; the names in them have to do.
    if isinstance(log, Path):
        return log.stat().st_mtime_ns
    return sorted(file.name for file in list_folder(log))
