"""Bronze to silver: one fate for each row; side tables first, silver's commit closes the batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from tidelake.bronze import as_never_requeued
from tidelake.columns import stamped
from tidelake.config.model import bytes_of
from tidelake.delta.access import follow, load
from tidelake.delta.append import append, types_of
from tidelake.delta.log import REBUILT, last_commit
from tidelake.delta.notes import (
    DimensionUse,
    FateCount,
    SilverNote,
    changed_parts,
    decision_note,
    is_decided_by,
    positions,
    silver_note,
)
from tidelake.delta.positions import BEGINNING, Position
from tidelake.delta.tables import Table
from tidelake.errors import UsageError
from tidelake.runtime.accepted_rows import AcceptedRows, FilesInScope
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.hop import Heads, HopQuery, Run
from tidelake.runtime.prefilter import (
    PrefilteredBatch,
    hold_back_copies,
    prepare_state,
    recover,
    refuse_other_prefilter,
)
from tidelake.runtime.schemas import (
    Lookup,
    create_silver,
    enriched,
    lookups,
    refuse_unlimited,
    schemas_for,
)
from tidelake.runtime.session_pool import side_by_side
from tidelake.silver.classify import PAYLOAD_HASH
from tidelake.silver.dedup import find_repeats
from tidelake.silver.fields import extra_columns, new_columns
from tidelake.silver.plan import SilverPlan
from tidelake.silver.route import (
    LATE,
    QUARANTINED,
    SILVER,
    decide,
    fate_unless_repeat,
    marked,
    to_late,
    to_quarantine,
    to_silver,
)
from tidelake.silver.summary import Summary, summarize, summarize_in_driver, unknown_fields
from tidelake.silver.watermark import advance
from tidelake.spark.engine import fitted
from tidelake.spark.tuning import SEARCHED_PER_ROW, is_small

_COPY_COLUMNS = ("event_id", PAYLOAD_HASH, "ingested_at")


class SilverHop(HopQuery):
    """Decides the fate of bronze's rows and of those that were requeued."""

    hop = "silver"

    @cached_property
    def _files(self) -> dict[str, FilesInScope]:
        name = self.run.pipeline.name
        tables = (self.run.lake.silver(name), self.run.lake.late(name))
        return {table.name: FilesInScope(table) for table in tables}

    @property
    def table(self) -> Table:
        """Silver itself."""
        return self.run.lake.silver(self.run.pipeline.name)

    @property
    def _prefilters(self) -> bool:
        return self.run.pipeline.dedup.prefilter == "operator"

    @property
    def _judges_in_stream(self) -> bool:
        """Whether rows can be judged before anything is known of their batch."""
        return not self._prefilters and self.run.pipeline.registry is None

    @property
    def most(self) -> int:
        """The environment's limit."""
        return bytes_of(self.run.environment.limits.silver_bytes)

    def closing_tables(self) -> list[Table]:
        """Silver's commit closes a batch."""
        return [self.table]

    @property
    def inputs(self) -> dict[str, Table]:
        """Silver follows bronze and the requeue."""
        return self.run.lake.silver_inputs(self.run.pipeline.name)

    def create_tables(self) -> None:
        """Create silver and its side tables."""
        name = self.run.pipeline.name
        if not self.run.lake.bronze(name).exists:
            raise UsageError(
                f"bronze.{name} does not exist yet. Fill it with: tidelake run {name} --hop bronze"
            )
        refuse_other_prefilter(self.table, self.fence, wanted=self._prefilters)
        if self.run.pipeline.reads_avro:
            refuse_unlimited(self.run.spark)
        changed = changed_parts(last_commit(self.table), self.run.pipeline).identity
        if changed:
            raise self.fence.refusal(
                f"{self.table.name} was filled under another {' and '.join(changed)}"
            )
        for lookup in lookups(self.run.lake, self.run.pipeline):
            if lookup.version < 0:
                self.run.progress.say(
                    f"{lookup.table.name} does not exist yet: its columns stay null. "
                    f"Fill it with: tidelake run {lookup.enrich.dimension}"
                )
        create_silver(self.run, self.creation_note())

    def stream(self) -> DataFrame:
        """Read bronze and the requeue from their first commit on, in the order of commits."""
        for files in self._files.values():
            files.prepare(self.run.spark)
        bronze = self._follow("bronze")
        if self._prefilters:
            prepare_state(self.run.spark)
            bronze = hold_back_copies(bronze, ttl=self.run.pipeline.dedup.ttl)
        rows = as_never_requeued(bronze).unionByName(self._follow("requeue"))
        # Planned once for all batches: it is most of what there is to plan.
        return self.run.plan.judge(rows) if self._judges_in_stream else rows

    def _follow(self, key: str) -> DataFrame:
        table, idle = self.inputs[key], key in self.guard.idle()
        return follow(self.run.spark, table, max_bytes=self.limit, idle=idle)

    def write(self, rows: DataFrame, batch: int, heads: Heads) -> None:
        """Decide a batch and write it."""
        began = time.monotonic()
        until = self.guard.planned(batch, positions(heads[0]))
        last = self.fence.admits(self.table, heads[0], batch, until)
        if last is None:
            if self._prefilters:
                # The operator's state moves on only where its rows are read.
                rows.write.format("noop").mode("overwrite").save()
            return
        before = SilverNote.of(last)
        sizes = self.guard.sizes(before.until, until)
        taken = {key: came for key, (came, _) in sizes.items()}
        count = sum(taken.values())
        small = is_small(count, sum(size for _, size in sizes.values()))
        touched = count + before.searched // SEARCHED_PER_ROW
        known = None if self._prefilters else count
        with (
            fitted(rows.sparkSession, touched),
            CheckpointedFrames(small=small, rows=known) as frames,
        ):
            context = BatchContext(
                self.run,
                self.fence.generation,
                batch,
                before,
                until,
                taken,
                frames,
                files=self._files,
                # Only the first batch of a query may have been begun by an interrupted one.
                may_be_retry=batch <= self.fence.closed + 1,
            )
            note = silver_batch(self._recovered(rows, context), context)
        counts = note.total()
        told = [f"{fate} {n:,}" for fate, n in counts.items() if n]
        missed = [
            f"not in {use.table} {use.unmatched:,}" for use in note.dimensions if use.unmatched
        ]
        self.run.progress.closed(
            self.hop,
            batch,
            sum(counts.values()),
            began,
            watermark=note.watermark,
            detail=" ".join([*told, *missed]),
        )

    def _recovered(self, rows: DataFrame, context: BatchContext) -> PrefilteredBatch:
        """Bring back what the prefilter held back and may not."""
        if not self._prefilters:
            return PrefilteredBatch(rows, [], None, judged=self._judges_in_stream)
        silver, late = context.accepted(rows.sparkSession).read()
        accepted = silver.select(*_COPY_COLUMNS).unionByName(late.select(*_COPY_COLUMNS))
        span = context.before.until.get("bronze", BEGINNING), context.until["bronze"]
        return recover(self.run, context.frames.checkpoint(rows), accepted, span, context.frames)


@dataclass(frozen=True)
class Decision:
    """Rows with their fates, from :func:`tidelake.silver.route.decide`.

    Attributes:
        summary: What was counted of them; None where nobody asked.
        searched: Accepted ids among which deduplication looked.
        seconds: What deduplication took.
    """

    rows: DataFrame
    summary: Summary | None
    searched: int
    seconds: float


def decide_fates(
    judged: DataFrame,
    plan: SilverPlan,
    accepted: AcceptedRows,
    watermark: datetime | None,
    frames: CheckpointedFrames,
    *,
    counts: bool = False,
) -> Decision:
    """Give each row its fate.

    Args:
        judged: From :func:`tidelake.silver.classify.classify`; enriched where rows are counted.
        plan: Of the definition.
        accepted: The rows that they may repeat.
        watermark: Before the rows (UTC); None before the first batch.
        frames: Checkpoints frames that are read more than once.
        counts: Whether the rows are counted.
    """
    kept = frames.checkpoint_batch(judged)
    began = time.monotonic()
    allowed = plan.pipeline.watermark.allowed_lateness
    also = []
    if counts and kept.numbered:
        # The driver counts them, since it sees each of them anyway.
        also = [*plan.counting.row, fate_unless_repeat(watermark, allowed)]
    repeats = find_repeats(
        kept, accepted, plan.comparison, checkpoint=frames.checkpoint_now, also=also
    )
    seconds = time.monotonic() - began
    decided = decide(kept.rows, repeats, plan.fates, watermark=watermark, allowed=allowed)
    summary = None
    if counts and repeats.batch is not None:
        summary = summarize_in_driver(repeats.batch, repeats.numbers, plan.counting)
    elif counts:
        summary = summarize(decided, plan.counting)
    return Decision(decided, summary, repeats.searched, seconds)


@dataclass(frozen=True)
class Stored:
    """Rows that stay as they are where a batch stands for all of silver."""

    accepted: AcceptedRows
    silver: DataFrame
    quarantine: DataFrame


@dataclass(frozen=True)
class BatchContext:
    """What one batch of silver needs to know, read once.

    Attributes:
        before: The summary in the commit of the batch before.
        until: The position in each input at which the batch ends.
        taken: Rows of each input by Delta's statistics.
        frames: Checkpoints frames that are read more than once.
        rebuilds: Whether the batch stands for all of silver: nothing was accepted before it, and
            its rows replace those of the tables.
        stored: Rows that stay in the tables, counted among what the batch recovered.
        files: Knows the files of silver and late from the batches before.
        may_be_retry: Whether an interrupted run may have written the batch's side tables.
    """

    run: Run
    generation: str
    number: int
    before: SilverNote
    until: Mapping[str, Position]
    taken: Mapping[str, int]
    frames: CheckpointedFrames
    rebuilds: bool = False
    stored: Stored | None = None
    files: Mapping[str, FilesInScope] = field(default_factory=dict)
    may_be_retry: bool = False

    @property
    def stamp(self) -> dict[str, Any]:
        """What tells the batch's rows from those of others."""
        return {"generation": self.generation, "batch": self.number}

    def note(self) -> dict[str, Any]:
        """Start the metadata of a commit of the batch."""
        note = {"pipeline": self.run.pipeline.name, "hop": "silver", **self.stamp}
        return {**note, REBUILT: True} if self.rebuilds else note

    def accepted(self, spark: SparkSession) -> AcceptedRows:
        """Give the rows that the batch's may repeat."""
        if self.stored:
            return self.stored.accepted
        run = self.run
        return AcceptedRows(
            spark, run.pipeline, run.lake, self.number, afresh=self.rebuilds, files=self.files
        )


def silver_batch(recovered: PrefilteredBatch, context: BatchContext) -> SilverNote:
    """Decide the batch's rows and write them.

    Args:
        recovered: The rows, and what is known of those beside them.
        context: Of the batch.
    """
    run, plan, lake = context.run, context.run.plan, context.run.lake
    pipeline = plan.pipeline
    before, name = context.before, pipeline.name
    watermark = None if run.replays else before.watermark
    pinned = lookups(lake, pipeline)
    judged = enriched(_judged(recovered, context), plan, pinned)
    accepted = context.accepted(judged.sparkSession)
    decision = decide_fates(judged, plan, accepted, watermark, context.frames, counts=True)
    decided = decision.rows
    assert decision.summary is not None
    summary = decision.summary.beside(recovered.copies)
    new, filled = _unknown_columns(summary, decided, context)
    note = _note(summary, decision, context, pinned, new, recovered.held_back)
    total = note.total()
    # Side tables first: silver's commit is the promise that they are complete.
    by = decision_note(pipeline, {use.table: use.version for use in note.dimensions})

    def quarantined() -> DataFrame:
        failed = to_quarantine(decided, **context.stamp)
        if context.stored is None:
            return failed
        return failed.unionByName(stamped(context.stored.quarantine, **context.stamp))

    def late() -> DataFrame:
        mark = marked(watermark)
        return to_late(decided, plan.routing, watermark=mark, extra=filled, **context.stamp)

    sides = [
        _Side(lake.quarantine(name), quarantined, total[QUARANTINED]),
        _Side(lake.late(name), late, total[LATE], adds_columns=bool(filled)),
    ]
    _write_sides(sides, context, by)
    rows = to_silver(decided, plan.routing, extra=filled, **context.stamp)
    if context.stored:
        kept = stamped(context.stored.silver, **context.stamp)
        rows = kept.unionByName(rows, allowMissingColumns=True)
    run.locks.step(f"write {lake.silver(name).name}")
    append(
        rows,
        lake.silver(name),
        {**context.note(), **note.to_json(), **silver_note(pipeline)},
        surely_filled=total[SILVER] > 0,
        may_add_columns=bool(new),
        replaces=context.rebuilds,
    )
    return note


def _judged(recovered: PrefilteredBatch, context: BatchContext) -> DataFrame:
    if recovered.judged:
        return recovered.rows
    # Before anything is decided: a retry reads the same schemas.
    schemas = schemas_for(context.run, recovered.rows, anew=context.rebuilds)
    return context.run.plan.judge(recovered.rows, schemas)


def _unknown_columns(
    summary: Summary, decided: DataFrame, context: BatchContext
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Name the columns that silver gets for unknown fields, and all that such fields fill."""
    pipeline = context.run.pipeline
    if pipeline.event.evolution != "additive" or not summary.has_unknown():
        return (), ()
    found = unknown_fields(decided)
    if not found:
        return (), ()
    table = context.run.lake.silver(pipeline.name)
    stored = types_of(load(context.run.spark, table).schema)
    defined = pipeline.defined_columns
    new = new_columns(found, defined=defined, stored=stored)
    return new, (*extra_columns(stored, defined), *new)


def _note(
    summary: Summary,
    decision: Decision,
    context: BatchContext,
    pinned: list[Lookup],
    columns: tuple[str, ...],
    held_back: int | None,
) -> SilverNote:
    """Put together what silver's commit says of the batch."""
    pipeline, before = context.run.pipeline, context.before
    rules, partitions = pipeline.watermark, summary.partitions(context.before.partitions)
    watermark = advance(
        before.watermark, partitions, delay=rules.delay, idle_after=rules.idle_after
    )
    rows = summary.rows()
    return SilverNote(
        watermark_in=None if context.run.replays else before.watermark,
        watermark=watermark,
        settled=None if watermark is None else watermark - rules.allowed_lateness,
        partitions=partitions,
        counts=tuple(
            FateCount.of((fate, stage, origin), rows[origin, fate, stage], summary.marks[key])
            for key in sorted(rows, key=lambda one: repr((one[1], one[2], one[0])))
            for origin, fate, stage in [key]
        ),
        taken=context.taken,
        until=context.until,
        warnings=summary.warnings(pipeline),
        searched=decision.searched,
        seconds=decision.seconds,
        prefiltered=held_back,
        columns=columns,
        dimensions=tuple(
            DimensionUse(lookup.table.name, lookup.version, unmatched)
            for lookup, unmatched in zip(pinned, summary.unmatched(pipeline), strict=True)
        ),
    )


class _Side(NamedTuple):
    """Rows for a side table: ``rows`` is called only if ``size``, their count, is not 0."""

    table: Table
    rows: Callable[[], DataFrame]
    size: int
    adds_columns: bool = False


def _write_sides(
    sides: Sequence[_Side], context: BatchContext, decided_by: Mapping[str, Any]
) -> None:
    """Write the batch's rows into the side tables, once.

    An interrupted run may have written them already. If the same definition decided them then,
    they are the same rows. Otherwise these replace them, also where there are none now, in one
    commit: silver and its side tables are decided by one definition.
    """
    # A generation's name comes from our own commits: a letter and digits.
    own = f"_generation = '{context.generation}' AND _batch = {context.number}"
    writes, names = [], []
    for side in sides:
        is_filled = side.size > 0 or context.rebuilds
        if not is_filled and not context.may_be_retry:
            continue
        last = last_commit(side.table)
        this = (context.generation, context.number)
        is_there = last is not None and (last.generation, last.batch) == this
        if last is not None and is_there and is_decided_by(last, decided_by):
            continue
        if is_filled or is_there:
            names.append(side.table.name)
            writes.append(
                partial(
                    append,
                    side.rows(),
                    side.table,
                    {**context.note(), **decided_by},
                    may_add_columns=side.adds_columns,
                    replaces=context.rebuilds,
                    replaces_where=own if is_there else "",
                )
            )
    if writes:
        context.run.locks.step(f"write {' and '.join(names)}")
        side_by_side(context.run.spark, writes)
