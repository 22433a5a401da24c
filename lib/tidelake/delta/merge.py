"""Merge batches into gold tables, idempotently and in one commit each; compact and vacuum tables.

Merges are SQL statements, which every kind of session runs: Delta's Python classes need a plugin on
a Spark Connect server.

The commit metadata is a session setting. Where the compute refuses it, the merge commits without
metadata, and the caller writes a second commit that closes the batch. If that one fails, the batch
is retried, and the condition on ``_batch`` skips the rows already merged.

Each batch adds at least one file. Small files are compacted at intervals; large ones are not. A
merge rewrites every file with a changed row, so it copies more rows after a compaction. Tables
whose merges copy many rows get deletion vectors, which avoid the copies but take longer on small
files.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    MetadataChangedException,
    ProtocolChangedException,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    DateType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from tidelake.delta.access import detail, load, properties
from tidelake.delta.log import USER_METADATA, Commit, encode
from tidelake.delta.store import CatalogTable
from tidelake.delta.tables import Table
from tidelake.folders import list_matching
from tidelake.gold.merge_plan import GONE, MergePlan
from tidelake.names import quoted
from tidelake.spark import tuning
from tidelake.spark.engine import REFUSED, runs_in_process, with_settings

# A reader that has just listed a log finds the checksum file of its version.
_KEPT_CHECKSUMS = 10
# Raised to a writer when the table's files were compacted, or its properties set, concurrently; a
# property may add a feature to the table's protocol. Nothing was committed, and a retry reads the
# new protocol: if this Delta does not know the feature, that fails with another error. The classes
# share no base.
CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    MetadataChangedException,
    ProtocolChangedException,
)
# How often a commit is attempted that conflicts with these.
TRIES = 5
# Delta's maximum number of clustering columns.
CLUSTERED_BY = 4
# The property that lists the columns with file statistics, and a column in it.
STATISTICS = "delta.dataSkippingStatsColumns"
LISTED = re.compile(r"`(?:[^`]|``)+`|[^`,\s]+")
# Delta refuses to collect statistics of other types.
HAVE_STATISTICS = (NumericType, StringType, DateType, TimestampType, TimestampNTZType)
_VECTORS = "delta.enableDeletionVectors"
# Skips rows that already have this batch, so that a retry changes nothing.
_FENCE = "t._batch < s._batch"


def merge(plan: MergePlan, target: Table, note: dict[str, Any], *, copied: int) -> None:
    """Apply a plan to a table in one MERGE, with ``note`` as the commit's metadata.

    ``copied``: how many rows the merge before this one copied; this one copies about as many.

    A matched row is deleted if ``_gone``, else updated if ``plan.changed``; other rows are inserted
    unless ``_gone``. Matched rows that have this batch or a later one stay, so a retry changes
    nothing. If no row changes there is no commit, and the caller must record the batch.

    Raises:
        One of CONFLICTS: Files that the merge read were rewritten, or properties set, meanwhile.
    """
    rows = plan.rows
    values = {name: f"s.{quoted(name)}" for name in rows.columns if name != GONE}
    present, delete = "true", ""
    if GONE in rows.columns:
        present = f"NOT s.{GONE}"
        delete = f"WHEN MATCHED AND s.{GONE} AND {_FENCE} THEN DELETE "
    update = ", ".join(
        f"{quoted(name)} = {value}" for name, value in (plan.update or values).items()
    )
    clauses = (
        f"{delete}WHEN MATCHED AND {present} AND {_FENCE} AND ({plan.changed}) "
        f"THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED AND {present} THEN INSERT ({', '.join(map(quoted, values))}) "
        f"VALUES ({', '.join(values.values())})"
    )
    _recognize_conflicts()
    # MERGE has no writer option for its commit's metadata.
    settings = {USER_METADATA: encode(note), **tuning.MERGE_SETTINGS}
    more = tuning.COMPILED_SETTINGS if copied > tuning.COMPILED_ROWS else {}
    with with_settings(rows.sparkSession, settings), with_settings(rows.sparkSession, more):
        target.merge(rows, on=plan.on, clauses=clauses)


def delete_records(records: DataFrame, target: Table, *, within: str = "") -> None:
    """Delete rows by their record id, in one commit without metadata; none if no row matches.

    ``records`` are checkpointed rows with distinct ``record_id``; ``within`` is an SQL condition on
    ``t`` that bounds them by literals, or empty. If the table's files or properties are rewritten
    meanwhile, it is tried again.
    """
    condition = " AND ".join(filter(None, ["t.record_id = s.record_id", within]))
    ids = records.select("record_id")
    with with_settings(records.sparkSession, tuning.MERGE_SETTINGS):
        retry_conflicts(lambda: target.merge(ids, on=condition, clauses="WHEN MATCHED THEN DELETE"))


def delete_where(spark: SparkSession, table: Table, condition: str) -> None:
    """Delete the rows, named ``q`` in an SQL condition, in one commit without metadata.

    If the table's files or properties are rewritten meanwhile, it is tried again.
    """
    statement = f"DELETE FROM {table.sql} AS q WHERE {condition}"
    retry_conflicts(lambda: spark.sql(statement))


def retry_conflicts(
    commit: Callable[[], object], may_retry: Callable[[], bool] = lambda: True
) -> None:
    """Call ``commit``; after a conflict, when nothing was committed, again if ``may_retry()``.

    Raises:
        One of CONFLICTS: There was no other try, or it was the last one.
    """
    _recognize_conflicts()
    for left in reversed(range(TRIES)):
        try:
            commit()
        except CONFLICTS:
            if not left or not may_retry():
                raise
        else:
            return


def _recognize_conflicts() -> None:
    """Let Spark Connect raise Delta's conflicts by their classes, in a client and in its workers.

    Otherwise they are of a general class there, and would be neither retried nor skipped.
    """
    if not runs_in_process():
        # Not imported at once: it loads the client of Spark Connect.
        with contextlib.suppress(ImportError):
            import delta.connect.exceptions  # noqa: F401, PLC0415


def is_due(batch: int, hop: str = "") -> bool:
    """Return whether tables are compacted after a batch, silver's half an interval after bronze's.

    Hops that take turns reach the same batch number at about the same time; they compact at
    different ones.
    """
    since = batch + (tuning.COMPACTION_BATCHES // 2 if hop == "silver" else 0)
    return (since + 1) % tuning.COMPACTION_BATCHES == 0


def compact(spark: SparkSession, table: Table) -> None:
    """Compact a table, unless a concurrent writer changes it; also :func:`shorten_log`."""
    _recognize_conflicts()
    with with_settings(spark, tuning.COMPACTION_SETTINGS), contextlib.suppress(*CONFLICTS):
        spark.sql(f"OPTIMIZE {table.sql}")
    shorten_log(table)


def shorten_log(table: Table) -> None:
    """Delete Delta's checksum files of older versions of a table on a disk.

    There Delta lists the whole log, several times in each batch. It reads the checksum file of the
    newest version only, and does without one that is missing.
    """
    if table.reads_files_directly:
        for file in list_matching(table.path, "_delta_log/[0-9]*.crc")[:-_KEPT_CHECKSUMS]:
            file.unlink(missing_ok=True)


def vacuum(spark: SparkSession, table: Table, *, hours: int) -> None:
    """Delete files that were removed from a table more than ``hours`` ago.

    Delta's retention check is disabled: callers know which versions are still read. Where the
    compute refuses settings, the table's property decides: see :func:`vacuum_uses_hours`. Only in a
    catalog it makes commits, which need no lock there.
    """
    unlogged = {} if isinstance(table, CatalogTable) else tuning.UNLOGGED_VACUUM
    with with_settings(spark, {**tuning.VACUUM_SETTINGS, **unlogged}):
        spark.sql(f"VACUUM {table.sql} RETAIN {hours} HOURS")


def vacuum_uses_hours(spark: SparkSession) -> bool:
    """Return whether :func:`vacuum` goes by its ``hours``: some compute refuses the settings.

    There recent files cannot be deleted, and the table's ``delta.deletedFileRetentionDuration``
    may decide in place of the hours, whether it is longer or shorter.
    """
    wanted = tuning.VACUUM_SETTINGS
    with with_settings(spark, wanted):
        try:
            return all(spark.conf.get(key, None) == value for key, value in wanted.items())
        except REFUSED:
            return False


def cluster(spark: SparkSession, table: Table, columns: Sequence[str]) -> None:
    """Set a table's clustering columns, to those of ``columns`` that have file statistics.

    Delta refuses others. Without any the table stays as it is. A concurrent writer tries again.
    """
    columns = _with_statistics(spark, table, columns)
    if columns and clustering_of(spark, table) != tuple(columns):
        spark.sql(f"ALTER TABLE {table.sql} CLUSTER BY ({', '.join(map(quoted, columns))})")


def _with_statistics(spark: SparkSession, table: Table, columns: Sequence[str]) -> list[str]:
    """Return those of the columns that have file statistics.

    A key that was added since the table was created is not in its list of columns with statistics.
    """
    types = {field.name: field.dataType for field in load(spark, table).schema}
    listed = properties(spark, table).get(STATISTICS)
    names = types if listed is None else LISTED.findall(listed)
    return [
        name
        for name in columns
        if isinstance(types.get(name), HAVE_STATISTICS)
        and not {name, quoted(name)}.isdisjoint(names)
    ]


def clustering_of(spark: SparkSession, table: Table) -> tuple[str, ...]:
    """Return a table's clustering columns."""
    return tuple(detail(spark, table)["clusteringColumns"])


def enable_deletion_vectors(spark: SparkSession, table: Table, last: Commit | None) -> None:
    """Enable deletion vectors on a table if its last commit, a merge, copied many rows."""
    if last is not None and last.copied > tuning.COPIED_ROWS and not has_vectors(spark, table):
        spark.sql(f"ALTER TABLE {table.sql} SET TBLPROPERTIES ('{_VECTORS}' = 'true')")


def has_vectors(spark: SparkSession, table: Table) -> bool:
    """Return whether a table has deletion vectors: merges copy no rows, so files may be large."""
    return properties(spark, table).get(_VECTORS) == "true"
