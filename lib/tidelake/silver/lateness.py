"""Classify events by lateness, before anything downstream could drop them.

Spark's own late filter drops rows without a trace; here every row leaves with a verdict. The
watermark is the one before the batch: a batch never makes its own rows late.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidelake.columns import instant

Lateness = Literal["on_time", "late", "too_late"]
TOO_LATE: Lateness = "too_late"


def marked(watermark: datetime | None) -> Column:
    """Write a watermark as a column."""
    return F.lit(None).cast("timestamp") if watermark is None else instant(watermark)


def lateness(watermark: Column, allowed: timedelta) -> Column:
    """Give the lateness verdict of ``event_time``.

    Args:
        watermark: Committed with the batch before; null before the first.
        allowed: How far behind the watermark an event may still change gold.
    """
    event_time = F.col("event_time")
    return (
        F.when(watermark.isNull() | (event_time >= watermark), "on_time")
        .when(event_time >= watermark - F.lit(allowed), "late")
        .otherwise(TOO_LATE)
    )
