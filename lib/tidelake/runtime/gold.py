"""Silver to gold: one query merges each batch into every gold table of the pipeline."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidelake.config.descriptions import meaning_of
from tidelake.config.model import bytes_of
from tidelake.delta.access import ask_ahead, detail, load
from tidelake.delta.append import (
    append,
    append_nothing,
    commented,
    ensure_change_feed,
    ensure_table,
    schema_differences,
)
from tidelake.delta.commit_metadata import (
    changed_definition,
    definition_note,
    positions,
    typed_as,
)
from tidelake.delta.log import (
    CREATION,
    REBUILT,
    Commit,
    batch_reached,
    last_commit,
    newest_version,
    oldest_version,
)
from tidelake.delta.merge import enable_deletion_vectors, has_vectors, merge, retry_conflicts
from tidelake.delta.positions import Position, version_at
from tidelake.delta.properties import apply_settings, may_differ, recorded_properties
from tidelake.delta.store import no_rows
from tidelake.delta.tables import Table
from tidelake.errors import UsageError
from tidelake.gold.kinds import OWN, GoldBatch, Inputs, columns_read
from tidelake.gold.merge_plan import GONE, MergePlan
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.failures import FOREIGN
from tidelake.runtime.fence import Fence
from tidelake.runtime.gold_settings import (
    apply_gold_settings,
    ensure_views,
    naming_settings,
    settings_for,
)
from tidelake.runtime.gold_tables import (
    Target,
    by_input,
    changed_types,
    contributions,
    count_contributions,
    counted_for,
    filled_as_of,
    gold_note,
    holds_nothing,
    in_types_of,
    input_types,
    last_closed,
    open_stream,
    settled_by_sources,
    tables_note,
    targets_of,
    up_to,
)
from tidelake.runtime.hop import Heads, HopQuery, Run
from tidelake.runtime.schemas import GOLD_FREEDOM, silver_schemas, target_schema
from tidelake.runtime.session_pool import SessionPool
from tidelake.spark.engine import fitted, slots_of
from tidelake.spark.internals import moved
from tidelake.spark.tuning import SMALL_BATCH_ROWS, is_small
from tidelake.typed import runnable


class GoldHop(HopQuery):
    """The streaming query that merges silver's new events into the gold tables."""

    hop = "gold"

    def __init__(self, run: Run, *, creates: bool = True, fence: Fence | None = None) -> None:
        """Find the gold tables, then open the hop; see :class:`HopQuery`."""
        self._targets = targets_of(run.lake, run.pipeline)
        self._sessions: SessionPool | None = None
        super().__init__(run, creates=creates, fence=fence)

    @property
    def most(self) -> int:
        """The environment's ``gold_bytes`` limit."""
        return bytes_of(self.run.environment.limits.gold_bytes)

    def compacted(self, spark: SparkSession) -> list[Table]:
        """List the tables with deletion vectors; in others merges would rewrite large files."""
        return [table for table in self.closing if has_vectors(spark, table)]

    def create_tables(self) -> None:
        """Create the gold tables."""
        for table in self.inputs.values():
            if not table.exists:
                name = table.name.removeprefix("silver.")
                raise UsageError(
                    f"{table.name} does not exist yet. "
                    f"Fill it with: {runnable('tidelake run', name, '--hop silver')}"
                )
        unfilled = self._unfilled()
        others = [(one, last_commit(one.table)) for one in self._targets if one not in unfilled]
        empty = [target for target, last in others if holds_nothing(target.table, last)]
        self._refuse_redefined([(one, last) for one, last in others if one not in empty])
        for target in unfilled:
            self._refuse_missing_columns(target)
        redefined = [
            target
            for target in unfilled
            if changed_definition(last_commit(target.table), target.kind.definition)
        ]
        for target in self._targets:
            if target in redefined:
                # It holds no batch yet; filling it replaces its columns.
                continue
            settings = settings_for(self.run, target)
            # A merge without commit metadata is attributed to this commit's generation.
            note = {**self.creation_note(), **definition_note(target.kind.definition)}
            with naming_settings(self.run, target):
                schema = target_schema(self.run, target)
                if target in empty:
                    self._redefine(target.table, schema, note)
                details = ensure_table(
                    self.run.spark,
                    target.table,
                    schema,
                    note,
                    meaning=meaning_of(self.run.pipeline, target.table.name),
                    freedom=GOLD_FREEDOM,
                    written=target.kind.alike,
                    searched_by=target.kind.searched_by,
                    has_change_feed=target.table.name in self.run.published,
                    settings=recorded_properties(settings),
                )
                if may_differ(settings, details):
                    apply_settings(self.run.spark, target.table, settings)
        if not redefined:
            ensure_views(self.run, consistent=False)

    def _refuse_redefined(self, filled: Sequence[tuple[Target, Commit | None]]) -> None:
        """Raise a GenerationError if rows of tables are of another definition or other types.

        Each table comes with its last commit. One alone may be recomputed beside the others.
        """
        found = [
            (target.table, what)
            for target, last in filled
            if (what := self._difference(target, last))
        ]
        if not found:
            return
        (table, what), more = found[0], ""
        if len(found) == 1:
            run = runnable("tidelake backfill run", self.run.pipeline.name, f"--table {table.bare}")
            more = f"; or that table alone with: {run}, then promote"
        raise self.fence.refusal(what, more)

    def _difference(self, target: Target, last: Commit | None) -> str:
        """Describe how the rows of a table differ from its definition; empty if they do not."""
        name = target.table.name
        if changed_definition(last, target.kind.definition):
            return f"{name} was filled under another definition"
        if changed := changed_types(target.kind, last, self._stored):
            one = changed[0]
            return (
                f"the expressions of {name} were computed from {one.column} as {one.stored}; "
                f"it is {one.defined} now"
            )
        return ""

    def _stored(self, key: str) -> DataFrame:
        """Read an input: it may not have the types of the definition before its hop has run."""
        return load(self.run.spark, self.inputs[key])

    def _redefine(self, table: Table, schema: StructType, note: dict[str, Any]) -> None:
        """Replace an empty table's columns with those of its definition, in one commit."""
        last, stored = last_commit(table), load(self.run.spark, table).schema
        is_same = last is not None and last.note.get("definition") == note["definition"]
        if not is_same or schema_differences(stored, schema, "none"):
            rows = no_rows(
                self.run.spark, commented(schema, meaning_of(self.run.pipeline, table.name))
            )
            append(rows, table, note, even_empty=True, replaces=True, may_repeat=True)

    def _refuse_missing_columns(self, target: Target) -> None:
        """Raise a UsageError if silver does not have a column yet that a table reads."""
        silver, defined = self.inputs[OWN], silver_schemas(self.run.spark, self.run.plan)["silver"]
        stored = load(self.run.spark, silver).columns
        wanted = columns_read([target.kind], defined.names)
        if missing := [name for name in wanted if name not in stored]:
            raise UsageError(
                f"{silver.name} has no column {missing[0]} yet, which {target.table.name} reads. "
                f"Add it with: {runnable('tidelake run', self.run.pipeline.name, '--hop silver')}"
            )

    def offset_mismatch(self, closed: Commit | None) -> str:
        """Describe how the checkpoint differs from a table's newest commit, or return ""."""
        if closed is None or not (reached := positions(closed)):
            return ""
        for key, table in self.inputs.items():
            if key not in reached:
                return f"{table.name} is a new input, of which no batch has read a row"
            whole = version_at(table, reached[key])
            version = reached[key][0] - 1 if whole is None else whole
            if self.fence.unfilled and 0 <= version < oldest_version(table):
                return (
                    f"{self.fence.unfilled[0]} cannot be filled as of batch {closed.batch}: the "
                    f"log of {table.name} no longer has version {version}"
                )
        return super().offset_mismatch(closed)

    def _unfilled(self) -> list[Target]:
        return [one for one in self._targets if one.table.name in self.fence.unfilled]

    def fill_new_tables(self) -> None:
        """Compute tables that were added to the definition as of the last batch of the others.

        Each is written in one commit with that batch's number and positions, so that the next batch
        continues all tables. If an interrupted run left some tables one batch ahead, it is the
        batch before, and the retry merges the open batch into the new tables too.
        """
        targets, closed = self._unfilled(), last_closed(self.guard.closing)
        if not targets or closed is None:
            return
        try:
            made = filled_as_of(self.run.spark, self.inputs, targets, closed)
            for target, rows, note in made:
                self._fill(target, rows, note)
        except FOREIGN as error:
            if self.run.stop.is_set():
                raise
            raise self.named(error) from error

    def _fill(self, target: Target, rows: DataFrame, note: dict[str, Any]) -> None:
        table, began = target.table, time.monotonic()
        last = last_commit(table)
        # Removed from the definition, and added again: its rows lack the batches since.
        is_behind = last is not None and last.batch > CREATION
        if is_behind:
            note = {**note, REBUILT: True}
        if is_behind or changed_definition(last, target.kind.definition):
            # It may be filled as of the same batch again, under another definition.
            append(rows, table, note, even_empty=True, replaces=True, may_repeat=is_behind)
            if table.name in self.run.published:
                ensure_change_feed(self.run.spark, table)
            # Only now it has the columns of its definition, which the settings are for.
            apply_gold_settings(self.run)
        else:
            rows = in_types_of(rows, load(self.run.spark, table).schema)
            append(rows, table, note, even_empty=True)
        new, seconds = last_commit(table), time.monotonic() - began
        count = new.rows or 0 if new else 0
        self.run.progress.say(
            f"{self.hop:<7} {table.name} filled from silver as of batch {note['batch']}: "
            f"{count:,} rows in {seconds:.1f} s"
        )

    def stream(self) -> DataFrame:
        """Stream silver from its first commit, with the columns that gold reads."""
        return open_stream(
            self.run.spark,
            self.inputs,
            self._targets,
            max_bytes=self.limit,
            idle=self.guard.idle(),
        )

    def write(self, rows: DataFrame, batch: int, heads: Heads) -> None:
        """Merge a batch into each table that does not hold it yet."""
        began = time.monotonic()
        until = self.guard.planned(batch, positions(heads[0]))
        # A table may hold the batch already, if the previous run ended between two tables.
        admitted = [
            (target, last)
            for target, head in zip(self._targets, heads, strict=True)
            if (last := self.fence.admits(target.table, head, batch, until)) is not None
        ]
        if not admitted:
            return
        targets = [target for target, _ in admitted]
        # From the first table that lacks the batch: one that holds it has nothing left to read.
        sizes = self.guard.sizes(positions(admitted[0][1]), until).values()
        count = sum(one.rows for one in sizes)
        small = is_small(count, sum(one.size for one in sizes))
        settled = settled_by_sources(self.inputs, targets, until)
        if self._sessions is None:
            self._sessions = SessionPool(rows.sparkSession, len(self._targets))
        with ExitStack() as fitting, CheckpointedFrames(small=small) as frames:
            for session in (rows.sparkSession, *self._sessions.sessions):
                fitting.enter_context(fitted(session, count))
            taken, counted = self._taken(rows, targets, frames)
            own = tables_note(self.run.pipeline)
            pieces = [
                (
                    target,
                    last,
                    self.note(
                        batch,
                        **counts,
                        **own,
                        **gold_note(
                            target,
                            until,
                            settled[target.kind.sources],
                            self._types(target, last, taken),
                        ),
                    ),
                )
                for (target, last), counts in zip(admitted, counted, strict=True)
            ]

            def work(session: SparkSession, piece: tuple[Target, Commit, dict[str, Any]]) -> None:
                inputs = Inputs(
                    {key: moved(frame, session) for key, frame in taken.items()},
                    up_to(session, self.inputs, until),
                )
                # A table of overlapping windows has many rows for each event.
                rows = piece[2]["eligible"] * piece[0].kind.fan_out
                self._merge(*piece, inputs, until, small and rows <= SMALL_BATCH_ROWS)

            # Queries last: the tables that they read must hold this batch.
            for reads in (False, True):
                wave = [piece for piece in pieces if bool(piece[0].kind.reads) == reads]
                if wave:
                    self._sessions.run_all(rows.sparkSession, wave, work)
        into = f"into {len(targets)} tables"
        self.run.progress.closed(self.hop, batch, counted[0]["rows"], began, detail=into)
        if self.pace is not None:
            self._prepare_next(rows.sparkSession)

    def _types(
        self, target: Target, last: Commit, taken: Mapping[str, DataFrame]
    ) -> Mapping[str, str]:
        """Return the types of which a table's oldest rows were computed; see :func:`input_types`.

        Commits of earlier versions do not say: then those of the batch.
        """
        return typed_as(last) or input_types(target.kind, taken.__getitem__)

    def _prepare_next(self, spark: SparkSession) -> None:
        """Let Delta reconstruct the tables' states for the next merges.

        Only in continuous runs, because in others there may be no next batch, and only for tables
        on a disk: elsewhere it costs requests, and its gain is not measured.
        """
        tables = [table for table in self.closing if table.reads_files_directly]
        if tables:
            ask_ahead(lambda: [detail(spark, table) for table in tables])

    def _taken(
        self, rows: DataFrame, targets: list[Target], frames: CheckpointedFrames
    ) -> tuple[dict[str, DataFrame], list[dict[str, int]]]:
        """Checkpoint a batch; return its events by input, and the counts for each table."""
        marks = contributions(rows, OWN, targets) if len(self.inputs) == 1 else {}
        counts = [F.count_if(mark).alias(name) for name, mark in marks.items()]
        kept, counted = frames.materialize(rows, *counts)
        taken = by_input(kept, self.inputs)
        if counted:
            return taken, counted_for(targets, [counted])
        # Of several inputs, or of an empty one, whose counts Spark drops.
        return taken, count_contributions(taken, targets)

    def _merge(
        self,
        target: Target,
        last: Commit,
        note: dict[str, Any],
        inputs: Inputs,
        until: Mapping[str, Position],
        small: bool,
    ) -> None:
        """Merge into one table; retry if `maintain` compacted it or set properties meanwhile."""

        def attempt() -> None:
            with CheckpointedFrames(small=small) as frames:
                noted = self._merge_once(target, last, note, inputs, frames)
            spark, new = inputs.taken[OWN].sparkSession, last_commit(target.table)
            if self.fence.admits(target.table, new, note["batch"], until) is None:
                enable_deletion_vectors(spark, target.table, new)
                return
            # Delta writes no commit for a merge or an append that changes no row.
            append_nothing(spark, target.table, noted)
            # If the table held this batch before it was replaced or restored, Delta has seen the
            # transaction id and skipped the new commit. Only a retry, the first batch of a query,
            # can be such a batch.
            is_retry = note["batch"] <= self.fence.closed + 1
            if is_retry and batch_reached(target.table) < note["batch"]:
                append_nothing(spark, target.table, noted, may_repeat=True)

        retry_conflicts(attempt)

    def _merge_once(
        self,
        target: Target,
        last: Commit,
        note: dict[str, Any],
        inputs: Inputs,
        frames: CheckpointedFrames,
    ) -> dict[str, Any]:
        """Merge, and return the note with the rows on which a derived column failed."""
        table, spark = target.table, inputs.taken[OWN].sparkSession
        # No commit since its creation, not even one without metadata.
        is_empty = last.batch == CREATION and newest_version(table) == last.version
        batch = GoldBatch(
            inputs,
            eligible=note["eligible"],
            stored=lambda name: load(spark, self.run.lake.table(name)),
            generation=note["generation"],
            number=note["batch"],
            is_first=is_empty and note["batch"] == CREATION + 1,
            slots=slots_of(spark),
            frames=frames,
        )
        plan = target.kind.plan(batch)
        if plan is None:
            return note
        note = {**note, "failed": note["failed"] + plan.failed}
        # Another process may have begun a generation since the batch began.
        if self.fence.admits(table, last_commit(table), note["batch"]) is None:
            return note
        if is_empty:
            # Without a row Delta commits nothing, and the batch is closed as one without changes.
            append(_first_rows(plan, load(spark, table)), table, note)
        else:
            merge(plan, table, note, copied=last.copied)
        return note


def _first_rows(plan: MergePlan, stored: DataFrame) -> DataFrame:
    """Return the rows that a merge would insert into an empty table, in the table's types."""
    rows = plan.rows
    if GONE in rows.columns:
        rows = rows.where(~F.col(GONE))
    # MERGE casts to the table's column types too.
    return in_types_of(rows, stored.schema)
