"""Compute every gold table anew from the silver that it has consumed, and compare."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.columns import instant
from tidelake.delta.access import load
from tidelake.delta.log import last_commit
from tidelake.delta.notes import positions
from tidelake.delta.positions import BEGINNING
from tidelake.instants import from_micros
from tidelake.replay.verify.contents import Comparison, compare
from tidelake.replay.verify.inputs import ORIGIN
from tidelake.replay.verify.sums import Shape
from tidelake.runtime.gold_target import Inputs, Target, inputs_of, up_to
from tidelake.runtime.hop import Run


def judge_target(run: Run, target: Target, version: int, since: datetime | None) -> Comparison:
    """Compare a table with what follows from silver.

    Args:
        run: What the command works with.
        target: The table.
        version: As of which version.
        since: Judge the rows that arrivals from this instant on may have changed; tables whose
            rows may reach back any time, such as sessions, are judged whole.
    """
    tables = inputs_of(run.lake, run.pipeline)
    reached = positions(last_commit(target.table, up_to=version))
    until = {key: reached.get(key, BEGINNING) for key in tables}
    read = up_to(run.spark, tables, until)
    found = load(run.spark, target.table, version=version).drop(*ORIGIN)
    shape = shape_of(target, found)
    if since is None or target.reach is None or target.moment is None:
        return compare(target.of_all(Inputs({}, read)), found, shape)
    first = _first_moment([read(key) for key in target.inputs], since, target.reach)
    if first is None:
        return compare(found.limit(0), found.limit(0), shape)
    late_enough = F.col(target.moment) >= instant(first)
    expected = target.of_all(
        Inputs({}, lambda key: read(key).where(F.col("event_time") >= instant(first)))
    )
    return compare(expected.where(late_enough), found.where(late_enough), shape)


def _first_moment(
    inputs: Sequence[DataFrame], since: datetime, reach: timedelta
) -> datetime | None:
    """Find from when on rows may have changed by what arrived; None where nothing did."""
    earliest = []
    for rows in inputs:
        arrived = rows.where(F.col("ingested_at") >= F.lit(since))
        micros = arrived.agg(F.min(F.unix_micros("event_time"))).collect()[0][0]
        earliest.append(from_micros(micros))
    found = [instant for instant in earliest if instant is not None]
    return min(found) - reach if found else None


def shape_of(target: Target, stored: DataFrame) -> Shape:
    """Say how a table's rows are compared."""
    types = {field.name: field.dataType.simpleString() for field in stored.schema.fields}
    return Shape(
        key=target.identity,
        moment=target.moment,
        near=target.tolerances(types),
        unhashed=target.sketches,
    )
