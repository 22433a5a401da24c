"""Let green tables take the place of the live ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from tidelake.access import load
from tidelake.errors import UsageError
from tidelake.ops.books import history
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
from tidelake.replay.verify.inputs import ORIGIN, read_inputs
from tidelake.runtime.gold_inputs import inputs_of
from tidelake.runtime.hop import Run
from tidelake.runtime.lock import hold_hops
from tidelake.runtime.targets import targets_of
from tidelake.sinks.commits import Commit, last_commit, newest_version
from tidelake.sinks.definitions import hash_of
from tidelake.sinks.notes import SilverNote, as_one, positions
from tidelake.sinks.positions import BEGINNING, rows_between
from tidelake.tables import Table


def promote(run: Run) -> State:
    """Let green tables take the place of the live ones.

    First they take in what arrived since they were filled. Live hops that silver and gold write
    must not run meanwhile; bronze may.

    Raises:
        UsageError: There is no backfill that is built, or the definition is another one now.
        LockedError: A run writes silver or gold.
    """
    lake, pipeline = run.lake, run.pipeline
    state = need_state(lake, pipeline, "built", "promoting")
    if state.definition != hash_of(pipeline):
        raise UsageError(
            f"the definition of {pipeline.name} is not the one that its backfill was filled by. "
            f"Fill it anew with: tidelake backfill run {pipeline.name}"
        )
    with hold_hops(lake, pipeline.name, ["silver", "gold"], goes_on_with="swap"):
        fill(run, state.start)
        green = green_run(run, state.start)
        if state.stage == "built":
            state = replace(
                state,
                stage="promoting",
                before=_versions(run, state),
                gold_followed=_gold_followed(run),
            )
            write_state(lake, pipeline, state)
        from_bronze = state.start == "bronze"
        if from_bronze:
            install_silver(run, _green_silver(green))
        install_gold(run, _green_gold(run, green), follows_new_silver=from_bronze)
        state = replace(state, stage="promoted")
        write_state(lake, pipeline, state)
    return state


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
