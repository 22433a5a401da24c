"""Report each hop's progress and backlog, and bronze's lag behind Kafka.

The advice on a lag follows KEDA's Kafka scaler: the number of slots is the lag divided by the lag
allowed per slot, at most the number of partitions that are read in parallel.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from tidelake.config import KafkaSource, Pipeline
from tidelake.delta.commit_metadata import DimensionUse, SilverNote, positions, rows_read
from tidelake.delta.log import Commit, batch_reached, last_commit
from tidelake.delta.positions import (
    has_gap,
    published_to,
    slowest_of,
    unfilled_tables,
    unread,
    waiting_since,
)
from tidelake.delta.tables import HOPS, Hop, Lake, Table
from tidelake.errors import DamagedError, RefusedError, TidelakeError
from tidelake.instants import to_json
from tidelake.kafka.client import Offsets, ends_of, offsets_behind, total_offsets, with_added
from tidelake.ledger.history import history, offered_files, rate_of, require_tables
from tidelake.ledger.terms import rows_waiting
from tidelake.runtime.landed_files import taken_files
from tidelake.silver.watermark import held_back_by
from tidelake.spark.tuning import BRIEF_RUN_BYTES

Verdict = Literal["none", "unknown", "falls", "rests", "limit", "slots", "partitions", "enough"]
Trend = Literal["growing", "falling", "steady"]

# Default for how long a lag may last.
LAG_SECONDS = 300.0
# Between checks closer than this, the position within a batch outweighs the change of the lag.
_MIN_CHECK_INTERVAL = timedelta(seconds=30)
# Number of batches over which the rate is measured.
_RATE_BATCHES = 10
# The batch limit is the bottleneck if this many batches in a row reached it while bronze was busy
# for less than this part of the time.
_IN_A_ROW, _BUSY = 3, 0.9
# Smallest ratio between two lags that counts as a change.
_CHANGE_RATIO = 1.2
# A file may be written for a while before it lands, and clocks differ.
_LANDING_MARGIN = timedelta(hours=1)


@dataclass(frozen=True)
class Check:
    """Offsets after bronze's last record, and the records behind them, at an instant (UTC)."""

    at: datetime
    taken: Offsets
    behind: Offsets


@dataclass(frozen=True)
class Advice:
    """Advice on a lag; ``slots`` would be enough to read it in time, None if unknown."""

    verdict: Verdict
    slots: int | None
    text: str


@dataclass(frozen=True)
class PartitionLag:
    """Bronze's lag behind a partition of a topic, in records.

    ``taken`` is the offset after bronze's last record, ``end`` the partition's end offset; the
    trend is relative to the earlier check, None if there was none.
    """

    topic: str
    partition: int
    taken: int
    end: int
    lag: int
    trend: Trend | None


@dataclass(frozen=True)
class SourceLag:
    """Bronze's lag behind its topics, in records, the partition with the largest lag first.

    Attributes:
        checked_at: In UTC.
        not_asked: Why the broker could not be asked now; empty if it was.
        rows_per_second: Rate of the last batches, without pauses; None before the first.
        arriving_per_second: Rate of the producers between two checks.
        catch_up_seconds: Time until the lag is zero at these rates; None if never.
    """

    checked_at: datetime
    not_asked: str
    partitions: tuple[PartitionLag, ...]
    lag: int
    rows_per_second: float | None
    arriving_per_second: float | None
    catch_up_seconds: float | None
    advice: Advice


@dataclass(frozen=True)
class HopStatus:
    """One hop of a pipeline; ``batch`` is the last committed one, -1 for none.

    ``rows`` were read, the newest at ``rows_per_second``; ``waiting`` rows (for bronze: files or
    records) are still to be read. None is unknown, or not yet. ``last_commit`` is in UTC.
    """

    hop: Hop
    generation: str | None
    batch: int
    rows: int
    rows_per_second: float | None
    waiting: int | None
    last_commit: datetime | None


@dataclass(frozen=True)
class TopicStatus:
    """A gold table's topic; it has the changes up to ``version``, None before the first run.

    ``waiting`` versions of the table changed rows since, None if the log no longer has them all.
    """

    table: str
    topic: str
    version: int | None
    waiting: int | None


@dataclass(frozen=True)
class DedupStatus:
    """Accepted ids that silver's last batch searched, and rows dropped by a prefilter, if any."""

    searched: int
    seconds: float
    prefiltered: int | None


@dataclass(frozen=True)
class Status:
    """Progress of a pipeline; its hops are in the order of the flow.

    Attributes:
        watermark: Silver's, in UTC.
        event_time_lag_seconds: From the watermark to the current time.
        held_back_by: The source partition with the lowest watermark.
        idle: Idle partitions, which the watermark ignores.
        source: Bronze's lag behind Kafka; None for other sources.
        warnings: Number of silver rows that fail each rule of severity ``warning``.
        dimensions: Of each lookup, the version last used and the total of rows without a match.
        failed: Number of events and, for derived columns, of rows, by gold table, on which an
            expression failed and gave null.
        to_fill: Gold tables that are not filled yet: the next run fills them from silver.
        topics: The topics of gold tables that are published.
    """

    pipeline: str
    watermark: datetime | None
    event_time_lag_seconds: float | None
    held_back_by: str | None
    idle: tuple[str, ...]
    dedup: DedupStatus
    source: SourceLag | None
    warnings: Mapping[str, int]
    dimensions: tuple[DimensionUse, ...]
    failed: Mapping[str, int]
    topics: tuple[TopicStatus, ...]
    hops: tuple[HopStatus, ...]
    to_fill: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the status with instants as ISO 8601."""
        data = asdict(self)
        data["watermark"] = to_json(self.watermark)
        data["dimensions"] = [use._asdict() for use in self.dimensions]
        if self.source is not None:
            data["source"]["checked_at"] = to_json(self.source.checked_at)
        for hop in data["hops"]:
            hop["last_commit"] = to_json(hop["last_commit"])
        return data


def read_status(lake: Lake, pipeline: Pipeline, *, now: datetime | None = None) -> Status:
    """Read a pipeline's status from logs; a UsageError before a run, a DamagedError for a gap."""
    name = pipeline.name
    require_tables(lake, name)
    now = now or datetime.now(UTC)
    tables = {hop: lake.closing_tables(pipeline, hop) for hop in HOPS}
    for one in (t for own in tables.values() for t in own if lake.catalog is None):
        if has_gap(one):
            raise DamagedError(f"the log of {one.name} lacks a commit")
    histories = {t.name: history(lake, t) for own in tables.values() for t in own}
    note = SilverNote.of(last_commit(lake.silver(name)))
    warnings, dimensions = Counter[str](), dict[tuple[int, str], DimensionUse]()
    for batch_note in map(SilverNote.of, histories[lake.silver(name).name]):
        warnings.update(batch_note.warnings)
        seen = Counter[str]()
        for use in batch_note.dimensions:
            seen[use.table] += 1
            newest = dimensions.get(key := (seen[use.table], use.table), use._replace(unmatched=0))
            dimensions[key] = newest._replace(unmatched=newest.unmatched + use.unmatched)
    arrived = histories[lake.bronze(name).name]
    lag = source_lag(pipeline, arrived, now=now)
    waiting = _waiting(lake, pipeline, arrived, lag)
    hops = []
    for hop, own in tables.items():
        if (table := slowest_of(own)) is None:
            continue
        last, found = last_commit(table), histories[table.name]
        rows, rate = sum(map(rows_read, found)), rate_of(found[:_RATE_BATCHES])
        generation, at = (last.generation, last.written_at) if last else (None, None)
        hops.append(HopStatus(hop, generation, batch_reached(table), rows, rate, waiting[hop], at))
    held_back, idle = held_back_by(note.partitions, idle_after=pipeline.watermark.idle_after)
    failed = {
        table.name: sum(int(commit.note.get("failed", 0)) for commit in histories[table.name])
        for table in tables["gold"]
    }
    return Status(
        pipeline=name,
        watermark=note.watermark,
        event_time_lag_seconds=(now - note.watermark).total_seconds() if note.watermark else None,
        held_back_by=held_back,
        idle=idle,
        source=lag,
        dedup=DedupStatus(note.searched, note.seconds, note.prefiltered),
        warnings=dict(warnings),
        dimensions=tuple(dimensions.values()),
        failed={name: rows for name, rows in failed.items() if rows},
        topics=tuple(
            _topic_status(lake.table(one), to.topic) for one, to in pipeline.published.items()
        ),
        hops=tuple(hops),
        to_fill=tables_to_fill(lake, pipeline),
    )


def tables_to_fill(lake: Lake, pipeline: Pipeline) -> tuple[str, ...]:
    """List the gold tables that the next run fills from silver before its first batch."""
    return tuple(one.name for one in unfilled_tables(lake.closing_tables(pipeline, "gold")))


def _topic_status(table: Table, topic: str) -> TopicStatus:
    reached = published_to(table)
    if reached is None or reached.topic != topic:
        return TopicStatus(table.name, topic, None, None)
    try:
        waiting, _ = waiting_since(table)
    except RefusedError:
        return TopicStatus(table.name, topic, reached.version, None)
    return TopicStatus(table.name, topic, reached.version, waiting)


def waiting_input(lake: Lake, pipeline: Pipeline) -> dict[Hop, int | None]:
    """Count what the next run of each hop would read; tables need not exist.

    The unit is files or records for bronze, else rows; None if the number is unknown, as it is if
    bronze has read none of the topics, or no broker answers. ``--source`` counts.
    """
    arrived, source = history(lake, lake.bronze(pipeline.name)), pipeline.source
    lag = None
    if isinstance(source, KafkaSource):
        lag = source_lag(pipeline, arrived, now=datetime.now(UTC))
        read = {one.topic for one in lag.partitions} if lag and not lag.not_asked else set()
        if not read or (source.topic and read.isdisjoint(source.topic.split(","))):
            lag = None
    return _waiting(lake, pipeline, arrived, lag)


def _waiting(
    lake: Lake, pipeline: Pipeline, arrived: Sequence[Commit], lag: SourceLag | None
) -> dict[Hop, int | None]:
    if lag is not None:
        bronze: int | None = lag.lag
    else:
        offered = offered_files(pipeline)
        bronze = None if offered is None else len(offered.keys() - taken_files(arrived).keys())
    return {"bronze": bronze, **rows_waiting(lake, pipeline)}


def little_waits(lake: Lake, pipeline: Pipeline) -> bool:
    """Estimate without Spark whether the backlog of all hops is small; False if unknown.

    Files of the last hour may have been read already, and older ones may have been copied in since.
    """
    offered = None if lake.catalog is not None else offered_files(pipeline)
    if offered is None:
        return False
    last = last_commit(lake.bronze(pipeline.name))
    since = None if last is None else (last.written_at - _LANDING_MARGIN).timestamp() * 1000
    waiting = sum(f.size for f in offered.values() if since is None or f.modified >= since)
    if waiting > BRIEF_RUN_BYTES:
        return False
    for hop in HOPS[1:]:
        inputs, filled = lake.hop_inputs(pipeline, hop), lake.closing_tables(pipeline, hop)
        reached = (positions(last_commit(table)) for table in filled)
        waiting += max((unread(inputs, until).size for until in reached), default=0)
    return waiting <= BRIEF_RUN_BYTES


def source_lag(
    pipeline: Pipeline, newest_first: Sequence[Commit], *, now: datetime
) -> SourceLag | None:
    """Compute bronze's lag with the broker's offsets; None if bronze was not filled from Kafka.

    The topics are those of bronze's commits, since a run may override the source of the pipeline
    file, and those that its source lists beside them: see :func:`ends_of`. If the broker does not
    answer, the lag is that of the newest commit.
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
        taken = with_added(source, noted["offsets"], ends)
        asked = Check(datetime.now(UTC), taken, offsets_behind(taken, ends))
    except TidelakeError as error:
        not_asked = str(error)
    return lag_of(
        newest_first,
        asked,
        not_asked=not_asked,
        min_partitions=source.min_partitions or 0,
        seconds=pipeline.alerts.lag_seconds or LAG_SECONDS,
        now=now,
    )


def lag_of(
    newest_first: Sequence[Commit],
    asked: Check | None,
    *,
    not_asked: str = "",
    min_partitions: int = 0,
    seconds: float = LAG_SECONDS,
    now: datetime,
) -> SourceLag | None:
    """Compute bronze's lag from its commits; None if no commit has topic offsets.

    ``asked`` is the broker's answer, None if there is none for the reason ``not_asked``. Spark
    creates at least ``min_partitions`` tasks; a lag may last ``seconds``; ``now`` is in UTC.
    """
    notes = [commit.note for commit in newest_first if commit.note.get("behind")]
    checks = [] if asked is None else [asked]
    checks += [
        Check(datetime.fromisoformat(note["looked_at"]), note["offsets"], note["behind"])
        for note in notes
    ]
    if not checks:
        return None
    latest = checks[0]
    older = [check for check in checks[1:] if check.at < latest.at]
    apart = (check for check in older if latest.at - check.at >= _MIN_CHECK_INTERVAL)
    earlier = next(apart, older[-1] if older else None)
    partitions, arrived = [], 0
    # Of each partition the lag at the earlier check, None where unknown, and the latest.
    lags: list[tuple[int | None, int]] = []
    for topic, of_topic in latest.behind.items():
        for partition, lag in of_topic.items():
            taken = latest.taken[topic][partition]
            before = earlier.behind.get(topic, {}).get(partition) if earlier else None
            # Partitions added since are ignored.
            if earlier and before is not None:
                arrived += taken + lag - earlier.taken[topic][partition] - before
            lags.append((before, lag))
            trend = trend_of(before, lag)
            partitions.append(PartitionLag(topic, int(partition), taken, taken + lag, lag, trend))
    recent = [commit for commit in newest_first if commit.note.get("records")][:_RATE_BATCHES]
    took: int = sum(commit.note["records"] for commit in recent)
    rate = took / sum(map(_seconds, recent)) if recent else None
    arriving = max(arrived, 0) / (latest.at - earlier.at).total_seconds() if earlier else None
    slots = recent[0].note["slots"] if recent else 1
    tasks = max(len(lags), min_partitions)
    waits = total_offsets(latest.behind)
    left = (rate or 0.0) - (arriving or 0.0)
    catch_up = waits / left if left > 0 else None
    return SourceLag(
        checked_at=latest.at,
        not_asked=not_asked,
        partitions=tuple(sorted(partitions, key=lambda one: (-one.lag, one.topic, one.partition))),
        lag=waits,
        rows_per_second=rate,
        arriving_per_second=arriving,
        catch_up_seconds=catch_up if waits else 0.0,
        advice=advise(
            lags,
            rows_per_slot=rate / min(slots, tasks) if rate else None,
            slots=slots,
            tasks=tasks,
            limit=recent[0].note["limit"] if recent else None,
            is_held_back=_is_held_back(recent[:_IN_A_ROW]),
            rests=now - newest_first[0].written_at > timedelta(seconds=seconds),
            seconds=seconds,
        ),
    )


def _seconds(commit: Commit) -> float:
    """Return the duration of a batch, at least the clock resolution of 1 ms."""
    began = datetime.fromisoformat(commit.note["began"])
    return max((commit.written_at - began).total_seconds(), 1e-3)


def _is_held_back(recent: Sequence[Commit]) -> bool:
    """Return whether the last batches reached the limit and bronze paused between them."""
    if len(recent) < _IN_A_ROW or not all(commit.note["limit"] for commit in recent):
        return False
    is_full = all(commit.note["records"] >= 0.9 * commit.note["limit"] for commit in recent)
    first, last = (datetime.fromisoformat(recent[n].note["began"]) for n in (-1, 0))
    return is_full and sum(map(_seconds, recent[1:])) < _BUSY * (last - first).total_seconds()


def trend_of(earlier: int | None, latest: int) -> Trend | None:
    """Return whether a lag changed by at least a fifth; None if the earlier one is unknown."""
    if earlier is None:
        return None
    if latest >= _CHANGE_RATIO * earlier and latest > earlier:
        return "growing"
    return "falling" if earlier >= _CHANGE_RATIO * latest and latest < earlier else "steady"


def advise(
    lags: Sequence[tuple[int | None, int]],
    *,
    rows_per_slot: float | None,
    slots: int,
    tasks: int,
    limit: int | None = None,
    is_held_back: bool = False,
    rests: bool = False,
    seconds: float = LAG_SECONDS,
) -> Advice:
    """Advise on a lag.

    ``lags`` has each partition's at the earlier check, None if unknown, and at the latest. Bronze
    had ``slots`` slots, each with ``rows_per_slot`` recent rows per second, None before the first
    batch; ``tasks`` read in parallel. ``is_held_back`` is whether the last batches reached the
    limit of records with pauses in between; ``rests`` whether no batch was committed for longer
    than a lag may last, which is ``seconds``.
    """
    waits = sum(latest for _, latest in lags)
    known = [(earlier, latest) for earlier, latest in lags if earlier is not None]
    if not waits:
        return Advice("none", None, "nothing waits")
    if not known or not rows_per_slot:
        return Advice(
            "unknown", None, "the trend of the lag needs a second check: run this again later"
        )
    needed = math.ceil(waits / (rows_per_slot * seconds))
    helpful = min(tasks, needed)
    grown = sum(trend_of(earlier, latest) == "growing" for earlier, latest in known)
    verdict: Verdict = "enough"
    if sum(latest for _, latest in known) < sum(earlier for earlier, _ in known):
        verdict, text = "falls", "the lag falls: nothing to do"
    # More slots would not help in the next two cases.
    elif rests:
        verdict, text = "rests", "no batch was committed lately: start the run, or check it"
    elif is_held_back:
        verdict = "limit"
        text = (
            f"the limit of {limit:,} records a batch holds it back: "
            "raise source.max_offsets_per_trigger"
        )
    elif 2 * grown <= len(lags):
        text = "the lag does not grow: nothing to do"
    elif helpful > slots:
        verdict = "slots"
        text = (
            f"more slots would help: {helpful} instead of {slots} read the backlog "
            f"within {seconds:g} s"
        )
    elif needed > tasks:
        verdict = "partitions"
        text = (
            f"more slots would not help: {tasks} tasks read in parallel. Give the topic "
            "more partitions, or raise source.min_partitions"
        )
    else:
        text = f"the lag grows, but {slots} slots read it within {seconds:g} s: check again later"
    return Advice(verdict, helpful, text)
