"""Read how events flow: what each hop took, how fast, what waits for it, and who writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from tidelake.config import DeltaSource, FilesSource, KafkaSource, Pipeline
from tidelake.delta.locks import writer
from tidelake.delta.log import Commit, commits, last_commit
from tidelake.delta.notes import SilverNote, position
from tidelake.delta.positions import rows_between
from tidelake.delta.tables import HOPS, Lake, Table
from tidelake.ops.metrics.kept import kept_since
from tidelake.ops.metrics.measured import Measured
from tidelake.ops.status import HopStatus, Status, read_status

# How many batches the trend of a hop shows.
LATELY = 30
# How far back what a run measured is looked for.
_REACH = timedelta(days=7)
# Batches that lie farther apart are not of one stretch of work.
_PAUSE = timedelta(minutes=5)


@dataclass(frozen=True)
class HopFacts:
    """One arrow of the flow.

    Attributes:
        status: Where it stands.
        sizes: Rows that its newest batches took, oldest first.
        rows_per_second: Over those of them that came without a pause, the time between them
            included; None for one batch.
        process: Who writes it on this machine; None for nobody.
        measured: Its newest batch as a run measured it; None where no run keeps that.
        error: What stopped its last run; empty where nothing did.
        failed_at: When that was (UTC).
    """

    status: HopStatus
    sizes: tuple[int, ...]
    rows_per_second: float | None
    process: int | None
    measured: Measured | None
    error: str
    failed_at: datetime | None


@dataclass(frozen=True)
class GoldHead:
    """Where a table that gold fills stands.

    Attributes:
        table: Its logical name.
        batch: Its last closed batch; -1 for none.
        closed_at: When that was (UTC); None where the table is not there yet.
    """

    table: str
    batch: int
    closed_at: datetime | None


@dataclass(frozen=True)
class Flow:
    """A pipeline from its source to gold.

    Attributes:
        source: What it reads, in words.
        status: All that ``tidelake status`` tells.
        hops: In the order of the flow; gold is missing where the definition has no gold.
        golds: In the order of the definition.
        requeued: Rows sent again that silver has not taken yet.
    """

    source: str
    status: Status
    hops: tuple[HopFacts, ...]
    golds: tuple[GoldHead, ...]
    requeued: int

    @property
    def runs(self) -> bool:
        """Tell whether a process of this machine writes any hop."""
        return any(hop.process is not None for hop in self.hops)


def read_flow(lake: Lake, pipeline: Pipeline, *, now: datetime) -> Flow:
    """Read the flow of a pipeline that has run, from its tables' logs.

    Raises:
        UsageError: It has not run under this root.
    """
    status = read_status(lake, pipeline, now=now)
    name = pipeline.name
    golds = [lake.table(one) for one in pipeline.gold_names]
    # The gold table that is furthest behind stands for the hop.
    slowest = min(golds, key=_batch, default=None)
    tables: dict[str, tuple[Table | None, Callable[[Commit], int]]] = {
        "bronze": (lake.bronze(name), lambda commit: commit.brought),
        "silver": (lake.silver(name), lambda commit: SilverNote.of(commit).total().total()),
        "gold": (slowest, lambda commit: int(commit.note.get("rows", 0))),
    }
    writers = {str(hop): writer(lake, name, hop) for hop in HOPS}
    measured = _newest(kept_since(lake, name, now - _REACH))
    requeue = lake.requeue(name)
    reached = position(last_commit(lake.silver(name)), "requeue")
    return Flow(
        source=source_of(pipeline),
        status=status,
        hops=tuple(
            _hop(one, *tables[one.hop], writers[one.hop], measured.get(one.hop))
            for one in status.hops
        ),
        golds=tuple(_head(table) for table in golds),
        requeued=rows_between(requeue, reached) if requeue.exists else 0,
    )


def source_of(pipeline: Pipeline) -> str:
    """Say what a pipeline reads."""
    source = pipeline.source
    if isinstance(source, FilesSource | DeltaSource):
        return source.path
    if isinstance(source, KafkaSource):
        return f"topic {source.topic}" if source.topic else f"topics like {source.pattern}"
    return source.kind


def _newest(oldest_first: Sequence[Measured]) -> Mapping[str, Measured]:
    return {one.hop: one for one in oldest_first}


def _hop(
    status: HopStatus,
    table: Table | None,
    taken: Callable[[Commit], int],
    process: int | None,
    measured: Measured | None,
) -> HopFacts:
    newest = list(islice(commits(table), LATELY)) if table else []
    closed = [commit for commit in reversed(newest) if commit.batch >= 0]
    sizes = tuple(taken(commit) for commit in closed)
    failed = measured if measured is not None and measured.error_class else None
    return HopFacts(
        status=status,
        sizes=sizes,
        rows_per_second=_rate(closed, sizes),
        process=process,
        measured=measured,
        error=f"{failed.error_class}: {failed.error}" if failed else "",
        failed_at=failed.ended_at if failed else None,
    )


def _rate(oldest_first: Sequence[Commit], sizes: Sequence[int]) -> float | None:
    """Tell the pace since the last pause: a run that ended an hour ago says nothing of this one."""
    first = len(oldest_first) - 1
    while first > 0:
        gap = oldest_first[first].written_at - oldest_first[first - 1].written_at
        if gap > _PAUSE:
            break
        first -= 1
    if first >= len(oldest_first) - 1:
        return None
    length = oldest_first[-1].written_at - oldest_first[first].written_at
    # What the first of them took came before it was closed.
    return sum(sizes[first + 1 :]) / max(length.total_seconds(), 1e-3)


def _batch(table: Table) -> int:
    last = last_commit(table)
    return -1 if last is None else last.batch


def _head(table: Table) -> GoldHead:
    last = last_commit(table)
    return GoldHead(table.name, _batch(table), None if last is None else last.written_at)
