"""What is known of one batch of a hop, and the row of ``ops.progress`` that keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from tidelake.instants import to_json


@dataclass(frozen=True)
class Measured:
    """One batch of a hop; a row of ``ops.progress``.

    Attributes:
        pipeline: Whose.
        hop: Which arrow.
        generation: Of the hop's tables.
        batch: The batch; of a failure the one that was open, -1 where none was.
        run: The run that did it: one process from start to end.
        started_at: When its trigger fired (UTC).
        ended_at: When it was over, checkpoint and all (UTC).
        seconds: From the one to the other.
        interval_seconds: How long a batch may take; None in a run that ends by itself.
        rows: What the hop took in, by our own count: Spark's counts a source once a read.
        input_rows_per_second: Against the time since the batch before it began; None for a run's
            first batch.
        processed_rows_per_second: Against ``seconds``.
        phases: Milliseconds by phase, in Spark's names: ``addBatch``, ``walCommit`` and so on.
        checkpoint_seconds: What the two writes into the checkpoint took.
        state_rows: Accepted ids that silver compared with, and those that a prefilter's operator
            holds; None for bronze, which has no state, and for gold, whose tables are its state:
            to count them would cost each batch a look at all of their log.
        state_bytes: Of the operator's state store; None without one.
        waiting: What waits for the hop: rows, for bronze files or records; None where unknown.
        lag_seconds: How long the oldest of it has waited; 0 where nothing does.
        watermark: Of silver after the batch; of gold that of the silver it holds (UTC).
        event_time_lag_seconds: How far the watermark trails ``ended_at``.
        watermark_age_seconds: How long ago it last moved.
        fates: Rows of a batch of silver by their fate.
        limit: What the batch took at most, in the hop's own unit; None for no limit.
        error_class: What stopped the hop, by its kind; None for a batch that was closed.
        error: Its kind and condition, without values; of Tidelake's own errors the first line.
    """

    pipeline: str
    hop: str
    generation: str
    batch: int
    run: str
    started_at: datetime
    ended_at: datetime
    seconds: float = 0.0
    interval_seconds: float | None = None
    rows: int = 0
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None
    phases: Mapping[str, int] = field(default_factory=dict)
    checkpoint_seconds: float = 0.0
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

    def to_json(self) -> dict[str, Any]:
        """Give the record with instants as ISO 8601, its keys in the order of the table."""
        data = asdict(self)
        for name in ("started_at", "ended_at", "watermark"):
            data[name] = to_json(data[name])
        return data
