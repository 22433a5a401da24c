"""When somebody is told that a pipeline needs a look."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from tidelake.config.durations import PositiveDuration
from tidelake.config.model import Model

Seconds = Annotated[float, Field(strict=True, gt=0)]
Rate = Annotated[float, Field(strict=True, ge=0, le=1)]


class Alerts(Model):
    """The limits of the alert rules; ``null`` turns a rule off.

    Attributes:
        lag_seconds: How long something may wait for a hop while no less comes than is taken.
        latency_seconds: How long a record may take from bronze into gold.
        watermark_stuck: How long batches may bring rows without the watermark moving.
        batch_over_interval: How long a hop's batches may take longer than their interval.
        quarantine_rate: Part of the rows that may be quarantined.
        late_rate: Part of the rows that may be too late.
        stale: How long no batch may be closed.
        checkpoint_failing: How long a batch may be in the tables and not closed in its checkpoint.
    """

    lag_seconds: Seconds | None = 300.0
    latency_seconds: Seconds | None = None
    watermark_stuck: PositiveDuration | None = timedelta(minutes=10)
    batch_over_interval: PositiveDuration | None = timedelta(minutes=5)
    quarantine_rate: Rate | None = 0.02
    late_rate: Rate | None = 0.05
    stale: PositiveDuration | None = timedelta(days=1)
    checkpoint_failing: PositiveDuration | None = timedelta(minutes=5)
