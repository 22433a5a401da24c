"""Decide one batch of silver and write it: side tables first, silver's commit closes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame

from tidelake.access import load
from tidelake.runtime.counting import Counted, count
from tidelake.runtime.decision import Decider
from tidelake.runtime.enrichment import enriched, lookups
from tidelake.runtime.files_in_reach import FilesInReach
from tidelake.runtime.held import Held
from tidelake.runtime.hop import Run
from tidelake.runtime.prefilter import Recovered
from tidelake.runtime.targets import stamped
from tidelake.runtime.writer_schemas import schemas_for
from tidelake.silver.classify import classify
from tidelake.silver.fields import extra_columns, new_columns
from tidelake.silver.lateness import marked
from tidelake.silver.route import LATE, QUARANTINED, SILVER, to_late, to_quarantine, to_silver
from tidelake.silver.watermark import advance
from tidelake.sinks.append import append
from tidelake.sinks.commits import REBUILT, last_commit
from tidelake.sinks.definitions import decision_note, is_decided_by, silver_note
from tidelake.sinks.evolution import types_of
from tidelake.sinks.notes import DimensionUse, SilverNote
from tidelake.sinks.positions import Position
from tidelake.tables import Table


@dataclass(frozen=True)
class Reached:
    """How far a batch goes.

    Attributes:
        until: The position in each input.
        rows: How many rows Delta says it takes from each.
    """

    until: Mapping[str, Position]
    rows: Mapping[str, int]


@dataclass(frozen=True)
class Kept:
    """Rows that stay as they are where a batch stands for all of silver.

    Attributes:
        decider: Knows them as accepted.
        silver: Accepted rows, without the columns of a batch.
        quarantine: Quarantined rows, likewise.
    """

    decider: Decider
    silver: DataFrame
    quarantine: DataFrame


@dataclass(frozen=True)
class SilverBatch:
    """Writes one batch into silver and its side tables.

    Attributes:
        run: What the run works with.
        generation: Silver's.
        number: The batch.
        rebuilds: Whether it stands for all of silver: nothing was accepted before it, and its
            rows replace those of the tables.
        kept: What stays beside them, and is counted among what the batch recovered.
        files: Knows the files of silver and late from the batches before; None: Delta is asked.
        may_be_retry: Whether an interrupted run may have written the batch's side tables.
    """

    run: Run
    generation: str
    number: int
    rebuilds: bool = False
    kept: Kept | None = None
    files: Mapping[str, FilesInReach] | None = None
    may_be_retry: bool = False

    def write(
        self, recovered: Recovered, before: SilverNote, reached: Reached, hold: Held
    ) -> SilverNote:
        """Decide the batch's rows and write them.

        Args:
            recovered: The rows, and what is known of those beside them.
            before: The books of the batch before.
            reached: How far the batch goes.
            hold: Keeps what is read more than once.
        """
        run, pipeline = self.run, self.run.pipeline
        mark = None if run.replays else before.watermark
        spark = recovered.rows.sparkSession
        kept = self.kept
        decider = (
            kept.decider
            if kept
            else Decider(
                spark, pipeline, run.lake, self.number, afresh=self.rebuilds, files=self.files
            )
        )
        # Before anything is decided: a retry reads the same schemas.
        if recovered.judged:
            judged = recovered.rows
        else:
            schemas = schemas_for(run, recovered.rows, anew=self.rebuilds)
            judged = classify(recovered.rows, pipeline, schemas)
        decision = decider.decide(judged, watermark=mark, hold=hold)
        pinned = lookups(run.lake, pipeline)
        decided = enriched(decision.rows, pipeline, pinned)
        counted = count(decided, pipeline, before.partitions, recovered.copies)
        stored = self._stored_types() if counted.unknown else {}
        extra = extra_columns(stored, pipeline.defined_columns)
        new = new_columns(counted.unknown, defined=pipeline.defined_columns, stored=stored)
        advanced = self._advanced(before, counted)
        allowed = pipeline.watermark.allowed_lateness
        note = SilverNote(
            watermark_in=mark,
            watermark=advanced,
            settled=None if advanced is None else advanced - allowed,
            partitions=counted.partitions,
            counts=counted.counts,
            taken=reached.rows,
            until=reached.until,
            warnings=counted.warnings,
            searched=decision.searched,
            seconds=decision.seconds,
            prefiltered=recovered.held_back,
            columns=new,
            dimensions=tuple(
                DimensionUse(lookup.table.name, lookup.version, unmatched)
                for lookup, unmatched in zip(pinned, counted.unmatched, strict=True)
            ),
        )
        # Side tables first: silver's commit is the promise that they are complete.
        total = note.total()
        stamp: dict[str, Any] = {"generation": self.generation, "batch": self.number}
        filled = (*extra, *new)
        name = pipeline.name
        by = decision_note(pipeline, {use.table: use.version for use in note.dimensions})

        def quarantined() -> DataFrame:
            failed = to_quarantine(decided, **stamp)
            return failed.unionByName(stamped(kept.quarantine, **stamp)) if kept else failed

        def late() -> DataFrame:
            return to_late(decided, pipeline, watermark=marked(mark), extra=filled, **stamp)

        self._write_side(quarantined, run.lake.quarantine(name), by, count=total[QUARANTINED])
        self._write_side(
            late, run.lake.late(name), by, count=total[LATE], may_add_columns=bool(filled)
        )
        accepted = to_silver(decided, pipeline, extra=filled, **stamp)
        if kept:
            theirs = stamped(kept.silver, **stamp)
            accepted = theirs.unionByName(accepted, allowMissingColumns=True)
        run.locks.step(f"write {run.lake.silver(name).name}")
        append(
            accepted,
            run.lake.silver(name),
            {**self._stamp(), **note.to_json(), **silver_note(pipeline)},
            surely_filled=total[SILVER] > 0,
            may_add_columns=bool(new),
            replaces=self.rebuilds,
        )
        return note

    def _stamp(self) -> dict[str, Any]:
        stamp = {
            "pipeline": self.run.pipeline.name,
            "hop": "silver",
            "generation": self.generation,
            "batch": self.number,
        }
        return {**stamp, REBUILT: True} if self.rebuilds else stamp

    def _write_side(
        self,
        rows: Callable[[], DataFrame],
        table: Table,
        decided_by: Mapping[str, Any],
        *,
        count: int,
        may_add_columns: bool = False,
    ) -> None:
        """Write the batch's rows into a side table, once.

        An interrupted run may have written them already. If the same definition decided them
        then, they are the same rows. Otherwise these replace them, also where there are none now,
        in one commit: silver and its side tables are decided by one definition.

        Args:
            rows: Gives the rows; most batches have none for a side table.
            table: Where to.
            decided_by: From :func:`tidelake.sinks.definitions.decision_note`.
            count: How many rows the batch has.
            may_add_columns: Whether columns that the table lacks come into it.
        """
        writes = count > 0 or self.rebuilds
        if not writes and not self.may_be_retry:
            return
        last = last_commit(table)
        is_there = last is not None and (last.generation, last.batch) == (
            self.generation,
            self.number,
        )
        if last is not None and is_there and is_decided_by(last, decided_by):
            return
        if not writes and not is_there:
            return
        # A generation's name comes from our own notes: a letter and digits.
        own = f"_generation = '{self.generation}' AND _batch = {self.number}"
        self.run.locks.step(f"write {table.name}")
        append(
            rows(),
            table,
            {**self._stamp(), **decided_by},
            may_add_columns=may_add_columns,
            replaces=self.rebuilds,
            replaces_where=own if is_there else "",
        )

    def _advanced(self, before: SilverNote, counted: Counted) -> datetime | None:
        rules = self.run.pipeline.watermark
        return advance(
            before.watermark,
            counted.partitions,
            delay=rules.delay,
            idle_after=rules.idle_after,
        )

    def _stored_types(self) -> dict[str, str]:
        silver = self.run.lake.silver(self.run.pipeline.name)
        return types_of(load(self.run.spark, silver).schema)
