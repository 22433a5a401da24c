"""Read commits and landed files for reports: the hops' backlogs, and readers of older versions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise, takewhile
from typing import NamedTuple

from tidelake.config import FilesSource, Pipeline
from tidelake.delta.commit_metadata import position, positions, rows_read
from tidelake.delta.log import (
    CREATION,
    FOLLOWS,
    REBUILT,
    Commit,
    commits,
    last_commit,
    newest_version,
    oldest_version,
    written_at,
)
from tidelake.delta.positions import (
    BEGINNING,
    Position,
    added_between,
    published_to,
    unpublished,
    version_at,
)
from tidelake.delta.tables import HOPS, Hop, Lake, Table
from tidelake.errors import RefusedError, SourceError, UsageError
from tidelake.folders import list_matching
from tidelake.instants import from_json
from tidelake.ledger.query import ask
from tidelake.runtime.checkpoints import has_batches, newest_logged, planned_positions
from tidelake.runtime.fence import bronze_is_gone
from tidelake.runtime.landed_files import LandedFile, list_files, taken_files
from tidelake.typed import runnable

_RECENT = timedelta(hours=1)
# Commits further apart are not consecutive batches of one run.
_PAUSE = timedelta(minutes=5)


def require_tables(lake: Lake, pipeline: str) -> None:
    """Check that a pipeline's bronze table exists.

    Raises:
        UsageError: The pipeline has no tables under this root, as it has not run.
        RefusedError: Bronze was deleted; its checkpoint, or tables filled from it, exist.
    """
    bronze = lake.bronze(pipeline)
    if bronze.exists:
        return
    # Without the definition, only the commits of gold's tables show that they are the pipeline's.
    has_run = lake.silver(pipeline).exists or any(gold_of(lake, pipeline))
    if has_run or has_batches(lake.checkpoints(pipeline, "bronze")):
        raise bronze_is_gone(bronze.name)
    raise UsageError(
        f"{pipeline} has no tables {lake.place}. "
        f"Fill them with: {runnable('tidelake run', pipeline)}"
    )


def gold_of(lake: Lake, pipeline: str) -> Iterator[tuple[Table, Commit]]:
    """Yield the gold tables that any definition of a pipeline filled, with their last commits."""
    for table in lake.existing():
        last = last_commit(table) if table.name.startswith(("gold.", "dim.")) else None
        if last is not None and last.note.get("pipeline") == pipeline:
            yield table, last


def has_no_tables(lake: Lake, pipeline: Pipeline) -> bool:
    """Return whether no hop has a table yet: the pipeline has not run, or nothing has arrived.

    Not if they were dropped, some or all, nor without the root, which may be misspelt.
    """
    tables = (table for hop in HOPS for table in lake.closing_tables(pipeline, hop))
    if (lake.catalog is None and not lake.root.exists()) or any(one.exists for one in tables):
        return False
    return not has_batches(lake.checkpoints(pipeline.name, "bronze"))


def history(lake: Lake, table: Table, *, up_to: int | None = None) -> list[Commit]:
    """List Tidelake's commits of a table up to a version, newest first; None for the newest one.

    Commits beyond the log's retention are read from ``ops.books``, to which each run copies them.
    """
    logged = list(commits(table, up_to=up_to))
    oldest = oldest_version(table)
    begins = bool(logged) and bool(logged[-1].note.get(REBUILT))
    if not oldest or begins or not lake.books().exists:
        return logged
    books, own = lake.books().name, f"table_name = '{table.name}'"
    # A table that was deleted and filled again has the versions of the deleted one again, its
    # creation among them. Earlier versions of Tidelake could copy a commit twice.
    made = f"SELECT max(committed_at) FROM {books} WHERE {own} AND batch = {CREATION} "
    made += "GROUP BY version HAVING count(DISTINCT committed_at) > 1 ORDER BY 1 DESC LIMIT 1"
    kept = ask(
        lake,
        f"SELECT DISTINCT ON (version) version, committed_at, rows, note FROM {books} "
        f"WHERE {own} AND version < {oldest} AND coalesce(committed_at >= ({made}), true) "
        f"ORDER BY version DESC, committed_at DESC",
    )
    newest = oldest if up_to is None else up_to
    before = logged[-1].note.get(FOLLOWS, oldest) if logged else newest
    for version, committed_at, rows, text in kept.rows:
        # Others were undone by a RESTORE.
        if version <= before:
            logged.append(Commit(version, committed_at, rows, note := json.loads(text)))
            before = note.get(FOLLOWS, version)
            # Rows from before a rebuild are no longer in the table.
            if note.get(REBUILT):
                break
    return logged


def closed_version(lake: Lake, table: Table) -> int:
    """Return the newest version of a gold table without rows of an open batch; -1 if it is missing.

    Compute that refuses commit metadata merges a batch in one commit and closes it by another.
    """
    version = newest_version(table)
    last = last_commit(table, up_to=version)
    if last is None:
        return version
    later = takewhile(lambda entry: entry.version > last.version, table.entries(version))
    merges = [entry.version for entry in later if entry.info.operation == "MERGE"]
    if merges:
        # A merge by another writer is no batch.
        of_open = f"SELECT count(*) FROM {table.name} WHERE _batch > {last.batch}"
        if ask(lake, of_open, {table.name: version}).rows[0][0]:
            return min(merges) - 1
    return version


def newest_batches(table: Table) -> list[Commit]:
    """List a table's batches of the hour up to its newest batch, newest first."""
    found: list[Commit] = []
    for commit in commits(table):
        if commit.batch < 0 or (found and found[0].written_at - commit.written_at > _RECENT):
            break
        found.append(commit)
    return found


def rate_of(newest_first: Sequence[Commit]) -> float | None:
    """Return a hop's rows per second since the last pause between batches; None for one batch."""
    closed = [commit for commit in newest_first if commit.batch > CREATION]
    times = [commit.written_at for commit in closed]
    batches = sum(1 for _ in takewhile(lambda of: of[0] - of[1] <= _PAUSE, pairwise(times)))
    if not batches:
        return None
    # The rows of the first batch were read before its commit.
    seconds = max((times[0] - times[batches]).total_seconds(), 1e-3)
    return sum(map(rows_read, closed[:batches])) / seconds


def offered_files(
    pipeline: Pipeline, *, may_be_empty: bool = False
) -> Mapping[str, LandedFile] | None:
    """List the landing folders that can be listed; None if none can, or for other sources.

    An empty folder counts as one that cannot be listed, unless it ``may_be_empty`` or is cleaned.
    """
    if not isinstance(pipeline.source, FilesSource):
        return None
    may_be_empty = may_be_empty or pipeline.source.is_cleaned
    found: dict[str, LandedFile] | None = None
    for path in pipeline.source.paths:
        # Reports on the tables are useful even if a landing folder is gone.
        with suppress(SourceError):
            found = (found or {}) | list_files(path, may_be_empty=may_be_empty, recent=True)
    return found


@dataclass(frozen=True)
class Backlog:
    """Files or rows waiting for a hop, the arrival of the oldest (UTC), and recent counts.

    ``arrived`` counts those that arrived recently, ``taken`` those that the hop read recently.
    ``own`` are the waiting rows of the table that the pipeline's previous hop fills, without
    requeued ones and those of other pipelines.
    """

    hop: str
    unit: str
    waiting: int
    oldest: datetime | None
    arrived: int
    taken: int
    own: int = 0

    def seconds(self, now: datetime) -> float:
        """Return how long the oldest has waited; 0 if nothing waits."""
        return 0.0 if self.oldest is None else max((now - self.oldest).total_seconds(), 0.0)


class BacklogReader:
    """Counts the backlog of a pipeline's hops; keeps bronze's files between calls."""

    def __init__(self, lake: Lake, pipeline: Pipeline) -> None:
        """Create a reader, without reading anything yet."""
        self._lake = lake
        self._pipeline = pipeline
        self._bronze = lake.bronze(pipeline.name)
        # The time of each commit and the files that it read, newest first.
        self._taken: list[tuple[datetime, Mapping[str, LandedFile]]] = []
        self._version = -1

    def taken_files(self) -> dict[str, LandedFile]:
        """Return the files that bronze's commits name, by path."""
        if self._version < 0:
            new = history(self._lake, self._bronze)
        else:
            new = list(takewhile(lambda one: one.version > self._version, commits(self._bronze)))
        if new:
            self._version = new[0].version
            self._taken[:0] = [(one.written_at, taken_files([one])) for one in new]
        return {path: file for _, files in reversed(self._taken) for path, file in files.items()}

    def backlog(
        self, hop: Hop, reader: Table | None, *, now: datetime, lately: timedelta
    ) -> Backlog | None:
        """Count a hop's backlog: files for bronze, else rows of all its input tables.

        A file waits since its modification time: one copied with an old time counts as old.
        ``reader`` is the hop's table, whose commits record how far it has read; None before it
        exists. ``lately`` is the period before ``now`` in which arrivals and reads are counted.
        None for bronze if its source is not files or the folder cannot be listed, and for a hop
        if the table of the previous one does not exist yet.
        """
        since = now - lately
        if hop == "bronze":
            return self._landing_backlog(since)
        # The first one is the table of the previous hop.
        inputs = self._lake.hop_inputs(self._pipeline, hop)
        own = next(iter(inputs))
        if not inputs[own].exists:
            return None
        last = last_commit(reader) if reader else None
        closed = commits(reader) if reader else iter(())
        before = next((one for one in closed if one.written_at < since), None)
        spans = {key: (position(before, key), position(last, key)) for key in inputs}
        waiting = {key: added_between(inputs[key], end).rows for key, (_, end) in spans.items()}
        oldest = (_oldest(inputs[key], spans[key][1]) for key, rows in waiting.items() if rows)
        arrived = (
            takewhile(lambda one: one.written_at >= since, commits(one)) for one in inputs.values()
        )
        return Backlog(
            hop=hop,
            unit="rows",
            waiting=sum(waiting.values()),
            oldest=min((at for at in oldest if at is not None), default=None),
            arrived=sum(one.added_rows for one in chain.from_iterable(arrived)),
            taken=sum(added_between(inputs[key], *span).rows for key, span in spans.items()),
            own=waiting[own],
        )

    def _landing_backlog(self, since: datetime) -> Backlog | None:
        # Files may have been removed after they were read: then none is waiting.
        offered = offered_files(self._pipeline, may_be_empty=True)
        if offered is None:
            return None
        known = self.taken_files()
        waiting = [file for path, file in offered.items() if path not in known]
        # Of an empty file, Spark may know no time.
        times = [_instant(file.modified) for file in waiting if file.modified]
        return Backlog(
            hop="bronze",
            unit="files",
            waiting=len(waiting),
            oldest=min(times, default=None),
            arrived=sum(_instant(file.modified) >= since for file in {**known, **offered}.values()),
            taken=sum(len(files) for at, files in self._taken if at >= since),
        )


def _oldest(followed: Table, reached: Position) -> datetime | None:
    """Return when the first commit was written that a reader has not fully read."""
    newer = takewhile(lambda one: one.version >= reached[0], commits(followed))
    behind = [one for one in newer if one.added_rows]
    # The reader may have read all files of the commit at its position.
    ends_inside = behind and behind[-1].version == reached[0]
    if ends_inside and not added_between(followed, reached, (reached[0] + 1, -1)).rows:
        behind.pop()
    return behind[-1].written_at if behind else None


def _instant(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)


def bronze_version_in(gold: Commit | None, silver: Iterable[Commit]) -> int:
    """Return the first version of bronze that gold's commit does not include.

    ``silver`` are silver's commits, newest first, of which only as many as needed are read.
    """
    until = position(gold, "silver")
    held = next((one for one in silver if one.version < until[0]), None) if gold else None
    return position(held, "bronze")[0]


def first_arrival(bronze: Sequence[Commit], since: int, until: int | None) -> datetime | None:
    """Return when the first rows between two versions of bronze arrived (UTC).

    ``bronze`` are its commits, newest first.
    """
    for one in reversed(bronze):
        if one.version >= since and (until is None or one.version < until) and one.added_rows:
            return from_json(one.note.get("ingested_at")) or one.written_at
    return None


@dataclass(frozen=True)
class Need:
    """An old version of a table that the reader ``by`` needs until ``remedy`` has been run.

    It was written at ``since`` (UTC): files removed from the table after that must be kept.
    ``runs``: the pipeline whose next run is the remedy; None if another command is.
    """

    table: Table
    since: datetime
    by: str
    remedy: str
    runs: str | None = None


class _VersionReader(NamedTuple):
    """A reader of a table's version; the other fields are those of :class:`Need`."""

    table: Table
    version: int
    by: str
    remedy: str
    runs: str | None = None


def needs_of(
    lake: Lake,
    tables: Sequence[Table],
    *,
    rollbacks_since: datetime,
    own: Pipeline | None = None,
    published: Sequence[str] = (),
    followers: Iterable[tuple[Pipeline, Table]] = (),
) -> list[Need]:
    """List the readers of older versions of some tables.

    A backfill promoted before ``rollbacks_since`` can no longer be rolled back. Gold tables that
    left the file of the pipeline ``own`` read nothing any more. ``published`` are the names of
    tables whose changes go to topics, ``followers`` those of
    :func:`~tidelake.delta.tables.delta_readers`.
    """
    wanted = {table.name for table in tables}
    needed = chain(
        _readers(lake, own),
        _epochs(lake),
        _backfills(lake, rollbacks_since),
        _topics(table for table in tables if table.name in published),
        _sources(lake, followers),
    )
    return [
        Need(one.table, at, one.by, one.remedy, one.runs)
        for one in needed
        # Files of the newest version are never deleted.
        if one.table.name in wanted and one.version < newest_version(one.table)
        if (at := written_at(one.table, max(one.version, 0))) is not None
    ]


def _readers(lake: Lake, own: Pipeline | None) -> Iterator[_VersionReader]:
    """Yield the position of each hop in its inputs, from the commits of its tables.

    Without the gold tables that ``own``, if given, no longer fills.
    """
    name, names = (None, ()) if own is None else (own.name, own.gold_names)
    for filled in lake.existing():
        last = last_commit(filled)
        if last is None or last.note.get("hop") not in ("silver", "gold") or "__" in filled.name:
            continue
        pipeline, hop = str(last.note["pipeline"]), str(last.note["hop"])
        if hop == "gold" and pipeline == name and filled.name not in names:
            # Added again, it is filled from all of silver.
            continue
        # Gold's commits record the silver of its own pipeline under this key.
        silver = {"silver": lake.silver(pipeline)}
        followed = silver if hop == "gold" else lake.silver_inputs(pipeline)
        reached = positions(last)
        followed |= {key: lake.table(key) for key in reached if key.startswith("silver.")}
        for key, table in followed.items():
            version = version_read(table, reached.get(key, BEGINNING))
            by = f"{filled.name} has not read further"
            remedy = runnable("tidelake run", pipeline, f"--hop {hop}")
            if hop == "gold" and pipeline != name:
                # Only its file, which is not read here, says whether it still fills the table.
                remedy += f" (or remove {filled.name}, if {pipeline} no longer fills it)"
            yield _VersionReader(table, version, by, remedy, pipeline)


def version_read(table: Table, reached: Position) -> int:
    """Return the newest version of which a reader at a position has read all rows.

    One that has read all rows is at the version after a compaction, and needs none before it.
    """
    version = version_at(table, reached)
    return reached[0] - 1 if version is None else version


def _sources(lake: Lake, followers: Iterable[tuple[Pipeline, Table]]) -> Iterator[_VersionReader]:
    """Yield the position of each pipeline in the table that is its source, from its checkpoint.

    Its commits do not name it.
    """
    for pipeline, table in followers:
        last = last_commit(lake.bronze(pipeline.name))
        if last is None:
            continue
        checkpoint = lake.checkpoints(pipeline.name, "bronze") / last.generation
        if newest_logged(checkpoint / "offsets") < 0:
            # Its first batch will begin with the newest version.
            continue
        reached = [BEGINNING]
        # A checkpoint that cannot be read may be restored from a backup.
        with suppress(OSError, ValueError, LookupError):
            # A batch that was not closed is read again.
            closed = newest_logged(checkpoint / "commits")
            reached = planned_positions(checkpoint, closed, 1) or reached
        by = f"{pipeline.name}, whose source it is, has not read further"
        remedy = runnable("tidelake run", pipeline.name, "--hop bronze")
        yield _VersionReader(table, version_read(table, reached[0]), by, remedy, pipeline.name)


def _epochs(lake: Lake) -> Iterator[_VersionReader]:
    """Yield the versions of the newest epoch of each pipeline."""
    if not lake.epochs().exists:
        return
    columns = "pipeline, max(epoch), arg_max(versions, epoch)"
    newest = ask(lake, f"SELECT {columns} FROM {lake.epochs().name} GROUP BY 1")
    for pipeline, number, versions in newest.rows:
        for name, version in versions.items():
            by = f"epoch {number} of {pipeline}"
            remedy = runnable("tidelake run", pipeline)
            yield _VersionReader(lake.table(name), version, by, remedy, pipeline)


def _topics(tables: Iterable[Table]) -> Iterator[_VersionReader]:
    """Yield the version before the first change that a table's topic lacks."""
    for table in tables:
        reached, last = published_to(table), last_commit(table)
        if reached is None or last is None:
            continue
        # If changes are gone already, no file can bring them back.
        with suppress(RefusedError):
            waiting = unpublished(table, reached.version)
            if reached.begun or waiting:
                version = reached.version if reached.begun else waiting[0].version - 1
                by = f"topic {reached.topic} has not got further"
                pipeline = str(last.note["pipeline"])
                remedy = runnable("tidelake run", pipeline, "--hop gold")
                yield _VersionReader(table, version, by, remedy, pipeline)


def _backfills(lake: Lake, since: datetime) -> Iterator[_VersionReader]:
    """Yield the versions that a rollback would restore, and those where the hops continue then."""
    for file in list_matching(lake.root, "backfill/*/backfill.json"):
        state = json.loads(file.read_text(encoding="utf-8"))
        swapped = state["stage"] in ("promoting", "promoted", "rolling back")
        if not swapped or datetime.fromtimestamp(file.stat().st_mtime, tz=UTC) < since:
            continue
        pipeline = file.parent.name
        versions, requeue = dict(state["before"]), lake.requeue(pipeline)
        bronze, silver = lake.bronze(pipeline), lake.silver(pipeline)
        was = last_commit(silver, up_to=versions.get(silver.name, -1))
        if silver.name in versions:
            # Silver continues where it was then.
            versions[bronze.name] = position(was, "bronze")[0] - 1
        if requeue.name in versions:
            # Rows that silver had not read then, and those requeued since, are read from the files
            # in which they were appended.
            read = version_read(requeue, position(was, "requeue"))
            versions[requeue.name] = min(read, versions[requeue.name])
        for name, version in state["before"].items() if state.get("table") is None else ():
            if not name.startswith(("gold.", "dim.")):
                continue
            for key, reached in positions(last_commit(lake.table(name), up_to=version)).items():
                followed = silver if key == "silver" else lake.table(key)
                # Gold continues at the end of a silver that is restored.
                if followed.name not in state["before"]:
                    read = version_read(followed, reached)
                    versions[followed.name] = min(read, versions.get(followed.name, read))
        for name, version in versions.items():
            by = f"the rollback of {pipeline}'s backfill"
            remedy = "wait until the recovery horizon has passed"
            yield _VersionReader(lake.table(name), version, by, remedy)
