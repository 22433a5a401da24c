"""Tell how far each hop has come and how far it lags behind."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from tidelake.config import FilesSource, Pipeline
from tidelake.errors import SourceError, UsageError
from tidelake.instants import to_json
from tidelake.runtime.landing import list_files, taken_files
from tidelake.runtime.offsets import rows_not_taken
from tidelake.sinks.commits import Commit, commits, last_commit
from tidelake.sinks.notes import SilverNote
from tidelake.tables import Lake, Table


@dataclass(frozen=True)
class HopStatus:
    """One hop of a pipeline.

    Attributes:
        hop: Its name.
        generation: The generation of its tables; None before the first run.
        batch: The last closed batch, -1 for none.
        rows: Rows taken in so far.
        waiting: What it has still to take: rows, or files for bronze; None where unknown.
        last_commit: When the last batch was closed (UTC).
    """

    hop: str
    generation: str | None
    batch: int
    rows: int
    waiting: int | None
    last_commit: datetime | None


@dataclass(frozen=True)
class Status:
    """All hops of a pipeline.

    Attributes:
        pipeline: Its name.
        watermark: Event time that silver has passed (UTC).
        event_time_lag_seconds: How far the watermark trails the present.
        hops: In the order of the flow.
    """

    pipeline: str
    watermark: datetime | None
    event_time_lag_seconds: float | None
    hops: tuple[HopStatus, ...]

    def to_json(self) -> dict[str, Any]:
        """Give the status with instants as ISO 8601."""
        data = asdict(self)
        data["watermark"] = to_json(self.watermark)
        for hop in data["hops"]:
            hop["last_commit"] = to_json(hop["last_commit"])
        return data


def read_status(lake: Lake, pipeline: Pipeline, *, now: datetime | None = None) -> Status:
    """Read a pipeline's status from its tables' logs.

    Raises:
        UsageError: The pipeline has not run under this root.
    """
    name = pipeline.name
    bronze, silver = lake.bronze(name), lake.silver(name)
    if not bronze.exists:
        raise UsageError(
            f"{name} has no tables under {lake.root}. Fill them with: tidelake run {name}"
        )
    golds = [lake.gold(gold.name) for gold in pipeline.gold]
    # The gold table that is furthest behind stands for the hop.
    slowest = min(golds, key=_batch, default=None)
    mark = SilverNote.of(last_commit(silver)).watermark
    hops = [
        _hop("bronze", bronze, sum(c.rows or 0 for c in commits(bronze)), _files(pipeline, bronze)),
        _hop(
            "silver",
            silver,
            sum(SilverNote.of(commit).total().total() for commit in commits(silver)),
            rows_not_taken(lake, name, hop="silver", written=silver, read=bronze),
        ),
    ]
    if slowest is not None:
        taken = sum(int(commit.note.get("rows", 0)) for commit in commits(slowest))
        waiting = (
            rows_not_taken(lake, name, hop="gold", written=slowest, read=silver)
            if silver.exists
            else 0
        )
        hops.append(_hop("gold", slowest, taken, waiting))
    present = now or datetime.now(UTC)
    lag = None if mark is None else (present - mark).total_seconds()
    return Status(name, mark, lag, tuple(hops))


def _batch(table: Table) -> int:
    last = last_commit(table)
    return -1 if last is None else last.batch


def _files(pipeline: Pipeline, bronze: Table) -> int | None:
    if not isinstance(pipeline.source, FilesSource):
        return None
    try:
        offered = list_files(pipeline.source.path)
    except SourceError:
        # The status of the tables is of use even where the landing folder is gone.
        return None
    return len(offered.keys() - taken_files(bronze).keys())


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
