"""Read how events flow: each hop's pace, what waits for it, who writes it, what it would refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import cast

from pyspark.sql import SparkSession

from tidelake.config import Environment, FilesSource, KafkaSource, Pipeline
from tidelake.config.source import DeltaSource
from tidelake.errors import RefusedError, SourceError
from tidelake.ops.lag import SourceLag
from tidelake.ops.status import HopStatus, Status, read_status
from tidelake.runtime.hop import Run
from tidelake.runtime.landing import check_landing
from tidelake.runtime.lock import writer
from tidelake.runtime.pipeline import refusals
from tidelake.runtime.progress import Progress
from tidelake.runtime.targets import targets_of
from tidelake.sinks.commits import Commit, commits, last_commit, rows_between
from tidelake.sinks.definitions import changed_definition, changed_parts
from tidelake.sinks.notes import SilverNote, position
from tidelake.tables import HOPS, Hop, Lake, Table

# How many batches the trend of a hop shows.
LATELY = 30


@dataclass(frozen=True)
class HopFacts:
    """One arrow of the flow.

    Attributes:
        status: Where it stands.
        sizes: Rows that its newest batches took, oldest first.
        rows_per_second: Over those batches, the time between them included; None for one batch.
        process: Who writes it on this machine; None for nobody.
        refused: Why the next run would refuse it, and the command that mends it; empty: it would
            not.
    """

    status: HopStatus
    sizes: tuple[int, ...]
    rows_per_second: float | None
    process: int | None
    refused: str


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
        source: What it reads, in words: no address of a broker beside the topic.
        status: All that ``tidelake status`` tells.
        hops: In the order of the flow; gold is missing before its first run.
        golds: In the order of the definition.
        requeued: Rows sent again that silver has not taken yet.
        swapping: Whether a swap of tables was interrupted.
        erasing: Whether an erasure was.
    """

    source: str
    status: Status
    hops: tuple[HopFacts, ...]
    golds: tuple[GoldHead, ...]
    requeued: int
    swapping: bool
    erasing: bool

    @property
    def lag(self) -> SourceLag | None:
        """How far bronze lags behind Kafka; None for other sources."""
        return self.status.source

    @property
    def runs(self) -> bool:
        """Tell whether a process of this machine writes any hop."""
        return any(hop.process is not None for hop in self.hops)


def read_flow(
    lake: Lake, pipeline: Pipeline, environment: Environment, *, now: datetime | None = None
) -> Flow:
    """Read the flow of a pipeline that has run, from its tables' logs.

    Raises:
        UsageError: It has not run under this root.
    """
    status = read_status(lake, pipeline, now=now)
    name = pipeline.name
    golds = [lake.table(one) for one in pipeline.gold_names]
    writers = {hop: writer(lake, name, hop) for hop in HOPS}
    # While somebody writes, log and checkpoint move under our eyes, and nothing is refused.
    refused = _refusals(lake, pipeline, environment) if not any(writers.values()) else {}
    slowest = min(golds, key=_batch, default=None)
    tables: dict[str, tuple[Table | None, Callable[[Commit], int]]] = {
        "bronze": (lake.bronze(name), lambda commit: commit.brought),
        "silver": (lake.silver(name), lambda commit: SilverNote.of(commit).total().total()),
        "gold": (slowest, lambda commit: int(commit.note.get("rows", 0))),
    }
    hops = []
    for hop in status.hops:
        table, taken = tables[hop.hop]
        newest = list(islice(commits(table), LATELY)) if table else []
        closed = [commit for commit in reversed(newest) if commit.batch >= 0]
        sizes = tuple(taken(commit) for commit in closed)
        key = cast("Hop", hop.hop)
        hops.append(
            HopFacts(hop, sizes, _rate(closed, sizes), writers[key], refused.get(key, ""))
        )
    requeue = lake.requeue(name)
    reached = position(last_commit(lake.silver(name)), "requeue")
    return Flow(
        source=source_of(pipeline),
        status=status,
        hops=tuple(hops),
        golds=tuple(_head(table) for table in golds),
        requeued=rows_between(requeue, reached) if requeue.exists else 0,
        swapping=lake.swap(name).exists(),
        erasing=lake.erasure(name).exists(),
    )


def source_of(pipeline: Pipeline) -> str:
    """Say what a pipeline reads."""
    source = pipeline.source
    if isinstance(source, FilesSource | DeltaSource):
        return source.path
    if isinstance(source, KafkaSource):
        return f"topic {source.topic}" if source.topic else f"topics like {source.pattern}"
    return source.kind


def _rate(oldest_first: Sequence[Commit], sizes: Sequence[int]) -> float | None:
    if len(oldest_first) < 2:
        return None
    length: timedelta = oldest_first[-1].written_at - oldest_first[0].written_at
    # What the first of them took came before it was closed.
    return sum(sizes[1:]) / max(length.total_seconds(), 1e-3)


def _batch(table: Table) -> int:
    last = last_commit(table)
    return -1 if last is None else last.batch


def _head(table: Table) -> GoldHead:
    last = last_commit(table)
    return GoldHead(table.name, _batch(table), None if last is None else last.written_at)


def _refusals(lake: Lake, pipeline: Pipeline, environment: Environment) -> dict[Hop, str]:
    """Say why the next run would refuse a hop; nothing is written and Spark is not started."""
    # To look at logs and checkpoints takes no session.
    run = Run(cast("SparkSession", None), pipeline, lake, environment, Progress(lambda _: None))
    found = refusals(run)
    name, kind = pipeline.name, pipeline.source.kind
    filled = last_commit(lake.bronze(name))
    if filled is not None and filled.note.get("source", kind) != kind:
        # A run may be given another source than the file has; this one is nobody's mistake.
        found.pop("bronze", None)
    identity = changed_parts(last_commit(lake.silver(name)), pipeline).identity
    if identity:
        told = f"{lake.silver(name).name} was filled under another {' and '.join(identity)}"
        found.setdefault("silver", f"{told}. See what changed with: tidelake check {name}")
    for target in targets_of(lake, pipeline):
        if changed_definition(last_commit(target.table), target.definition):
            told = f"{target.table.name} was filled under another definition"
            found.setdefault("gold", f"{told}. See what changed with: tidelake check {name}")
    if isinstance(pipeline.source, FilesSource):
        try:
            check_landing(pipeline.source.path, lake.bronze(name))
        except SourceError:
            # A folder that is gone or empty is told as what waits: unknown.
            pass
        except RefusedError as error:
            found.setdefault("bronze", str(error))
    return found


