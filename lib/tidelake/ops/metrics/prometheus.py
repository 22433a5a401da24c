"""Let Prometheus read what batches cost: at ``/metrics`` while a run goes on, or from a file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidelake.errors import MachineError
from tidelake.instants import now
from tidelake.ops.alerts.alert import Alert
from tidelake.ops.backlogs import Backlog
from tidelake.ops.metrics.exported import EXPORTED
from tidelake.ops.metrics.measured import Measured

# From a batch of a few rows to one that should have been cut.
_BUCKETS = (0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
# Between two versions of a textfile.
_SECONDS = 60.0


def library() -> Any:
    """Load the client.

    Raises:
        MachineError: It is not installed.
    """
    try:
        import prometheus_client  # noqa: PLC0415  only where a run is measured
    except ImportError as error:
        raise MachineError(
            "metrics.prometheus and metrics.textfile need prometheus-client. "
            "Install it with: pip install 'tidelake[metrics]'"
        ) from error
    # When a series began is of no use to Prometheus, and doubles what it reads.
    disable: Any = prometheus_client.disable_created_metrics
    disable()
    return prometheus_client


class Registry:
    """The metrics of one run, in the client's own registry."""

    name = "Prometheus"

    def __init__(self, pipeline: str) -> None:
        """Make all metrics; each shows once it has a value."""
        self._pipeline = pipeline
        client = library()
        self.collected = client.CollectorRegistry()
        self._metrics: dict[str, Any] = {}
        for name, one in EXPORTED.items():
            more: dict[str, Any] = {"registry": self.collected}
            if one.kind == "histogram":
                more["buckets"] = _BUCKETS
            make = {
                "counter": client.Counter,
                "gauge": client.Gauge,
                "histogram": client.Histogram,
            }[one.kind]
            self._metrics[name] = make(name, one.meaning, one.labels, **more)

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
            self._of("hop_phase_seconds", **place, phase=phase).set(milliseconds / 1000)
        self._set(
            place,
            hop_checkpoint_seconds=measured.checkpoint_seconds,
            hop_interval_seconds=measured.interval_seconds,
            hop_input_rows_per_second=measured.input_rows_per_second,
            hop_processed_rows_per_second=measured.processed_rows_per_second,
            hop_batch_limit=measured.limit,
            hop_last_batch=measured.batch,
            hop_last_batch_timestamp_seconds=measured.ended_at.timestamp(),
            hop_waiting=measured.waiting,
            hop_lag_seconds=measured.lag_seconds,
            hop_state_rows=measured.state_rows,
            hop_state_bytes=measured.state_bytes,
        )
        if measured.hop == "silver":
            self._put_silver(measured)

    def tell(self, alerts: Sequence[Alert], waiting: Sequence[Backlog]) -> None:
        """Show the alerts that are open, and no other; and what waits also between batches."""
        at = now()
        for backlog in waiting:
            place = {"pipeline": self._pipeline, "hop": backlog.hop}
            self._set(place, hop_waiting=backlog.waiting, hop_lag_seconds=backlog.seconds(at))
        opened = self._metrics["tidelake_alert_open"]
        opened.clear()
        for one in alerts:
            opened.labels(one.pipeline, one.hop or "", one.rule, one.severity).set(1)

    def tick(self) -> None:
        """Have nothing to do: Prometheus asks by itself."""

    def close(self) -> None:
        """Hold nothing open."""

    def _put_silver(self, measured: Measured) -> None:
        mark = measured.watermark
        self._set(
            {"pipeline": measured.pipeline},
            watermark_timestamp_seconds=mark.timestamp() if mark else None,
            event_time_lag_seconds=measured.event_time_lag_seconds,
            watermark_age_seconds=measured.watermark_age_seconds,
        )
        rows = sum(measured.fates.values())
        for fate, count in measured.fates.items():
            place = {"pipeline": measured.pipeline, "fate": fate}
            self._of("silver_rows_total", **place).inc(count)
            self._set(place, silver_fate_ratio=count / rows if rows else None)

    def _set(self, place: dict[str, str], **values: float | None) -> None:
        for name, value in values.items():
            if value is not None:
                self._of(name, **place).set(value)

    def _of(self, name: str, **labels: str) -> Any:
        return self._metrics[f"tidelake_{name}"].labels(**labels)


class Served:
    """Answers at ``/metrics`` until the run ends."""

    def __init__(self, registry: Registry, address: str) -> None:
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


class Textfile:
    """Writes all metrics into a file that node-exporter's textfile collector reads.

    The file appears whole, each minute and when the run ends, and stays.
    """

    name = "the textfile"

    def __init__(self, registry: Registry, folder: Path, name: str) -> None:
        """Keep what is written and where."""
        self._registry = registry
        self._file = folder / f"{name}.prom"
        self._written = time.monotonic()

    def put(self, measured: Measured) -> None:
        """Have nothing to do: the registry takes it."""

    def tick(self) -> None:
        """Write now and then: a run may go on for weeks."""
        if time.monotonic() - self._written >= _SECONDS:
            self.close()

    def close(self) -> None:
        """Write what is known."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        library().write_to_textfile(str(self._file), self._registry.collected)
        self._written = time.monotonic()
