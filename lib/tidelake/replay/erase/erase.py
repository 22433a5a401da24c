"""Erase a subject, step by step; after an interruption the same call goes on.

Every hop is drained first: a stream that lags behind the delete would have to skip it, and could
not tell the neighbours that were written again from new rows. Then rows are deleted by record id,
bronze's last; silver goes on in a new generation exactly behind the deletes, and gold is computed
anew from what silver holds. A step that is done is found done, so none is done twice.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql import functions as F

from tidelake.config import FilesSource
from tidelake.delta.locks import hold_hops
from tidelake.delta.log import ERASED, commits, last_commit, newest_version
from tidelake.delta.merge import delete_records, notes_can_ride
from tidelake.delta.notes import arrivals_note, deductions_note, erasure_of
from tidelake.delta.positions import BEGINNING, rows_between
from tidelake.delta.tables import HOPS, Hop
from tidelake.errors import NotBuiltError, RefusedError, SourceError, UsageError
from tidelake.fingerprints import EMPTY, bronze_marks
from tidelake.folders import remove_tree
from tidelake.ops.books import history, require_tables
from tidelake.replay.backfill.green import clear, folder_of, read_state, what_next
from tidelake.replay.beginning import next_generation
from tidelake.replay.erase.books import bounds, count_loss, count_rows, held_tables
from tidelake.replay.erase.files import purge, purge_vectors
from tidelake.replay.erase.records import find_neighbours, find_records
from tidelake.replay.erase.remains import remains_of
from tidelake.replay.erase.report import Report
from tidelake.replay.erase.state import Begun, begin, end, read_begun
from tidelake.replay.erase.subject import Subject
from tidelake.replay.going_on import go_on_silver
from tidelake.replay.rebuild_gold import rebuild_gold, stands_alike
from tidelake.replay.requeue import as_requeued, kept_in, send
from tidelake.runtime.books import copy_books
from tidelake.runtime.held import Held
from tidelake.runtime.hop import Run
from tidelake.runtime.landing import check_landing, taken_files
from tidelake.runtime.pipeline import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.engine import fitted


def look(run: Run, subject: Subject) -> dict[str, int]:
    """Count a subject's rows by table; nothing is locked, run or written.

    Raises:
        UsageError: The pipeline has not run under this root.
    """
    require_tables(run.lake, run.pipeline.name)
    with _fitted(run), Held() as hold:
        return count_rows(run, hold(find_records(run, subject)))


def erase(run: Run, subject: Subject, *, now: bool = False) -> Report:
    """Take a subject's rows out of every table of a pipeline.

    Args:
        run: What the command works with.
        subject: Whose.
        now: Whether the files that held the rows go at once, whoever may still read them;
            otherwise they stay for the environment's recovery horizon.

    Raises:
        UsageError: The pipeline has not run under this root, another erasure of it was
            interrupted, or the compute takes no session settings.
        NotBuiltError: The prefilter has a state that cannot be prepared.
        RefusedError: A backfill is under way; or what stopped a hop on its way to its head.
        LockedError: Another process writes one of the hops.
        LeaseLostError: A lock was lost; the message says which steps were done.
    """
    lake, pipeline = run.lake, run.pipeline
    require_tables(lake, pipeline.name)
    if pipeline.dedup.prefilter == "operator":
        raise NotBuiltError(
            "Erasing with dedup.prefilter: operator", "Set it to none, repair silver, erase."
        )
    if not notes_can_ride(run.spark):
        raise UsageError(
            "this compute takes no session settings, and the delete needs one for its note. "
            "Erase on compute that does."
        )
    again = f"tidelake erase {pipeline.name} --subject {subject.column}=VALUE, the same value"
    with hold_hops(lake, pipeline.name, HOPS, goes_on_with="erasure", command=again) as locks:
        run = replace(run, locks=locks)
        begun = read_begun(run, subject)
        if begun is None:
            _refuse_backfill(run)
            locks.step("take in what has arrived")
            _drain(run)
            begun = _begin(run, subject)
            # Others look for the erasure before they begin to fill; now they would see it.
            _refuse_backfill(run, begun)
        gave_up, sent = False, 0
        if begun is not None:
            _delete(run, begun)
            _go_on(run, begun)
            sent = _send_neighbours(run, begun)
            locks.step("take in what was sent again")
            run_hops(run, ["silver", "gold"], parse_trigger(AVAILABLE_NOW), held=True)
            locks.step("copy the ledger")
            copy_books(run, ["bronze"])
            locks.step("remove remembered ids, and tables of a backfill")
            _forget_ids(run)
            gave_up = _give_up_rollback(run)
            locks.step("note that all rows are erased")
            end(run, begun)
        if now:
            locks.step("delete old files")
        broken = purge(run) if now else ()
        sources = begun.loss.sources if begun else ()
        return Report(
            pipeline=pipeline.name,
            column=subject.column,
            rows=begun.loss.rows if begun else {},
            sent_again=sent,
            rollback_given_up=gave_up,
            remains=(*remains_of(run, sources), *broken),
        )


def _refuse_backfill(run: Run, begun: Begun | None = None) -> None:
    """Stop where green tables are being filled or swapped: they would bring the rows back.

    Raises:
        RefusedError: They are; an erasure that had just begun is not any more.
    """
    state = read_state(run.lake, run.pipeline)
    if state is None or state.stage in ("promoted", "rolled back"):
        return
    if begun is not None:
        end(run, begun)
    raise RefusedError(
        f"nothing was erased: {what_next(run.pipeline, state)}; or give it up by removing "
        f"{folder_of(run.lake, run.pipeline)}"
    )


def _drain(run: Run) -> None:
    """Bring every hop to its head."""
    hops: list[Hop] = list(HOPS)
    source = run.pipeline.source
    if isinstance(source, FilesSource):
        try:
            taken = taken_files(history(run.lake, run.lake.bronze(run.pipeline.name)))
            check_landing(source.path, taken)
        except SourceError as error:
            run.progress.say(f"bronze stays where it is: {error}")
            hops.remove("bronze")
    run_hops(run, hops, parse_trigger(AVAILABLE_NOW), held=True)


def _begin(run: Run, subject: Subject) -> Begun | None:
    """Find the subject's records and write down what goes; None where there are none."""
    with _fitted(run), Held() as hold:
        records = hold(find_records(run, subject))
        loss = count_loss(run, records)
        if not loss.records:
            return None
        neighbours = hold(find_neighbours(run, records))
        name = datetime.now(UTC).isoformat()
        run.locks.step("note the records that are erased")
        return begin(run, name, subject, loss, records, neighbours)


def _delete(run: Run, begun: Begun) -> None:
    """Delete the records from every table that holds them, bronze's rows last."""
    bronze = run.lake.bronze(run.pipeline.name)
    with Held() as hold:
        records = hold(begun.records(run))
        within = bounds(records)
        for table in held_tables(run.lake, run.pipeline.name):
            note = None
            if table == bronze:
                last = last_commit(bronze)
                # The batch stays the last one, with its files; nothing more came.
                told = {"records": 0, **bronze_marks(EMPTY, EMPTY)}
                gone = arrivals_note(begun.name, begun.loss.arrivals)
                note = {**(last.note if last else {}), **told, ERASED: gone}
            rows = begun.loss.rows.get(table.name, 0)
            if not rows:
                continue
            is_dated = table != run.lake.discarded(run.pipeline.name)
            run.locks.step(f"delete rows from {table.name}")
            delete_records(records, table, within=within if is_dated else "", note=note)
            purge_vectors(run.spark, table)
            run.progress.say(f"{table.name}: {rows:,} rows erased")


def _go_on(run: Run, begun: Begun) -> None:
    """Let silver go on behind the deletes, and compute gold anew where silver lost rows."""
    lake, name = run.lake, run.pipeline.name
    silver = lake.silver(name)
    if not any(erasure_of(commit) == begun.name for commit in commits(silver)):
        heads = {"bronze": lake.bronze(name), "requeue": lake.requeue(name)}
        until = {key: (newest_version(table) + 1, -1) for key, table in heads.items()}
        told = deductions_note(begun.name, begun.loss.deductions)
        go_on_silver(run, next_generation(run, "silver", [silver]), until, erased=told)
    if stands_alike(run):
        tables = [lake.table(gold) for gold in run.pipeline.gold_names]
        rebuild_gold(run, next_generation(run, "gold", tables))
        run.progress.say(f"gold computed anew: {', '.join(run.pipeline.gold_names)}")


def _send_neighbours(run: Run, begun: Begun) -> int:
    """Send the neighbours into silver again that are still in quarantine."""
    with Held() as hold:
        theirs = begun.neighbours(run).select("record_id")
        waiting = kept_in(run, run.lake.quarantine(run.pipeline.name)).where(
            F.col("stage") == "conflicting_duplicate"
        )
        rows = hold(waiting.join(theirs, on="record_id", how="left_semi"))
        chosen = rows.select("record_id", "ingested_at").distinct()
        expected = chosen.count()
        if not expected:
            return 0
        return send(run, hold(as_requeued(run, chosen, "quarantine")), expected=expected)


def _forget_ids(run: Run) -> None:
    """Remove what the prefilter of earlier generations remembered: ids of events."""
    name = run.pipeline.name
    current = last_commit(run.lake.silver(name))
    for folder in run.lake.checkpoints(name, "silver").iterdir():
        if current is not None and folder.name != current.generation:
            remove_tree(folder / "state")


def _give_up_rollback(run: Run) -> bool:
    """Remove what a backfill left: a rollback would restore the rows, green tables hold them."""
    was_there = folder_of(run.lake, run.pipeline).exists()
    clear(run)
    return was_there


def _fitted(run: Run) -> contextlib.AbstractContextManager[None]:
    rows = rows_between(run.lake.bronze(run.pipeline.name), BEGINNING)
    return fitted(run.spark, rows)
