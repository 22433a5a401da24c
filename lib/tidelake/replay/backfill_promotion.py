"""Promote a backfill's green tables, and roll back.

Each table is replaced in one commit, so readers see either its old or its new rows. A swap that was
interrupted between two tables must be finished or rolled back before anything else writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tidelake.config import Pipeline
from tidelake.delta.access import has_files, load, read_between
from tidelake.delta.append import append_nothing
from tidelake.delta.commit_metadata import (
    SilverNote,
    is_of_pipeline,
    position,
    positions,
    silver_note,
)
from tidelake.delta.locks import HopLocks, hold_hops, hold_upkeep
from tidelake.delta.log import CREATION, last_commit, newest_version
from tidelake.delta.positions import BEGINNING, Position
from tidelake.delta.tables import Lake, require_table
from tidelake.errors import RefusedError, UnbalancedError, UsageError
from tidelake.gold.kinds import OWN
from tidelake.ledger.history import closed_version, history
from tidelake.ledger.terms import read_ledger
from tidelake.replay.backfill import fill, green_run, kept_gold, recomputes_gold
from tidelake.replay.backfill_state import (
    Stage,
    State,
    backfill_again,
    begun_swap,
    ended_swap,
    green_lake,
    hold_backfill,
    lacks_requeued,
    need_state,
    requeue_position,
    write_state,
)
from tidelake.replay.compatibility import kept_note
from tidelake.replay.generations import (
    FIRST,
    NOTHING_READ,
    continue_gold,
    continue_silver,
    continued,
    fitted_to_bronze,
    heads,
    merged,
    next_generation,
    rebuild_gold,
    replace_rows,
    replace_tables,
)
from tidelake.replay.repairing import can_restore, install_table, recompute_table
from tidelake.replay.requeue import requeue_again, waiting
from tidelake.replay.verify_silver import BATCH_COLUMNS, read_inputs
from tidelake.runtime.checkpoints import have_consumed, refuse_foreign_gold
from tidelake.runtime.epochs import copy_books
from tidelake.runtime.failures import NO_INPUT, TOO_OLD, error_text, named, naming
from tidelake.runtime.gold import GoldHop
from tidelake.runtime.gold_settings import apply_gold_settings
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import create_silver
from tidelake.spark.engine import with_settings
from tidelake.spark.tuning import OLD_VERSION_SETTINGS
from tidelake.typed import runnable

# The stages of a backfill that a rollback starts from.
CAN_ROLL_BACK: tuple[Stage, ...] = ("promoting", "promoted", "rolling back")


# In the text of Delta's error where a version cannot be restored any more.
_GONE = (
    *("Not all files from version", "FileNotFoundException", "FILE_NOT_EXIST"),
    *("DELTA_CANNOT_RESTORE_TABLE_VERSION", "DELTA_VERSION_NOT_FOUND", "DELTA_LOG_FILE_NOT_FOUND"),
    *("DELTA_TRUNCATED_TRANSACTION_LOG", "DELTA_MISSING_PART_FILES"),
    TOO_OLD,
)


def need_promotable(
    lake: Lake, pipeline: Pipeline, stages: Sequence[Stage] = ("built", "promoting")
) -> State:
    """Return the state of a backfill that may be promoted, and compared; nothing is written.

    Raises:
        UsageError: The backfill is at none of the stages, or the definition has changed since.
        RefusedError: Another pipeline fills one of the gold tables.
    """
    state = need_state(lake, pipeline, *stages)
    if not is_of_pipeline(state.definition, pipeline):
        remedy = f"Fill it again with: {backfill_again(pipeline, state)}"
        if state.stage == "promoting":
            rollback = runnable("tidelake backfill rollback", pipeline.name)
            remedy = f"Restore the definition, then promote; or roll it back with: {rollback}"
        raise UsageError(
            f"the definition of {pipeline.name} changed after its backfill was filled. {remedy}"
        )
    if state.stage == "built":
        # A swap that has begun must be finished or rolled back.
        refuse_foreign_gold(lake, pipeline)
    return state


def replaced_versions(lake: Lake, pipeline: Pipeline, state: State) -> dict[str, int]:
    """Return the versions of the live tables that a promotion replaces, by logical name.

    Of gold's, those without rows of an open batch: a rollback would count them twice.
    """
    own = map(lake.table, sorted(green_lake(lake, pipeline, state.start, state.table).own))
    golds = lake.closing_tables(pipeline, "gold")
    return {
        table.name: closed_version(lake, table) if table in golds else newest_version(table)
        for table in own
        if table.exists
    }


def promote(run: Run) -> State:
    """Replace the live tables with the green ones, and return the new state.

    First the green tables process what arrived since they were filled. Meanwhile live bronze may
    run, live silver and gold must not. Rows waiting in the requeue are in bronze too, so the green
    tables have decided them; those that the green tables quarantined are requeued again. If
    interrupted, call it again.

    Raises:
        UsageError: No backfill is built, or the definition has changed since.
        RefusedError: Another pipeline fills one of the gold tables; nothing was swapped.
        GenerationError: A single table is promoted, and gold's tables and checkpoint do not match.
        LockedError: A run writes silver or gold, or another process the backfill.
        LeaseLostError: A lock was lost; the message says which steps were done.
        UnbalancedError: The tables were swapped, and their ledger does not balance.
    """
    lake, pipeline = run.lake, run.pipeline
    if not ended_swap(lake, pipeline, "promoted"):
        need_promotable(lake, pipeline)
    with _holding(run, "promote") as held:
        state = ended_swap(lake, pipeline, "promoted") or _promote_tables(held)
        state = _advance(held, "record that all tables are swapped", state, stage="promoted")
        remedy = f"Roll it back with: {runnable('tidelake backfill rollback', pipeline.name)}"
        _check_ledger(held, state, remedy)
    return state


def _promote_tables(run: Run) -> State:
    """Fill the green tables up and swap all tables; return the state before it is recorded."""
    lake, pipeline, locks = run.lake, run.pipeline, run.locks
    state = need_promotable(lake, pipeline)
    from_bronze = state.start == "bronze"
    locks.step("fill the green tables")
    # Green tables have locks of their own.
    # Once the swap has begun, rows can no longer be taken from the live tables.
    whole = replace(state, span=None, since=None)
    fill(replace(run, locks=HopLocks()), state if state.stage == "built" else whole)
    green = green_run(run, state.start, state.table)
    if state.stage == "built":
        if state.table:
            # Once the swap has begun, gold could not be repaired.
            GoldHop(run, creates=False)
        if from_bronze:
            # Rows that wait there are decided after the swap.
            require_table(lake.requeue(pipeline.name), pipeline.name)
        # A rollback brings back the commits that the swap hides from later copies.
        locks.step("copy the ledger")
        copy_books(run, ["silver", "gold"])
        golds = [one for one in lake.closing_tables(pipeline, "gold") if one.exists]
        state = _advance(
            run,
            "record the versions that a rollback restores",
            state,
            stage="promoting",
            before=replaced_versions(lake, pipeline, state),
            gold_followed=not golds or have_consumed(golds, lake.hop_inputs(pipeline, "gold")),
        )
    retry = _retry(pipeline, "promote")
    gone = (
        "a file that it reads is gone. Roll back with: "
        f"{runnable('tidelake backfill rollback', pipeline.name)}, then fill them again with: "
        f"{backfill_again(pipeline, state)}"
    )
    with fitted_to_bronze(run), naming(run, "promotion", gone=gone, retry=retry):
        if from_bronze:
            _install_silver(run, green, state)
            # The green tables accepted the other waiting rows from bronze.
            quarantined = waiting(run, lake.quarantine(pipeline.name)).select("record_id")
            again = _waited(run, state).join(quarantined, on="record_id", how="left_semi")
            requeue_again(run, again)
        if state.table:
            install_table(run, state.table, green.lake.table(state.table))
            apply_gold_settings(run)
        else:
            _install_gold(run, green, follows_new_silver=from_bronze)
    return state


@contextmanager
def _holding(run: Run, command: str) -> Iterator[Run]:
    """Hold the locks of the backfill, silver and gold; yield the run with them."""
    lake, name = run.lake, run.pipeline.name
    retry = runnable(f"tidelake backfill {command}", name)
    with (
        hold_backfill(lake, run.pipeline) as check,
        hold_hops(
            lake, name, ["silver", "gold"], resumes="swap", command=retry, stop=run.stop
        ) as locks,
    ):
        locks.checks.append(check)
        yield replace(run, locks=locks)


def _advance(run: Run, step: str, state: State, **changes: Any) -> State:
    state = replace(state, **changes)
    run.locks.step(step)
    write_state(run.lake, run.pipeline, state)
    return state


def _check_ledger(run: Run, state: State, remedy: str) -> None:
    name = run.pipeline.name
    problems = read_ledger(run.lake, run.pipeline).problems if state.start == "bronze" else ()
    if problems:
        raise UnbalancedError(
            f"{name} is {state.stage}, but its ledger does not balance: {problems[0]}. "
            f"List all problems with: {runnable('tidelake ledger', name)}. {remedy}"
        )


def _install_silver(run: Run, green: Run, state: State) -> None:
    """Replace silver, quarantine and late with the green tables as one batch; empty the requeue."""
    lake, name = run.lake, run.pipeline.name
    inputs = read_inputs(green)
    notes = [SilverNote.of(commit) for commit in inputs.closing]
    generation, requeue = next_generation(run, "silver"), lake.requeue(name)
    emptied = {"pipeline": name, "hop": "requeue", "generation": generation, "batch": FIRST}
    replace_rows(run, requeue, None, emptied)
    until = {"bronze": notes[0].until["bronze"]} | heads({"requeue": requeue})
    summary = merged(notes, until)
    summary = replace(summary, taken={"bronze": summary.total().total(), "requeue": 0})
    decided_by = silver_note(run.pipeline)
    if state.since:
        # Rows that arrived before are decided as they were.
        decided_by |= kept_note(lake, run.pipeline)
    metadata = {lake.silver(name).name: summary.to_json() | decided_by}
    silver, *sides = inputs.decided.items()
    contents = (
        (lake.table(made.name), rows.drop(*BATCH_COLUMNS), metadata.get(made.name, {}))
        # Silver last: its commit asserts that the side tables are complete.
        for made, rows in (*sides, silver)
    )
    replace_tables(run, "silver", until, contents)


def _waited(run: Run, state: State) -> DataFrame:
    """Read the requeue's rows that silver had not processed before the promotion."""
    until = state.before[run.lake.requeue(run.pipeline.name).name] + 1, -1
    return _requeued_between(run, requeue_position(run.lake, run.pipeline, state), until)


def _requeued_between(run: Run, after: Position, until: Position) -> DataFrame:
    requeue = run.lake.requeue(run.pipeline.name)
    rows = read_between(run.spark, requeue, after, until)
    return load(run.spark, requeue).limit(0) if rows is None else rows


def _install_gold(run: Run, green: Run, *, follows_new_silver: bool) -> None:
    """Replace gold's tables with the green ones.

    With ``follows_new_silver`` gold continues after the newest commit of the replaced silver.
    """
    inputs = run.lake.hop_inputs(run.pipeline, "gold")
    tables = run.lake.closing_tables(run.pipeline, "gold")
    if not tables:
        return
    made = {table: green.lake.table(table.name) for table in tables}
    commits = {table: history(green.lake, made[table]) for table in tables}
    until = {key: positions(commits[tables[-1]][0])[key] for key in inputs}
    if follows_new_silver:
        until |= heads({OWN: inputs[OWN]})
    contents = []
    for table, newest_first in commits.items():
        last = newest_first[0].note
        metadata = {"until": until} | {
            key: last[key] for key in ("definition", "final") if key in last
        }
        for key in ("rows", "eligible", "failed"):
            metadata[key] = sum(int(commit.note.get(key, 0)) for commit in newest_first)
        contents.append((table, load(run.spark, made[table]).drop(*BATCH_COLUMNS), metadata))
    replace_tables(run, "gold", until, contents)


def rollback(run: Run) -> State:
    """Restore each table to its version before the promotion, in a new generation.

    The next run processes what arrived since, as after a repair, and the rows that were requeued
    before or after the promotion and that the restored silver has not processed. Tables that were
    added by the promotion or since are emptied; the next run fills those of gold. A single table
    stays in its generation; if batches were committed since its promotion, it is recomputed under
    its earlier definition. If the promotion had not swapped any table, the backfill is still built.

    Raises:
        UsageError: Nothing was promoted.
        RefusedError: The files of an earlier version were vacuumed, or a single table cannot be
            recomputed.
        TidelakeError: A table could not be restored now, such as beside maintenance; the message
            names the command that continues.
        LockedError: A run writes silver or gold, or another process the backfill.
        LeaseLostError: A lock was lost; the message says which steps were done.
        UnbalancedError: The tables were restored, and their ledger does not balance.
    """
    lake, pipeline = run.lake, run.pipeline
    if not (ended_swap(lake, pipeline, "rolled back") or begun_swap(lake, pipeline)):
        need_state(lake, pipeline, *CAN_ROLL_BACK)
    with hold_upkeep(lake, pipeline.name) as check, _holding(run, "rollback") as held:
        held.locks.checks.append(check)
        if (begun := begun_swap(lake, pipeline)) is not None:
            return _advance(held, "record that no table is swapped", begun)
        state = ended_swap(lake, pipeline, "rolled back") or _restore_tables(held)
        state = _advance(held, "record that all tables are restored", state, stage="rolled back")
        _check_ledger(held, state, f"Recompute its tables with: {_recomputing(pipeline)}")
    return state


def _restore_tables(run: Run) -> State:
    """Restore or recompute all tables; return the state before it is recorded."""
    lake, pipeline = run.lake, run.pipeline
    state, requeue = need_state(lake, pipeline, *CAN_ROLL_BACK), lake.requeue(pipeline.name)
    if state.table and not can_restore(lake, pipeline, state.table, state.before[state.table]):
        recompute_table(run, state.table)
        apply_gold_settings(run)
        return state
    retry = _retry(pipeline, "rollback")
    with fitted_to_bronze(run), naming(run, "rollback", gone=NO_INPUT, retry=retry):
        if state.stage == "promoted":
            _refuse_gone(run, state)
        if state.stage != "rolling back":
            state = replace(state, stage="rolling back", requeue=newest_version(requeue))
        state = _advance(run, "record that the rollback has begun", state)
        # Restore the requeue last: the promoted silver must not read the restored requeue.
        order = sorted(state.before, key=lambda one: (one == requeue.name, one))
        for number, own in enumerate(order):
            _restore(run, state, own, order[:number])
        if state.start == "bronze":
            _continue_restored_silver(run, state)
        if state.table:
            _continue_restored_table(run, state.table)
        else:
            _continue_restored_gold(run, state)
    return state


def _refuse_gone(run: Run, state: State) -> None:
    """Raise a RefusedError if a version to restore is gone, before the first table is restored.

    Otherwise gold could be of before the promotion, and silver not.
    """
    for own, version in state.before.items():
        try:
            if has_files(run.spark, run.lake.table(own), version):
                continue
            why = "files of that version are gone"
        except PySparkException as error:
            if not _is_gone(error):
                raise
            why = str(error).splitlines()[0].rstrip(".")
        # Also removes the swap file of a rollback that was given up and cut off.
        write_state(run.lake, run.pipeline, state)
        raise _unrestorable(run.pipeline, own, version, f"{why}. No table was changed")
    _refuse_unrequeued(run, state, "No table was changed")


def _refuse_unrequeued(run: Run, state: State, done: str) -> None:
    """Raise a RefusedError, and end the rollback, if rows that it requeues again are gone."""
    if lacks_requeued(run.lake, run.pipeline, state):
        write_state(run.lake, run.pipeline, replace(state, stage="promoted"))
        own = run.lake.requeue(run.pipeline.name).name
        why = f"files of rows that it would requeue again are gone. {done}"
        raise _unrestorable(run.pipeline, own, state.before[own], why)


def _restore(run: Run, state: State, own: str, restored: Sequence[str]) -> None:
    """Restore a table to its version before the promotion, after those named ``restored``."""
    table, version = run.lake.table(own), state.before[own]
    run.locks.step(f"restore {own}")
    try:
        # The version may be much older than the promotion, if the table rarely changes.
        with with_settings(run.spark, OLD_VERSION_SETTINGS):
            run.spark.sql(f"RESTORE TABLE {table.sql} TO VERSION AS OF {version}")
    except PySparkException as error:
        if not _is_gone(error):
            # Such as a commit by maintenance meanwhile, with which a RESTORE conflicts.
            place = f"{run.pipeline.name}, restoring {own} to version {version},"
            raise named(error, place, retry=_retry(run.pipeline, "rollback")) from error
        # This rollback can never be finished. Reset the stage so that another backfill may begin.
        write_state(run.lake, run.pipeline, replace(state, stage="promoted"))
        why = str(error).splitlines()[0].rstrip(".")
        if restored:
            why += f". Already restored, so that the tables differ: {', '.join(restored)}"
        raise _unrestorable(run.pipeline, own, version, why) from error


def _is_gone(error: PySparkException) -> bool:
    text = error_text(error)
    return any(words in text for words in _GONE)


def _retry(pipeline: Pipeline, command: str) -> str:
    return f"Continue with: {runnable(f'tidelake backfill {command}', pipeline.name)}"


def _unrestorable(pipeline: Pipeline, own: str, version: int, why: str) -> RefusedError:
    return RefusedError(
        f"{own} cannot be restored to version {version}, its state before the promotion: {why}.\n"
        f"Recompute the tables with: {_recomputing(pipeline)}"
    )


def _recomputing(pipeline: Pipeline) -> str:
    promote = runnable("tidelake backfill promote", pipeline.name)
    return f"{backfill_again(pipeline)}, then: {promote}"


def _continue_restored_silver(run: Run, state: State) -> None:
    """Begin a generation of silver after the requeue's RESTORE, and requeue its waiting rows.

    Silver's stream cannot read past a RESTORE commit, so the waiting rows are appended after it.
    """
    lake, name = run.lake, run.pipeline.name
    silver, requeue = lake.silver(name), lake.requeue(name)
    done = f"Already restored, so that the tables differ: {', '.join(sorted(state.before))}"
    _refuse_unrequeued(run, state, done)
    if silver.name in state.before:
        bronze = position(last_commit(silver), "bronze")
        continue_silver(run, {"bronze": bronze} | heads({"requeue": requeue}))
    else:
        _empty_silver(run, {"bronze": BEGINNING} | heads({"requeue": requeue}))
    restored = state.before[requeue.name]
    sent = restored if state.requeue is None else max(state.requeue, restored)
    since = _requeued_between(run, (restored + 1, -1), (sent + 1, -1))
    side = waiting(run, lake.quarantine(name)).select("record_id")
    side = side.union(waiting(run, lake.late(name)).select("record_id"))
    # The other rows arrived after the restored version of silver: the next run decides them.
    known = since.join(side, on="record_id", how="left_semi")
    requeue_again(run, _waited(run, state).unionByName(known))


def _empty_silver(run: Run, until: Mapping[str, Position]) -> None:
    """Begin a generation of silver without rows, where the promotion created the tables."""
    lake, name = run.lake, run.pipeline.name
    silver = lake.silver(name)
    if not silver.exists:
        # The promotion was interrupted before it created silver.
        note = {"pipeline": name, "hop": "silver", "generation": next_generation(run, "silver")}
        run.locks.step(f"create {silver.name}")
        create_silver(run, {**note, "batch": CREATION})
    metadata = {silver: SilverNote(until=until).to_json()}
    tables = (lake.quarantine(name), lake.late(name), silver)
    empty = ((one, load(run.spark, one).limit(0), metadata.get(one, {})) for one in tables)
    replace_tables(run, "silver", until, empty)


def _continue_restored_table(run: Run, name: str) -> None:
    """Record in a single gold table that its RESTORE undid the promotion; it adds no row."""
    table = run.lake.table(name)
    if (last := last_commit(table)) is not None:
        run.locks.step(f"record that {name} is restored")
        # The table has a commit of this batch: without an id of its own this one is skipped.
        append_nothing(run.spark, table, {**continued(last), **NOTHING_READ}, may_repeat=True)
    # RESTORE brings back the table's settings of that version; set the current ones.
    apply_gold_settings(run)


def _continue_restored_gold(run: Run, state: State) -> None:
    """Begin a generation of gold; rebuild gold if it had not consumed all of silver."""
    lake, pipeline = run.lake, run.pipeline
    if not lake.closing_tables(pipeline, "gold"):
        return
    if recomputes_gold(lake, pipeline, state):
        rebuild_gold(run)
        return
    kept = kept_gold(lake, pipeline, state)
    until = positions(next(iter(kept.values()), None))
    if state.start == "bronze":
        until |= heads({OWN: lake.silver(pipeline.name)})
    continue_gold(run, [*kept], until)
