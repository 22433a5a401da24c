"""Run, verify and rebuild a pipeline's tables in a notebook, with Spark.

A module of its own because it imports Spark, which reading the tables does not need.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pandas as pd

from tidelake.config import Environment, Pipeline
from tidelake.delta.tables import HOPS, Hop, Lake
from tidelake.errors import UsageError
from tidelake.replay.backfill import build, plan
from tidelake.replay.backfill_promotion import need_promotable, promote, rollback
from tidelake.replay.differences import differences
from tidelake.replay.verify import verify
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.session import active_session, build_session, reads_of

if TYPE_CHECKING:
    from tidelake.replay.backfill_state import Start
    from tidelake.replay.compare import TableComparison


@dataclass(frozen=True)
class Workbench:
    """A pipeline and its Spark session; a ``borrowed`` session is not stopped."""

    context: Run
    borrowed: bool

    @staticmethod
    def of(environment: Environment, lake: Lake, pipeline: Pipeline) -> Workbench:
        """Use the active session, such as the notebook's, or start one."""
        active = active_session()
        spark = active or build_session(environment, reads=reads_of(pipeline))
        progress = Progress(lambda line: print(line, file=sys.stderr, flush=True))
        context = Run(spark, pipeline, lake, environment, progress)
        return Workbench(context, borrowed=active is not None)

    def run(self, hops: Sequence[Hop] = HOPS) -> None:
        """Run hops until the source is exhausted.

        Unlike ``tidelake run``, this publishes no changes and writes no metrics.
        """
        run_hops(self.context, hops, parse_trigger(AVAILABLE_NOW))

    def verify(self) -> pd.DataFrame:
        """Recompute every table and compare row by row; return one row per table."""
        found = verify(self.context)
        return _compared({check.table.name: check.comparison for check in found.tables})

    def plan(self, start: Start = "bronze") -> pd.DataFrame:
        """Return what a rebuild would read and fill, one row per step."""
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
            UsageError: The range has only one end, or is empty.
        """
        if (first is None) is not (last is None) or (first and last and first >= last):
            raise UsageError("a range needs first and a later last; omit both to rebuild all.")
        build(self.context, start, (first, last) if first and last else None)

    def compare(self) -> pd.DataFrame:
        """Return what a promotion would change, one row per gold table."""
        state = need_promotable(self.context.lake, self.context.pipeline, ["built"])
        return _compared(differences(self.context, state).gold)

    def promote(self) -> None:
        """Replace the live tables with the green ones."""
        promote(self.context)

    def rollback(self) -> None:
        """Restore the content from before the promotion."""
        rollback(self.context)

    def close(self) -> None:
        """Stop Spark, unless the session is borrowed."""
        if not self.borrowed:
            self.context.spark.stop()


def _compared(found: Mapping[str, TableComparison]) -> pd.DataFrame:
    rows = [(name, diff.equal, diff.rows, diff.differing) for name, diff in found.items()]
    return pd.DataFrame(rows, columns=["table", "equal", "rows", "differing"])
