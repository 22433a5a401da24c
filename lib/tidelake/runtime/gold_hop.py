"""Silver to gold: one query merges each batch into every gold table of the pipeline."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tidelake.config.meanings import meaning_of
from tidelake.config.model import bytes_of
from tidelake.delta.append import ensure_table
from tidelake.delta.log import last_commit
from tidelake.delta.merge import CONFLICTS, enable_deletion_vectors, has_vectors
from tidelake.delta.notes import (
    changed_definition,
    definition_note,
    positions,
    settled_until,
)
from tidelake.delta.positions import BEGINNING, Position, size_between
from tidelake.delta.tables import Table
from tidelake.errors import UsageError
from tidelake.runtime.checkpoints import Fence
from tidelake.runtime.gold_target import (
    OWN,
    Inputs,
    Target,
    by_input,
    contributions,
    count_contributions,
    counted_for,
    inputs_of,
    open_stream,
    up_to,
)
from tidelake.runtime.held import Held
from tidelake.runtime.hop import Heads, HopQuery, Run
from tidelake.runtime.lanes import Lanes
from tidelake.runtime.schemas import GOLD_FREEDOM, target_schema
from tidelake.runtime.targets import targets_of
from tidelake.spark.engine import fitted
from tidelake.spark.internals import moved
from tidelake.spark.tuning import is_small

# How often a batch is merged again after a compaction got in between.
_TRIES = 5


class GoldHop(HopQuery):
    """Merges silver's new events into the gold tables."""

    hop = "gold"

    def __init__(self, run: Run, *, creates: bool = True, fence: Fence | None = None) -> None:
        """Find the tables and what they follow; then as every hop."""
        self._targets = targets_of(run.lake, run.pipeline)
        self._inputs = inputs_of(run.lake, run.pipeline)
        self._lanes: Lanes | None = None
        super().__init__(run, creates=creates, fence=fence)

    @property
    def most(self) -> int:
        """The environment's limit."""
        return bytes_of(self.run.environment.limits.gold_bytes)

    def closing_tables(self) -> list[Table]:
        """Each gold table closes a batch for itself."""
        return [target.table for target in self._targets]

    def compacted(self, spark: SparkSession) -> list[Table]:
        """Without deletion vectors a merge would copy the large files that this makes."""
        return [table for table in self.closing_tables() if has_vectors(spark, table)]

    @property
    def inputs(self) -> dict[str, Table]:
        """Gold's tables follow silver, all from one position."""
        return self._inputs

    def create_tables(self) -> None:
        """Create the gold tables."""
        for table in self._inputs.values():
            if not table.exists:
                name = table.name.removeprefix("silver.")
                raise UsageError(
                    f"{table.name} does not exist yet. "
                    f"Fill it with: tidelake run {name} --hop silver"
                )
        for target in self._targets:
            if changed_definition(last_commit(target.table), target.definition):
                raise self.fence.refusal(f"{target.table.name} was filled under another definition")
        for target in self._targets:
            ensure_table(
                self.run.spark,
                target.table,
                target_schema(self.run, target),
                # Where a merge carries no note, rows of an uncommitted batch are of this one.
                {**self.creation_note(), **definition_note(target.definition)},
                meaning=meaning_of(self.run.pipeline, target.table.name),
                freedom=GOLD_FREEDOM,
            )

    def stream(self) -> DataFrame:
        """Follow silver from its first commit on."""
        return open_stream(
            self.run.spark, self._inputs, max_bytes=self.limit, idle=self.standing.idle()
        )

    def write(self, rows: DataFrame, batch: int, heads: Heads) -> None:
        """Merge a batch into each table that does not hold it yet."""
        began = time.monotonic()
        reached = positions(heads[0])
        until = self.standing.planned(batch, reached)
        open_targets = [
            target
            for target, last in zip(self._targets, heads, strict=True)
            if self.fence.admits(target.table, last, batch, until)
        ]
        if not open_targets:
            return
        sizes = [
            size_between(table, reached.get(key, BEGINNING), until[key])
            for key, table in self._inputs.items()
        ]
        count = sum(rows for rows, _ in sizes)
        small = is_small(count, sum(size for _, size in sizes))
        settled = settled_until((table, until[key]) for key, table in self._inputs.items())
        if self._lanes is None:
            self._lanes = Lanes(rows.sparkSession, len(self._targets))
        with ExitStack() as fitting, Held(small=small) as hold:
            for one in (rows.sparkSession, *self._lanes.beside):
                fitting.enter_context(fitted(one, count))
            # The batch by input, and its events counted.
            if len(self._inputs) == 1:
                told = Observation()
                marks = contributions(rows, OWN, open_targets)
                counts = [F.count_if(mark).alias(name) for name, mark in marks.items()]
                taken = by_input(hold.now(rows.observe(told, *counts)), self._inputs)
                counted = counted_for(open_targets, [told.get])
            else:
                taken = by_input(hold.now(rows), self._inputs)
                counted = count_contributions(taken, open_targets)

            def merge(session: SparkSession, piece: tuple[Target, Mapping[str, int]]) -> None:
                target, contributed = piece
                note = self.note(batch, **contributed, **target.books(until, settled))
                inputs = Inputs(
                    {key: moved(frame, session) for key, frame in taken.items()},
                    up_to(session, self._inputs, until),
                )
                self._merge(target, inputs, note, until, small)

            pieces = list(zip(open_targets, counted, strict=True))
            self._lanes.each(rows.sparkSession, pieces, merge)
        detail = f"into {len(open_targets)} tables"
        self.run.progress.closed(self.hop, batch, counted[0]["rows"], began, detail=detail)

    def _merge(
        self,
        target: Target,
        inputs: Inputs,
        note: dict[str, Any],
        until: Mapping[str, Position],
        small: bool,
    ) -> None:
        """Merge into one table; again, where a compaction rewrote what the merge had read."""
        for left in reversed(range(_TRIES)):
            try:
                with Held(small=small) as hold:
                    target.merge(inputs, note, hold)
                # Delta leaves out the commit of a merge that changes no row.
                last = last_commit(target.table)
                if self.fence.admits(target.table, last, note["batch"], until):
                    target.close_unchanged(inputs, note)
                else:
                    spark = inputs.taken[OWN].sparkSession
                    enable_deletion_vectors(spark, target.table, last)
            except CONFLICTS:
                if not left:
                    raise
                last = last_commit(target.table)
                if self.fence.admits(target.table, last, note["batch"], until):
                    continue
            return
