"""Erase a subject's rows in steps; after an interruption the same call continues.

Every hop is drained first: a stream that lags behind a delete would have to skip its commit, and
could not tell rows rewritten by it from new ones. Then rows are deleted by record id, bronze's
last; silver begins a new generation after the deletes, and gold is recomputed from silver. Each
step checks whether it is already done, so none runs twice.

The report lists what remains (:mod:`.erase_remains`): a table's old files hold the rows until they
are vacuumed, its log the column statistics of removed files. Landed files and other pipelines'
tables are not changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from tidelake.columns import between
from tidelake.config import FilesSource
from tidelake.delta.access import DELETION_VECTORS, optimized_schemas, properties
from tidelake.delta.append import append_nothing
from tidelake.delta.commit_metadata import arrivals_note, deductions_note, erasure_of
from tidelake.delta.locks import hold_hops, hold_upkeep
from tidelake.delta.log import ERASED, commits, last_commit
from tidelake.delta.merge import delete_records, retry_conflicts, vacuum, vacuum_uses_hours
from tidelake.delta.tables import HOPS, Hop, Table
from tidelake.errors import (
    GenerationError,
    NotBuiltError,
    RefusedError,
    SourceError,
    UsageError,
)
from tidelake.fingerprints import EMPTY, bronze_marks
from tidelake.folders import remove_tree
from tidelake.gold.merge_plan import span
from tidelake.instants import to_json
from tidelake.ledger.history import history, needs_of, require_tables
from tidelake.replay import erase_records, generations
from tidelake.replay.backfill_state import clear, folder_of, hold_backfill, read_state, what_next
from tidelake.replay.erase_remains import (
    Remains,
    dropped,
    filled_tables,
    landed,
    old_files,
    others,
    readers,
    unclear_records,
)
from tidelake.replay.requeue import requeue_from
from tidelake.replay.subject import Subject
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.epochs import close_epoch, copy_books
from tidelake.runtime.failures import NO_INPUT, naming
from tidelake.runtime.hop import Run
from tidelake.runtime.landed_files import check_landing, taken_files
from tidelake.runtime.lookups import refuse_replaced
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.typed import runnable


@dataclass(frozen=True)
class Report:
    """The result of an erasure: the number of erased rows by table, and what remains.

    ``sent_again`` is the number of requeued neighbours: rows quarantined because an erased row had
    their event id. ``rollback_given_up`` is set if a backfill's tables were removed, which makes
    its rollback impossible.
    """

    pipeline: str
    column: str
    rows: Mapping[str, int]
    sent_again: int
    rollback_given_up: bool
    remains: tuple[Remains, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "pipeline": self.pipeline,
            "column": self.column,
            "erased": dict(self.rows),
            "sent_again": self.sent_again,
            "rollback_given_up": self.rollback_given_up,
            "remains": [one._asdict() | {"until": to_json(one.until)} for one in self.remains],
        }


def look(run: Run, subject: Subject) -> dict[str, int]:
    """Count a subject's rows by table without locks, runs or writes.

    Raises:
        UsageError: The pipeline has not run under this root.
    """
    require_tables(run.lake, run.pipeline.name)
    _warn_of_readers(run)
    with generations.fitted_to_bronze(run), CheckpointedFrames() as frames:
        records, _ = erase_records.find_all(run, subject, frames)
        return erase_records.count_rows(run, records)


def erase(run: Run, subject: Subject, *, now: bool = False) -> Report:
    """Remove a subject's rows from every table of a pipeline.

    With ``now`` the files that held the rows are deleted immediately, also those of earlier
    erasures, even if they have readers; otherwise they are kept for the environment's recovery
    horizon. If there are none to delete, because nothing was ever erased, readers are left alone.

    Raises:
        UsageError: The pipeline has not run under this root, another erasure of it was
            interrupted, or the compute does not support session settings, which ``now`` needs.
        NotBuiltError: The prefilter's state cannot be prepared.
        RefusedError: A backfill is under way, or a hop cannot be drained; or predictive
            optimization may be compacting the tables, whose files ``now`` would delete.
        LockedError: Another process writes one of the hops, or a backfill, or maintains the tables.
        TidelakeError: A step failed, such as beside another tool's commit; the message names the
            command that continues.
        LeaseLostError: A lock was lost; the message says which steps were done.
    """
    lake, pipeline = run.lake, run.pipeline
    require_tables(lake, pipeline.name)
    if pipeline.dedup.prefilter == "operator":
        raise NotBuiltError(
            f"{pipeline.file}: erasing with dedup.prefilter: operator",
            "Set it to none, run "
            f"{runnable('tidelake repair', pipeline.name, '--hop silver')}, then the erasure.",
        )
    if now:
        _refuse_now(run)
    _warn_of_readers(run)
    options = f"--subject {subject.column}=VALUE{' --now' if now else ''}"
    retry = f"{runnable('tidelake erase', pipeline.name, options)}, with the same value"
    with (
        # Files that a compaction beside it commits would be deleted, or would keep the rows.
        hold_upkeep(lake, pipeline.name) as unmaintained,
        hold_backfill(lake, pipeline) as check,
        hold_hops(
            lake, pipeline.name, HOPS, resumes="erasure", command=retry, stop=run.stop
        ) as locks,
        naming(run, "erasure", gone=NO_INPUT, retry=f"It is not finished. Continue with: {retry}."),
    ):
        locks.checks += [check, unmaintained]
        run = replace(run, locks=locks)
        begun = erase_records.read_begun(run, subject)
        unclear = begun.unclear if begun else 0
        if begun is None:
            _refuse_backfill(run)
            locks.step("process what has arrived")
            _drain(run)
            with generations.fitted_to_bronze(run):
                begun, unclear = erase_records.begin(run, subject)
            # Without locks a backfill may have begun meanwhile; later ones see the erasure.
            _refuse_backfill(run, begun)
        gave_up, requeued, given_up = False, 0, list[str]()
        if begun is not None:
            _delete(run, begun)
            _continue(run, begun)
            requeued = _requeue_neighbours(run)
            locks.step("process the requeued rows")
            _process(run)
            locks.step("copy the ledger")
            copy_books(run, ["bronze"])
            locks.step("remove prefilter state, backfill tables and Data Docs")
            _forget_ids(run)
            # Green tables still hold the rows, and a rollback would restore them.
            gave_up = (state := read_state(lake, pipeline)) is not None and state.is_promoted
            given_up += clear(run)
            # Earlier versions wrote values of rows to them.
            remove_tree(lake.data_docs(pipeline.name))
            locks.step("record that all rows are erased")
            erase_records.end(run)
        # Old files of an earlier erasure may be there too.
        has_erased = begun is not None or any(
            erasure_of(commit) for commit in history(lake, lake.bronze(pipeline.name))
        )
        if now and not has_erased:
            run.progress.say("no row was erased, now or before: old files are kept")
        purges = now and has_erased
        if purges:
            state = read_state(lake, pipeline)
            if state is not None and state.is_promoted:
                # It was promoted after an earlier erasure; a rollback needs the old files.
                gave_up = True
                locks.step("remove backfill tables")
                given_up += clear(run)
            locks.step("delete old files")
        broken = purge(run) if purges else []
        return Report(
            pipeline=pipeline.name,
            column=subject.column,
            rows=begun.rows if begun else {},
            sent_again=requeued,
            rollback_given_up=gave_up,
            remains=(
                *(old_files(run, purged=purges) if has_erased else ()),
                *unclear_records(run, subject, unclear),
                *dropped(given_up),
                *landed(begun.sources if begun else (), pipeline.source),
                *others(lake, run),
                *(remains for _, remains in readers(run)),
                *broken,
            ),
        )


def _process(run: Run) -> None:
    """Process the requeued rows; only say so if a dimension that silver looks up was replaced.

    A backfill is the way on then, which an unfinished erasure would refuse.
    """
    try:
        refuse_replaced(run.lake, run.pipeline)
    except GenerationError as error:
        run.progress.say(f"The requeued rows wait for a backfill: {error}")
        return
    run_hops(run, ["silver", "gold"], parse_trigger(AVAILABLE_NOW), held=True)


def _refuse_now(run: Run) -> None:
    """Raise an error where files that were just removed cannot be deleted, or not safely."""
    maintain = runnable("tidelake maintain", run.pipeline.name)
    without = (
        f"Erase without --now, and let {maintain} delete them once the recovery horizon has passed"
    )
    if not vacuum_uses_hours(run.spark):
        raise UsageError(
            "this compute does not support session settings, which --now needs to delete files "
            f"that were just removed. {without}; or use compute that supports them."
        )
    if schemas := optimized_schemas(run.spark, filled_tables(run)):
        # A vacuum of 0 hours deletes the files of a writer that has not committed them yet, and no
        # lock keeps Databricks from writing them.
        disable = "; ".join(
            f"ALTER SCHEMA {one} DISABLE PREDICTIVE OPTIMIZATION" for one in schemas
        )
        raise RefusedError(
            "predictive optimization may be compacting the tables, and --now would delete the "
            f"files that it is about to commit, with rows of all subjects. {without}; or disable "
            f"it first, and wait until the operations that it has begun are over: {disable}"
        )


def _warn_of_readers(run: Run) -> None:
    """Name the pipelines that the deletes will stop, while they can still be run and erased."""
    for reader, remains in readers(run):
        first = runnable("tidelake erase", reader, "--subject COLUMN=VALUE")
        run.progress.say(
            f"warning: {remains.where} is {remains.what}, and {reader} can no longer be erased. "
            f"First erase the subject there: {first}"
        )


def _refuse_backfill(run: Run, begun: erase_records.Erasure | None = None) -> None:
    """Raise a RefusedError, and end the erasure, while a backfill is unfinished.

    Its promotion would restore the rows.
    """
    state = read_state(run.lake, run.pipeline)
    if state is not None and state.stage not in ("promoted", "rolled back"):
        if begun is not None:
            erase_records.end(run)
        raise RefusedError(
            f"nothing was erased: {what_next(run.pipeline, state)}; or abandon it by removing "
            f"{folder_of(run.lake, run.pipeline)}"
        )


def _drain(run: Run) -> None:
    """Run every hop until it has processed all of its input.

    Files that cannot be read are reported and left out: the tables are erased all the same.
    """
    hops: list[Hop] = list(HOPS)
    source = run.pipeline.source
    if isinstance(source, FilesSource):
        try:
            taken = taken_files(history(run.lake, run.lake.bronze(run.pipeline.name)))
            check_landing(source.paths, taken, source.format, is_cleaned=source.is_cleaned)
        except SourceError as error:
            run.progress.say(
                "the source could not be read; records still in it are not erased. Repeat the "
                f"erasure once it is readable: {error}"
            )
            hops.remove("bronze")
    run_hops(run, hops, parse_trigger(AVAILABLE_NOW), held=True)


def _delete(run: Run, begun: erase_records.Erasure) -> None:
    """Delete the records from every table that holds them, bronze's rows last."""
    with CheckpointedFrames() as frames:
        records = frames.checkpoint(erase_records.stored_ids(run, "records"))
        reach = span(records, "ingested_at")
        # The range lets Delta skip files.
        within = between("t.ingested_at", reach) if reach else ""
        for table in erase_records.tables_with_records(run.lake, run.pipeline.name):
            rows = begun.rows.get(table.name, 0)
            if not rows:
                continue
            is_dated = table != run.lake.discarded(run.pipeline.name)
            run.locks.step(f"delete rows from {table.name}")
            delete_records(records, table, within=within if is_dated else "")
            _purge_vectors(run.spark, table)
            run.progress.say(f"{table.name}: {rows:,} rows erased")
    _record_arrivals(run, begun)


def _record_arrivals(run: Run, begun: erase_records.Erasure) -> None:
    """Record what bronze's arrivals lost, in a commit without rows.

    The delete, a MERGE, can have commit metadata only as a session setting, which not all compute
    supports.
    """
    bronze = run.lake.bronze(run.pipeline.name)
    last = last_commit(bronze)
    if last is None or any(erasure_of(commit) == begun.name for commit in commits(bronze)):
        return
    # The last batch's metadata, because no other commit lists its files; no new rows.
    empty = {"records": 0, **bronze_marks(EMPTY, EMPTY)}
    erased = {ERASED: arrivals_note(begun.name, begun.arrivals)}
    note = {**generations.continued(last), **empty, **erased}
    run.locks.step(f"record what {bronze.name} lost")
    # The transaction id of the batch was used by the batch itself.
    append_nothing(run.spark, bronze, note, may_repeat=True)


def _continue(run: Run, begun: erase_records.Erasure) -> None:
    """Begin a generation of silver after the deletes; rebuild gold if silver lost rows."""
    lake, name = run.lake, run.pipeline.name
    if not any(erasure_of(commit) == begun.name for commit in commits(lake.silver(name))):
        until = generations.heads(lake.silver_inputs(name))
        generations.continue_silver(
            run, until, erased=deductions_note(begun.name, begun.deductions)
        )
    if any(generations.gold_mismatches(run)):
        generations.rebuild_gold(run)
        run.progress.say(f"gold recomputed: {', '.join(run.pipeline.gold_names)}")


def _requeue_neighbours(run: Run) -> int:
    """Requeue rows that are in quarantine because an erased row had their event id."""
    ids = erase_records.stored_ids(run, "neighbours")
    rows = erase_records.conflicting(run).join(ids, on="record_id", how="left_semi")
    return requeue_from(run, rows.select("record_id", "ingested_at").distinct(), "quarantine")


def _forget_ids(run: Run) -> None:
    """Remove the prefilter state of earlier generations, which holds event ids."""
    name = run.pipeline.name
    current = last_commit(run.lake.silver(name))
    for folder in run.lake.checkpoints(name, "silver").iterdir():
        if current is not None and folder.name != current.generation:
            remove_tree(folder / "state")


def purge(run: Run) -> list[Remains]:
    """Delete every file that a pipeline's tables no longer use, after closing an epoch.

    Returns:
        Readers that need the deleted versions, each with the command that lets it read again.
    """
    tables = filled_tables(run)
    for table in tables:
        _purge_vectors(run.spark, table)
    close_epoch(run)
    needs = needs_of(run.lake, tables, rollbacks_since=datetime.now(UTC))
    for table in tables:
        vacuum(run.spark, table, hours=0)
        run.progress.say(f"{table.name}: old files deleted")
    return [
        Remains(f"can no longer read the old version of {one.table.name}", one.by, None, one.remedy)
        for one in needs
        # Not this pipeline: its hops are drained, and its epoch was just closed.
        if one.runs != run.pipeline.name
    ]


def _purge_vectors(spark: SparkSession, table: Table) -> None:
    """Rewrite files whose deleted rows are only hidden by a deletion vector."""
    if DELETION_VECTORS in properties(spark, table):
        retry_conflicts(lambda: spark.sql(f"REORG TABLE {table.sql} APPLY (PURGE)"))
