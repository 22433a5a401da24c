"""Say what a backfill would read and how long that took when it came in; nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import median

from tidelake.config import Pipeline
from tidelake.delta.log import Commit, newest_version
from tidelake.delta.notes import SilverNote
from tidelake.delta.tables import Hop, Lake, Table
from tidelake.errors import UsageError
from tidelake.ops.books import history
from tidelake.ops.query import ask
from tidelake.replay.backfill.green import Start, green_lake

# Commits further apart did not follow one another in a run.
_ONE_RUN = timedelta(minutes=5)


@dataclass(frozen=True)
class Step:
    """One hop of a backfill.

    Attributes:
        hop: Which.
        reads: The table.
        version: As of which version.
        rows: How many rows.
        fills: The tables.
        rate: Rows a second that the live hop took, by its newest batches; None: not known.
    """

    hop: Hop
    reads: str
    version: int
    rows: int
    fills: tuple[str, ...]
    rate: float | None

    @property
    def seconds(self) -> float | None:
        """How long it may take."""
        return None if not self.rate else self.rows / self.rate


def plan(lake: Lake, pipeline: Pipeline, start: Start) -> list[Step]:
    """List the hops of a backfill.

    Raises:
        UsageError: The pipeline has not run under this root.
    """
    name = pipeline.name
    bronze, silver = lake.bronze(name), lake.silver(name)
    source = bronze if start == "bronze" else silver
    if not source.exists:
        raise UsageError(f"{source.name} does not exist yet. Fill it with: tidelake run {name}")
    own = green_lake(lake, pipeline, start).own
    closing = history(lake, silver) if silver.exists else []
    taken = [sum(SilverNote.of(commit).taken.values()) for commit in closing]
    steps = []
    rows = _rows(lake, source)
    if start == "bronze":
        fills = tuple(sorted(table for table in own if table.startswith("silver.")))
        rate = _rate(closing, taken)
        steps.append(Step("silver", bronze.name, newest_version(bronze), rows, fills, rate))
        rows = _rows(lake, silver) if silver.exists else rows
    gold = lake.table(pipeline.gold_names[0])
    merged = history(lake, gold) if gold.exists else []
    rate = _rate(merged, [int(commit.note.get("rows", 0)) for commit in merged])
    version = newest_version(silver)
    steps.append(Step("gold", silver.name, version, rows, pipeline.gold_names, rate))
    return steps


def _rows(lake: Lake, table: Table) -> int:
    return int(ask(lake, f"SELECT count(*) FROM {table.name}").rows[0][0])


def _rate(newest_first: Sequence[Commit], rows: Sequence[int]) -> float | None:
    """Take the median of what batches did in a second, from one commit to the next."""
    rates = []
    for later, earlier, count in zip(newest_first, newest_first[1:], rows, strict=False):
        apart = later.written_at - earlier.written_at
        if count and timedelta(0) < apart < _ONE_RUN:
            rates.append(count / apart.total_seconds())
    return median(rates) if rates else None
