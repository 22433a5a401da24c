"""Compact tables, and delete files that no reader needs.

A file that a commit removed stays on disk until VACUUM. Readers of older versions need it: a stream
that lags behind, a gold batch that reads silver up to its position, a statement at the last epoch,
a rollback.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyspark.sql import SparkSession

from tidelake.config import Pipeline
from tidelake.delta.access import detail
from tidelake.delta.locks import hold_hops
from tidelake.delta.log import last_commit
from tidelake.delta.merge import CLUSTERED_BY, cluster, compact, has_vectors, vacuum
from tidelake.delta.tables import Lake, Table
from tidelake.errors import RefusedError
from tidelake.ledger.readers import Need, needs_of
from tidelake.runtime.gold_tables import targets_of
from tidelake.runtime.hop import Run

# For clock differences and readers that have just started.
_MARGIN = timedelta(hours=1)
# Delta's defaults. No version older than the second is read, even if its files exist.
_LOG, _FILES = timedelta(days=30), timedelta(days=7)


@dataclass(frozen=True)
class Plan:
    """The maintenance of a table: removed files stay for ``keep``.

    The need of the oldest version is first. Files are sorted by columns where merges scatter rows,
    by none where rows arrive in the order of time.
    """

    table: Table
    keep: timedelta
    needs: tuple[Need, ...] = ()
    sorted_by: tuple[str, ...] = ()


class Done(NamedTuple):
    """The number of files of a table before and after maintenance, and of deleted files."""

    table: Table
    files_before: int
    files: int
    deleted: int


def plan_upkeep(
    lake: Lake,
    pipeline: Pipeline,
    *,
    horizon: timedelta,
    keep: timedelta | None = None,
    now: datetime | None = None,
) -> list[Plan]:
    """Compute for each table how long removed files must stay; nothing is written.

    Where ``keep`` is None, they stay for the recovery horizon, or longer where a need is older.

    Raises:
        RefusedError: ``keep`` is less than the horizon, or less than a reader needs; the message
            names the reader and the remedy.
    """
    moment = now or datetime.now(UTC)
    if keep is not None and keep < horizon:
        raise RefusedError(
            f"keeping files for {_told(keep)} is less than the recovery horizon of "
            f"{_told(horizon)}. Nothing was deleted. Keep them longer, or lower "
            "recovery_horizon of the environment."
        )
    tables = _tables(lake, pipeline)
    needs = needs_of(lake, tables, rollbacks_since=moment - horizon)
    # By time where rows have one: merges read a batch's windows, and queries read days.
    orders = {
        table: (kind.moment,) if kind.moment else kind.identity[:CLUSTERED_BY]
        for table, kind in targets_of(lake, pipeline)
    }
    plans = []
    for table in tables:
        mine = sorted((n for n in needs if n.table == table), key=lambda n: n.since)
        least = moment - mine[0].since + _MARGIN if mine else timedelta(0)
        if keep is not None and keep < least:
            first = mine[0]
            raise RefusedError(
                f"files of {table.name} from {first.since:%Y-%m-%d %H:%M}Z on are still needed: "
                f"{first.by}. Nothing was deleted. Keep at least {_told(least)}, or first: "
                f"{first.remedy}"
            )
        kept = keep or max(horizon, least)
        plans.append(Plan(table, kept, tuple(mine), orders.get(table, ())))
    return plans


def _tables(lake: Lake, pipeline: Pipeline) -> list[Table]:
    """List the existing tables of a pipeline, and those shared by all pipelines."""
    name = pipeline.name
    tables = [lake.bronze(name), lake.requeue(name), lake.schemas(name), lake.silver(name)]
    tables += [lake.quarantine(name), lake.late(name), lake.discarded(name)]
    tables += map(lake.table, pipeline.gold_names)
    tables += [lake.books(), lake.epochs(), lake.progress()]
    return [table for table in tables if table.exists]


def upkeep(run: Run, plans: Sequence[Plan]) -> Iterator[Done]:
    """Compact tables, set the retention of their logs, and delete old files."""
    spark = run.spark
    for plan in plans:
        before = detail(spark, plan.table)["numFiles"]
        if not plan.sorted_by:
            # Rows are in the order of time already.
            compact(spark, plan.table)
        elif has_vectors(spark, plan.table):
            # Without deletion vectors a merge would copy the large files that this writes.
            # A table that a run is writing is clustered the next time.
            with suppress(RefusedError), hold_hops(run.lake, run.pipeline.name, ["gold"]):
                cluster(spark, plan.table, plan.sorted_by)
            compact(spark, plan.table)
        _keep_log(spark, plan)
        vacuum(spark, plan.table, hours=-(-plan.keep // timedelta(hours=1)))
        last = spark.sql(f"DESCRIBE HISTORY {plan.table.sql} LIMIT 1").collect()[0]
        metrics = last["operationMetrics"] if last["operation"] == "VACUUM END" else {}
        deleted = int(metrics.get("numDeletedFiles", 0))
        yield Done(plan.table, before, detail(spark, plan.table)["numFiles"], deleted)


def _keep_log(spark: SparkSession, plan: Plan) -> None:
    """Keep the log for as long as the files, and at least back to our last commit.

    A table without input has an old last commit, and its hop continues from that.
    """
    last = last_commit(plan.table)
    age = datetime.now(UTC) - last.written_at if last else timedelta(0)
    # Twice the age, so that the property does not change every day.
    noted = 2 * age if age > _LOG / 2 else timedelta(0)
    needed = {
        "logRetentionDuration": max(_LOG, plan.keep, noted),
        "deletedFileRetentionDuration": max(_FILES, plan.keep),
    }
    wanted = {
        f"delta.{key}": f"interval {-(-length // timedelta(days=1))} days"
        for key, length in needed.items()
    }
    stored = detail(spark, plan.table)["properties"]
    if any(stored.get(key) != value for key, value in wanted.items()):
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in wanted.items())
        spark.sql(f"ALTER TABLE {plan.table.sql} SET TBLPROPERTIES ({properties})")


def _told(length: timedelta) -> str:
    hours = length / timedelta(hours=1)
    return f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours"
