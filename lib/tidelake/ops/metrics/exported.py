"""Each metric that Prometheus may read: its name, what it counts, in which unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
_HOP = ("pipeline", "hop")


@dataclass(frozen=True)
class Exported:
    """A metric.

    Attributes:
        kind: Counters start at 0 with each run; Prometheus knows how to take that.
        meaning: In a sentence.
        labels: Its labels.
    """

    kind: Kind
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
