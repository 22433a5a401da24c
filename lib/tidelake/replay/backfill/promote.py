"""Let green tables take the place of the live ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from tidelake.delta.access import load
from tidelake.delta.locks import HopLocks, hold_hops
from tidelake.delta.log import Commit, last_commit, newest_version
from tidelake.delta.notes import SilverNote, as_one, hash_of, positions
from tidelake.delta.positions import BEGINNING, rows_between
from tidelake.delta.tables import Table
from tidelake.errors import UnbalancedError, UsageError
from tidelake.ops.books import history
from tidelake.ops.ledger import read_ledger
from tidelake.replay.backfill.build import fill
from tidelake.replay.backfill.green import (
    State,
    green_lake,
    green_run,
    need_state,
    write_state,
)
from tidelake.replay.backfill.install import (
    GoldContents,
    SilverContents,
    gold_books,
    install_gold,
    install_silver,
)
from tidelake.replay.requeue import requeued_after, send_again, waiting
from tidelake.replay.verify.inputs import ORIGIN, read_inputs
from tidelake.runtime.gold_target import inputs_of
from tidelake.runtime.held import Held
from tidelake.runtime.hop import Run
from tidelake.runtime.targets import targets_of


def promote(run: Run) -> State:
    """Let green tables take the place of the live ones.

    First they take in what arrived since they were filled. Live hops that silver and gold write
    must not run meanwhile; bronze may. Rows that wait in the requeue are taken: by the green
    tables with all of bronze, or, where these hold them in quarantine, by the next run.

    Raises:
        UsageError: There is no backfill that is built, or the definition is another one now.
        LockedError: A run writes silver or gold.
        LeaseLostError: The lock was lost; the message says which steps were done.
        UnbalancedError: The tables were swapped, and their ledger does not balance.
    """
    lake, pipeline = run.lake, run.pipeline
    state = need_state(lake, pipeline, "built", "promoting")
    if state.definition != hash_of(pipeline):
        raise UsageError(
            f"the definition of {pipeline.name} is not the one that its backfill was filled by. "
            f"Fill it anew with: tidelake backfill run {pipeline.name}"
        )
    again = f"tidelake backfill promote {pipeline.name}"
    with hold_hops(
        lake, pipeline.name, ["silver", "gold"], goes_on_with="swap", command=again
    ) as locks:
        run = replace(run, locks=locks)
        locks.step("fill the green tables")
        # Green tables have locks of their own.
        fill(replace(run, locks=HopLocks()), state.start)
        green = green_run(run, state.start)
        if state.stage == "built":
            state = replace(
                state,
                stage="promoting",
                before=_versions(run, state),
                gold_followed=_gold_followed(run),
            )
            locks.step("note the versions that a rollback restores")
            write_state(lake, pipeline, state)
        from_bronze = state.start == "bronze"
        if from_bronze:
            install_silver(run, _green_silver(green))
            _send_quarantined(run, state)
        install_gold(run, _green_gold(run, green), follows_new_silver=from_bronze)
        state = replace(state, stage="promoted")
        locks.step("note that all tables are swapped")
        write_state(lake, pipeline, state)
        if from_bronze:
            check_ledger(
                run,
                f"{pipeline.name} is promoted",
                f"Take it back with: tidelake backfill rollback {pipeline.name}",
            )
    return state


def check_ledger(run: Run, done: str, remedy: str) -> None:
    """Hold the ledger against the tables that were just replaced.

    Args:
        run: What the command works with.
        done: What was done, for the message.
        remedy: What to do where it does not balance.

    Raises:
        UnbalancedError: It does not.
    """
    problems = read_ledger(run.lake, run.pipeline).problems
    if problems:
        raise UnbalancedError(
            f"{done}, and its ledger does not balance: {problems[0]}. See all of it with: "
            f"tidelake ledger {run.pipeline.name}. {remedy}"
        )


def _send_quarantined(run: Run, state: State) -> None:
    """Send the rows again that waited in the requeue and are in quarantine after the swap.

    The green tables took the others in with bronze.
    """
    lake, name = run.lake, run.pipeline.name
    versions = state.before
    waited = requeued_after(run, versions[lake.requeue(name).name], versions.get(f"silver.{name}"))
    with Held() as keep:
        quarantined = waiting(run, lake.quarantine(name)).select("record_id")
        send_again(run, keep(waited.join(quarantined, on="record_id", how="left_semi")))


def _versions(run: Run, state: State) -> dict[str, int]:
    """Write down the versions of the live tables that are about to be replaced."""
    own = green_lake(run.lake, run.pipeline, state.start).own
    live = [run.lake.table(name) for name in sorted(own)]
    return {table.name: newest_version(table) for table in live if table.exists}


def _gold_followed(run: Run) -> bool:
    """Tell whether gold's tables stand alike, at silver's head."""
    tables = [run.lake.table(name) for name in run.pipeline.gold_names]
    reached = [positions(last_commit(table)) for table in tables if table.exists]
    if any(one != reached[0] for one in reached):
        return False
    return not reached or not any(
        rows_between(table, reached[0].get(key, BEGINNING))
        for key, table in inputs_of(run.lake, run.pipeline).items()
    )


def _green_silver(green: Run) -> SilverContents:
    """Take all batches of green tables as one."""
    inputs = read_inputs(green)
    notes = [SilverNote.of(commit) for commit in inputs.closing]
    counts = as_one(count for note in notes for count in note.counts)
    note = replace(
        notes[0],
        watermark_in=None,
        counts=counts,
        taken={"bronze": sum(count.rows for count in counts), "requeue": 0},
        warnings={},
        searched=0,
        seconds=0.0,
        columns=(),
    )
    return SilverContents(
        silver=inputs.silver.drop(*ORIGIN),
        quarantine=inputs.quarantine.drop(*ORIGIN),
        late=inputs.late.drop(*ORIGIN),
        note=note,
    )


def _green_gold(run: Run, green: Run) -> GoldContents:
    rows: dict[Table, DataFrame] = {}
    books: dict[Table, dict[str, Any]] = {}
    last: Commit | None = None
    for live, made in zip(
        targets_of(run.lake, run.pipeline), targets_of(green.lake, run.pipeline), strict=True
    ):
        notes = history(green.lake, made.table)
        last = notes[0]
        rows[live.table] = load(run.spark, made.table).drop(*ORIGIN)
        books[live.table] = gold_books(notes)
    return GoldContents(rows, books, positions(last))
