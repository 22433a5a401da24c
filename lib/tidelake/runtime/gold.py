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
from tidelake.config.types import quoted
from tidelake.delta.access import load
from tidelake.delta.append import append, ensure_table
from tidelake.delta.log import CREATION, Commit, last_commit, newest_version
from tidelake.delta.merge import CONFLICTS, enable_deletion_vectors, has_vectors, merge
from tidelake.delta.notes import (
    changed_definition,
    definition_note,
    positions,
    settled_until,
)
from tidelake.delta.positions import Position
from tidelake.delta.tables import Table
from tidelake.errors import UsageError
from tidelake.gold.kinds import GONE, OWN, GoldBatch, Inputs, MergePlan
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.checkpoints import Fence
from tidelake.runtime.gold_tables import (
    Target,
    by_input,
    contributions,
    count_contributions,
    counted_for,
    gold_note,
    inputs_of,
    open_stream,
    targets_of,
    up_to,
)
from tidelake.runtime.hop import Heads, HopQuery, Run
from tidelake.runtime.schemas import GOLD_FREEDOM, target_schema
from tidelake.runtime.session_pool import SessionPool
from tidelake.spark.engine import fitted, slots_of
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
        self._sessions: SessionPool | None = None
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
            if changed_definition(last_commit(target.table), target.kind.definition):
                raise self.fence.refusal(f"{target.table.name} was filled under another definition")
        for target in self._targets:
            ensure_table(
                self.run.spark,
                target.table,
                target_schema(self.run, target),
                # Where a merge carries no note, rows of an uncommitted batch are of this one.
                {**self.creation_note(), **definition_note(target.kind.definition)},
                meaning=meaning_of(self.run.pipeline, target.table.name),
                freedom=GOLD_FREEDOM,
            )

    def stream(self) -> DataFrame:
        """Follow silver from its first commit on, in the columns that gold reads."""
        return open_stream(
            self.run.spark,
            self._inputs,
            self._targets,
            max_bytes=self.limit,
            idle=self.guard.idle(),
        )

    def write(self, rows: DataFrame, batch: int, heads: Heads) -> None:
        """Merge a batch into each table that does not hold it yet."""
        began = time.monotonic()
        reached = positions(heads[0])
        until = self.guard.planned(batch, reached)
        # A table may hold the batch already: the run before ended between two of them.
        admitted = [
            (target, last)
            for target, head in zip(self._targets, heads, strict=True)
            if (last := self.fence.admits(target.table, head, batch, until)) is not None
        ]
        if not admitted:
            return
        targets = [target for target, _ in admitted]
        sizes = self.guard.sizes(reached, until).values()
        count = sum(rows for rows, _ in sizes)
        small = is_small(count, sum(size for _, size in sizes))
        settled = settled_until((table, until[key]) for key, table in self._inputs.items())
        if self._sessions is None:
            self._sessions = SessionPool(rows.sparkSession, len(self._targets))
        with ExitStack() as fitting, CheckpointedFrames(small=small) as frames:
            for session in (rows.sparkSession, *self._sessions.beside):
                fitting.enter_context(fitted(session, count))
            taken, counted = self._taken(rows, targets, frames)
            pieces = [
                (target, last, self.note(batch, **counts, **gold_note(target, until, settled)))
                for (target, last), counts in zip(admitted, counted, strict=True)
            ]

            def work(session: SparkSession, piece: tuple[Target, Commit, dict[str, Any]]) -> None:
                inputs = Inputs(
                    {key: moved(frame, session) for key, frame in taken.items()},
                    up_to(session, self._inputs, until),
                )
                self._merge(*piece, inputs, until, small)

            self._sessions.each(rows.sparkSession, pieces, work)
        detail = f"into {len(targets)} tables"
        self.run.progress.closed(self.hop, batch, counted[0]["rows"], began, detail=detail)

    def _taken(
        self, rows: DataFrame, targets: list[Target], frames: CheckpointedFrames
    ) -> tuple[dict[str, DataFrame], list[dict[str, int]]]:
        """Keep a batch, and return its events by input and what was counted for each table."""
        if len(self._inputs) > 1:
            taken = by_input(frames.checkpoint_now(rows), self._inputs)
            return taken, count_contributions(taken, targets)
        told = Observation()
        marks = contributions(rows, OWN, targets)
        counts = [F.count_if(mark).alias(name) for name, mark in marks.items()]
        taken = by_input(frames.checkpoint_now(rows.observe(told, *counts)), self._inputs)
        return taken, counted_for(targets, [told.get])

    def _merge(
        self,
        target: Target,
        last: Commit,
        note: dict[str, Any],
        inputs: Inputs,
        until: Mapping[str, Position],
        small: bool,
    ) -> None:
        """Merge into one table; again, where a compaction rewrote what the merge had read."""
        for left in reversed(range(_TRIES)):
            try:
                with CheckpointedFrames(small=small) as frames:
                    self._merge_once(target, last, note, inputs, frames)
                # Delta leaves out the commit of a merge that changes no row.
                new = last_commit(target.table)
                if self.fence.admits(target.table, new, note["batch"], until):
                    close_unchanged(inputs, target.table, note)
                else:
                    spark = inputs.taken[OWN].sparkSession
                    enable_deletion_vectors(spark, target.table, new)
            except CONFLICTS:
                if not left:
                    raise
                new = last_commit(target.table)
                if self.fence.admits(target.table, new, note["batch"], until):
                    continue
            return

    def _merge_once(
        self,
        target: Target,
        last: Commit,
        note: dict[str, Any],
        inputs: Inputs,
        frames: CheckpointedFrames,
    ) -> None:
        table, spark = target.table, inputs.taken[OWN].sparkSession
        batch = GoldBatch(
            inputs,
            eligible=note["eligible"],
            stored=lambda name: load(spark, self.run.lake.table(name)),
            generation=note["generation"],
            number=note["batch"],
            slots=slots_of(spark),
            frames=frames,
        )
        plan = target.kind.plan(batch)
        if plan is None:
            return
        # Nothing has been written since the table was made, not even by a merge without metadata.
        if last.batch == CREATION and newest_version(table) == last.version:
            append(_first_rows(plan, load(spark, table)), table, note, surely_filled=False)
        else:
            merge(plan, table, note)


def _first_rows(plan: MergePlan, stored: DataFrame) -> DataFrame:
    """Return what a merge into a table without rows inserts, in the types that it has."""
    rows = plan.rows
    if GONE in rows.columns:
        rows = rows.where(~F.col(GONE))
    # As MERGE does, which assigns to the columns of the table.
    return rows.select(
        *[F.col(quoted(one.name)).cast(one.dataType).alias(one.name) for one in stored.schema]
    )


def close_unchanged(inputs: Inputs, table: Table, note: dict[str, Any]) -> None:
    """Commit no row, so that the table keeps up with the batches."""
    stored = load(inputs.taken[OWN].sparkSession, table)
    append(stored.limit(0), table, note, surely_filled=False)
