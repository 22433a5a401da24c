"""Look silver's rows up in dimensions, each batch in one version of their tables.

The number of that version is in the batch's commit. It means nothing in another table of the same
name, so a dimension that was deleted, recreated or replaced by an older copy stops the hop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidelake.bronze.records import REQUEUE_DDL
from tidelake.config import Enrich, Pipeline
from tidelake.delta.access import has_files, load, load_old
from tidelake.delta.commit_metadata import SilverNote
from tidelake.delta.log import FOLLOWS, Commit, commits, newest_version
from tidelake.delta.positions import is_recreated, lacks_read
from tidelake.delta.tables import Lake, Table
from tidelake.errors import GenerationError, UsageError
from tidelake.runtime.hop import Run
from tidelake.silver.enrich import look_up, looked_up, without_entry
from tidelake.silver.plan import SilverPlan
from tidelake.silver.stages import SELECTED, Judging, classify
from tidelake.typed import runnable


class Lookup(NamedTuple):
    """One enrichment of a batch, pinned to a version of the dimension's table.

    The version is -1 if the table does not exist yet; then no row matches.
    """

    enrich: Enrich
    table: Table
    version: int


def lookups(lake: Lake, pipeline: Pipeline, before: SilverNote | None = None) -> list[Lookup]:
    """Pin every dimension that a pipeline's silver joins to its newest version.

    With ``as_of`` that is the version of the table ``__history``. The version is -1 if the table
    does not exist yet.

    Raises:
        GenerationError: A version is older than that of the batch ``before``.
    """
    tables = ((enrich, lake.table(enrich.table)) for enrich in pipeline.enrich)
    found = [Lookup(enrich, table, newest_version(table)) for enrich, table in tables]
    used = {use.table: use.version for use in before.dimensions} if before else {}
    for one in found:
        if one.version < (last := used.get(one.table.name, -1)):
            what = "was deleted" if one.version < 0 else "is an older copy or was recreated"
            raise _refusal(lake, pipeline, one, f"{_looked_up_in(one.table, last)}, which {what}")
    return found


def refuse_replaced(lake: Lake, pipeline: Pipeline) -> None:
    """Raise a GenerationError if a dimension is not the table that silver's last batch read."""
    if not pipeline.enrich:
        return
    # Not a repair's or an erasure's commit, which repeats the versions of the batch before it.
    made = (one for one in commits(lake.silver(pipeline.name)) if FOLLOWS not in one.note)
    if (last := next(made, None)) is None:
        return
    used = {use.table: use.version for use in SilverNote.of(last).dimensions}
    for one in lookups(lake, pipeline):
        version = used.get(one.table.name, -1)
        if what := replaced(one.table, version, last):
            raise _refusal(lake, pipeline, one, what)


def replaced(table: Table, version: int, last: Commit) -> str:
    """Describe how a dimension is not the table that a batch read, or return "".

    ``last`` is the last commit of silver with this version; -1 if there was no table then.
    """
    if version < 0:
        return ""
    found = _looked_up_in(table, version)
    if not table.exists:
        return f"{found}, which was deleted"
    if is_recreated(table, last.written_at):
        return f"{found}, which was recreated since"
    if lacks_read(table, (version + 1, -1), last.written_at):
        return f"{found}, which is an older copy"
    return ""


def unreadable(spark: SparkSession, lookup: Lookup) -> Exception | None:
    """Return why the version of a lookup, which is not the newest, cannot be read any more."""
    table, version = lookup.table, lookup.version
    try:
        # Delta refuses a version whose files may be gone, but none of the last week.
        if load(spark, table, version=version).columns and has_files(spark, table, version):
            return None
    except PySparkException as error:
        return error
    return FileNotFoundError(f"files of version {version} of {table.name} are gone")


def _looked_up_in(table: Table, version: int) -> str:
    return f"rows were looked up in version {version} of {table.name}"


def _refusal(lake: Lake, pipeline: Pipeline, lookup: Lookup, what: str) -> GenerationError:
    # Also of a backfill, which does not continue its tables then.
    return GenerationError(
        f"{pipeline.name}, hop silver: {what}",
        f"Restore the newest copy of {lookup.table.name}; or fill it with: "
        f"{runnable('tidelake run', lookup.enrich.dimension)}, then look all rows up again with: "
        f"{runnable('tidelake backfill run', pipeline.name)}, and promote it",
    )


def check_dimensions(run: Run) -> None:
    """Say which dimensions do not exist yet; raise a UsageError if one lacks a column."""
    for enrich, table, version in lookups(run.lake, run.pipeline):
        again = runnable("tidelake run", enrich.dimension)
        if version < 0:
            run.progress.say(
                f"{table.name} does not exist yet: its columns stay null. Fill it with: {again}"
            )
        elif lacking := _lacking(load(run.spark, table, version=version), enrich):
            again = runnable("tidelake backfill run", enrich.dimension)
            raise UsageError(
                f"{table.name} has no column {lacking[0]} yet, which enrich in the definition of "
                f"{run.pipeline.name} names. Add it with: {again}, then promote it"
            )


def _lacking(entries: DataFrame, enrich: Enrich) -> list[str]:
    known = {name.lower() for name in entries.columns}
    return [name for name in enrich.columns if name.lower() not in known]


def enriched(rows: DataFrame, plan: SilverPlan, pinned: Sequence[Lookup]) -> DataFrame:
    """Add the columns of every dimension to each row; all null for a dimension without a version.

    ``pinned`` come from :func:`lookups`; without them all are null, in the types of the definition.
    So is a column that the version does not have yet.
    """
    spark = rows.sparkSession
    for number, enrich in enumerate(plan.pipeline.enrich):
        if pinned and pinned[number].version >= 0:
            # A backfill looks all rows up in the version that it began with, however old.
            entries = load_old(spark, pinned[number].table, pinned[number].version)
            if lacking := _lacking(entries, enrich):
                entries = without_entry(entries, _chosen(plan, enrich, lacking, spark), number)
                entries = entries.select("*", f"{looked_up(number)}.*")
            rows = look_up(rows, entries, enrich, number)
        else:
            rows = without_entry(rows, _chosen(plan, enrich, enrich.columns, spark), number)
    return rows


def _chosen(
    plan: SilverPlan, enrich: Enrich, columns: Sequence[str], spark: SparkSession
) -> StructType:
    """Return the types of some columns of a dimension, from its definition."""
    if enrich.dimension not in plan.entry_types:
        rows = spark.createDataFrame([], REQUEUE_DDL)
        judged = classify(rows, Judging(plan.pipeline.dimensions[enrich.dimension]))
        selected = judged.schema[SELECTED].dataType
        assert isinstance(selected, StructType)
        plan.entry_types[enrich.dimension] = selected
    kind = plan.entry_types[enrich.dimension]
    return StructType([kind[name] for name in columns])
