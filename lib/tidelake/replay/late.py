"""Apply events that came too late: sent again, they count however late they are."""

from __future__ import annotations

from datetime import date

from pyspark.sql import functions as F

from tidelake.replay.requeue import as_requeued, holding_silver, send, waiting
from tidelake.runtime.held import Held
from tidelake.runtime.hop import Run


def apply_late(run: Run, *, event_date: date | None = None) -> int:
    """Send the waiting late rows into silver again, past the lateness test.

    Args:
        run: What the command works with.
        event_date: Only the rows of this date.

    Returns:
        How many rows were requeued.

    Raises:
        UsageError: The pipeline has not run under this root.
        LockedError: A run of silver holds the hop.
    """
    with holding_silver(run, "late apply") as locked, Held() as keep:
        rows = waiting(run, run.lake.late(run.pipeline.name))
        if event_date is not None:
            rows = rows.where(F.col("event_date") == F.lit(event_date.isoformat()).cast("date"))
        chosen = keep(rows.select("record_id", "ingested_at"))
        expected = chosen.count()
        return send(locked, keep(as_requeued(run, chosen, "late")), expected=expected)
