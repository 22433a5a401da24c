"""Metrics of batches, written to the table ``ops.progress`` and served in Prometheus' format."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tidelake.config.standard_tables import PROGRESS_COLUMNS
from tidelake.delta.commit_metadata import FATES
from tidelake.delta.holders import BRIEF_WAIT_SECONDS, Waiting
from tidelake.delta.locks import hold
from tidelake.delta.log import commits, last_commit
from tidelake.delta.merge import delete_where
from tidelake.delta.tables import Lake
from tidelake.errors import TidelakeError, imported
from tidelake.instants import from_json, now
from tidelake.ledger.query import ask
from tidelake.runtime.schemas import append_records
from tidelake.visible import first_line

if TYPE_CHECKING:
    from tidelake.ledger.history import Backlog
    from tidelake.ops.alerts import Alert
    from tidelake.ops.status import SourceLag
    from tidelake.runtime.hop import Run

_SECONDS = 60.0
# How long the last append of a run waits for those of others: less than the run waits for it.
_LAST_WAIT_SECONDS = 25.0
# The most rows that wait for a table that cannot be written: hours of batches of a second.
_MOST_WAITING = 20_000
# Metadata key of an append: the id by which its writer recognizes it.
_MARK = "append"
_DAY = timedelta(days=1)
# How long a failed hop that has committed no batch since is reported.
FAILED_WITHIN = timedelta(days=7)
_DDL = ", ".join(f"`{name}` {kind}" for name, kind in PROGRESS_COLUMNS.items())
_COLUMNS = ", ".join(f'"{name}"' for name in PROGRESS_COLUMNS)
# Bounds of the histogram in seconds, from a tiny batch to one that is too large.
_BUCKETS = (0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_HOP = ("pipeline", "hop")
_ALL, _FATE = ("pipeline",), ("pipeline", "fate")


@dataclass(frozen=True)
class Measured:
    """Metrics of one batch of a hop, or of its failure: a row of ``ops.progress``.

    Or that a hop ended without a batch: then an earlier failure is over.

    Instants are in UTC; None is unknown or absent. ``docs/metrics.md`` explains each column.
    """

    pipeline: str
    hop: str
    generation: str
    # For a failure the batch that was running, -1 if none was; -1 also without a batch.
    batch: int
    run: str
    started_at: datetime
    ended_at: datetime
    seconds: float = 0.0
    interval_seconds: float | None = None
    # Tidelake's own count: Spark counts a source once per read.
    rows: int = 0
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None
    phases: Mapping[str, int] = field(default_factory=dict)
    checkpoint_seconds: float = 0.0
    # None for gold, whose state is its tables: counting their rows would read their whole log in
    # each batch.
    state_rows: int | None = None
    state_bytes: int | None = None
    waiting: int | None = None
    lag_seconds: float | None = None
    watermark: datetime | None = None
    event_time_lag_seconds: float | None = None
    watermark_age_seconds: float | None = None
    fates: Mapping[str, int] = field(default_factory=dict)
    limit: int | None = None
    error_class: str | None = None
    error: str | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the hop ended without a batch, since there was nothing to read."""
        return self.batch < 0 and self.error_class is None


class Sink:
    """A destination of batch metrics, called from one thread; messages contain its ``name``."""

    name = ""

    def starts(self, hop: str) -> None:
        """Note that the run has started a hop."""

    def put(self, measured: Measured) -> None:
        """Write the metrics of a batch or of a failure, or that a hop ended without a batch."""
        raise NotImplementedError

    def tick(self) -> None:
        """Do periodic work; called about once a second."""

    def close(self) -> None:
        """Flush and release resources."""


@dataclass
class ProgressTable(Sink):
    """Buffers metrics and appends them to ``ops.progress`` once a minute and when the run ends.

    It never delays a batch. A run that is killed loses the metrics of its last minute. Rows that
    could not be appended are kept for the next minute: a run may go on for weeks.
    """

    run: Run
    keep: timedelta
    name: str = "ops.progress"
    _waiting: list[dict[str, Any]] = field(default_factory=list)
    _written: float = field(default_factory=time.monotonic)
    _has_failed: bool = False

    def put(self, measured: Measured) -> None:
        """Buffer the metrics of a batch; of too many the oldest are dropped."""
        if measured.is_idle and measured.hop not in self._failed:
            # Most runs of a schedule may have nothing to read: they append nothing.
            return
        self._waiting.append(asdict(measured))
        del self._waiting[:-_MOST_WAITING]

    @cached_property
    def _failed(self) -> set[str]:
        """The hops of which the newest row, of an earlier run, is a failure."""
        since = now() - FAILED_WITHIN
        newest = newest_measures(self.run.lake, self.run.pipeline.name, since)
        return {hop for hop, one in newest.items() if one.error_class is not None}

    def tick(self) -> None:
        """Append the buffered rows, at most once a minute; print the first of several failures."""
        if time.monotonic() - self._written < _SECONDS:
            return
        try:
            self.close(BRIEF_WAIT_SECONDS)
        except Exception as error:
            if not self._has_failed:
                self.run.progress.say(
                    f"metrics: {self.name} could not be written: {first_line(error)}. "
                    "The run continues, keeps the rows, and tries again every minute."
                )
            self._has_failed = True
        else:
            self._has_failed = False

    def close(self, seconds: float = _LAST_WAIT_SECONDS) -> None:
        """Append the buffered rows, which are kept if that fails.

        Waits so many ``seconds`` for other processes that append to the table.
        """
        self._written = time.monotonic()
        if not self._waiting:
            return
        rows, spark, table = list(self._waiting), self.run.spark, self.run.lake.progress()
        # Hops may run in several processes, which all append to this table. A request to stop does
        # not end the wait: the metrics of the last minute are written after it.
        waits = Waiting(self.run.progress.say_once, seconds=seconds)
        with hold(self.run.lake.lock_of(table), table.name, waits=waits, optional=True):
            name, last = self.run.pipeline.name, last_commit(table)
            before = from_json(last.note.get("cleaned_at")) if last else None
            metadata = {
                "cleaned_at": self._cleaned(before, now()).isoformat(),
                _MARK: uuid.uuid4().hex,
            }
            try:
                append_records(
                    spark,
                    table,
                    rows,
                    _DDL,
                    newest=last,
                    pipeline=name,
                    hop="progress",
                    **metadata,
                )
            except Exception:
                # What follows the commit may have failed: its rows must not be appended again.
                newer = takewhile(
                    lambda one: not last or one.version > last.version, commits(table)
                )
                if any(one.note.get(_MARK) == metadata[_MARK] for one in newer):
                    del self._waiting[: len(rows)]
                raise
            del self._waiting[: len(rows)]

    def _cleaned(self, before: datetime | None, moment: datetime) -> datetime:
        """Delete rows older than ``keep`` once a day; return when that was last done."""
        if before is None or moment - before < _DAY:
            return before or moment
        table, until = self.run.lake.progress(), (moment - self.keep).isoformat()
        try:
            # In a catalog `tidelake maintain` compacts the table without its lock.
            delete_where(self.run.spark, table, f"q.ended_at < TIMESTAMP '{until}'")
        except Exception as error:
            self.run.progress.say(
                f"metrics: old rows of {self.name} could not be deleted: {first_line(error)}. "
                "The run continues, and tries again in a day."
            )
        return moment


def measures_since(
    lake: Lake, pipeline: str, since: datetime, *, failed_since: datetime | None = None
) -> tuple[Measured, ...]:
    """Read a pipeline's metrics since an instant (UTC), and its failures since an earlier one.

    With the failures the ends of runs without a batch, which resolve them. Oldest first; empty if
    no run wrote to ``ops.progress``, a TidelakeError if it cannot be read.
    """
    failed = f"(error_class IS NOT NULL OR batch < 0) AND {_ended_since(failed_since or since)}"
    where = f"({_ended_since(since)} OR {failed})"
    return _measures(lake, pipeline, "SELECT", where, "ended_at, batch")


def newest_measures(lake: Lake, pipeline: str, since: datetime) -> dict[str, Measured]:
    """Read the newest metrics, or failure, of each hop since an instant (UTC).

    Empty also if ``ops.progress`` cannot be read: other reports still have the logs.
    """
    select, order = "SELECT DISTINCT ON (hop)", "hop, ended_at DESC, batch DESC"
    try:
        found = _measures(lake, pipeline, select, _ended_since(since), order)
    except TidelakeError:
        return {}
    return {one.hop: one for one in found}


def _ended_since(instant: datetime) -> str:
    return f"ended_at >= TIMESTAMPTZ '{instant.isoformat()}'"


def _measures(
    lake: Lake, pipeline: str, select: str, where: str, order: str
) -> tuple[Measured, ...]:
    progress = lake.progress()
    if not progress.exists:
        return ()
    # A valid table name contains no character that needs quoting.
    found = ask(
        lake,
        f"{select} {_COLUMNS} FROM {progress.name} "
        f"WHERE pipeline = '{lake.bronze(pipeline).bare}' AND {where} ORDER BY {order}",
    )
    return tuple(
        Measured(**row | {"phases": row["phases"] or {}, "fates": row["fates"] or {}})
        for row in found.as_dicts()
    )


class Exported(NamedTuple):
    """A metric: its kind, its help text and its labels."""

    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = _HOP


_counter, _gauge = partial(Exported, "counter"), partial(Exported, "gauge")
_METRICS = {
    "hop_rows_total": _counter("Rows that the hop read."),
    "hop_batches_total": _counter("Batches that the hop closed."),
    "hop_failures_total": _counter("Errors that stopped the hop, by kind.", (*_HOP, "error")),
    "hop_batch_seconds": Exported("histogram", "Seconds of a batch, from trigger to checkpoint."),
    "hop_phase_seconds": _gauge("Seconds of the last batch by Spark's phase.", (*_HOP, "phase")),
    "hop_checkpoint_seconds": _gauge("Seconds of the last batch that its checkpoint took."),
    "hop_interval_seconds": _gauge("Seconds that a batch may take; absent if the run has an end."),
    "hop_input_rows_per_second": _gauge("Rows of a batch per second since the previous one."),
    "hop_processed_rows_per_second": _gauge("Rows of the last batch per second of its duration."),
    "hop_batch_limit": _gauge("The largest input of a batch: bytes, or records of a topic."),
    "hop_last_batch": _gauge("Number of the last batch."),
    "hop_last_batch_timestamp_seconds": _gauge("End of the last batch, in seconds since 1970."),
    "hop_waiting": _gauge("Input that the hop has not read: rows; for bronze files or records."),
    "hop_lag_seconds": _gauge("Seconds that the oldest input has waited; unknown for a topic."),
    "hop_state_rows": _gauge("Silver's state: ids that the last batch was compared with."),
    "hop_state_bytes": _gauge("Bytes of Spark's state store, with dedup.prefilter: operator."),
    "silver_rows_total": _counter("Rows by their fate.", _FATE),
    "silver_fate_ratio": _gauge("Part of the last batch's rows by their fate, 0 to 1.", _FATE),
    "watermark_timestamp_seconds": _gauge("Silver's watermark, in seconds since 1970.", _ALL),
    "event_time_lag_seconds": _gauge("Seconds from the watermark to the end of the batch.", _ALL),
    "watermark_age_seconds": _gauge("Seconds since the watermark last moved in this run.", _ALL),
    "alert_open": _gauge("1 for each open alert.", ("pipeline", "hop", "rule", "severity")),
}
# By metric name; a histogram's series end in _bucket, _sum, _count.
EXPORTED: Mapping[str, Exported] = {f"tidelake_{name}": one for name, one in _METRICS.items()}
# Gauges of a hop by the field of Measured with their value; most have the same name.
_GAUGES = {"limit": "hop_batch_limit", "batch": "hop_last_batch"} | {
    one.name: f"hop_{one.name}" for one in fields(Measured) if f"hop_{one.name}" in _METRICS
}


def library() -> Any:
    """Import the Prometheus client; a MachineError says how to install it."""
    what = "prometheus-client, which metrics.prometheus needs,"
    (prometheus_client,) = imported(what, "prometheus_client", extra="metrics")
    # Creation-time series would double the number of series.
    prometheus_client.disable_created_metrics()
    return prometheus_client


class MetricRegistry(Sink):
    """The Prometheus metrics of one run."""

    name = "Prometheus"

    def __init__(self, pipeline: str) -> None:
        """Register all metrics; each is exported once it has a value."""
        self._pipeline = pipeline
        # The labels of the alerts that are open.
        self._opened: set[tuple[str, str, str, str]] = set()
        # The phases of each hop that are exported.
        self._phases: defaultdict[str, set[str]] = defaultdict(set)
        client = library()
        self.collected = client.CollectorRegistry()
        histogram = partial(client.Histogram, buckets=_BUCKETS)
        make = {"counter": client.Counter, "gauge": client.Gauge, "histogram": histogram}
        self._metrics: dict[str, Any] = {
            name: make[one.kind](name, one.meaning, one.labels, registry=self.collected)
            for name, one in EXPORTED.items()
        }

    def starts(self, hop: str) -> None:
        """Export a hop's counts as 0 from the start: the rate of its first batch counts, too."""
        for name in ("hop_rows_total", "hop_batches_total", "hop_batch_seconds"):
            self._of(name, pipeline=self._pipeline, hop=hop)
        for fate in FATES if hop == "silver" else ():
            self._of("silver_rows_total", pipeline=self._pipeline, fate=fate)

    def put(self, measured: Measured) -> None:
        """Record the metrics of a batch or of a failure."""
        if measured.is_idle:
            return
        labels = {"pipeline": measured.pipeline, "hop": measured.hop}
        if measured.error_class is not None:
            self._of("hop_failures_total", **labels, error=measured.error_class).inc()
            return
        self._of("hop_rows_total", **labels).inc(measured.rows)
        self._of("hop_batches_total", **labels).inc()
        self._of("hop_batch_seconds", **labels).observe(measured.seconds)
        # Spark reports only the phases that a batch had; and none of some batches.
        absent = dict.fromkeys(self._phases[measured.hop], 0) if measured.phases else {}
        for phase, milliseconds in {**absent, **measured.phases}.items():
            self._set("hop_phase_seconds", milliseconds / 1000, **labels, phase=phase)
            self._phases[measured.hop].add(phase)
        for field_name, gauge in _GAUGES.items():
            self._set(gauge, getattr(measured, field_name), **labels)
        self._set("hop_last_batch_timestamp_seconds", measured.ended_at.timestamp(), **labels)
        if measured.hop != "silver":
            return
        del labels["hop"]
        if mark := measured.watermark:
            self._set("watermark_timestamp_seconds", mark.timestamp(), **labels)
        self._set("event_time_lag_seconds", measured.event_time_lag_seconds, **labels)
        self._set("watermark_age_seconds", measured.watermark_age_seconds, **labels)
        rows = sum(measured.fates.values())
        for fate, count in measured.fates.items():
            self._of("silver_rows_total", **labels, fate=fate).inc(count)
            self._set("silver_fate_ratio", count / rows if rows else None, **labels, fate=fate)

    def show(
        self, alerts: Sequence[Alert], waiting: Sequence[Backlog], lag: SourceLag | None = None
    ) -> None:
        """Export the current open alerts, and the backlogs and a topic's lag between batches."""
        at = now()
        for backlog in waiting:
            labels = {"pipeline": self._pipeline, "hop": backlog.hop}
            self._set("hop_waiting", backlog.waiting, **labels)
            self._set("hop_lag_seconds", backlog.seconds(at), **labels)
        # Without an answer of the broker, the gauge keeps the value of the last batch.
        if lag is not None and not lag.not_asked:
            self._set("hop_waiting", lag.lag, pipeline=self._pipeline, hop="bronze")
        gauge, before = self._metrics["tidelake_alert_open"], self._opened
        self._opened = {(one.pipeline, one.hop or "", one.rule, one.severity) for one in alerts}
        for opened in self._opened:
            gauge.labels(*opened).set(1)
        # Not cleared first: a scrape in between would find no open alert.
        for closed in before - self._opened:
            gauge.remove(*closed)

    def _set(self, name: str, value: float | None, **labels: str) -> None:
        """Set a gauge; an unknown value leaves it unchanged."""
        if value is not None:
            self._of(name, **labels).set(value)

    def _of(self, name: str, **labels: str) -> Any:
        return self._metrics[f"tidelake_{name}"].labels(**labels)


@contextmanager
def served(registry: MetricRegistry, address: str) -> Iterator[int]:
    """Serve ``/metrics`` at ``host:port`` and yield the port; an OSError if it is in use."""
    host, _, port = address.rpartition(":")
    server, thread = library().start_http_server(
        int(port), addr=host.strip("[]"), registry=registry.collected
    )
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
