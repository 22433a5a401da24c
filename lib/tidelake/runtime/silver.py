"""Bronze to silver: decide each row's fate, write the side tables, then commit silver."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.bronze.records import REQUEUE_DDL, with_requeue_columns
from tidelake.columns import stamped
from tidelake.config.model import bytes_of
from tidelake.delta import commit_metadata as metadata
from tidelake.delta.access import follow, load
from tidelake.delta.append import append, types_of
from tidelake.delta.commit_metadata import SilverNote
from tidelake.delta.log import REBUILT, Commit, last_commit
from tidelake.delta.positions import BEGINNING, Position, rewriting, version_at
from tidelake.delta.tables import Table
from tidelake.errors import UsageError
from tidelake.names import quoted
from tidelake.runtime import prefilter, schemas
from tidelake.runtime.accepted_rows import AcceptedRows, FilesInScope
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.checkpoints import replaced_sides
from tidelake.runtime.hop import Heads, HopQuery, Run
from tidelake.runtime.lookups import Lookup, check_dimensions, enriched, lookups, refuse_replaced
from tidelake.runtime.prefilter import PrefilteredBatch
from tidelake.runtime.session_pool import run_concurrently
from tidelake.runtime.transformed_rows import same_rows
from tidelake.silver import fates
from tidelake.silver.dedup import find_repeats
from tidelake.silver.enrich import enriched_columns
from tidelake.silver.fates import extra_columns, new_columns
from tidelake.silver.plan import SilverPlan
from tidelake.silver.stages import SELECTED, Judging, classify
from tidelake.silver.summary import Summary, summarize, summarize_in_driver, unknown_fields
from tidelake.silver.watermark import PartitionProgress, advance, without_part
from tidelake.spark.engine import fitted
from tidelake.spark.tuning import SEARCHED_PER_ROW, is_small
from tidelake.typed import runnable


class SilverHop(HopQuery):
    """The streaming query that decides the fate of bronze's rows and of requeued rows."""

    hop = "silver"

    @cached_property
    def _files(self) -> dict[str, FilesInScope]:
        tables = (self.table, self.run.lake.late(self.run.pipeline.name))
        return {table.name: FilesInScope(table) for table in tables}

    @property
    def _prefilters(self) -> bool:
        return self.run.pipeline.dedup.prefilter == "operator"

    @property
    def _judges_in_stream(self) -> bool:
        """Whether the streaming plan can classify rows, before their batch is known.

        A function of the user's may use a join or a window, which a stream would refuse.
        """
        pipeline = self.run.pipeline
        return not (self._prefilters or pipeline.registry or pipeline.transform)

    @property
    def most(self) -> int:
        """The environment's ``silver_bytes`` limit."""
        return bytes_of(self.run.environment.limits.silver_bytes)

    def compacted(self, spark: SparkSession) -> list[Table]:
        """List silver and its side tables, which maintenance compacts only while no run is on."""
        name, lake = self.run.pipeline.name, self.run.lake
        return [self.table, lake.quarantine(name), lake.late(name)]

    def offset_mismatch(self, closed: Commit | None) -> str:
        """Compare silver's newest commit with dimensions, side tables and the checkpoint."""
        refuse_replaced(self.run.lake, self.run.pipeline)
        if closed is None:
            return ""
        sides = replaced_sides(self.run.lake, self.run.pipeline.name, closed)
        return sides or super().offset_mismatch(closed)

    def create_tables(self) -> None:
        """Create silver and its side tables."""
        name = self.run.pipeline.name
        if not (bronze := self.run.lake.bronze(name)).exists:
            raise UsageError(
                f"{bronze.name} does not exist yet. "
                f"Fill it with: {runnable('tidelake run', name, '--hop bronze')}"
            )
        prefilter.refuse_other_prefilter(self.table, self.fence, wanted=self._prefilters)
        if self.run.pipeline.reads_avro:
            schemas.refuse_unlimited(self.run.spark)
        if changed := metadata.changed_parts(last_commit(self.table), self.run.pipeline).identity:
            raise self.fence.refusal(
                f"{self.table.name} was filled under another {' and '.join(changed)}"
            )
        check_dimensions(self.run)
        schemas.create_silver(self.run, self.creation_note())

    def stream(self) -> DataFrame:
        """Stream bronze and the requeue from their first commit, in commit order."""
        bronze = self._follow("bronze")
        if self._prefilters:
            prefilter.prepare_state(self.run.spark)
            bronze = prefilter.hold_back_copies(bronze, ttl=self.run.pipeline.dedup.ttl)
        rows = with_requeue_columns(bronze).unionByName(self._follow("requeue"))
        # Part of the streaming plan, so that this, most of the planning, is not done per batch.
        return self.run.plan.judge(rows) if self._judges_in_stream else rows

    def warm_up(self) -> None:
        """Classify a record that is in no table: planned anew, that takes seconds in a cold JVM."""
        if not self._judges_in_stream:
            return
        # A session of its own: the settings would end up in the checkpoints of queries that start.
        session = self.run.spark.newSession()
        values = {"payload": F.lit("{}")}
        columns = [
            values.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
            for field in schemas.from_ddl(session, REQUEUE_DDL)
        ]
        with fitted(session, 1):
            classify(session.range(1).select(*columns), Judging(self.run.pipeline)).collect()

    def _follow(self, key: str) -> DataFrame:
        table, idle = self.inputs[key], key in self.guard.idle()
        return follow(self.run.spark, table, max_bytes=self.limit, idle=idle)

    def write(self, rows: DataFrame, batch: int, heads: Heads) -> None:
        """Decide the fates of a batch's rows and write them."""
        began = time.monotonic()
        until = self.guard.planned(batch, metadata.positions(heads[0]))
        last = self.fence.admits(self.table, heads[0], batch, until)
        if last is None:
            if self._prefilters:
                # The operator updates its state only when its output is read.
                rows.write.format("noop").mode("overwrite").save()
            return
        if changed := metadata.changed_parts(last, self.run.pipeline).rules:
            self.run.progress.say(f"silver: {', '.join(changed)} changed from batch {batch} on")
        before = SilverNote.of(last)
        sizes = self.guard.sizes(before.until, until)
        taken = {key: one.rows for key, one in sizes.items()}
        count = sum(taken.values())
        small = is_small(count, sum(one.size for one in sizes.values()))
        rules_since = prefilter.rules_since(last, self.run.pipeline) if self._prefilters else None
        with (
            fitted(rows.sparkSession, count + before.searched // SEARCHED_PER_ROW),
            CheckpointedFrames(small=small, rows=None if self._prefilters else count) as frames,
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
                # Only the first batch of a query can be the retry of an interrupted one.
                may_be_retry=batch <= self.fence.closed + 1,
                rules_since=rules_since,
                admit=lambda: self.fence.admits(self.table, last_commit(self.table), batch, until),
            )
            note = silver_batch(self._recovered(rows, context), context)
        counts = note.total()
        detail = [f"{fate} {n:,}" for fate, n in counts.items() if n]
        detail += [f"not in {u.table} {u.unmatched:,}" for u in note.dimensions if u.unmatched]
        total, mark, text = counts.total(), note.watermark, " ".join(detail)
        self.run.progress.closed(self.hop, batch, total, began, watermark=mark, detail=text)

    def _recovered(self, rows: DataFrame, context: BatchContext) -> PrefilteredBatch:
        """Return the batch plus the rows that the prefilter dropped and that may not be copies."""
        if not self._prefilters:
            return PrefilteredBatch(rows, [], None, judged=self._judges_in_stream)
        accepted = context.accepted(rows.sparkSession)
        span = context.before.until.get("bronze", BEGINNING), context.until["bronze"]
        kept, since = context.frames.checkpoint(rows), context.rules_since or 0
        return prefilter.recover(kept, accepted, span, context.frames, since)


class Decision(NamedTuple):
    """Rows with their fates, from :func:`tidelake.silver.fates.decide`.

    ``summary`` has their counts, None unless requested. Of deduplication, ``searched`` is the
    number of accepted ids read, and ``seconds`` the duration.
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
    has_requeued: bool = False,
) -> Decision:
    """Deduplicate classified rows and decide the fate of each.

    ``watermark`` is the one before these rows (UTC), None before the first batch. Rows that are
    counted, with ``counts``, must be enriched. With ``has_requeued`` some of them may be late rows
    that are ``accepted`` and were requeued.
    """
    kept = frames.checkpoint_batch(judged)
    if has_requeued:
        accepted = replace(accepted, refused=fates.refused_again(kept.rows))
    began = time.monotonic()
    allowed = plan.pipeline.watermark.allowed_lateness
    also = []
    if counts and kept.numbered:
        # The driver counts these rows, since it collects them for deduplication anyway.
        also = [*plan.counting.row, fates.fate_unless_repeat(watermark, allowed)]
    repeats = find_repeats(
        kept, accepted, plan.comparison, checkpoint=frames.checkpoint_now, also=also
    )
    seconds = time.monotonic() - began
    decided = fates.decide(kept.rows, repeats, plan.fates, watermark=watermark, allowed=allowed)
    summary = None
    if counts and repeats.batch is not None:
        summary = summarize_in_driver(repeats.batch, repeats.numbers, plan.counting)
    elif counts:
        summary = summarize(decided, plan.counting)
    return Decision(decided, summary, repeats.searched, seconds)


@dataclass(frozen=True)
class Stored:
    """Stored rows that a rebuild of silver copies without deciding them again."""

    accepted: AcceptedRows
    silver: DataFrame
    quarantine: DataFrame


@dataclass(frozen=True)
class BatchContext:
    """State and settings of one silver batch.

    Attributes:
        before: The summary in the previous batch's commit.
        until: The position in each input at which the batch ends.
        taken: Rows of each input, by Delta's statistics.
        rebuilds: Whether the batch replaces all of silver, so that no row was accepted before it.
        stored: Rows that a rebuild copies from the tables; the recovered batch counts them.
        files: Files of silver and late, cached across batches.
        may_be_retry: Whether an interrupted run may have written the batch's side tables.
        rules_since: The first batch that today's rules decided; None without a prefilter.
        admit: Asks the fence again before the commits; a rebuild begins the generation.
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
    rules_since: int | None = None
    admit: Callable[[], object] = lambda: True

    @property
    def stamp(self) -> dict[str, Any]:
        """The columns that identify the batch's rows: generation and batch number."""
        return {"generation": self.generation, "batch": self.number}

    @property
    def note(self) -> dict[str, Any]:
        """The metadata that all commits of the batch share."""
        more: dict[str, Any] = {REBUILT: True} if self.rebuilds else {}
        if self.rules_since is not None:
            more[prefilter.RULES_SINCE] = self.rules_since
        return {"pipeline": self.run.pipeline.name, "hop": "silver", **self.stamp, **more}

    def accepted(self, spark: SparkSession) -> AcceptedRows:
        """Return the previously accepted rows, to find duplicates."""
        if self.stored:
            return self.stored.accepted
        pipeline, lake = self.run.pipeline, self.run.lake
        return AcceptedRows(
            spark,
            pipeline,
            lake,
            self.number,
            self.before.until.get("requeue", BEGINNING),
            nothing_accepted=self.rebuilds,
            files=self.files,
        )


def silver_batch(recovered: PrefilteredBatch, context: BatchContext) -> SilverNote:
    """Decide the fates of a batch's rows and write them; return silver's commit summary.

    ``recovered`` has the rows, and counts of those that are already decided.
    """
    run, plan, lake = context.run, context.run.plan, context.run.lake
    pipeline, name, stored = plan.pipeline, plan.pipeline.name, context.stored
    watermark = None if run.replays else context.before.watermark
    pinned = lookups(lake, pipeline, context.before)
    if run.replays and context.before.dimensions:
        # A promotion writes all rows in one batch, which records one version of each dimension.
        versions = {use.table: use.version for use in context.before.dimensions}
        pinned = [one._replace(version=versions.get(one.table.name, one.version)) for one in pinned]
    judged = recovered.rows
    if not recovered.judged:
        # Stored before any row is decided, so that a retry reads the same schemas.
        writers = schemas.schemas_for(run, judged, redecides=context.rebuilds)
        place = f"{name}, silver, batch {context.number}"
        judged = same_rows(judged, plan.judge(judged, writers), pipeline, context.frames, place)
    judged = enriched(judged, plan, pinned)
    accepted = context.accepted(judged.sparkSession)
    has_requeued = context.taken.get("requeue", 0) > 0
    decision = decide_fates(
        judged, plan, accepted, watermark, context.frames, counts=True, has_requeued=has_requeued
    )
    decided = decision.rows
    assert decision.summary is not None
    summary = Summary([*decision.summary.groups, *recovered.copies])
    new, filled = _unknown_columns(summary, decided, context)
    note = _note(summary, decision, context, pinned, new, recovered.held_back)
    total = note.total()
    # Side tables first: silver's commit asserts that they are complete.
    by = metadata.decision_note(pipeline, {use.table: use.version for use in note.dimensions})

    def quarantined() -> DataFrame:
        failed = fates.to_quarantine(decided, **context.stamp)
        if stored is None:
            return failed
        return failed.unionByName(stamped(stored.quarantine, **context.stamp))

    def late() -> DataFrame:
        return fates.to_late(decided, plan.routing, watermark, extra=filled, **context.stamp)

    sides = [
        _Side(lake.quarantine(name), quarantined, total[fates.QUARANTINED]),
        _Side(lake.late(name), late, total[fates.LATE], adds_columns=bool(filled)),
    ]
    if context.admit() is None:
        return note
    _write_sides(sides, context, by)
    rows = fates.to_silver(decided, plan.routing, extra=filled, **context.stamp)
    if stored:
        kept = stamped(_enriched_again(stored.silver, plan, pinned), **context.stamp)
        rows = kept.unionByName(rows, allowMissingColumns=True)
    run.locks.step(f"write {lake.silver(name).name}")
    if context.admit() is None:
        return note
    append(
        rows,
        lake.silver(name),
        {**context.note, **note.to_json(), **metadata.silver_note(pipeline)},
        even_empty=total[fates.SILVER] == 0,
        may_add_columns=bool(new),
        replaces=context.rebuilds,
    )
    return note


def _enriched_again(stored: DataFrame, plan: SilverPlan, pinned: list[Lookup]) -> DataFrame:
    """Repeat the lookups of stored rows: their batch records one version of each dimension."""
    enrichments = plan.pipeline.enrich
    if not enrichments:
        return stored
    # Null where the definition added the column that is looked up by.
    sought = {name for one in enrichments for name in (*one.on, one.as_of) if name}
    missing = sorted(sought.difference(stored.columns))
    added = [F.lit(None).cast("string").alias(name) for name in missing]
    rows = stored.withColumn(SELECTED, F.struct(*map(quoted, stored.columns), *added))
    names = {name for one in enrichments for name in one.columns}
    kept = [F.col(quoted(name)) for name in stored.columns if name not in names]
    return enriched(rows, plan, pinned).select(*kept, *enriched_columns(enrichments))


def _unknown_columns(
    summary: Summary, decided: DataFrame, context: BatchContext
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return silver's new columns for unknown fields, and all columns that such fields fill."""
    pipeline, lake = context.run.pipeline, context.run.lake
    is_additive = pipeline.event.evolution == "additive"
    found = unknown_fields(decided) if is_additive and summary.has_unknown() else None
    if not found:
        return (), ()
    stored = types_of(load(context.run.spark, lake.silver(pipeline.name)).schema)
    defined = pipeline.defined_columns
    new = new_columns(found, defined=defined, stored=stored)
    return new, (*extra_columns(stored, defined), *new)


def _watermark(context: BatchContext, reached: Mapping[str, PartitionProgress]) -> datetime | None:
    """Return the watermark after a batch that has ``reached`` this progress.

    No row of a bronze commit is late by another. So a batch that ends inside one counts what was
    read before the batch, and nothing if it began in the same commit.
    """
    run, before, until = context.run, context.before, context.until["bronze"]
    if until[1] >= 0 and version_at(run.lake.bronze(run.pipeline.name), until) is None:
        if before.until.get("bronze", BEGINNING)[0] == until[0]:
            return before.watermark
        reached = without_part(before.partitions, reached)
    rules = run.pipeline.watermark
    return advance(before.watermark, reached, delay=rules.delay, idle_after=rules.idle_after)


def _note(
    summary: Summary,
    decision: Decision,
    context: BatchContext,
    pinned: list[Lookup],
    columns: tuple[str, ...],
    held_back: int | None,
) -> SilverNote:
    pipeline, before, rules = context.run.pipeline, context.before, context.run.pipeline.watermark
    partitions = summary.partitions(before.partitions)
    watermark = _watermark(context, partitions)
    counts = [
        metadata.FateCount.of((fate, stage, origin), rows, summary.marks[origin, fate, stage])
        for (origin, fate, stage), rows in summary.rows().items()
    ]
    return SilverNote(
        watermark_in=None if context.run.replays else before.watermark,
        watermark=watermark,
        settled=None if watermark is None else watermark - rules.allowed_lateness,
        partitions=partitions,
        counts=tuple(sorted(counts, key=lambda count: repr(count[:3]))),
        taken=context.taken,
        until=context.until,
        warnings=summary.warnings(pipeline),
        searched=decision.searched,
        seconds=decision.seconds,
        prefiltered=held_back,
        columns=columns,
        dimensions=tuple(
            metadata.DimensionUse(lookup.table.name, lookup.version, unmatched)
            for lookup, unmatched in zip(pinned, summary.unmatched(pipeline), strict=True)
        ),
    )


class _Side(NamedTuple):
    """Rows for a side table; ``size`` is their count, ``rows`` builds them if they are written."""

    table: Table
    rows: Callable[[], DataFrame]
    size: int
    adds_columns: bool = False


def _write_sides(
    sides: Sequence[_Side], context: BatchContext, decided_by: Mapping[str, Any]
) -> None:
    """Write the batch's rows into the side tables exactly once.

    An interrupted run may have written them already. Rows that the same definition decided are
    kept, unless an interrupted repair deleted some. Others are replaced in one commit, even by no
    rows, so that one definition decides silver and its side tables.
    """
    # Safe in SQL: the name of a generation is generated, a letter and digits.
    batch_rows = f"_generation = '{context.generation}' AND _batch = {context.number}"
    writes: dict[str, Callable[[], None]] = {}
    for side in sides:
        is_filled = side.size > 0 or context.rebuilds
        if not is_filled and not context.may_be_retry:
            continue
        last = last_commit(side.table)
        if last and (last.generation, last.batch) != (context.generation, context.number):
            last = None
        is_whole = last and rewriting(side.table, (last.version + 1, -1)) is None
        if last and is_whole and metadata.is_decided_by(last, decided_by):
            continue
        if is_filled or last:
            writes[side.table.name] = partial(
                append,
                side.rows(),
                side.table,
                {**context.note, **decided_by},
                may_add_columns=side.adds_columns,
                replaces=context.rebuilds,
                replaces_where=batch_rows if last else "",
            )
    if writes:
        context.run.locks.step(f"write {' and '.join(writes)}")
        run_concurrently(context.run.spark, list(writes.values()))
