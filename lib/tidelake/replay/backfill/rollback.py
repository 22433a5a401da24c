"""Put back what the live tables held before a promotion."""

from __future__ import annotations

from dataclasses import replace

from pyspark.errors import PySparkException

from tidelake.delta.access import load
from tidelake.delta.append import append
from tidelake.delta.locks import hold_hops
from tidelake.delta.log import CREATION, REBUILT, last_commit, newest_version
from tidelake.delta.notes import position, positions
from tidelake.delta.tables import Table
from tidelake.errors import RefusedError
from tidelake.replay.backfill.green import State, need_state, write_state
from tidelake.replay.backfill.promote import check_ledger
from tidelake.replay.beginning import next_generation
from tidelake.replay.going_on import go_on_gold, go_on_silver
from tidelake.replay.rebuild_gold import rebuild_gold
from tidelake.replay.requeue import requeued_after, requeued_between, send_again, waiting
from tidelake.runtime.gold_target import OWN
from tidelake.runtime.held import Held
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import create_silver


def rollback(run: Run) -> State:
    """Restore each table to its version before a promotion, in a generation of its own.

    What arrived since comes in by the next run, as it does after a repair. So do the rows that
    were requeued before or after the promotion and that the restored silver has not taken. Tables
    that were not there before stay and are empty.

    Raises:
        UsageError: Nothing was promoted.
        RefusedError: A version from before was cleaned up.
        LockedError: A run writes silver or gold.
        LeaseLostError: The lock was lost; the message says which steps were done.
        UnbalancedError: The tables were put back, and their ledger does not balance.
    """
    lake, pipeline = run.lake, run.pipeline
    state = need_state(lake, pipeline, "promoting", "promoted", "rolling back")
    again = f"tidelake backfill rollback {pipeline.name}"
    with hold_hops(
        lake, pipeline.name, ["silver", "gold"], goes_on_with="swap", command=again
    ) as locks:
        run = replace(run, locks=locks)
        requeue = lake.requeue(pipeline.name)
        if state.stage != "rolling back":
            state = replace(state, stage="rolling back", requeue=newest_version(requeue))
        locks.step("note that the tables are put back")
        write_state(lake, pipeline, state)
        # The requeue comes last: while the promoted silver is there, nobody may read it restored.
        for name, version in sorted(state.before.items(), key=lambda one: one[0] == requeue.name):
            locks.step(f"restore {name}")
            try:
                _restore(run, lake.table(name), version)
            except RefusedError:
                # Not to be finished any more: another backfill may begin.
                write_state(lake, pipeline, replace(state, stage="promoted"))
                raise
        from_bronze = state.start == "bronze"
        if from_bronze:
            _put_silver_on(run, state)
        _put_gold_on(run, state)
        state = replace(state, stage="rolled back")
        locks.step("note that all tables are put back")
        write_state(lake, pipeline, state)
        if from_bronze:
            name = pipeline.name
            check_ledger(
                run,
                f"{name} is rolled back",
                f"Compute its tables anew with: tidelake backfill run {name}, "
                f"then: tidelake backfill promote {name}",
            )
    return state


def _restore(run: Run, table: Table, version: int) -> None:
    try:
        run.spark.sql(f"RESTORE TABLE {table.sql} TO VERSION AS OF {version}")
    except PySparkException as error:
        raise RefusedError(
            f"{table.name} cannot be restored to version {version}, from before the promotion: "
            f"{str(error).splitlines()[0]}\n"
            f"Compute the tables anew with: tidelake backfill run {run.pipeline.name}, "
            f"then: tidelake backfill promote {run.pipeline.name}"
        ) from error


def _put_silver_on(run: Run, state: State) -> None:
    """Let silver go on behind the restored requeue, and append to that what nobody has taken.

    Its stream cannot pass over a RESTORE, so rows that waited before it are appended behind it.
    """
    lake, name = run.lake, run.pipeline.name
    silver, requeue = lake.silver(name), lake.requeue(name)
    generation = next_generation(run, "silver", [silver])
    if silver.name not in state.before:
        _empty_silver(run, generation)
    until = {
        "bronze": position(last_commit(silver), "bronze"),
        "requeue": (newest_version(requeue) + 1, -1),
    }
    go_on_silver(run, generation, until)
    restored = state.before[requeue.name]
    waited = requeued_after(run, restored, state.before.get(silver.name))
    sent = (state.requeue if state.requeue is not None else restored) + 1
    since = requeued_between(run, (restored + 1, -1), (max(sent, restored + 1), -1))
    with Held() as keep:
        side = waiting(run, lake.quarantine(name)).select("record_id")
        side = side.union(waiting(run, lake.late(name)).select("record_id"))
        # Others of these arrived after what silver holds now: it decides them when it takes them.
        known = since.join(side, on="record_id", how="left_semi")
        send_again(run, keep(waited.unionByName(known)))


def _empty_silver(run: Run, generation: str) -> None:
    """Take all rows out of silver and its side tables, as of tables that were just made."""
    lake, name = run.lake, run.pipeline.name
    note = {"pipeline": name, "hop": "silver", "generation": generation, "batch": CREATION}
    if not lake.silver(name).exists:
        # The promotion did not come so far.
        run.locks.step(f"create {lake.silver(name).name}")
        create_silver(run, note)
    for table in (lake.quarantine(name), lake.late(name), lake.silver(name)):
        nothing = load(run.spark, table).limit(0)
        run.locks.step(f"empty {table.name}")
        append(nothing, table, {**note, REBUILT: True}, surely_filled=False, replaces=True)


def _put_gold_on(run: Run, state: State) -> None:
    """Let gold go on; where it had not followed all of silver, compute it anew."""
    from_bronze = state.start == "bronze"
    tables = [run.lake.table(name) for name in run.pipeline.gold_names if name in state.before]
    until = dict(positions(last_commit(tables[0]))) if tables else {}
    if not tables and not from_bronze:
        return
    generation = next_generation(run, "gold", list(map(run.lake.table, run.pipeline.gold_names)))
    if from_bronze and not (until and state.gold_followed):
        rebuild_gold(run, generation)
        return
    if from_bronze:
        until[OWN] = newest_version(run.lake.silver(run.pipeline.name)) + 1, -1
    go_on_gold(run, tables, generation, until)
