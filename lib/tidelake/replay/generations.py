"""Begin a new generation of a hop: continue after its last batch, or replace its tables.

A generation is the lifetime of one checkpoint; each commit names its generation and batch.

Writes follow the order of any batch: the checkpoint first, then side tables, and last the commit to
the hop's own table. If interrupted before that commit, the hop continues as before, and the command
can be run again: side rows of an uncommitted batch that were deleted are written by its retry.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.bronze.records import REQUEUE_DDL, with_requeue_columns
from tidelake.columns import stamped
from tidelake.config import Source
from tidelake.delta import log
from tidelake.delta.access import detail, load, load_old
from tidelake.delta.append import append, append_nothing, ensure_table
from tidelake.delta.commit_metadata import (
    FRESH,
    SilverNote,
    changed_definition,
    merged_counts,
    positions,
)
from tidelake.delta.merge import delete_where
from tidelake.delta.positions import BEGINNING, Position, added_between, stream_breaks
from tidelake.delta.tables import Hop, Table
from tidelake.errors import UsageError
from tidelake.fingerprints import fingerprint
from tidelake.gold.kinds import Inputs
from tidelake.ledger.history import closed_version, history
from tidelake.ledger.side_tables import in_closed_batch
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.checkpoints import delta_offset, prepare, refuse_foreign_gold
from tidelake.runtime.fence import overtaken
from tidelake.runtime.gold_settings import apply_gold_settings
from tidelake.runtime.gold_tables import Target, recomputed, tables_note, targets_of, whole
from tidelake.runtime.hop import Run
from tidelake.runtime.lookups import check_dimensions
from tidelake.runtime.prefilter import PrefilteredBatch
from tidelake.runtime.schemas import column_changes, create_silver, from_ddl
from tidelake.runtime.silver import BatchContext, Stored, silver_batch
from tidelake.silver.fates import FATE, QUARANTINED, SILVER
from tidelake.silver.stages import ORIGIN, STAGE
from tidelake.silver.watermark import partition_of
from tidelake.spark.engine import fitted
from tidelake.typed import runnable

# The batch number of replaced tables. Not 0: a prepared checkpoint also needs the batch before it.
FIRST = 1
# Of a gold commit that keeps rows: its counts, which are summed over the commits.
NOTHING_READ = {"rows": 0, "eligible": 0, "failed": 0}
_GENERATION = re.compile(r"g([1-9][0-9]*)")


def next_generation(run: Run, hop: Hop) -> str:
    """Return a generation name that no table or checkpoint has used."""
    names = [folder.name for folder in run.lake.checkpoints(run.pipeline.name, hop).iterdir()]
    for table in run.lake.closing_tables(run.pipeline, hop):
        names += [commit.generation for commit in history(run.lake, table)]
    found = [_GENERATION.fullmatch(name) for name in names]
    return f"g{max((int(match[1]) for match in found if match), default=0) + 1}"


def fitted_to_bronze(run: Run) -> AbstractContextManager[None]:
    """Return a context manager that tunes the session for reading all of bronze."""
    return fitted(run.spark, added_between(run.lake.bronze(run.pipeline.name), BEGINNING).rows)


def prepare_checkpoint(
    run: Run,
    hop: Hop,
    generation: str,
    batch: int,
    until: Mapping[str, Position],
    *,
    source: Sequence[str] = (),
    files: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the checkpoint of a new generation, and return the metadata for the caller's commits.

    The generation must be new (:func:`next_generation`): a checkpoint of its name, which an
    interrupted attempt may have left, is deleted. It takes effect with the first commit that has
    the metadata. The next batch is the one after ``batch``, which is at least :data:`FIRST`, and
    reads what follows the positions ``until`` in its input tables. With :data:`CREATION` as
    ``batch`` no checkpoint is written: the query begins with batch 0 and the first commits,
    whatever ``until`` is. For bronze pass the offset of its ``source`` instead and, for files, the
    ``files`` that it has ingested, as entries of the source's log.

    Raises:
        LeaseLostError: The hop's lock was lost.
        ValueError: The batch is 0, after which no query can resume.
    """
    lake, name = run.lake, run.pipeline.name
    offsets = [
        # The first commit, which holds the table id, may have been removed from the log.
        delta_offset(table.id or detail(run.spark, table)["id"], until.get(key, BEGINNING))
        for key, table in lake.hop_inputs(run.pipeline, hop).items()
    ]
    run.locks.step(f"prepare the checkpoint of {hop}, generation {generation}")
    prepare(lake.checkpoints(name, hop) / generation, batch, [*source, *offsets], files=files)
    return {"pipeline": name, "hop": hop, "generation": generation, "batch": batch}


def continue_hop(
    run: Run,
    hop: Hop,
    tables: Sequence[Table],
    until: Mapping[str, Position],
    metadata: Mapping[str, Any],
    *,
    unfilled: int = log.CREATION,
    source: Sequence[str] = (),
    files: Sequence[str] = (),
) -> str:
    """Begin a generation that keeps the rows of a hop's tables; return the generation's name.

    Each table gets a commit that adds no row, with the batch number of its last commit
    (``unfilled`` if no batch filled it) and that commit's metadata, in which keys of ``metadata``
    replace others. The new checkpoint resumes after the batch of ``tables[0]``; the other arguments
    are those of :func:`prepare_checkpoint`.
    """
    generation = next_generation(run, hop)
    newest = [newest_of(run, hop, table) for table in tables]
    batches = [max(one.batch, FIRST) if one.batch > log.CREATION else unfilled for one in newest]
    prepare_checkpoint(run, hop, generation, batches[0], until, source=source, files=files)
    for table, last, batch in zip(tables, newest, batches, strict=True):
        note = {**continued(last), **metadata, "generation": generation, "batch": batch}
        run.locks.step(f"begin generation {generation} in {table.name}")
        append_nothing(run.spark, table, note)
    return generation


def continued(last: log.Commit) -> dict[str, Any]:
    """Return a commit's metadata for the next one, which adds no row and keeps the others."""
    # A rebuild or an erasure must be recorded in exactly one commit.
    kept = {key: value for key, value in last.note.items() if key not in (log.REBUILT, log.ERASED)}
    return {**kept, log.FOLLOWS: last.version}


def continue_silver(
    run: Run, until: Mapping[str, Position], *, erased: Mapping[str, Any] | None = None
) -> str:
    """Begin a generation of silver that keeps the tables' rows, and return its name.

    ``erased`` is commit metadata about the rows that an erasure removed.
    """
    table = run.lake.silver(run.pipeline.name)
    last = newest_of(run, "silver", table)
    _delete_uncommitted(run)
    has_read = any(one != BEGINNING for one in until.values())
    metadata: dict[str, Any] = {}
    if has_read or last.batch > log.CREATION:
        before = SilverNote.of(last)
        # Each batch's count of rows without a match is summed over the commits.
        used = tuple(use._replace(unmatched=0) for use in before.dimensions)
        carried = without_batch(before, until)
        metadata |= replace(carried, watermark_in=before.watermark, dimensions=used).to_json()
    if erased is not None:
        metadata[log.ERASED] = dict(erased)
    # A checkpoint without a batch starts at the first commit of each input.
    unfilled = FIRST if has_read else log.CREATION
    return continue_hop(run, "silver", [table], until, metadata, unfilled=unfilled)


def without_batch(note: SilverNote, until: Mapping[str, Position]) -> SilverNote:
    """Return a note with the state carried between batches, without the counts of one batch."""
    return SilverNote(
        watermark=note.watermark,
        settled=note.settled,
        partitions=note.partitions,
        until=until,
        dimensions=note.dimensions,
    )


def merged(notes: Sequence[SilverNote], until: Mapping[str, Position]) -> SilverNote:
    """Return one note of several batches, newest first, with the sums of their counts."""
    counts = merged_counts(count for note in notes for count in note.counts)
    warnings, unmatched = Counter[str](), Counter[tuple[int, str]]()
    for note in notes:
        warnings.update(note.warnings)
        unmatched.update({(n, use.table): use.unmatched for n, use in enumerate(note.dimensions)})
    used = tuple(
        use._replace(unmatched=unmatched[n, use.table]) for n, use in enumerate(notes[0].dimensions)
    )
    carried = without_batch(notes[0], until)
    return replace(carried, counts=counts, warnings=dict(warnings), dimensions=used)


def continue_gold(run: Run, tables: Sequence[Table], until: Mapping[str, Position]) -> str:
    """Begin a generation of gold that keeps the tables' rows, and return its name.

    Gold tables that are not among ``tables`` are emptied: the next run fills them. Without
    ``tables`` it reads silver from its beginning.
    """
    if tables:
        reached = {"until": dict(until)} if until else {}
        metadata = {**NOTHING_READ, **tables_note(run.pipeline), **reached}
        made = continue_hop(run, "gold", tables, until, metadata)
    else:
        made = next_generation(run, "gold")
        prepare_checkpoint(run, "gold", made, log.CREATION, {})
    created = {"pipeline": run.pipeline.name, "hop": "gold", "batch": log.CREATION}
    for table in run.lake.closing_tables(run.pipeline, "gold"):
        if table not in tables and (last := log.last_commit(table)) is not None:
            kept = {key: last.note[key] for key in ("definition",) if key in last.note}
            replace_rows(run, table, None, {**created, **kept, "generation": made})
    # RESTORE brings back the table's settings of that version; set the current ones.
    apply_gold_settings(run)
    return made


def newest_of(run: Run, hop: Hop, table: Table) -> log.Commit:
    """Return the newest Tidelake commit to a table that a hop writes.

    Raises:
        UsageError: The hop has not run.
    """
    last = log.last_commit(table)
    if last is None:
        # Gold may also read the silver tables of other pipelines.
        name = run.pipeline.name if hop == "gold" else table.bare
        raise UsageError(
            f"{name} has no tables of hop {hop} to repair. "
            f"Fill them with: {runnable('tidelake run', name)}"
        )
    return last


def _delete_uncommitted(run: Run) -> None:
    """Delete the side tables' rows of a batch that silver never committed.

    Only silver's generation can have one: it is deleted before the next generation begins.
    """
    lake, name = run.lake, run.pipeline.name
    closed = newest_of(run, "silver", lake.silver(name))
    for side in (lake.quarantine(name), lake.late(name)):
        run.locks.step(f"delete rows of uncommitted batches from {side.name}")
        delete_where(run.spark, side, f"NOT ({in_closed_batch(closed)})")


def replace_rows(
    run: Run,
    table: Table,
    rows: DataFrame | None,
    note: Mapping[str, Any],
    *,
    may_repeat: bool = False,
) -> None:
    """Replace all rows of a table in one commit; None leaves it empty.

    ``may_repeat`` if the table may have a commit of this batch, which would be skipped otherwise.
    """
    run.locks.step(f"{'empty' if rows is None else 'replace'} {table.name}")
    rows = load(run.spark, table).limit(0) if rows is None else rows
    made = {**note, log.REBUILT: True}
    append(rows, table, made, even_empty=True, replaces=True, may_repeat=may_repeat)


def replace_tables(
    run: Run,
    hop: Hop,
    until: Mapping[str, Position],
    contents: Iterable[tuple[Table, DataFrame, Mapping[str, Any]]],
) -> str:
    """Begin a generation that replaces the rows of a hop's tables, and return its name.

    ``contents`` are each table, its rows computed from the inputs up to ``until``, and the commit
    metadata, in the order of the commits.
    """
    generation = next_generation(run, hop)
    note = prepare_checkpoint(run, hop, generation, FIRST, until)
    if hop == "gold":
        note |= tables_note(run.pipeline)
    for table, rows, metadata in contents:
        made = stamped(rows, generation=generation, batch=FIRST)
        replace_rows(run, table, made, {**note, **metadata})
    if hop == "gold":
        apply_gold_settings(run)
    return generation


def rebuild_gold(
    run: Run,
    *,
    until: Mapping[str, Position] | None = None,
    rows_of: Callable[[Target, Inputs], DataFrame] = whole,
) -> str:
    """Compute every gold table from silver in a new generation, and return its name.

    Silver is read up to ``until``, None for all of it; ``rows_of`` computes a table's rows.

    Raises:
        RefusedError: Another pipeline fills one of the tables.
    """
    refuse_foreign_gold(run.lake, run.pipeline)
    inputs = run.lake.hop_inputs(run.pipeline, "gold")
    until = heads(inputs) if until is None else until
    made = recomputed(run.spark, inputs, targets_of(run.lake, run.pipeline), until, rows_of)
    contents = ((target.table, rows, note) for target, rows, note in made)
    return replace_tables(run, "gold", until, contents)


def heads(tables: Mapping[str, Table]) -> dict[str, Position]:
    """Return the position after the newest commit of each table."""
    return {key: (log.newest_version(table) + 1, -1) for key, table in tables.items()}


def is_outdated(table: Table, version: int, since: datetime) -> bool:
    """Return whether a version, written before an instant (UTC), is not the newest any more.

    Delta may refuse to read it, and its files may be gone.
    """
    if version < 0 or version >= log.newest_version(table):
        return False
    at = log.written_at(table, version)
    return at is None or at < since


def gold_mismatches(run: Run) -> Iterator[str]:
    """Yield why gold's tables cannot continue from their current state."""
    found: list[log.Commit] = []
    checkpoints = run.lake.checkpoints(run.pipeline.name, "gold")
    for target in targets_of(run.lake, run.pipeline):
        table = target.table
        last = log.last_commit(table)
        if last is None:
            yield f"{table.name} is new"
            return
        if changed_definition(last, target.kind.definition):
            yield f"the definition of {table.name} changed"
        if any(one.verdict == "refused" for one in column_changes(run, target)):
            yield f"the columns of {table.name} changed"
        if closed_version(run.lake, table) < log.newest_version(table):
            yield f"{table.name} has rows of a batch that is not closed"
        if problem := overtaken(table, checkpoints):
            yield problem
        found.append(last)
    if not found:
        return
    if len({(one.batch, str(positions(one))) for one in found}) > 1:
        yield "its tables are at different batches"
    reached = positions(found[0])
    for key, table in run.lake.hop_inputs(run.pipeline, "gold").items():
        if reached and key not in reached:
            yield f"{table.name} is a new input"
        since = found[0].written_at if key in reached else None
        for one in stream_breaks(table, "gold", reached.get(key, BEGINNING), since):
            yield one.reason


def rebuild_silver(run: Run, kept: Stored | None = None) -> str:
    """Recompute silver and its side tables from bronze in one batch; return the generation.

    Bronze is read as a table, not commit by commit: its oldest files and commits may be gone.
    No row counts as late. The requeue is emptied, because bronze holds its rows. The ``kept`` rows,
    from :func:`~tidelake.replay.backfill.decided_before`, keep their fates.
    """
    lake, name, spark = run.lake, run.pipeline.name, run.spark
    check_dimensions(run)
    bronze, requeue = lake.bronze(name), lake.requeue(name)
    generation = next_generation(run, "silver")
    note = {"pipeline": name, "generation": generation, "batch": log.CREATION}
    is_gone = not lake.silver(name).exists
    run.locks.step(f"create the missing tables of {name}")
    ensure_table(spark, requeue, from_ddl(spark, REQUEUE_DDL), {**note, "hop": "requeue"})
    if not is_gone:
        # Refuses a definition that does not fit, before a row changes.
        create_silver(run, {**note, "hop": "silver"})
    version = log.newest_version(bronze)
    rows = load_old(spark, bronze, version)
    run.locks.step(f"empty {requeue.name}")
    delete_where(spark, requeue, "true")
    until = {"bronze": (version + 1, -1)} | heads({"requeue": requeue})
    prepare_checkpoint(run, "silver", generation, FIRST, until)
    if is_gone:
        # Not before its checkpoint: a run would fill the new table beside old side tables.
        run.locks.step(f"create {lake.silver(name).name}")
        create_silver(run, {**note, "hop": "silver"})
    count = rows.count()
    taken = {"bronze": count, "requeue": 0}
    with fitted(spark, count), CheckpointedFrames() as frames:
        context = BatchContext(
            run, generation, FIRST, SilverNote(), until, taken, frames, rebuilds=True, stored=kept
        )
        counted: list[dict[str, Any]] = []
        if kept is not None:
            ids = kept.silver.select("record_id").union(kept.quarantine.select("record_id"))
            rows = rows.join(ids, on="record_id", how="left_anti")
            counted = _count_kept(kept, run.pipeline.source)
        silver_batch(PrefilteredBatch(with_requeue_columns(rows), counted, None), context)
    return generation


def _count_kept(kept: Stored, source: Source) -> list[dict[str, Any]]:
    """Count the kept rows by fate, in the format of a batch's counts."""
    ids = [F.col("record_id"), F.col("ingested_at"), partition_of(source).alias("partition")]
    silver = kept.silver.select(
        *ids, F.lit(SILVER).alias(FATE), F.lit(None).cast("string").alias(STAGE), "event_time"
    )
    quarantine = kept.quarantine.select(
        *ids, F.lit(QUARANTINED).alias(FATE), F.col("stage"), F.lit(None).cast("timestamp")
    )
    found = (
        silver.union(quarantine)
        .groupBy(FATE, STAGE, "partition")
        .agg(
            F.count("*").alias("rows"),
            fingerprint().alias("fingerprint"),
            F.max(F.unix_micros("event_time")).alias("newest"),
            F.max(F.unix_micros("ingested_at")).alias("last"),
        )
        .collect()
    )
    return [{**row.asDict(), ORIGIN: FRESH} for row in found]
