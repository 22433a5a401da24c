"""Compact tables, and delete files that no reader needs.

A file that a commit removed stays on disk until VACUUM. Readers of older versions need it: a stream
that lags behind, a gold batch that reads silver up to its position, a statement at the last epoch,
a rollback.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import NamedTuple

from pyspark.sql import SparkSession

from tidelake.config import Pipeline
from tidelake.delta.access import detail
from tidelake.delta.locks import hold_hops
from tidelake.delta.log import last_commit, newest_version, written_at
from tidelake.delta.merge import CLUSTERED_BY, cluster, compact, has_vectors
from tidelake.delta.notes import positions
from tidelake.delta.positions import BEGINNING, version_at
from tidelake.delta.tables import Lake, Table
from tidelake.errors import RefusedError
from tidelake.folders import matching
from tidelake.ops.query import ask
from tidelake.runtime.gold_tables import targets_of
from tidelake.runtime.hop import Run
from tidelake.spark.engine import with_settings
from tidelake.spark.tuning import VACUUM_SETTINGS

# For clock differences and readers that have just started.
_MARGIN = timedelta(hours=1)
# Delta's defaults. No version older than the second is read, even if its files exist.
_LOG, _FILES = timedelta(days=30), timedelta(days=7)
_FOR_VACUUM = {
    # plan_upkeep has a stricter check.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    **VACUUM_SETTINGS,
}


@dataclass(frozen=True)
class Need:
    """An old version of a table that has a reader, ``by``; the command ``remedy`` ends the need.

    It was written at ``since`` (UTC): files that were removed later must stay.
    """

    table: Table
    since: datetime
    by: str
    remedy: str


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


def vacuum(spark: SparkSession, table: Table, *, hours: int) -> None:
    """Delete files that were removed from a table more than so many hours ago."""
    with with_settings(spark, _FOR_VACUUM):
        spark.sql(f"VACUUM {table.sql} RETAIN {hours} HOURS")


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


def needs_of(lake: Lake, tables: Sequence[Table], *, rollbacks_since: datetime) -> list[Need]:
    """List the readers of older versions of some tables.

    A backfill that was promoted before ``rollbacks_since`` is not rolled back any more.
    """
    wanted = {table.name for table in tables}
    found = []
    needed = chain(_readers(lake), _epochs(lake), _backfills(lake, rollbacks_since))
    for table, version, by, remedy in needed:
        # The files of the newest version stay anyway.
        if table.name in wanted and table.exists and version < newest_version(table):
            at = written_at(table, max(version, 0))
            if at is not None:
                found.append(Need(table, at, by, remedy))
    return found


def _readers(lake: Lake) -> Iterator[tuple[Table, int, str, str]]:
    """Find the position of each hop in its inputs, from the commits of its tables."""
    for filled in lake.existing():
        last = last_commit(filled)
        if last is None or last.note.get("hop") not in ("silver", "gold") or "__" in filled.name:
            continue
        pipeline, hop = str(last.note["pipeline"]), str(last.note["hop"])
        followed = lake.silver_inputs(pipeline)
        if hop == "gold":
            # Gold's commits have the silver of its own pipeline under this name.
            followed = {"silver": lake.silver(pipeline)}
        reached = positions(last)
        followed |= {key: lake.table(key) for key in reached if key.startswith("silver.")}
        for key, table in followed.items():
            position = reached.get(key, BEGINNING)
            # A reader with all rows does not need the version before a compaction.
            version = version_at(table, position) if table.exists else None
            version = position[0] - 1 if version is None else version
            by = f"{filled.name} has not read further"
            yield table, version, by, f"tidelake run {pipeline} --hop {hop}"


def _epochs(lake: Lake) -> Iterator[tuple[Table, int, str, str]]:
    """Find the versions of the newest epoch of each pipeline."""
    if not lake.epochs().exists:
        return
    newest = ask(
        lake,
        f"SELECT pipeline, max(epoch), arg_max(versions, epoch) FROM {lake.epochs().name} "
        "GROUP BY 1",
    )
    for pipeline, number, versions in newest.rows:
        for name, version in versions.items():
            by = f"epoch {number} of {pipeline}"
            yield lake.table(name), version, by, f"tidelake run {pipeline}"


def _backfills(lake: Lake, since: datetime) -> Iterator[tuple[Table, int, str, str]]:
    """Find the versions that a rollback would restore."""
    for file in matching(lake.root, "backfill/*/backfill.json"):
        state = json.loads(file.read_text(encoding="utf-8"))
        swapped = state["stage"] in ("promoting", "promoted", "rolling back")
        if not swapped or datetime.fromtimestamp(file.stat().st_mtime, tz=UTC) < since:
            continue
        pipeline = file.parent.name
        versions = [*state["before"].items()]
        if state.get("requeue") is not None:
            # The rollback reads what was requeued since.
            versions.append((lake.requeue(pipeline).name, state["requeue"]))
        for name, version in versions:
            by = f"the rollback of {pipeline}'s backfill"
            yield lake.table(name), version, by, "wait until the horizon has passed"
