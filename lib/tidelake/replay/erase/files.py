"""Delete the files that still hold erased rows, and tell those that are left."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql import SparkSession

from tidelake.delta.access import detail
from tidelake.delta.tables import Table
from tidelake.ops.maintenance.needs import needs_of
from tidelake.ops.maintenance.upkeep import vacuum
from tidelake.replay.erase.remains import filled_tables
from tidelake.replay.erase.report import Remains
from tidelake.runtime.books import close_epoch
from tidelake.runtime.hop import Run

_VECTORS = "deletionVectors"


def purge(run: Run) -> tuple[Remains, ...]:
    """Delete every file that a pipeline's tables no longer hold.

    A new epoch is closed first, on the files that stay.

    Returns:
        Whoever could have read an older version, and what lets them read again.
    """
    tables = filled_tables(run)
    for table in tables:
        purge_vectors(run.spark, table)
    close_epoch(run)
    needs = needs_of(run.lake, tables, rollbacks_since=datetime.now(UTC))
    for table in tables:
        vacuum(run.spark, table, hours=0)
        run.progress.say(f"{table.name}: old files deleted")
    # Its own hops stand at their heads, and its epoch was closed just now.
    broken = [need for need in needs if run.pipeline.name not in need.remedy.split()]
    return tuple(
        Remains(f"cannot read {one.table.name} as it was any more", one.by, None, one.remedy)
        for one in broken
    )


def purge_vectors(spark: SparkSession, table: Table) -> None:
    """Write files anew whose rows a deletion vector only hides."""
    if _VECTORS in (detail(spark, table)["tableFeatures"] or []):
        spark.sql(f"REORG TABLE {table.sql} APPLY (PURGE)")
