"""Compact tables and delete files that no reader needs any more.

A file that a commit removed stays on disk until VACUUM. Readers of older versions need it: a
lagging stream, a gold batch that reads silver up to its position, a query at the last epoch, a
rollback, a topic to which changes are published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyspark.sql import SparkSession

from tidelake.config import Environment, Pipeline
from tidelake.config.sections import settings_of
from tidelake.config.table_settings import FILE_RETENTION, LEAST, LOG_RETENTION
from tidelake.delta.access import detail, properties
from tidelake.delta.holders import Waiting
from tidelake.delta.locks import hold, hold_hops
from tidelake.delta.log import last_commit
from tidelake.delta.merge import (
    CLUSTERED_BY,
    cluster,
    compact,
    has_vectors,
    retry_conflicts,
    vacuum,
    vacuum_uses_hours,
)
from tidelake.delta.properties import (
    RETENTIONS,
    others_retentions,
    retentions_record,
    stored_interval,
    stored_properties,
)
from tidelake.delta.store import sql_pairs
from tidelake.delta.tables import Hop, Lake, Table, delta_readers
from tidelake.errors import LeaseLostError, RefusedError
from tidelake.folders import Folder, list_matching
from tidelake.ledger.history import Need, gold_of, needs_of
from tidelake.runtime.fast_lane import reconciled_table
from tidelake.runtime.gold_tables import targets_of
from tidelake.runtime.hop import Run
from tidelake.typed import runnable

# Allows for clock differences and readers that have just started.
_MARGIN = timedelta(hours=1)
# How much longer than needed now Delta lets versions be read, if they are needed longer than usual.
_AHEAD = timedelta(days=7)
_DAY = timedelta(days=1)
# Of a property that is not set.
_UNSET = "interval 0 days"


@dataclass(frozen=True)
class Plan:
    """The planned maintenance of a table: removed files are kept for ``keep``.

    ``needs`` lists the readers of old versions, the oldest version first. ``sorted_by`` are the
    clustering columns if merges scatter rows, empty if rows arrive in time order. ``retentions``
    are those of the pipeline file, by property. ``made_at``: when the plan was made (UTC).
    ``retained_by`` is the property that keeps files, if it keeps them longer than any reader.
    ``is_former``: no hop fills the table any more, so only its old files are deleted.
    """

    table: Table
    keep: timedelta
    needs: tuple[Need, ...] = ()
    sorted_by: tuple[str, ...] = ()
    retentions: Mapping[str, timedelta] = field(default_factory=dict)
    made_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    retained_by: str = ""
    is_former: bool = False

    @property
    def reason(self) -> tuple[datetime | None, str | None]:
        """Since when (UTC) which reader needs removed files, or which property keeps them."""
        if self.retained_by or not self.needs:
            return None, self.retained_by or None
        return self.needs[0].since, self.needs[0].by


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
    environment: Environment | None = None,
    now: datetime | None = None,
) -> list[Plan]:
    """Compute how long each table must keep removed files; nothing is written.

    If ``keep`` is None, they are kept for the recovery horizon, or longer if a reader needs it, the
    pipeline file says so, or others have set a longer retention on the table. A topic is a reader
    only if the environment ``publishes``: no run would ever send what waits. With an
    ``environment`` the pipelines of the conf folder are readers whose source is one of the tables.

    Raises:
        RefusedError: ``keep`` is less than the horizon, than a reader needs, or than the retention
            in the pipeline file or of others; the message names the reader or the table, and the
            remedy.
    """
    moment = now or datetime.now(UTC)
    if keep is not None and keep < horizon:
        raise RefusedError(
            f"keeping files for {_duration_text(keep)} is less than the recovery horizon of "
            f"{_duration_text(horizon)}. Nothing was deleted. Keep them longer, or lower "
            "recovery_horizon of the environment."
        )
    # Old files of tables that left the definition may have rows that were erased since.
    former = [
        table
        for table, last in gold_of(lake, pipeline.name)
        if table.name not in pipeline.gold_names and last.note.get("hop") == "gold"
    ]
    tables = [*_tables(lake, pipeline), *former]
    needs = needs_of(
        lake,
        tables,
        rollbacks_since=moment - horizon,
        own=pipeline,
        published=tuple(pipeline.published) if publishes else (),
        followers=delta_readers(tables, environment, own=pipeline.name) if environment else (),
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
        of_file, needed = retentions.get(table.name, {}), max(horizon, least)
        retained, by, remedy = _retention(
            table, of_file.get(FILE_RETENTION, timedelta(0)), pipeline.file
        )
        if keep is not None and keep < retained:
            raise RefusedError(
                f"keeping files of {table.name} for {_duration_text(keep)} is less than its "
                f"{FILE_RETENTION} of {_duration_text(retained)}. Nothing was deleted. Keep them "
                f"longer, or {remedy}."
            )
        by, kept = by if retained > needed else "", keep or max(needed, retained)
        order = orders.get(table, ())
        is_former = table in former
        plans.append(Plan(table, kept, tuple(table_needs), order, of_file, moment, by, is_former))
    return plans


def _retention(table: Table, of_file: timedelta, file: object) -> tuple[timedelta, str, str]:
    """Return for how long a property keeps removed files, its name, and how to lower it."""
    text = others_retentions(stored_properties(table)).get(FILE_RETENTION, _UNSET)
    if (of_others := stored_interval(text)) <= of_file:
        return of_file, f"its {FILE_RETENTION} in {file}", f"lower the property in {file}"
    unset = f"ALTER TABLE {table.sql} UNSET TBLPROPERTIES ('{FILE_RETENTION}')"
    return of_others, f"its {FILE_RETENTION} of '{text}'", f"unset it, with Spark: {unset}"


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

    The caller holds :func:`~tidelake.delta.locks.hold_upkeep` from before the plans were made, and
    has its check among the run's locks.

    On a disk and on an object store two processes that commit the same version overwrite each
    other. So a table is compacted only under the locks of its writers; while a run holds one, only
    old files are deleted, which makes no commit there.

    Raises:
        KeyboardInterrupt: The run was stopped; the tables before are done.
        LeaseLostError: A lock was lost; the tables before are done.
    """
    spark = run.spark
    for plan in plans:
        if run.stop.is_set():
            raise KeyboardInterrupt
        run.locks.step(f"maintain {plan.table.name}")
        before = detail(spark, plan.table)["numFiles"]
        try:
            with _writing(run, plan.table):
                _rewrite(spark, plan)
        except LeaseLostError:
            raise
        except RefusedError as error:
            run.progress.say(
                f"{plan.table.name} is not compacted, only its old files are deleted: {error}"
            )
        deleted = _delete_old(run, plan)
        yield Done(plan.table, before, detail(spark, plan.table)["numFiles"], deleted)


def _delete_old(run: Run, plan: Plan) -> int:
    """Delete the files that were removed longer ago than planned; return how many."""
    spark, table = run.spark, plan.table
    stored = properties(spark, table)
    # Since the plan was made, files may have been removed that a reader needs.
    keep = plan.keep + (datetime.now(UTC) - plan.made_at)
    if (text := others_retentions(stored).get(FILE_RETENTION)) is not None:
        keep = max(keep, stored_interval(text))
    if not vacuum_uses_hours(spark):
        # Delta goes by the table's property there, and may refuse a shorter time.
        text = stored.get(FILE_RETENTION, "interval 7 days")
        retention = stored_interval(text)
        if retention < plan.keep:
            again = runnable("tidelake maintain", run.pipeline.name)
            run.progress.say(
                f"old files of {table.name} are not deleted: this compute supports no session "
                f"settings, and deletes them by {FILE_RETENTION}, which is '{text}'; they are "
                f"needed for {_duration_text(plan.keep)}. Once no run writes the table: {again}"
            )
            return 0
        keep = max(keep, retention)
    before = _data_files(table)
    vacuum(spark, table, hours=-(-keep // timedelta(hours=1)))
    if table.reads_files_directly:
        return len(before - _data_files(table))
    last = spark.sql(f"DESCRIBE HISTORY {table.sql} LIMIT 1").collect()[0]
    metrics = last["operationMetrics"] if last["operation"] == "VACUUM END" else {}
    return int(metrics.get("numDeletedFiles", 0))


def _data_files(table: Table) -> set[Folder]:
    """List the files of a table on a disk that are not its log's, which VACUUM may delete."""
    files = list_matching(table.path, "**/[!.]*.*") if table.reads_files_directly else []
    return {file for file in files if file.parent.name != "_delta_log"}


@contextmanager
def _writing(run: Run, table: Table) -> Iterator[None]:
    """Hold the locks of all writers of a table; a RefusedError if a run or a command holds one.

    None in a catalog, which serializes the commits to a table.
    """
    lake, layer = run.lake, table.name.partition(".")[0]
    if lake.catalog is not None:
        yield
        return
    if layer == "ops" or table.bare.endswith("__reconciled"):
        # All pipelines append to it, or no hop writes it; writers wait for each other.
        waits = Waiting(run.progress.say_once, run.stop)
        with hold(lake.lock_of(table), table.name, waits=waits, optional=True):
            yield
        return
    # Commands that requeue rows hold silver's lock.
    hops: list[Hop] = ["gold"] if layer in ("gold", "dim") else ["bronze", "silver"]
    with hold_hops(lake, run.pipeline.name, hops):
        yield


def _rewrite(spark: SparkSession, plan: Plan) -> None:
    """Compact a table, and set its log retention."""
    # Others have their rows in time order already. Without deletion vectors a merge would rewrite
    # the large files that clustering makes.
    if clusters := bool(plan.sorted_by) and has_vectors(spark, plan.table):
        cluster(spark, plan.table, plan.sorted_by)
    if clusters or not (plan.sorted_by or plan.is_former):
        compact(spark, plan.table)
    _keep_log(spark, plan)


def _keep_log(spark: SparkSession, plan: Plan) -> None:
    """Set the retention of the log and of removed files to what is needed until the next time.

    A table without new input has an old last commit, from which its hop continues. Delta refuses to
    read a version older than the retention of files, even if all its files are there.
    """
    now = datetime.now(UTC)
    last = last_commit(plan.table)
    age = now - last.written_at if last else timedelta(0)
    need = now - plan.needs[0].since if plan.needs else timedelta(0)
    # What is needed grows by a day a day, so more is set, and left until that is used up.
    lengths = {FILE_RETENTION: (need, need + _AHEAD), LOG_RETENTION: (age, 2 * age)}
    stored, wanted, kept = properties(spark, plan.table), dict[str, str](), plan.keep
    others = others_retentions(stored)
    for key, (needed, ample) in lengths.items():
        of_others = stored_interval(others.get(key, _UNSET))
        # The log is kept at least as long as the files.
        usual = max(kept, LEAST[key], plan.retentions.get(key, LEAST[key]), of_others)
        least, is_set = max(usual, needed + _DAY), stored_interval(stored.get(key, _UNSET))
        if least <= is_set < max(usual, ample) + _DAY:
            kept = is_set
            continue
        kept = usual if least == usual else max(least, ample)
        wanted[key] = f"interval {-(-kept // _DAY)} days"
    set_now = {key: text for key, text in (stored | wanted).items() if key in LEAST}
    record = retentions_record(set_now, others)
    if record != stored.get(RETENTIONS):
        wanted[RETENTIONS] = record
    if wanted:
        statement = f"ALTER TABLE {plan.table.sql} SET TBLPROPERTIES ({sql_pairs(wanted)})"
        retry_conflicts(lambda: spark.sql(statement))


def _duration_text(length: timedelta) -> str:
    hours = length / timedelta(hours=1)
    return f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours"
