"""Report how far each hop of a pipeline has come, and what waits for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tidelake.config import KafkaSource, Pipeline
from tidelake.delta.log import Commit, last_commit
from tidelake.delta.notes import SilverNote, position
from tidelake.delta.positions import bytes_between, rows_between
from tidelake.delta.tables import Lake, Table
from tidelake.errors import TidelakeError
from tidelake.instants import to_json
from tidelake.kafka.client import ends_of
from tidelake.kafka.topic_offsets import behind
from tidelake.ops.history import history, offered_files, require_tables
from tidelake.ops.lag import Check, SourceLag, lag_of
from tidelake.runtime.landing import taken_files
from tidelake.silver.watermark import held_back_by
from tidelake.spark.tuning import BRIEF_RUN_BYTES

# How long a backlog may last where the pipeline file does not say.
_LAG_SECONDS = 300.0
# A file may be written for a while before it lands, and clocks differ.
_BEFORE_LANDING = timedelta(hours=1)


@dataclass(frozen=True)
class HopStatus:
    """One hop of a pipeline.

    Attributes:
        hop: Its name.
        generation: The generation of its tables; None before the first run.
        batch: The last committed batch, -1 for none.
        rows: Rows taken in so far.
        waiting: Rows that it has still to take, for bronze files or records; None where unknown.
        last_commit: When the last batch was committed (UTC).
    """

    hop: str
    generation: str | None
    batch: int
    rows: int
    waiting: int | None
    last_commit: datetime | None


@dataclass(frozen=True)
class DedupStatus:
    """The accepted ids that silver's last batch searched for copies: the state, within the TTL.

    Rows are prefiltered where there is a prefilter; else None.
    """

    searched: int
    seconds: float
    prefiltered: int | None


@dataclass(frozen=True)
class DimensionStatus:
    """The version of a dimension that silver used last, -1 for none, and rows without a match."""

    table: str
    version: int
    unmatched: int


@dataclass(frozen=True)
class Status:
    """How far a pipeline has come.

    Attributes:
        pipeline: Its name.
        watermark: Event time that silver has passed (UTC).
        event_time_lag_seconds: How far the watermark trails the present.
        held_back_by: The source partition that the watermark waits for.
        idle: Partitions that it does not wait for.
        dedup: What deduplication searched.
        source: How far bronze lags behind Kafka; None for other sources.
        warnings: Silver's rows by the rule of severity ``warning`` that they fail.
        dimensions: What silver looked up.
        failed: Events by the gold table in which an expression failed on them and gave null.
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
    slowest = min(golds, key=batch_reached, default=None)
    closed = last_commit(silver)
    note = SilverNote.of(closed)
    notes = [SilverNote.of(commit) for commit in history(lake, silver)]
    warnings: Counter[str] = Counter()
    dimensions: dict[str, DimensionStatus] = {}
    for one in notes:
        warnings.update(one.warnings)
        for use in one.dimensions:
            newest = dimensions.get(use.table, DimensionStatus(use.table, use.version, 0))
            unmatched = newest.unmatched + use.unmatched
            dimensions[use.table] = replace(newest, unmatched=unmatched)
    arrived = history(lake, bronze)
    now = now or datetime.now(UTC)
    lag = source_lag(pipeline, arrived, now=now)
    if lag is not None:
        waiting: int | None = lag.lag
    else:
        offered = offered_files(pipeline)
        waiting = None if offered is None else len(offered.keys() - taken_files(arrived).keys())
    hops = [_hop("bronze", bronze, sum(commit.brought for commit in arrived), waiting)]
    taken = sum(one.total().total() for one in notes)
    hops.append(_hop("silver", silver, taken, rows_between(bronze, position(closed, "bronze"))))
    if slowest is not None:
        taken = sum(int(commit.note.get("rows", 0)) for commit in history(lake, slowest))
        waiting = rows_between(silver, position(last_commit(slowest), "silver"))
        hops.append(_hop("gold", slowest, taken, waiting))
    slow, idle = held_back_by(note.partitions, idle_after=pipeline.watermark.idle_after)
    trails = None if note.watermark is None else (now - note.watermark).total_seconds()
    failed = {
        table.name: sum(int(commit.note.get("failed", 0)) for commit in history(lake, table))
        for table in golds
    }
    return Status(
        pipeline=name,
        watermark=note.watermark,
        event_time_lag_seconds=trails,
        held_back_by=slow,
        idle=idle,
        source=lag,
        dedup=DedupStatus(note.searched, note.seconds, note.prefiltered),
        warnings=dict(warnings),
        dimensions=tuple(dimensions.values()),
        failed={name: rows for name, rows in failed.items() if rows},
        hops=tuple(hops),
    )


def batch_reached(table: Table) -> int:
    """Read the number of a table's last committed batch; -1 for none."""
    last = last_commit(table)
    return -1 if last is None else last.batch


def _hop(hop: str, table: Table, rows: int, waiting: int | None) -> HopStatus:
    last = last_commit(table)
    return HopStatus(
        hop=hop,
        generation=None if last is None else last.generation,
        batch=-1 if last is None else last.batch,
        rows=rows,
        waiting=waiting,
        last_commit=None if last is None else last.written_at,
    )


def source_lag(
    pipeline: Pipeline, newest_first: Sequence[Commit], *, now: datetime
) -> SourceLag | None:
    """Ask the broker how far bronze lags behind its topics; None where it was not filled from them.

    Bronze's commits say where the records came from: the run may have been given another source
    than the pipeline file has. Where the broker is away, what they say of the lag still counts.
    """
    noted = next((commit.note for commit in newest_first if commit.note.get("behind")), None)
    if noted is None:
        return None
    source = pipeline.source
    if not isinstance(source, KafkaSource):
        source = KafkaSource(kind="kafka", bootstrap=noted["bootstrap"])
    asked, not_asked = None, ""
    try:
        ends = ends_of(source, noted["offsets"])
        asked = Check(datetime.now(UTC), noted["offsets"], behind(noted["offsets"], ends))
    except TidelakeError as error:
        not_asked = str(error)
    return lag_of(
        newest_first,
        asked,
        not_asked=not_asked,
        min_partitions=source.min_partitions or 0,
        seconds=pipeline.alerts.lag_seconds or _LAG_SECONDS,
        now=now,
    )


def little_waits(lake: Lake, pipeline: Pipeline) -> bool:
    """Tell before Spark starts whether few bytes wait for the hops; False where that is unknown.

    A hint: files of the last hour may have been taken already, and older ones copied in late.
    """
    offered = offered_files(pipeline)
    if lake.catalog is not None or offered is None:
        return False
    bronze, silver = lake.bronze(pipeline.name), lake.silver(pipeline.name)
    last = last_commit(bronze)
    since = None if last is None else (last.written_at - _BEFORE_LANDING).timestamp() * 1000
    landed = sum(f.size for f in offered.values() if since is None or f.modified >= since)
    if landed > BRIEF_RUN_BYTES:
        return False
    for_silver = bytes_between(bronze, position(last_commit(silver), "bronze"))
    golds = (lake.table(name) for name in pipeline.gold_names)
    for_gold = max(
        (bytes_between(silver, position(last_commit(one), "silver")) for one in golds), default=0
    )
    return landed + for_silver + for_gold <= BRIEF_RUN_BYTES
