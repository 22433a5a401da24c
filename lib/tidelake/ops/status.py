"""Tell how far each hop has come and how far it lags behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from tidelake.config import FilesSource, Pipeline
from tidelake.delta.log import Commit, last_commit
from tidelake.delta.notes import SilverNote, position
from tidelake.delta.positions import rows_between
from tidelake.delta.tables import Lake, Table
from tidelake.errors import SourceError
from tidelake.instants import to_json
from tidelake.ops.books import history, require_tables
from tidelake.ops.lag import SourceLag
from tidelake.ops.topics import source_lag
from tidelake.runtime.landing import list_files, taken_files
from tidelake.silver.watermark import held_back_by


@dataclass(frozen=True)
class HopStatus:
    """One hop of a pipeline.

    Attributes:
        hop: Its name.
        generation: The generation of its tables; None before the first run.
        batch: The last closed batch, -1 for none.
        rows: Rows taken in so far.
        waiting: What it has still to take: rows, for bronze files or records of Kafka; None where
            unknown.
        last_commit: When the last batch was closed (UTC).
    """

    hop: str
    generation: str | None
    batch: int
    rows: int
    waiting: int | None
    last_commit: datetime | None


@dataclass(frozen=True)
class DedupStatus:
    """What silver's last batch looked through to find copies.

    Attributes:
        searched: Accepted ids within its reach: the state, bounded by the TTL.
        seconds: What that took.
        prefiltered: Rows that the prefilter held back; None where there is none.
    """

    searched: int
    seconds: float
    prefiltered: int | None


@dataclass(frozen=True)
class DimensionStatus:
    """What silver found in a dimension.

    Attributes:
        table: Its table.
        version: The version that the last batch looked into; -1 where it was not there yet.
        unmatched: Rows of silver that found nothing, of all batches.
    """

    table: str
    version: int
    unmatched: int


@dataclass(frozen=True)
class Status:
    """All hops of a pipeline.

    Attributes:
        pipeline: Its name.
        watermark: Event time that silver has passed (UTC).
        event_time_lag_seconds: How far the watermark trails the present.
        held_back_by: The source partition that the watermark waits for.
        idle: Partitions that it does not wait for.
        dedup: What deduplication looked through.
        source: How far bronze lags behind Kafka; None for other sources.
        warnings: Silver's rows by the rule of severity ``warning`` that they fail.
        dimensions: What silver looked up.
        failed: Events on which an expression of a gold table failed, by table; they contribute
            null there.
        hops: In the order of the flow.
    """

    pipeline: str
    watermark: datetime | None
    event_time_lag_seconds: float | None
    held_back_by: str | None
    idle: tuple[str, ...]
    dedup: DedupStatus
    source: SourceLag | None
    warnings: Mapping[str, int]
    dimensions: tuple[DimensionStatus, ...]
    failed: Mapping[str, int]
    hops: tuple[HopStatus, ...]

    def to_json(self) -> dict[str, Any]:
        """Give the status with instants as ISO 8601."""
        data = asdict(self)
        data["watermark"] = to_json(self.watermark)
        if self.source is not None:
            data["source"]["checked_at"] = to_json(self.source.checked_at)
        for hop in data["hops"]:
            hop["last_commit"] = to_json(hop["last_commit"])
        return data


def read_status(lake: Lake, pipeline: Pipeline, *, now: datetime | None = None) -> Status:
    """Read a pipeline's status from its tables' logs.

    Raises:
        UsageError: The pipeline has not run under this root.
    """
    name = pipeline.name
    require_tables(lake, name)
    bronze, silver = lake.bronze(name), lake.silver(name)
    golds = [lake.table(name) for name in pipeline.gold_names]
    # The gold table that is furthest behind stands for the hop.
    slowest = min(golds, key=_batch, default=None)
    closed = last_commit(silver)
    note = SilverNote.of(closed)
    notes = [SilverNote.of(commit) for commit in history(lake, silver)]
    warnings: Counter[str] = Counter()
    for one in notes:
        warnings.update(one.warnings)
    arrived = history(lake, bronze)
    lag = source_lag(pipeline, arrived, now=now or datetime.now(UTC))
    waiting = _files(pipeline, arrived) if lag is None else lag.lag
    hops = [
        _hop("bronze", bronze, sum(commit.brought for commit in arrived), waiting),
        _hop(
            "silver",
            silver,
            sum(one.total().total() for one in notes),
            rows_between(bronze, position(closed, "bronze")),
        ),
    ]
    if slowest is not None:
        taken = sum(int(commit.note.get("rows", 0)) for commit in history(lake, slowest))
        waiting = rows_between(silver, position(last_commit(slowest), "silver"))
        hops.append(_hop("gold", slowest, taken, waiting))
    slow, idle = held_back_by(note.partitions, idle_after=pipeline.watermark.idle_after)
    return Status(
        pipeline=name,
        watermark=note.watermark,
        event_time_lag_seconds=_lag(note.watermark, now),
        held_back_by=slow,
        idle=idle,
        source=lag,
        dedup=DedupStatus(note.searched, note.seconds, note.prefiltered),
        warnings=dict(warnings),
        dimensions=_dimensions(notes),
        failed={table.name: rows for table in golds if (rows := _failed(lake, table))},
        hops=tuple(hops),
    )


def _dimensions(newest_first: Sequence[SilverNote]) -> tuple[DimensionStatus, ...]:
    newest: dict[str, int] = {}
    unmatched: Counter[str] = Counter()
    for note in newest_first:
        for use in note.dimensions:
            newest.setdefault(use.table, use.version)
            unmatched[use.table] += use.unmatched
    return tuple(DimensionStatus(name, newest[name], unmatched[name]) for name in newest)


def _failed(lake: Lake, table: Table) -> int:
    return sum(int(commit.note.get("failed", 0)) for commit in history(lake, table))


def _lag(watermark: datetime | None, now: datetime | None) -> float | None:
    return None if watermark is None else ((now or datetime.now(UTC)) - watermark).total_seconds()


def _batch(table: Table) -> int:
    last = last_commit(table)
    return -1 if last is None else last.batch


def _files(pipeline: Pipeline, arrived: Sequence[Commit]) -> int | None:
    if not isinstance(pipeline.source, FilesSource):
        return None
    try:
        offered = list_files(pipeline.source.path)
    except SourceError:
        # The status of the tables is of use even where the landing folder is gone.
        return None
    taken = taken_files(arrived)
    return len(offered.keys() - taken.keys())


def _hop(hop: str, table: Table, rows: int, waiting: int | None) -> HopStatus:
    last: Commit | None = last_commit(table)
    return HopStatus(
        hop=hop,
        generation=None if last is None else last.generation,
        batch=-1 if last is None else last.batch,
        rows=rows,
        waiting=waiting,
        last_commit=None if last is None else last.written_at,
    )
