"""The measures of one batch, and ``ops.progress``, the table that keeps them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tidelake.config.standard import PROGRESS_COLUMNS
from tidelake.delta.append import append, ensure_table
from tidelake.delta.locks import hold
from tidelake.delta.log import CREATION, FIRST_GENERATION, last_commit
from tidelake.delta.merge import compact, is_due
from tidelake.delta.tables import Lake
from tidelake.errors import UsageError
from tidelake.instants import from_json, now, to_json
from tidelake.ops.query import ask
from tidelake.runtime.schemas import from_ddl, from_records

if TYPE_CHECKING:
    from tidelake.runtime.hop import Run

_SECONDS = 60.0
_DAY = timedelta(days=1)
_DDL = ", ".join(f"`{name}` {kind}" for name, kind in PROGRESS_COLUMNS.items())
_COLUMNS = ", ".join(f'"{name}"' for name in PROGRESS_COLUMNS)


@dataclass(frozen=True)
class Measured:
    """One batch of a hop, or its failure: a row of ``ops.progress``.

    Instants are in UTC; None stands for what is not known, or not there. ``docs/metrics.md``
    explains each column.
    """

    pipeline: str
    hop: str
    generation: str
    # Of a failure the one that was open, -1 where none was.
    batch: int
    # One process from start to end.
    run: str
    # From the batch's trigger to the end of its checkpoint.
    started_at: datetime
    ended_at: datetime
    seconds: float = 0.0
    interval_seconds: float | None = None
    # By our own count: Spark's counts a source once a read.
    rows: int = 0
    # Against the time since the batch before it began; not known of a run's first batch.
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None
    # Milliseconds, in Spark's names.
    phases: Mapping[str, int] = field(default_factory=dict)
    checkpoint_seconds: float = 0.0
    # Accepted ids that silver compared with, and those that a prefilter's operator holds. Gold's
    # state is its tables: to count them would cost each batch a look at all of their log.
    state_rows: int | None = None
    state_bytes: int | None = None
    # After the batch: rows, for bronze files or records; and how long the oldest has waited.
    waiting: int | None = None
    lag_seconds: float | None = None
    watermark: datetime | None = None
    event_time_lag_seconds: float | None = None
    watermark_age_seconds: float | None = None
    fates: Mapping[str, int] = field(default_factory=dict)
    # What the batch took at most, in the hop's own unit.
    limit: int | None = None
    error_class: str | None = None
    # Its kind and condition, without values; of Tidelake's own errors the first line.
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Give the record with instants as ISO 8601, its keys in the order of the table."""
        data = asdict(self)
        for name in ("started_at", "ended_at", "watermark"):
            data[name] = to_json(data[name])
        return data


class Sink:
    """A place that takes measures, called from one thread."""

    # What messages call it.
    name = ""

    def put(self, measured: Measured) -> None:
        """Take a batch, or a failure."""
        raise NotImplementedError

    def tick(self) -> None:
        """Do what is due from time to time."""

    def close(self) -> None:
        """Write what waits and let go."""


@dataclass
class ProgressTable(Sink):
    """A sink that collects batches and appends them once a minute, and when the run ends.

    No batch waits for it. A run that is killed takes the last minute with it: these are measures,
    not books.
    """

    run: Run
    keep: timedelta
    name: str = "ops.progress"
    _waiting: list[dict[str, Any]] = field(default_factory=list)
    _written: float = field(default_factory=time.monotonic)

    def put(self, measured: Measured) -> None:
        """Collect a batch."""
        self._waiting.append(measured.to_json())

    def tick(self) -> None:
        """Append what was collected, once a minute."""
        if time.monotonic() - self._written >= _SECONDS:
            self.close()

    def close(self) -> None:
        """Append what was collected."""
        self._written = time.monotonic()
        if not self._waiting:
            return
        rows, self._waiting = self._waiting, []
        spark, table = self.run.spark, self.run.lake.progress()
        # Hops may run in processes of their own, and each of them keeps its batches.
        with hold(self.run.lake.marks("ops"), table.name, waits=True, optional=True):
            stamp = {
                "pipeline": self.run.pipeline.name,
                "hop": "progress",
                "generation": FIRST_GENERATION,
            }
            moment = now()
            created = {**stamp, "batch": CREATION, "cleaned_at": moment.isoformat()}
            ensure_table(spark, table, from_ddl(spark, _DDL), created)
            last = last_commit(table)
            batch = last.batch + 1 if last else 0
            before = from_json(last.note.get("cleaned_at")) if last else None
            cleaned = self._cleaned(before, moment)
            note = {**stamp, "batch": batch, "cleaned_at": cleaned.isoformat()}
            append(from_records(spark, rows, _DDL), table, note)
            if is_due(batch):
                compact(spark, table)

    def _cleaned(self, before: datetime | None, moment: datetime) -> datetime:
        """Take out what is kept no longer, once a day."""
        if before is None or moment - before < _DAY:
            return before or moment
        table, until = self.run.lake.progress(), (moment - self.keep).isoformat()
        self.run.spark.sql(f"DELETE FROM {table.sql} WHERE ended_at < TIMESTAMP '{until}'")
        return moment


def kept_since(
    lake: Lake, pipeline: str, since: datetime, *, failed_since: datetime | None = None
) -> tuple[Measured, ...]:
    """Read a pipeline's batches since an instant (UTC), and failures since an earlier one.

    Oldest first; none where no run kept any.
    """
    progress = lake.progress()
    if not progress.exists:
        return ()
    # A name that a table may have holds nothing that would have to be quoted.
    name = lake.bronze(pipeline).bare
    kept, failed = (
        f"ended_at >= TIMESTAMPTZ '{at.isoformat()}'" for at in (since, failed_since or since)
    )
    try:
        found = ask(
            lake,
            f"SELECT {_COLUMNS} FROM {progress.name} WHERE pipeline = '{name}' "
            f"AND ({kept} OR error_class IS NOT NULL AND {failed}) ORDER BY ended_at, batch",
        )
    except UsageError:
        # A table that cannot be read takes the measures away, not what the logs tell.
        return ()
    maps = ("phases", "fates")
    return tuple(
        Measured(**{**row, **{name: row[name] or {} for name in maps}}) for row in found.as_dicts()
    )
