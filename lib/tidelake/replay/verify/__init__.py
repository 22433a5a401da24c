"""Hold every table of a pipeline against what follows from bronze."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tidelake.delta.log import newest_version
from tidelake.delta.positions import BEGINNING, rows_between
from tidelake.delta.tables import Table
from tidelake.errors import UsageError
from tidelake.replay.verify.bronze import judge_bronze, judge_requeue
from tidelake.replay.verify.contents import Comparison, Difference
from tidelake.replay.verify.gold import judge_target
from tidelake.replay.verify.inputs import read_inputs
from tidelake.replay.verify.silver import judge_silver
from tidelake.runtime.held import Held
from tidelake.runtime.hop import Run
from tidelake.runtime.targets import targets_of
from tidelake.spark.engine import fitted


@dataclass(frozen=True)
class Judged:
    """A table that was held against its recomputation.

    Attributes:
        table: Which.
        version: As of which version.
        comparison: What came out.
    """

    table: Table
    version: int
    comparison: Comparison


@dataclass(frozen=True)
class Verification:
    """What a verification found.

    Attributes:
        pipeline: Whose tables.
        since: The instant from which on arrivals were judged (UTC); None: all of them.
        tables: In the order of the flow.
    """

    pipeline: str
    since: datetime | None
    tables: tuple[Judged, ...]

    @property
    def equal(self) -> bool:
        """Tell whether every table holds what it should."""
        return all(one.comparison.equal for one in self.tables)

    def with_changes(self, changes: Mapping[str, Sequence[Difference]]) -> Verification:
        """Add what is not as an earlier certificate saw it, by table."""
        tables = [
            replace(one, comparison=one.comparison.with_more(changes.get(one.table.name, ())))
            for one in self.tables
        ]
        return replace(self, tables=tuple(tables))

    def to_json(self) -> dict[str, Any]:
        """Give it for machines."""
        return {
            "pipeline": self.pipeline,
            "equal": self.equal,
            "tables": {
                one.table.name: {
                    "equal": one.comparison.equal,
                    "rows": one.comparison.rows,
                    "differing": one.comparison.differing,
                    "differences": [d.to_json() for d in one.comparison.differences],
                }
                for one in self.tables
            },
        }


def verify(run: Run, *, since: datetime | None = None) -> Verification:
    """Compute silver anew from bronze and gold from silver, and compare row by row.

    Nothing is locked and nothing is written: tables are read as the last closed batches left them.

    Args:
        run: What the command works with.
        since: Judge only what arrived from this instant on (UTC).

    Raises:
        UsageError: The pipeline has not run under this root.
    """
    lake, pipeline = run.lake, run.pipeline
    bronze, silver = lake.bronze(pipeline.name), lake.silver(pipeline.name)
    for table in (bronze, silver):
        if not table.exists:
            raise UsageError(
                f"{table.name} does not exist yet. Fill it with: tidelake run {pipeline.name}"
            )
    with fitted(run.spark, rows_between(bronze, BEGINNING)):
        return Verification(pipeline.name, since, tuple(_judged(run, since)))


def _judged(run: Run, since: datetime | None) -> Iterator[Judged]:
    """Judge table by table, in the order of the flow."""
    lake, pipeline = run.lake, run.pipeline
    bronze, silver = lake.bronze(pipeline.name), lake.silver(pipeline.name)

    def told(table: Table, version: int, comparison: Comparison) -> Judged:
        verdict = "equal" if comparison.equal else f"{comparison.differing:,} DIFFER"
        run.progress.say(f"{table.name}: {comparison.rows:,} rows, {verdict}")
        return Judged(table, version, comparison)

    # Silver's position before the heads of its inputs: what comes in meanwhile is not looked at.
    inputs = read_inputs(run).since(since)
    yield told(bronze, *judge_bronze(run, since))
    requeue = lake.requeue(pipeline.name)
    yield told(requeue, newest_version(requeue), judge_requeue(inputs.requeued, inputs.bronze))
    with Held() as hold:
        for name, comparison in judge_silver(run, inputs, since, hold).items():
            table = lake.table(name)
            closed = inputs.version if table == silver else newest_version(table)
            yield told(table, closed, comparison)
    for target in targets_of(lake, pipeline):
        version = newest_version(target.table)
        if version < 0:
            run.progress.say(f"{target.table.name} does not exist yet")
            continue
        yield told(target.table, version, judge_target(run, target, version, since))
