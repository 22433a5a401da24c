"""Merge a batch into a gold table in one commit, so that a retry changes nothing; compact tables.

Merges are SQL statements, the one way that a session of any kind understands: Delta's Python
classes need a plugin in a server of Spark Connect.

The metadata is set in the session. Where that is refused, the merge's commit has none, and whoever
merges closes the batch by a commit of its own. Until then the batch counts as open: merged once
more, its rows are there already, and the fence leaves them alone.

Each batch leaves at least one file, and now and then the small ones are put together; files that
have grown large are left alone. A merge writes a file with a changed row in it anew, and the more
files were put together, the more rows it copies: a table where that is much gets deletion vectors,
with which a merge copies nothing, but takes longer on small files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
)
from pyspark.sql import DataFrame, SparkSession

from tidelake.config.types import quoted
from tidelake.delta.access import detail
from tidelake.delta.log import USER_METADATA, Commit, encode
from tidelake.delta.tables import Table
from tidelake.gold.kinds import GONE, MergePlan
from tidelake.spark import tuning
from tidelake.spark.engine import with_settings

# What a writer hears whose files somebody else put together meanwhile; they share no base.
CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
)
# As many as Delta clusters by.
CLUSTERED_BY = 4
_VECTORS = "delta.enableDeletionVectors"
# Changes a row only for a batch that the row has not seen.
_FENCE = "t._batch < s._batch"


def merge(plan: MergePlan, target: Table, note: dict[str, Any]) -> None:
    """Replace the rows that a batch changed, delete those that are gone, insert the new ones."""
    rows = plan.rows
    written = {name: f"s.{quoted(name)}" for name in rows.columns if name != GONE}
    there, deleted = "true", ""
    if GONE in rows.columns:
        there = f"NOT s.{GONE}"
        deleted = f"WHEN MATCHED AND s.{GONE} AND {_FENCE} THEN DELETE "
    update = ", ".join(
        f"{quoted(name)} = {value}" for name, value in (plan.update or written).items()
    )
    clauses = (
        f"{deleted}WHEN MATCHED AND {there} AND {_FENCE} AND ({plan.changed}) "
        f"THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED AND {there} THEN INSERT ({', '.join(map(quoted, written))}) "
        f"VALUES ({', '.join(written.values())})"
    )
    with _noted(rows.sparkSession, note):
        target.store.merge(rows, on=plan.on, clauses=clauses)


def delete_records(
    records: DataFrame, target: Table, *, within: str = "", note: dict[str, Any] | None = None
) -> None:
    """Delete rows by their record id, in one commit; none where the table holds none of them.

    ``records`` are kept rows with ``record_id``, each once; ``within`` is SQL over ``t`` that
    bounds them by literals, or empty.
    """
    spark = records.sparkSession
    same = " AND ".join(filter(None, ["t.record_id = s.record_id", within]))
    with _noted(spark, note) if note else with_settings(spark, tuning.MERGE_SETTINGS):
        ids = records.select("record_id")
        target.store.merge(ids, on=same, clauses="WHEN MATCHED THEN DELETE")


def notes_can_ride(spark: SparkSession) -> bool:
    """Tell whether the compute lets a session carry the note of a merge."""
    wanted = encode({})
    with with_settings(spark, {USER_METADATA: wanted}):
        return spark.conf.get(USER_METADATA, None) == wanted


def _noted(spark: SparkSession, note: dict[str, Any]) -> AbstractContextManager[None]:
    """Attach a note to the session's next commits; MERGE takes it from nowhere else."""
    return with_settings(spark, {USER_METADATA: encode(note), **tuning.MERGE_SETTINGS})


def is_due(batch: int) -> bool:
    """Tell whether a batch is one after which tables are compacted."""
    return (batch + 1) % tuning.COMPACTION_BATCHES == 0


def compact(spark: SparkSession, table: Table) -> None:
    """Compact a table; where somebody else rewrites it at the same moment, leave it to them."""
    with with_settings(spark, tuning.COMPACTION_SETTINGS), contextlib.suppress(*CONFLICTS):
        table.store.compact(spark)


def vacuum(spark: SparkSession, table: Table, *, hours: int) -> None:
    """Delete files that were removed from a table more than so many hours ago.

    Delta's own check of the retention is off: callers know which versions are still read.
    """
    with with_settings(spark, tuning.VACUUM_SETTINGS):
        spark.sql(f"VACUUM {table.sql} RETAIN {hours} HOURS")


def cluster(spark: SparkSession, table: Table, columns: Sequence[str]) -> None:
    """Have compactions sort a table by some columns; a writer beside it would fail once."""
    if clustering_of(spark, table) != tuple(columns):
        spark.sql(f"ALTER TABLE {table.sql} CLUSTER BY ({', '.join(map(quoted, columns))})")


def clustering_of(spark: SparkSession, table: Table) -> tuple[str, ...]:
    """Name the columns that compactions sort a table by."""
    return tuple(detail(spark, table)["clusteringColumns"])


def enable_deletion_vectors(spark: SparkSession, table: Table, last: Commit | None) -> None:
    """Enable deletion vectors of a table whose last commit, a merge, copied many rows."""
    if last is not None and last.copied > tuning.COPIED_ROWS and not has_vectors(spark, table):
        spark.sql(f"ALTER TABLE {table.sql} SET TBLPROPERTIES ('{_VECTORS}' = 'true')")


def has_vectors(spark: SparkSession, table: Table) -> bool:
    """Tell whether merges into a table copy no rows, so that its files may be large."""
    return bool(detail(spark, table)["properties"].get(_VECTORS) == "true")
