"""Erase a subject's rows in steps; after an interruption the same call continues.

Every hop is drained first: a stream that lags behind a delete would have to skip its commit, and
could not tell rows rewritten by it from new ones. Then rows are deleted by record id, bronze's
last; silver begins a new generation after the deletes, and gold is recomputed from silver. Each
step checks whether it is already done, so none runs twice.

The report lists what remains: a table's old files hold the rows until they are vacuumed, its log
the column statistics of removed files. Landed files and other pipelines' tables are not changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from tidelake.columns import between
from tidelake.config import FilesSource, Source
from tidelake.config.model import parse_duration
from tidelake.config.sections import settings_of
from tidelake.config.table_settings import FILE_RETENTION, LEAST, LOG_RETENTION
from tidelake.delta.access import DELETION_VECTORS, load, properties
from tidelake.delta.append import append_nothing
from tidelake.delta.commit_metadata import (
    SilverNote,
    arrivals_note,
    deductions_note,
    erasure_of,
    positions,
)
from tidelake.delta.locks import hold_hops
from tidelake.delta.log import ERASED, commits, last_commit
from tidelake.delta.merge import delete_records, vacuum, vacuums_at_once
from tidelake.delta.tables import HOPS, Hop, Lake, Table
from tidelake.errors import NotBuiltError, RefusedError, SourceError, UsageError
from tidelake.fingerprints import EMPTY, bronze_marks
from tidelake.folders import remove_tree
from tidelake.gold.merge_plan import span
from tidelake.instants import to_json
from tidelake.kafka.topic_source import asks_brokers
from tidelake.ledger.history import history, needs_of, require_tables
from tidelake.replay import erase_records, generations
from tidelake.replay.backfill import clear
from tidelake.replay.backfill_state import folder_of, hold_backfill, read_state, what_next
from tidelake.replay.requeue import requeue_from
from tidelake.replay.subject import EVENT_ID, Subject
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.epochs import close_epoch, copy_books
from tidelake.runtime.fast_lane import reconciled_table
from tidelake.runtime.hop import Run
from tidelake.runtime.landed_files import check_landing, taken_files
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.typed import runnable

_MOST_FILES = 20


class Remains(NamedTuple):
    """Data that an erasure leaves in a table, file or pipeline.

    It is removed at ``until`` (UTC); None if ``remedy`` is required first.
    """

    what: str
    where: str
    until: datetime | None
    remedy: str


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
        RefusedError: A backfill is under way, or a hop cannot be drained.
        LockedError: Another process writes one of the hops, or a backfill.
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
    if now and not vacuums_at_once(run.spark):
        raise UsageError(
            "this compute does not support session settings, which --now needs to delete files "
            "that were just removed. Erase without --now, and let "
            f"{runnable('tidelake maintain', pipeline.name)} delete them once the recovery horizon "
            "has passed; or use compute that supports them."
        )
    again = runnable("tidelake erase", pipeline.name, f"--subject {subject.column}=VALUE")
    retry = f"{again}, with the same value"
    with (
        hold_backfill(lake, pipeline) as check,
        hold_hops(
            lake, pipeline.name, HOPS, resumes="erasure", command=retry, stop=run.stop
        ) as locks,
    ):
        locks.checks.append(check)
        run = replace(run, locks=locks)
        begun = erase_records.read_begun(run, subject)
        if begun is None:
            _refuse_backfill(run)
            locks.step("process what has arrived")
            _drain(run)
            with generations.fitted_to_bronze(run):
                begun = erase_records.begin(run, subject)
            # Without locks a backfill may have begun meanwhile; later ones see the erasure.
            _refuse_backfill(run, begun)
        gave_up, requeued = False, 0
        if begun is not None:
            _delete(run, begun)
            _continue(run, begun)
            requeued = _requeue_neighbours(run)
            locks.step("process the requeued rows")
            run_hops(run, ["silver", "gold"], parse_trigger(AVAILABLE_NOW), held=True)
            locks.step("copy the ledger")
            copy_books(run, ["bronze"])
            locks.step("remove prefilter state and backfill tables")
            _forget_ids(run)
            # Green tables still hold the rows, and a rollback would restore them.
            gave_up = folder_of(lake, pipeline).exists()
            clear(run)
            locks.step("record that all rows are erased")
            erase_records.end(run)
        has_erased = begun is not None or _has_erased(run)
        if now and not has_erased:
            run.progress.say("no row was erased, now or before: old files are kept")
        purges = now and has_erased
        if purges:
            state = read_state(lake, pipeline)
            if state is not None and state.is_promoted:
                # It was promoted after an earlier erasure; a rollback needs the old files.
                gave_up = True
                locks.step("remove backfill tables")
                clear(run)
            locks.step("delete old files")
        broken = purge(run) if purges else []
        old = [*_old_files(run), *_unclear(run, subject, begun)] if has_erased else ()
        sources = begun.sources if begun else ()
        source = run.pipeline.source
        return Report(
            pipeline=pipeline.name,
            column=subject.column,
            rows=begun.rows if begun else {},
            sent_again=requeued,
            rollback_given_up=gave_up,
            remains=(*old, *_landed(sources, source), *_others(lake, run), *broken),
        )


def _has_erased(run: Run) -> bool:
    """Return whether rows of the pipeline were ever erased, whose old files may be there."""
    bronze = run.lake.bronze(run.pipeline.name)
    return any(erasure_of(commit) for commit in history(run.lake, bronze))


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
        reach = span(records, "ingested_at", "ingested_at")
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
    with CheckpointedFrames() as frames:
        ids = erase_records.stored_ids(run, "neighbours")
        rows = erase_records.conflicting(run).join(ids, on="record_id", how="left_semi")
        chosen = rows.select("record_id", "ingested_at").distinct()
        return requeue_from(run, chosen, "quarantine", frames)


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
    tables = _filled_tables(run)
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
        spark.sql(f"REORG TABLE {table.sql} APPLY (PURGE)")


def _filled_tables(run: Run) -> list[Table]:
    """List the existing tables of a pipeline that may hold a subject's rows."""
    lake, name = run.lake, run.pipeline.name
    gold = lake.closing_tables(run.pipeline, "gold")
    return [
        *reversed(erase_records.tables_with_records(lake, name)),
        *[table for table in gold if table.exists],
    ]


def _old_files(run: Run) -> Iterator[Remains]:
    now = datetime.now(UTC)
    maintain = runnable("tidelake maintain", run.pipeline.name)
    remedy = f"{maintain} deletes them then; immediately: --now"
    retentions = {name: settings.retentions for name, _, settings in settings_of(run.pipeline)}
    horizon = run.environment.recovery_horizon
    for table in _filled_tables(run):
        left = _files_left(run, table)
        if left != 0:
            files = "files" if left is None else f"{left:,} files"
            what = f"{files} that the table no longer uses, with the erased rows"
            kept = max(horizon, retentions.get(table.name, {}).get(FILE_RETENTION, horizon))
            yield Remains(what, table.name, now + kept, remedy)
    # Maintenance gives all tables of a pipeline the same retention, or that of the file.
    bronze = run.lake.bronze(run.pipeline.name)
    stored = properties(run.spark, bronze).get(LOG_RETENTION, "")
    try:
        retention = parse_duration(stored.removeprefix("interval "))
    except ValueError:
        retention = LEAST[LOG_RETENTION]
    of_file = [one[LOG_RETENTION] for one in retentions.values() if LOG_RETENTION in one]
    retention = max([retention, *of_file])
    yield Remains(
        "column minima and maxima of deleted files, in Delta's log",
        "every table",
        now + retention,
        "Delta then cleans up its log with the table's next commits",
    )


def _unclear(run: Run, subject: Subject, begun: erase_records.Erasure | None) -> Iterator[Remains]:
    """List records that mention the value and have no value in the column."""
    if begun is not None and begun.unclear:
        found = begun.unclear
        some = "1 record that mentions" if found == 1 else f"{found:,} records that mention"
        what = f"{some} the value, without a {subject.column}"
        again = runnable("tidelake erase", run.pipeline.name, f"--subject {EVENT_ID}=ID")
        remedy = f"may be of others: look at their payloads, and erase by {again}"
        yield Remains(what, run.lake.bronze(run.pipeline.name).name, None, remedy)


def _files_left(run: Run, table: Table) -> int | None:
    """Count a table's data files that its newest version does not use; None in a catalog."""
    if run.lake.catalog is not None:
        return None
    stored = load(run.spark, table)
    active = {uri.rsplit("/", 1)[-1] for uri in stored.inputFiles()}
    files = (file for file in table.path.rglob("*.parquet") if "_delta_log" not in file.parts)
    return sum(file.name not in active for file in files)


def _landed(sources: Sequence[str], source: Source) -> Iterator[Remains]:
    what, unmanaged = "the original records", "not managed by Tidelake"
    hint = f"{unmanaged}: delete or archive whole files (a changed file stops bronze)"
    if isinstance(source, FilesSource) and source.archive_dir is not None:
        hint = f"{unmanaged}; archived files are in {source.archive_dir}"
    for place in sources[:_MOST_FILES]:
        yield Remains(what, place, None, hint)
    if len(sources) > _MOST_FILES:
        more = f"{len(sources) - _MOST_FILES:,} more sources"
        yield Remains(what, more, None, f"{unmanaged} either")


def _others(lake: Lake, run: Run) -> Iterator[Remains]:
    """List tables with data of this pipeline that other definitions or pipelines wrote."""
    name, gold = run.pipeline.name, run.pipeline.gold_names
    silver = lake.silver(name).name
    followers: set[str] = set()
    for table in lake.existing():
        last = last_commit(table)
        if last is None:
            continue
        owner, hop = str(last.note.get("pipeline")), last.note.get("hop")
        if owner == name:
            if hop == "gold" and table.name not in gold:
                what = "rows computed under an earlier definition; no longer filled"
                yield Remains(what, table.name, None, "remove the table's folder")
        elif hop == "gold" and silver in positions(last):
            followers.add(owner)
        elif hop == "silver" and any(use.table in gold for use in SilverNote.of(last).dimensions):
            remedy = runnable("tidelake erase", owner, "--subject COLUMN=VALUE")
            yield Remains(f"columns looked up in {gold[0]}", table.name, None, remedy)
    for table in (reconciled_table(lake, one) for one in run.pipeline.detections):
        if table.exists:
            again = runnable("tidelake fast reconcile", name)
            remedy = f"{again}; {runnable('tidelake maintain', name)} deletes the old files"
            yield Remains("alerts of the fast lane, with their verdicts", table.name, None, remedy)
    for table_name, to in run.pipeline.published.items():
        remedy = "delete the topic: the next run publishes all rows of the table to a new one"
        if not asks_brokers(run.spark, to.client):
            remedy = (
                "write another topic in the pipeline file, then delete this one: the next run "
                "sends all rows of the table to the other; a new topic of this name is not "
                "noticed here"
            )
        what = f"rows of {table_name} that were published, before and after the erasure"
        yield Remains(what, f"topic {to.topic}", None, remedy)
    what = f"rows computed from {silver}"
    for owner in sorted(followers):
        refused = f"{what}; the next run of hop gold is refused"
        repair = runnable("tidelake repair", owner, "--hop gold")
        yield Remains(refused, f"gold of {owner}", None, repair)
        if (lake.root / "backfill" / owner).exists():
            again = runnable("tidelake backfill run", owner)
            remedy = f"{again} from the start, or remove the folder"
            yield Remains(what, f"backfill/{owner}", None, remedy)
