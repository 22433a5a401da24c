"""Plan what maintenance may do to each table, and do it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

from tidelake.config import Pipeline
from tidelake.delta.access import detail
from tidelake.delta.locks import hold_hops
from tidelake.delta.log import last_commit
from tidelake.delta.merge import CLUSTERED_BY, cluster, compact, has_vectors
from tidelake.delta.tables import Lake, Table
from tidelake.errors import RefusedError
from tidelake.ops.maintenance.needs import Need, needs_of
from tidelake.runtime.gold_target import Target
from tidelake.runtime.hop import Run
from tidelake.runtime.targets import targets_of
from tidelake.spark.engine import with_settings
from tidelake.spark.tuning import VACUUM_SETTINGS

# Clocks differ, and a reader that has just begun may need a moment.
_MARGIN = timedelta(hours=1)
# Delta's own. Of versions older than the second nothing is read, files or no files.
_LOG, _FILES = timedelta(days=30), timedelta(days=7)
_FOR_VACUUM = {
    # Plans have their own, stricter check.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    **VACUUM_SETTINGS,
}


@dataclass(frozen=True)
class Plan:
    """What maintenance may do to a table.

    Attributes:
        table: Which.
        keep: How long files that it no longer holds stay.
        least: What the needs ask for; less than ``keep`` as a rule.
        needs: Who reads older versions, the one that reaches back furthest first.
        sorted_by: What its files are sorted by once its merges scatter rows; empty: they are not.
    """

    table: Table
    keep: timedelta
    least: timedelta
    needs: tuple[Need, ...] = ()
    sorted_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Done:
    """What maintenance did to a table.

    Attributes:
        table: Which.
        files_before: Files that it consisted of.
        files: Files that it consists of.
        deleted: Files that nobody needs any more.
    """

    table: Table
    files_before: int
    files: int
    deleted: int


def tables_of(lake: Lake, pipeline: Pipeline) -> list[Table]:
    """List the tables of a pipeline that exist, and the system's."""
    name = pipeline.name
    known = [
        lake.bronze(name),
        lake.requeue(name),
        lake.schemas(name),
        lake.silver(name),
        lake.quarantine(name),
        lake.late(name),
        lake.discarded(name),
        *map(lake.table, pipeline.gold_names),
        lake.books(),
        lake.epochs(),
        lake.progress(),
    ]
    return [table for table in known if table.exists]


def plan_upkeep(
    lake: Lake,
    pipeline: Pipeline,
    *,
    horizon: timedelta,
    keep: timedelta | None = None,
    now: datetime | None = None,
) -> list[Plan]:
    """Compute for each table how long its old files must stay; nothing is written.

    Args:
        lake: Where the tables are.
        pipeline: Whose.
        horizon: The environment's recovery horizon.
        keep: How long files are to stay; None: the horizon, or longer where a need reaches back
            further.
        now: The present moment.

    Raises:
        RefusedError: ``keep`` is less than the horizon, or would break somebody; it names who, and
            the command that makes the need go away.
    """
    moment = now or datetime.now(UTC)
    if keep is not None and keep < horizon:
        raise RefusedError(
            f"keeping files for {_told(keep)} is less than the recovery horizon of "
            f"{_told(horizon)}. Nothing was deleted. Keep them longer, or lower "
            "recovery_horizon of the environment."
        )
    tables = tables_of(lake, pipeline)
    needs = needs_of(lake, tables, rollbacks_since=moment - horizon)
    orders = {target.table: _order_of(target) for target in targets_of(lake, pipeline)}
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
        order = orders.get(table, ())
        plans.append(Plan(table, keep or max(horizon, least), least, tuple(mine), order))
    return plans


def _order_of(target: Target) -> tuple[str, ...]:
    """Take time where rows have one: merges look for a batch's windows, and analysts for days."""
    return (target.moment,) if target.moment else target.identity[:CLUSTERED_BY]


def upkeep(run: Run, plans: Sequence[Plan]) -> Iterator[Done]:
    """Put small files together, keep the log long enough, delete what nobody needs."""
    spark = run.spark
    for plan in plans:
        before = _files(spark, plan.table)
        if not plan.sorted_by:
            # Rows come in the order of time and stay where they are.
            compact(spark, plan.table)
        elif has_vectors(spark, plan.table):
            # Without deletion vectors a merge would copy the large files that this makes.
            _sort(run, plan)
            compact(spark, plan.table)
        _keep_log(spark, plan)
        vacuum(spark, plan.table, hours=-(-plan.keep // timedelta(hours=1)))
        yield Done(plan.table, before, _files(spark, plan.table), _deleted(spark, plan.table))


def _sort(run: Run, plan: Plan) -> None:
    """Set what files are sorted by, unless a run is writing the table: the next time then."""
    with (
        contextlib.suppress(RefusedError),
        hold_hops(run.lake, run.pipeline.name, ["gold"]),
    ):
        cluster(run.spark, plan.table, plan.sorted_by)


def vacuum(spark: SparkSession, table: Table, *, hours: int) -> None:
    """Delete files that a table no longer holds and that are older than so many hours."""
    with with_settings(spark, _FOR_VACUUM):
        spark.sql(f"VACUUM {table.sql} RETAIN {hours} HOURS")


def _files(spark: SparkSession, table: Table) -> int:
    return int(detail(spark, table)["numFiles"])


def _deleted(spark: SparkSession, table: Table) -> int:
    """Read from the log how many files the vacuum just now deleted."""
    last = spark.sql(f"DESCRIBE HISTORY {table.sql} LIMIT 1").collect()[0]
    told = last["operationMetrics"] if last["operation"] == "VACUUM END" else {}
    return int(told.get("numDeletedFiles", 0))


def _keep_log(spark: SparkSession, plan: Plan) -> None:
    """Let the log reach back as far as the files do, and to our newest note by all means.

    A table that nothing comes into has an old note, and a hop goes on by it alone.
    """
    last = last_commit(plan.table)
    age = datetime.now(UTC) - last.written_at if last else timedelta(0)
    # Twice as far, so that the property does not change each night.
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
