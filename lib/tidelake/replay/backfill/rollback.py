"""Put back what the live tables held before a promotion."""

from __future__ import annotations

from dataclasses import replace

from pyspark.errors import PySparkException

from tidelake.errors import RefusedError
from tidelake.replay.backfill.green import State, need_state, write_state
from tidelake.replay.beginning import next_generation
from tidelake.replay.going_on import go_on_gold, go_on_silver
from tidelake.replay.rebuild_gold import rebuild_gold
from tidelake.runtime.hop import Run
from tidelake.runtime.lock import hold_hops
from tidelake.runtime.targets import OWN
from tidelake.sinks.commits import last_commit, newest_version
from tidelake.sinks.notes import SilverNote, positions
from tidelake.tables import Table


def rollback(run: Run) -> State:
    """Restore each table to its version before a promotion, in a generation of its own.

    What arrived since comes in by the next run, as it does after a repair.

    Raises:
        UsageError: Nothing was promoted.
        RefusedError: A version from before was cleaned up.
        LockedError: A run writes silver or gold.
    """
    lake, pipeline = run.lake, run.pipeline
    state = need_state(lake, pipeline, "promoting", "promoted", "rolling back")
    with hold_hops(lake, pipeline.name, ["silver", "gold"], goes_on_with="swap"):
        state = replace(state, stage="rolling back")
        write_state(lake, pipeline, state)
        for name, version in state.before.items():
            try:
                _restore(run, lake.table(name), version)
            except RefusedError:
                # Not to be finished any more: another backfill may begin.
                write_state(lake, pipeline, replace(state, stage="promoted"))
                raise
        name = pipeline.name
        silver, requeue = lake.silver(name), lake.requeue(name)
        if silver.name in state.before:
            reached = SilverNote.of(last_commit(silver)).until["bronze"]
            until = {"bronze": reached, "requeue": (newest_version(requeue) + 1, -1)}
            go_on_silver(run, next_generation(run, "silver", [silver]), until)
        _put_gold_on(run, state)
        state = replace(state, stage="rolled back")
        write_state(lake, pipeline, state)
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


def _put_gold_on(run: Run, state: State) -> None:
    """Let gold go on; where it had not followed all of silver, compute it anew."""
    tables = [run.lake.table(name) for name in run.pipeline.gold_names if name in state.before]
    if not tables:
        return
    generation = next_generation(run, "gold", tables)
    if state.start == "bronze" and not state.gold_followed:
        rebuild_gold(run, generation)
        return
    until = dict(positions(last_commit(tables[0])))
    if state.start == "bronze":
        until[OWN] = newest_version(run.lake.silver(run.pipeline.name)) + 1, -1
    go_on_gold(run, tables, generation, until)
