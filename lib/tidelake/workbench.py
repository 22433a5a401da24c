"""Run, verify and rebuild a pipeline's tables in a notebook, with Spark.

A module of its own because it imports Spark, which reading the tables does not need.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, get_args

import pandas as pd

from tidelake.config import Environment, Pipeline
from tidelake.delta.tables import HOPS, Hop, Lake
from tidelake.errors import UsageError
from tidelake.replay.backfill import build, plan
from tidelake.replay.backfill_promotion import need_promotable, promote, rollback
from tidelake.replay.backfill_state import Start
from tidelake.replay.differences import differences
from tidelake.replay.verify import verify
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.session import active_session, build_session, reads_of, starts_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelake.replay.compare import TableComparison

# A setting of the sessions that workbenches started: the next bench finds them active.
_STARTED_HERE = "spark.tidelake.workbench"


@dataclass(frozen=True)
class Workbench:
    """A pipeline and its Spark session; a ``borrowed`` session is not stopped.

    All workbenches of a process share the session that the first one started. Closing one of them
    stops it for all; their methods then raise a UsageError.
    """

    context: Run
    borrowed: bool

    @staticmethod
    def of(environment: Environment, lake: Lake, pipeline: Pipeline) -> Workbench:
        """Use the active session, such as the notebook's, or start one."""
        spark = active_session()
        # The session of a managed runtime is the notebook's, also if it is not active here; and
        # serverless compute refuses settings that it does not know.
        may_own = starts_spark(environment)
        if spark is None:
            spark = build_session(environment, reads=reads_of(pipeline))
            if may_own:
                spark.conf.set(_STARTED_HERE, "true")
        borrowed = not may_own or spark.conf.get(_STARTED_HERE, None) is None
        progress = Progress(lambda line: print(line, file=sys.stderr, flush=True))
        return Workbench(Run(spark, pipeline, lake, environment, progress), borrowed)

    def run(self, hops: Sequence[Hop] = HOPS) -> None:
        """Run hops until the source is exhausted.

        Unlike ``tidelake run``, this publishes no changes and writes no metrics.
        """
        run_hops(self._running(), hops, parse_trigger(AVAILABLE_NOW))

    def verify(self) -> pd.DataFrame:
        """Recompute every table and compare row by row; return one row per table."""
        found = verify(self._running())
        return _compared({check.table.name: check.comparison for check in found.tables})

    def plan(self, start: Start = "bronze") -> pd.DataFrame:
        """Return what a rebuild would read and fill, one row per step.

        Raises:
            UsageError: ``start`` is no layer that a rebuild reads.
        """
        _refuse_other(start)
        steps = plan(self.context.lake, self.context.pipeline, start)
        return pd.DataFrame([asdict(step) | {"seconds": step.seconds} for step in steps])

    def build(
        self,
        start: Start = "bronze",
        *,
        first: datetime | None = None,
        last: datetime | None = None,
    ) -> None:
        """Fill green tables next to the live ones.

        Args:
            start: The layer to read.
            first: With ``start="silver"``: compute only gold rows that begin here (UTC) or later.
            last: The exclusive end of this range.

        Raises:
            UsageError: ``start`` is no such layer, or the range has only one end, or is empty.
        """
        _refuse_other(start)
        if (first is None) is not (last is None) or (first and last and first >= last):
            raise UsageError("a range needs first and a later last; omit both to rebuild all.")
        build(self._running(), start, (first, last) if first and last else None)

    def compare(self) -> pd.DataFrame:
        """Return what a promotion would change, one row per gold table."""
        run = self._running()
        state = need_promotable(run.lake, run.pipeline, ["built"])
        return _compared(differences(run, state).gold)

    def promote(self) -> None:
        """Replace the live tables with the green ones."""
        promote(self._running())

    def rollback(self) -> None:
        """Restore the content from before the promotion."""
        rollback(self._running())

    def close(self) -> None:
        """Stop Spark, unless the session is borrowed."""
        if not self.borrowed:
            self.context.spark.stop()

    def _running(self) -> Run:
        """Return the run; raise a UsageError if its session was stopped."""
        if _is_stopped(self.context.spark):
            name = self.context.pipeline.name
            raise UsageError(
                f"the workbench of {name} is closed: its Spark session was stopped. "
                f'Open another with: lake.workbench("{name}")'
            )
        return self.context


def _is_stopped(spark: SparkSession) -> bool:
    # Sessions of Spark Connect have a test; of others, a stopped context has no properties.
    found = getattr(spark, "is_stopped", None)
    return bool(found) if found is not None else not hasattr(spark.sparkContext, "startTime")


def _refuse_other(start: str) -> None:
    if start not in get_args(Start):
        raise UsageError(
            f'a rebuild cannot start from "{start}". Write start="bronze", which rebuilds silver '
            'and gold, or start="silver", which rebuilds gold.'
        )


def _compared(found: Mapping[str, TableComparison]) -> pd.DataFrame:
    rows = [(name, diff.equal, diff.rows, diff.differing) for name, diff in found.items()]
    return pd.DataFrame(rows, columns=["table", "equal", "rows", "differing"])
