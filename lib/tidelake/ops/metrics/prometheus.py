"""Let Prometheus read what batches cost, at ``/metrics`` while a run goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tidelake.errors import MachineError
from tidelake.instants import now
from tidelake.ops.alerts.alert import Alert
from tidelake.ops.backlogs import Backlog
from tidelake.ops.metrics.table import Measured, Sink

# From a batch of a few rows to one that should have been cut.
_BUCKETS = (0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_HOP = ("pipeline", "hop")
# Named as the measures of a batch are.
_GAUGES = (
    "checkpoint_seconds",
    "interval_seconds",
    "input_rows_per_second",
    "processed_rows_per_second",
    "waiting",
    "lag_seconds",
    "state_rows",
    "state_bytes",
)


class Exported(NamedTuple):
    """A metric: its kind, what it counts in a sentence, its labels."""

    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = _HOP


# By the name under which Prometheus finds it; a histogram's series end in _bucket, _sum, _count.
EXPORTED: Mapping[str, Exported] = {
    "tidelake_hop_rows_total": Exported("counter", "Rows that the hop took in."),
    "tidelake_hop_batches_total": Exported("counter", "Batches that it closed."),
    "tidelake_hop_failures_total": Exported(
        "counter", "Errors that stopped it, by the kind of the error.", (*_HOP, "error")
    ),
    "tidelake_hop_batch_seconds": Exported(
        "histogram", "Seconds from the trigger of a batch to the end of its checkpoint."
    ),
    "tidelake_hop_phase_seconds": Exported(
        "gauge", "Seconds of the last batch by phase, in Spark's names.", (*_HOP, "phase")
    ),
    "tidelake_hop_checkpoint_seconds": Exported(
        "gauge", "Seconds of the last batch that the writes into its checkpoint took."
    ),
    "tidelake_hop_interval_seconds": Exported(
        "gauge", "Seconds that a batch may take; absent in a run that ends by itself."
    ),
    "tidelake_hop_input_rows_per_second": Exported(
        "gauge", "Rows of the last batch against the time since the batch before it began."
    ),
    "tidelake_hop_processed_rows_per_second": Exported(
        "gauge", "Rows of the last batch against its own time."
    ),
    "tidelake_hop_batch_limit": Exported(
        "gauge", "What a batch takes at most: bytes of its input, for bronze records of a topic."
    ),
    "tidelake_hop_last_batch": Exported("gauge", "Number of the last batch."),
    "tidelake_hop_last_batch_timestamp_seconds": Exported(
        "gauge", "When the last batch was over, in seconds since 1970."
    ),
    "tidelake_hop_waiting": Exported(
        "gauge", "What waits for the hop after its last batch: rows, for bronze files or records."
    ),
    "tidelake_hop_lag_seconds": Exported(
        "gauge", "Seconds that the oldest of it has waited; of a topic it is not known."
    ),
    "tidelake_hop_state_rows": Exported(
        "gauge", "Rows of silver's state: accepted ids that the last batch was compared with."
    ),
    "tidelake_hop_state_bytes": Exported(
        "gauge", "Bytes of Spark's state store; present with dedup.prefilter: operator."
    ),
    "tidelake_silver_rows_total": Exported("counter", "Rows by their fate.", ("pipeline", "fate")),
    "tidelake_silver_fate_ratio": Exported(
        "gauge", "Part of the last batch's rows by their fate, 0 to 1.", ("pipeline", "fate")
    ),
    "tidelake_watermark_timestamp_seconds": Exported(
        "gauge", "Silver's watermark, in seconds since 1970.", ("pipeline",)
    ),
    "tidelake_event_time_lag_seconds": Exported(
        "gauge", "Seconds that the watermark trails the end of the last batch.", ("pipeline",)
    ),
    "tidelake_watermark_age_seconds": Exported(
        "gauge", "Seconds since the watermark last moved, as far as this run saw.", ("pipeline",)
    ),
    "tidelake_alert_open": Exported(
        "gauge", "1 for each alert that is open.", ("pipeline", "hop", "rule", "severity")
    ),
}


def library() -> Any:
    """Load the client.

    Raises:
        MachineError: It is not installed.
    """
    try:
        import prometheus_client  # noqa: PLC0415  only where a run is measured
    except ImportError as error:
        raise MachineError(
            "metrics.prometheus needs prometheus-client. "
            "Install it with: pip install 'tidelake[metrics]'"
        ) from error
    # When a series began is of no use to Prometheus, and doubles what it reads.
    disable: Any = prometheus_client.disable_created_metrics
    disable()
    return prometheus_client


class MetricRegistry(Sink):
    """The metrics of one run, in the client's own registry."""

    name = "Prometheus"

    def __init__(self, pipeline: str) -> None:
        """Make all metrics; each shows once it has a value."""
        self._pipeline = pipeline
        client = library()
        self.collected = client.CollectorRegistry()
        self._metrics: dict[str, Any] = {}
        make = {"counter": client.Counter, "gauge": client.Gauge, "histogram": client.Histogram}
        for name, one in EXPORTED.items():
            more = {"buckets": _BUCKETS} if one.kind == "histogram" else {}
            self._metrics[name] = make[one.kind](
                name, one.meaning, one.labels, registry=self.collected, **more
            )

    def put(self, measured: Measured) -> None:
        """Take a batch, or a failure."""
        place = {"pipeline": measured.pipeline, "hop": measured.hop}
        if measured.error_class is not None:
            self._of("hop_failures_total", **place, error=measured.error_class).inc()
            return
        self._of("hop_rows_total", **place).inc(measured.rows)
        self._of("hop_batches_total", **place).inc()
        self._of("hop_batch_seconds", **place).observe(measured.seconds)
        for phase, milliseconds in measured.phases.items():
            self._set("hop_phase_seconds", milliseconds / 1000, **place, phase=phase)
        for name in _GAUGES:
            self._set(f"hop_{name}", getattr(measured, name), **place)
        self._set("hop_batch_limit", measured.limit, **place)
        self._set("hop_last_batch", measured.batch, **place)
        self._set("hop_last_batch_timestamp_seconds", measured.ended_at.timestamp(), **place)
        if measured.hop != "silver":
            return
        place = {"pipeline": measured.pipeline}
        mark = measured.watermark
        self._set("watermark_timestamp_seconds", mark.timestamp() if mark else None, **place)
        self._set("event_time_lag_seconds", measured.event_time_lag_seconds, **place)
        self._set("watermark_age_seconds", measured.watermark_age_seconds, **place)
        rows = sum(measured.fates.values())
        for fate, count in measured.fates.items():
            self._of("silver_rows_total", **place, fate=fate).inc(count)
            self._set("silver_fate_ratio", count / rows if rows else None, **place, fate=fate)

    def tell(self, alerts: Sequence[Alert], waiting: Sequence[Backlog]) -> None:
        """Show the alerts that are open, and no other; and what waits also between batches."""
        at = now()
        for backlog in waiting:
            place = {"pipeline": self._pipeline, "hop": backlog.hop}
            self._set("hop_waiting", backlog.waiting, **place)
            self._set("hop_lag_seconds", backlog.seconds(at), **place)
        opened = self._metrics["tidelake_alert_open"]
        opened.clear()
        for one in alerts:
            opened.labels(one.pipeline, one.hop or "", one.rule, one.severity).set(1)

    def _set(self, name: str, value: float | None, **labels: str) -> None:
        """Set a gauge; one that a batch does not know stays as it was."""
        if value is not None:
            self._of(name, **labels).set(value)

    def _of(self, name: str, **labels: str) -> Any:
        return self._metrics[f"tidelake_{name}"].labels(**labels)


class Served:
    """Answers at ``/metrics`` until the run ends."""

    def __init__(self, registry: MetricRegistry, address: str) -> None:
        """Begin to answer.

        Raises:
            OSError: The address is taken, or is not one of this machine.
        """
        host, _, port = address.rpartition(":")
        started = library().start_http_server(
            int(port), addr=host.strip("[]"), registry=registry.collected
        )
        self._server, self._thread = started
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
