"""Bronze to silver: one fate for each row, side tables first, silver's commit closes the batch."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from tidelake.errors import UsageError
from tidelake.instants import from_micros
from tidelake.runtime.hop import HopQuery
from tidelake.runtime.schemas import from_ddl, late_schema, silver_schema
from tidelake.runtime.verdicts import Reach, find_verdicts
from tidelake.silver.classify import REQUEUED, STAGE, classify
from tidelake.silver.dedup import arrivals
from tidelake.silver.route import (
    FATE,
    LATE,
    QUARANTINE_DDL,
    QUARANTINED,
    SILVER,
    decide,
    to_late,
    to_quarantine,
    to_silver,
)
from tidelake.silver.watermark import PartitionProgress, advance
from tidelake.sinks.append import append, ensure_table
from tidelake.sinks.commits import last_commit
from tidelake.sinks.notes import FateCount, SilverNote
from tidelake.tables import Table

# Kafka partitions come with the Kafka source; every other source has one.
_ONLY_PARTITION = "0"


class SilverHop(HopQuery):
    """Decides the fate of bronze's rows and of those that were requeued."""

    hop = "silver"

    @property
    def table(self) -> Table:
        """Silver itself."""
        return self.run.lake.silver(self.run.pipeline.name)

    @property
    def _late(self) -> Table:
        return self.run.lake.late(self.run.pipeline.name)

    @property
    def _quarantine(self) -> Table:
        return self.run.lake.quarantine(self.run.pipeline.name)

    def closing_tables(self) -> list[Table]:
        """Silver's commit closes a batch."""
        return [self.table]

    def create_tables(self) -> None:
        """Create silver and its side tables."""
        name = self.run.pipeline.name
        if not self.run.lake.bronze(name).exists:
            raise UsageError(
                f"bronze.{name} does not exist yet. Fill it with: tidelake run {name} --hop bronze"
            )
        spark, pipeline = self.run.spark, self.run.pipeline
        ensure_table(spark, self._late, late_schema(spark, pipeline), self.creation_note())
        ensure_table(spark, self._quarantine, from_ddl(spark, QUARANTINE_DDL), self.creation_note())
        ensure_table(spark, self.table, silver_schema(spark, pipeline), self.creation_note())

    def stream(self) -> DataFrame:
        """Read bronze and the requeue from their first commit on, in the order of commits."""
        name = self.run.pipeline.name
        nothing = {
            "reason": F.lit(None).cast("string"),
            "requeued_at": F.lit(None).cast("timestamp"),
        }
        fresh = self._follow(self.run.lake.bronze(name)).withColumns(nothing)
        return fresh.unionByName(self._follow(self.run.lake.requeue(name)))

    def _follow(self, table: Table) -> DataFrame:
        return (
            self.run.spark.readStream.format("delta")
            .option("startingVersion", 0)
            .option("maxBytesPerTrigger", self.run.environment.limits.silver_bytes)
            .load(str(table.path))
        )

    def write(self, rows: DataFrame, batch: int) -> None:
        """Decide a batch and write it."""
        began = time.monotonic()
        if not self.fence.admits(self.table, batch):
            return
        before = SilverNote.of(last_commit(self.table))
        held: list[DataFrame] = []
        try:
            note = self._decide_and_write(rows, batch, before, held)
        finally:
            for frame in held:
                frame.unpersist()
        counts = note.total()
        self.run.progress.closed(
            self.hop,
            batch,
            sum(counts.values()),
            began,
            watermark=note.watermark,
            detail=" ".join(f"{fate} {n:,}" for fate, n in counts.items() if n),
        )

    def _decide_and_write(
        self, rows: DataFrame, batch: int, before: SilverNote, held: list[DataFrame]
    ) -> SilverNote:
        pipeline, generation = self.run.pipeline, self.fence.generation
        classified = _hold(classify(rows, pipeline), held)
        verdicts = find_verdicts(
            arrivals(classified),
            lambda reach: self._accepted(reach, batch),
            pipeline.dedup,
            hold=lambda frame: _hold(frame, held),
        )
        mark = before.watermark
        decided = decide(
            classified, verdicts, watermark=mark, allowed=pipeline.watermark.allowed_lateness
        )
        note = self._count(decided, before)
        # Side tables first: silver's commit is the promise that they are complete.
        total = note.total()
        if total[QUARANTINED]:
            quarantined = to_quarantine(decided, generation=generation, batch=batch)
            self._append_side(quarantined, self._quarantine, batch)
        if total[LATE]:
            late = to_late(decided, pipeline, watermark=mark, generation=generation, batch=batch)
            self._append_side(late, self._late, batch)
        events = to_silver(decided, pipeline, generation=generation, batch=batch)
        append(
            events,
            self.table,
            self.note(batch, **note.to_json()),
            surely_filled=total[SILVER] > 0,
        )
        return note

    def _append_side(self, rows: DataFrame, table: Table, batch: int) -> None:
        """Append to a side table, unless the batch did so before it was interrupted."""
        last = last_commit(table)
        if last is None or (last.generation, last.batch) != (self.fence.generation, batch):
            append(rows, table, self.note(batch))

    def _accepted(self, reach: Reach, batch: int) -> DataFrame:
        """Read the ids that the batch could meet, as the last closed batch left them.

        A late row of this very batch, written before an interruption, is not yet accepted.
        """
        late = self._read(self._late).where(F.col("_batch") < batch)
        return reach.within(self._read(self.table), is_late_table=False).unionByName(
            reach.within(late, is_late_table=True)
        )

    def _read(self, table: Table) -> DataFrame:
        return self.run.spark.read.format("delta").load(str(table.path))

    def _count(self, decided: DataFrame, before: SilverNote) -> SilverNote:
        """Count fates and move the watermark, in one pass."""
        kept = F.when(F.col(FATE) == SILVER, F.unix_micros("event_time"))
        groups = (
            decided.groupBy(REQUEUED, FATE, STAGE)
            .agg(
                F.count("*").alias("rows"),
                F.max(kept).alias("newest"),
                F.max(F.unix_micros("ingested_at")).alias("arrived"),
            )
            .collect()
        )
        rules = self.run.pipeline.watermark
        partitions = _progress(before.partitions, groups)
        return SilverNote(
            watermark_in=before.watermark,
            watermark=advance(
                before.watermark, partitions, delay=rules.delay, idle_after=rules.idle_after
            ),
            partitions=partitions,
            counts=tuple(
                FateCount(row[FATE], row[STAGE], row[REQUEUED], row["rows"]) for row in groups
            ),
        )


def _progress(
    before: Mapping[str, PartitionProgress], groups: list[Row]
) -> Mapping[str, PartitionProgress]:
    """Bring the source's one partition up to date with a batch's fresh rows."""
    fresh = [group for group in groups if not group[REQUEUED]]
    arrived = from_micros(max((group["arrived"] for group in fresh), default=None))
    if arrived is None:
        return before
    newest = from_micros(
        max((group["newest"] for group in fresh if group["newest"] is not None), default=None)
    )
    earlier = before.get(_ONLY_PARTITION)
    if earlier is not None:
        arrived = max(arrived, earlier.last_ingested_at)
        times = [time for time in (newest, earlier.max_event_time) if time is not None]
        newest = max(times, default=None)
    return {**before, _ONLY_PARTITION: PartitionProgress(newest, arrived)}


def _hold(frame: DataFrame, held: list[DataFrame]) -> DataFrame:
    """Keep a frame that is read more than once, to be let go when the batch ends."""
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    held.append(kept)
    return kept
