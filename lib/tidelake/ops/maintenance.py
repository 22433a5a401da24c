"""Compact tables and delete files that no reader needs any more.

A file that a commit removed stays on disk until VACUUM. Readers of older versions need it: a
lagging stream, a gold batch that reads silver up to its position, a query at the last epoch, a
rollback, a topic to which changes are published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyspark.sql import SparkSession

from tidelake.config import Pipeline
from tidelake.config.sections import settings_of
from tidelake.config.table_settings import FILE_RETENTION, LEAST, LOG_RETENTION
from tidelake.delta.access import detail, properties
from tidelake.delta.locks import hold, hold_hops
from tidelake.delta.log import last_commit
from tidelake.delta.merge import CLUSTERED_BY, cluster, compact, has_vectors, vacuum
from tidelake.delta.store import sql_pairs
from tidelake.delta.tables import Hop, Lake, Table
from tidelake.errors import RefusedError
from tidelake.ledger.history import Need, needs_of
from tidelake.runtime.fast_lane import reconciled_table
from tidelake.runtime.gold_tables import targets_of
from tidelake.runtime.hop import Run

# Allows for clock differences and readers that have just started.
_MARGIN = timedelta(hours=1)


@dataclass(frozen=True)
class Plan:
    """The planned maintenance of a table: removed files are kept for ``keep``.

    ``needs`` lists the readers of old versions, the oldest version first. ``sorted_by`` are the
    clustering columns if merges scatter rows, empty if rows arrive in time order. ``retentions``
    are those of the pipeline file, by property.
    """

    table: Table
    keep: timedelta
    needs: tuple[Need, ...] = ()
    sorted_by: tuple[str, ...] = ()
    retentions: Mapping[str, timedelta] = field(default_factory=dict)


class Done(NamedTuple):
    """Result of maintenance: number of files before and after, and of files deleted."""

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
    publishes: bool = True,
    now: datetime | None = None,
) -> list[Plan]:
    """Compute how long each table must keep removed files; nothing is written.

    If ``keep`` is None, they are kept for the recovery horizon, or longer if a reader needs it or
    the pipeline file says so. A topic is a reader only if the environment ``publishes``: no run
    would ever send what waits.

    Raises:
        RefusedError: ``keep`` is less than the horizon, than a reader needs, or than the retention
            in the pipeline file; the message names the reader or the table, and the remedy.
    """
    moment = now or datetime.now(UTC)
    if keep is not None and keep < horizon:
        raise RefusedError(
            f"keeping files for {_duration_text(keep)} is less than the recovery horizon of "
            f"{_duration_text(horizon)}. Nothing was deleted. Keep them longer, or lower "
            "recovery_horizon of the environment."
        )
    tables = _tables(lake, pipeline)
    published = tuple(pipeline.published) if publishes else ()
    rollbacks_since = moment - horizon
    needs = needs_of(
        lake, tables, rollbacks_since=rollbacks_since, own=pipeline, published=published
    )
    # Cluster by time if rows have one: merges read a batch's windows, and queries read days.
    orders = {
        table: (kind.moment,) if kind.moment else kind.identity[:CLUSTERED_BY]
        for table, kind in targets_of(lake, pipeline)
    }
    retentions = {name: settings.retentions for name, _, settings in settings_of(pipeline)}
    plans = []
    for table in tables:
        table_needs = sorted((n for n in needs if n.table == table), key=lambda n: n.since)
        least = moment - table_needs[0].since + _MARGIN if table_needs else timedelta(0)
        if keep is not None and keep < least:
            first = table_needs[0]
            raise RefusedError(
                f"files of {table.name} since {first.since:%Y-%m-%d %H:%M}Z are still needed: "
                f"{first.by}. Nothing was deleted. Keep at least {_duration_text(least)}, "
                f"or first: {first.remedy}"
            )
        of_file = retentions.get(table.name, {})
        retained = of_file.get(FILE_RETENTION, timedelta(0))
        if keep is not None and keep < retained:
            raise RefusedError(
                f"keeping files of {table.name} for {_duration_text(keep)} is less than its "
                f"{FILE_RETENTION} of {_duration_text(retained)}. Nothing was deleted. Keep them "
                f"longer, or lower the property in {pipeline.file}."
            )
        kept = keep or max(horizon, least, retained)
        plans.append(Plan(table, kept, tuple(table_needs), orders.get(table, ()), of_file))
    return plans


def _tables(lake: Lake, pipeline: Pipeline) -> list[Table]:
    """List the existing tables of a pipeline, and those shared by all pipelines."""
    name = pipeline.name
    tables = [lake.bronze(name), lake.requeue(name), lake.schemas(name), lake.silver(name)]
    tables += [lake.quarantine(name), lake.late(name), lake.discarded(name)]
    tables += lake.closing_tables(pipeline, "gold")
    tables += [reconciled_table(lake, detection) for detection in pipeline.detections]
    tables += [lake.books(), lake.epochs(), lake.progress()]
    return [table for table in tables if table.exists]


def upkeep(run: Run, plans: Sequence[Plan]) -> Iterator[Done]:
    """Compact tables, set their log retention, and vacuum old files.

    On an object store two commits of one version overwrite each other. So a table is compacted only
    under the locks of its writers there; while a run holds one, only old files are deleted, which
    makes no commit on a store.
    """
    spark = run.spark
    for plan in plans:
        before = detail(spark, plan.table)["numFiles"]
        if run.lake.is_on_object_store:
            try:
                with _writing(run, plan.table):
                    _rewrite(run, plan, is_locked=True)
            except RefusedError as error:
                run.progress.say(
                    f"{plan.table.name} is not compacted, only its old files are deleted: {error}"
                )
        else:
            _rewrite(run, plan, is_locked=False)
        vacuum(spark, plan.table, hours=-(-plan.keep // timedelta(hours=1)))
        last = spark.sql(f"DESCRIBE HISTORY {plan.table.sql} LIMIT 1").collect()[0]
        metrics = last["operationMetrics"] if last["operation"] == "VACUUM END" else {}
        deleted = int(metrics.get("numDeletedFiles", 0))
        yield Done(plan.table, before, detail(spark, plan.table)["numFiles"], deleted)


@contextmanager
def _writing(run: Run, table: Table) -> Iterator[None]:
    """Hold the locks of all writers of a table; a RefusedError if a run or a command holds one."""
    lake, layer = run.lake, table.name.partition(".")[0]
    if layer == "ops":
        # All pipelines append to it, and wait for each other.
        with hold(lake.lock_of(table), table.name, waits=True, optional=True):
            yield
        return
    # Commands that requeue rows hold silver's lock.
    hops: list[Hop] = ["gold"] if layer in ("gold", "dim") else ["bronze", "silver"]
    with hold_hops(lake, run.pipeline.name, hops):
        yield


def _rewrite(run: Run, plan: Plan, *, is_locked: bool) -> None:
    """Compact a table, and set its log retention; a hop that writes it meanwhile tries again."""
    spark = run.spark
    # Others have their rows in time order already. Without deletion vectors a merge would rewrite
    # the large files that clustering makes.
    clusters = bool(plan.sorted_by) and has_vectors(spark, plan.table)
    if clusters:
        # A table that a run is writing to is clustered at the next maintenance.
        with suppress(RefusedError), nullcontext() if is_locked else _writing(run, plan.table):
            cluster(spark, plan.table, plan.sorted_by)
    if clusters or not plan.sorted_by:
        compact(spark, plan.table)
    _keep_log(spark, plan)


def _keep_log(spark: SparkSession, plan: Plan) -> None:
    """Set the log retention to at least that of the files and the age of our last commit.

    A table without new input has an old last commit, from which its hop continues.
    """
    last = last_commit(plan.table)
    age = datetime.now(UTC) - last.written_at if last else timedelta(0)
    # Twice the age, so that the property does not change every day.
    for_last_commit = 2 * age if age > LEAST[LOG_RETENTION] / 2 else timedelta(0)
    days, wanted = timedelta(days=1), dict[str, str]()
    lengths = {LOG_RETENTION: max(plan.keep, for_last_commit), FILE_RETENTION: plan.keep}
    for key, needed in lengths.items():
        length = max(needed, LEAST[key], plan.retentions.get(key, needed))
        wanted[key] = f"interval {-(-length // days)} days"
    stored = properties(spark, plan.table)
    if any(stored.get(key) != value for key, value in wanted.items()):
        spark.sql(f"ALTER TABLE {plan.table.sql} SET TBLPROPERTIES ({sql_pairs(wanted)})")


def _duration_text(length: timedelta) -> str:
    hours = length / timedelta(hours=1)
    return f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours"
