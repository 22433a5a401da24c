"""Read what silver has taken and what it made of it, also while a run is writing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.delta.access import load
from tidelake.delta.log import Commit, newest_version
from tidelake.delta.notes import positions
from tidelake.delta.tables import Table
from tidelake.ops.books import history
from tidelake.ops.side import ClosedBatch, still_there
from tidelake.replay.views import query_over
from tidelake.runtime.gold_target import up_to
from tidelake.runtime.hop import Run
from tidelake.silver.scope import with_id_hash

# Which batch wrote a row.
ORIGIN = ("_generation", "_batch")


@dataclass(frozen=True)
class SilverInputs:
    """What silver has taken, and what it made of it.

    Attributes:
        version: Silver's.
        closing: Its commits, newest first.
        bronze: Bronze as far as it was taken.
        requeued: The requeue likewise.
        silver: Silver as of its newest commit.
        quarantine: The rows that are still there, of closed batches.
        late: Likewise.
    """

    version: int
    closing: Sequence[Commit]
    bronze: DataFrame
    requeued: DataFrame
    silver: DataFrame
    quarantine: DataFrame
    late: DataFrame

    def since(self, instant: datetime | None) -> SilverInputs:
        """Cut to what arrived from an instant on."""
        if instant is None:
            return self
        arrived = F.col("ingested_at") >= F.lit(instant)
        # What arrived since was decided since.
        later = [commit for commit in self.closing if commit.written_at >= instant]
        return SilverInputs(
            self.version,
            later or self.closing[:1],
            self.bronze.where(arrived),
            self.requeued.where(arrived),
            self.silver.where(arrived),
            self.quarantine.where(arrived),
            self.late.where(arrived),
        )


def read_inputs(run: Run) -> SilverInputs:
    """Read the tables as silver's last closed batch left them, also while a run is writing."""
    spark, lake, name = run.spark, run.lake, run.pipeline.name
    silver, requeue = lake.silver(name), lake.requeue(name)
    # The version before the notes: batches that close meanwhile are not looked at.
    version = newest_version(silver)
    closing = [commit for commit in history(lake, silver) if commit.version <= version]
    last = closing[0]
    inputs = {"bronze": lake.bronze(name), "requeue": requeue}
    until = {key: positions(last).get(key, (0, -1)) for key in inputs}
    read = up_to(spark, inputs, until)
    requeued = read("requeue")
    closed = ClosedBatch(last.generation, last.batch)

    def side(table: Table) -> DataFrame:
        stored = load(spark, table)
        query = still_there(table, requeue, closed)
        return query_over(spark, query, {table: stored, requeue: requeued})

    return SilverInputs(
        version,
        closing,
        read("bronze"),
        requeued,
        with_id_hash(load(spark, silver, version=version)),
        side(lake.quarantine(name)),
        with_id_hash(side(lake.late(name))),
    )
