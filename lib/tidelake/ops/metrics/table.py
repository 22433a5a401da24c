"""Keep what batches cost in ``ops.progress``: a commit a minute, none that a batch waits for."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import functions as F

from tidelake.config.standard import PROGRESS_COLUMNS
from tidelake.delta.append import append, ensure_table
from tidelake.delta.locks import hold
from tidelake.delta.log import CREATION, FIRST_GENERATION, last_commit
from tidelake.delta.merge import compact, is_due
from tidelake.instants import from_json, now
from tidelake.ops.metrics.measured import Measured
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import from_ddl

_SECONDS = 60.0
_DAY = timedelta(days=1)
_DDL = ", ".join(f"`{name}` {kind}" for name, kind in PROGRESS_COLUMNS.items())
_STRUCT = ", ".join(f"`{name}`: {kind}" for name, kind in PROGRESS_COLUMNS.items())


@dataclass
class ProgressTable:
    """Collects batches and appends them once a minute, and when the run ends.

    A run that is killed takes the last minute with it: these are measures, not books.

    Attributes:
        run: What the run works with.
        keep: How long a batch is kept.
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
            self._append()

    def close(self) -> None:
        """Append what is left."""
        self._append()

    def _append(self) -> None:
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
            cleaned = from_json(last.note.get("cleaned_at")) if last else None
            cleaned = self._cleaned(cleaned, moment)
            note = {**stamp, "batch": batch, "cleaned_at": cleaned.isoformat()}
            # As text, which Spark parses: a list of Python rows would go through a Python worker.
            text = F.lit(json.dumps(rows))
            parsed = F.inline(F.from_json(text, f"array<struct<{_STRUCT}>>"))
            append(spark.range(1).select(parsed), table, note)
            if is_due(batch):
                compact(spark, table)

    def _cleaned(self, before: datetime | None, moment: datetime) -> datetime:
        """Take out what is kept no longer, once a day."""
        if before is None or moment - before < _DAY:
            return before or moment
        table, until = self.run.lake.progress(), (moment - self.keep).isoformat()
        self.run.spark.sql(f"DELETE FROM {table.sql} WHERE ended_at < TIMESTAMP '{until}'")
        return moment
