"""A backfill of a range of time: gold rows that lie in it are computed anew, the others stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.delta.access import load
from tidelake.delta.log import last_commit, newest_version
from tidelake.delta.notes import changed_definition, positions
from tidelake.delta.positions import Position
from tidelake.errors import UsageError
from tidelake.replay.verify.inputs import ORIGIN
from tidelake.runtime.gold_target import Inputs, Target
from tidelake.runtime.hop import Run
from tidelake.runtime.targets import targets_of


@dataclass(frozen=True)
class Span:
    """A range of event time.

    Attributes:
        start: Its first instant (UTC).
        end: The first after it (UTC).
    """

    start: datetime
    end: datetime


@dataclass(frozen=True)
class LiveGold:
    """Live gold tables as one batch left them.

    Attributes:
        versions: Of each, by logical name.
        until: How far in silver all of them have come.
    """

    versions: Mapping[str, int]
    until: Mapping[str, Position]


def live_gold(run: Run) -> LiveGold:
    """Pin the live tables whose rows outside of the range stay.

    Raises:
        UsageError: One is not there, stands at another batch, or was filled under another
            definition: part of it would be of the one, part of the other.
    """
    name = run.pipeline.name
    versions, reached = {}, []
    for target in targets_of(run.lake, run.pipeline):
        # The version before the note: a batch that closes meanwhile is not looked at.
        version = newest_version(target.table)
        last = last_commit(target.table, up_to=version) if version >= 0 else None
        if last is None or changed_definition(last, target.definition):
            raise UsageError(
                f"{target.table.name} was not filled under today's definition, and a range would "
                f"leave the rest of it so. Fill all of it with: tidelake backfill run {name} "
                "--from silver"
            )
        versions[target.table.name] = version
        reached.append(positions(last))
    if any(one != reached[0] for one in reached):
        raise UsageError(
            f"the gold tables of {name} stand at different batches. Bring them to one with: "
            f"tidelake run {name} --hop gold, then begin again"
        )
    return LiveGold(versions, reached[0])


def rows_in(run: Run, live: LiveGold, span: Span) -> Callable[[Target, Inputs], DataFrame]:
    """Give what computes a table's rows: those in the range anew, the others as they are live.

    A row lies where it begins. A table whose rows have no instant is computed whole.

    Args:
        run: What the live tables are read with.
        live: From :func:`live_gold`.
        span: The range.
    """

    def rows_of(target: Target, inputs: Inputs) -> DataFrame:
        if target.moment is None:
            return target.of_all(inputs)
        inside = (F.col(target.moment) >= F.lit(span.start)) & (
            F.col(target.moment) < F.lit(span.end)
        )
        made = target.of_all(_cut(inputs, target, span)).where(inside)
        name = target.table.name
        stored = load(run.spark, run.lake.table(name), version=live.versions[name])
        kept = stored.drop(*ORIGIN).where(~inside | F.col(target.moment).isNull())
        return kept.unionByName(made)

    return rows_of


def _cut(inputs: Inputs, target: Target, span: Span) -> Inputs:
    """Leave out the events that no row of the range follows from, where that is known."""
    reach = target.reach
    if reach is None:
        return inputs
    near = (F.col("event_time") >= F.lit(span.start)) & (
        F.col("event_time") < F.lit(span.end + reach)
    )
    return Inputs({}, lambda key: inputs.whole(key).where(near))
