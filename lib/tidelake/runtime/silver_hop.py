"""Bronze to silver: one fate for each row, side tables first, silver's commit closes the batch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame

from tidelake.bronze import as_never_requeued
from tidelake.errors import UsageError
from tidelake.runtime.counting import Counted, count
from tidelake.runtime.decision import Decider
from tidelake.runtime.held import Held
from tidelake.runtime.hop import HopQuery
from tidelake.runtime.offsets import planned_positions
from tidelake.runtime.prefilter import STATE_SETTINGS, Recovered, recover
from tidelake.runtime.schemas import from_ddl, late_schema, silver_freedom, silver_schema
from tidelake.runtime.small_batches import fitted
from tidelake.silver.classify import PAYLOAD_HASH
from tidelake.silver.fields import extra_columns, new_columns
from tidelake.silver.prefilter import hold_back_copies
from tidelake.silver.route import (
    LATE,
    QUARANTINE_DDL,
    QUARANTINED,
    SILVER,
    to_late,
    to_quarantine,
    to_silver,
)
from tidelake.silver.watermark import advance
from tidelake.sinks.append import append, ensure_table
from tidelake.sinks.commits import BEGINNING, Position, last_commit, rows_between
from tidelake.sinks.evolution import types_of
from tidelake.sinks.notes import SilverNote
from tidelake.tables import Table

_TWIN = (PAYLOAD_HASH, "ingested_at")
# How far a batch goes in each input, and how many rows Delta says it takes from it.
_Reached = tuple[dict[str, Position], dict[str, int]]


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

    @property
    def _prefilters(self) -> bool:
        return self.run.pipeline.dedup.prefilter == "operator"

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
        self._refuse_other_prefilter()
        spark, pipeline = self.run.spark, self.run.pipeline
        note, freedom = self.creation_note(), silver_freedom(pipeline)
        late, silver = late_schema(spark, pipeline), silver_schema(spark, pipeline)
        ensure_table(spark, self._late, late, note, freedom=freedom)
        ensure_table(spark, self._quarantine, from_ddl(spark, QUARANTINE_DDL), note)
        ensure_table(spark, self.table, silver, note, freedom=freedom)

    def _refuse_other_prefilter(self) -> None:
        """Stop where the checkpoint holds the prefilter's state and needs none, or the reverse."""
        last = last_commit(self.table)
        if last is None or last.batch < 0:
            return
        had = SilverNote.of(last).prefiltered is not None
        if had != self._prefilters:
            now, then = ("operator", "none") if self._prefilters else ("none", "operator")
            raise self.fence.refusal(
                f"dedup.prefilter is {now} now, and was {then} in the batches of the checkpoint"
            )

    def stream(self) -> DataFrame:
        """Read bronze and the requeue from their first commit on, in the order of commits."""
        name = self.run.pipeline.name
        bronze = self._follow(self.run.lake.bronze(name))
        if self._prefilters:
            for key, value in STATE_SETTINGS.items():
                self.run.spark.conf.set(key, value)
            bronze = hold_back_copies(bronze, ttl=self.run.pipeline.dedup.ttl)
        requeue = self._follow(self.run.lake.requeue(name))
        return as_never_requeued(bronze).unionByName(requeue)

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
            if self._prefilters:
                # The operator's state moves on only where its rows are read.
                rows.write.format("noop").mode("overwrite").save()
            return
        before = SilverNote.of(last_commit(self.table))
        reached = self._reached(before.until, batch)
        size = sum(reached[1].values()) + before.searched
        with fitted(rows.sparkSession, size), Held() as hold:
            note = self._decide_and_write(rows, batch, before, reached, hold)
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
        self, rows: DataFrame, batch: int, before: SilverNote, reached: _Reached, hold: Held
    ) -> SilverNote:
        pipeline, generation = self.run.pipeline, self.fence.generation
        mark = before.watermark
        decider = Decider(rows.sparkSession, pipeline, self.run.lake, batch)
        until, taken = reached
        recovered = Recovered(rows, [], 0)
        if self._prefilters:
            silver, late = decider.accepted()
            accepted = silver.select(*_TWIN).unionByName(late.select(*_TWIN))
            span = before.until.get("bronze", BEGINNING), until["bronze"]
            recovered = recover(self.run, hold(rows), accepted, span, hold)
        decision = decider.decide(recovered.rows, watermark=mark, hold=hold)
        decided = decision.rows
        counted = count(decided, pipeline, before.partitions, recovered.copies)
        stored = self._stored_types() if counted.unknown else {}
        extra = extra_columns(stored, pipeline.silver_columns)
        new = new_columns(counted.unknown, defined=pipeline.silver_columns, stored=stored)
        note = SilverNote(
            watermark_in=mark,
            watermark=self._advanced(before, counted),
            partitions=counted.partitions,
            counts=counted.counts,
            taken=taken,
            until=until,
            warnings=counted.warnings,
            searched=decision.searched,
            seconds=decision.seconds,
            prefiltered=recovered.held_back if self._prefilters else None,
            columns=new,
        )
        # Side tables first: silver's commit is the promise that they are complete.
        total = note.total()
        stamp: dict[str, Any] = {"generation": generation, "batch": batch}
        filled = (*extra, *new)
        if total[QUARANTINED]:
            self._append_side(to_quarantine(decided, **stamp), self._quarantine, batch)
        if total[LATE]:
            late = to_late(decided, pipeline, watermark=mark, extra=filled, **stamp)
            self._append_side(late, self._late, batch, may_add_columns=bool(filled))
        append(
            to_silver(decided, pipeline, extra=filled, **stamp),
            self.table,
            self.note(batch, **note.to_json()),
            surely_filled=total[SILVER] > 0,
            may_add_columns=bool(new),
        )
        return note

    def _advanced(self, before: SilverNote, counted: Counted) -> datetime | None:
        rules = self.run.pipeline.watermark
        return advance(
            before.watermark,
            counted.partitions,
            delay=rules.delay,
            idle_after=rules.idle_after,
        )

    def _reached(self, before: Mapping[str, Position], batch: int) -> _Reached:
        """Tell how far a batch goes in each input, and how many rows Delta says lie in it."""
        name = self.run.pipeline.name
        inputs = {"bronze": self.run.lake.bronze(name), "requeue": self.run.lake.requeue(name)}
        ends = planned_positions(self.checkpoint, batch, len(inputs))
        until = dict(zip(inputs, ends, strict=True))
        taken = {
            key: rows_between(table, before.get(key, BEGINNING), until[key])
            for key, table in inputs.items()
        }
        return until, taken

    def _append_side(
        self, rows: DataFrame, table: Table, batch: int, *, may_add_columns: bool = False
    ) -> None:
        """Append to a side table, unless the batch did so before it was interrupted."""
        last = last_commit(table)
        if last is None or (last.generation, last.batch) != (self.fence.generation, batch):
            append(rows, table, self.note(batch), may_add_columns=may_add_columns)

    def _stored_types(self) -> dict[str, str]:
        schema = self.run.spark.read.format("delta").load(str(self.table.path)).schema
        return types_of(schema)
