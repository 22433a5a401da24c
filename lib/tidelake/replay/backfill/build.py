"""Fill green tables from pinned inputs, by the ordinary hops; begun again, it goes on."""

from __future__ import annotations

import shutil
from dataclasses import replace

from tidelake.bronze import REQUEUE_DDL
from tidelake.errors import NotBuiltError, UsageError
from tidelake.replay.backfill.green import (
    Start,
    State,
    folder_of,
    green_run,
    read_state,
    what_next,
    write_state,
)
from tidelake.runtime.hop import Run
from tidelake.runtime.pipeline import run_hops
from tidelake.runtime.schemas import from_ddl
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.sinks.append import ensure_table
from tidelake.sinks.definitions import hash_of
from tidelake.sinks.generations import CREATION, FIRST_GENERATION


def build(run: Run, start: Start) -> State:
    """Fill green tables up to what their input holds now; live hops go on meanwhile.

    Nothing is late in it: what a replay of bronze gives depends on bronze and the definition, and
    neither on when a row came nor on where batches were cut.

    Args:
        run: What the command works with.
        start: The layer to read.

    Raises:
        UsageError: The input is not there, or a swap was interrupted.
        NotBuiltError: The prefilter has a state that cannot be prepared.
        LockedError: Another process fills the same tables.
    """
    lake, pipeline = run.lake, run.pipeline
    source = lake.table(f"{start}.{pipeline.name}")
    if not source.exists:
        raise UsageError(
            f"{source.name} does not exist yet. Fill it with: tidelake run {pipeline.name}"
        )
    if start == "bronze" and pipeline.dedup.prefilter == "operator":
        raise NotBuiltError(
            "A backfill of silver with dedup.prefilter: operator", "Set it to none."
        )
    state = read_state(lake, pipeline)
    if state is not None and state.stage in ("promoting", "rolling back"):
        raise UsageError(what_next(pipeline, state))
    wanted = State(start, hash_of(pipeline))
    goes_on = (
        state is not None
        and state.stage in ("building", "built")
        and (state.start, state.definition) == (wanted.start, wanted.definition)
    )
    if not goes_on:
        # Of another definition, or swapped already.
        shutil.rmtree(folder_of(lake, pipeline), ignore_errors=True)
    write_state(lake, pipeline, wanted)
    fill(run, start)
    built = replace(wanted, stage="built")
    write_state(lake, pipeline, built)
    return built


def fill(run: Run, start: Start) -> None:
    """Bring green tables up to what their input holds now."""
    green = green_run(run, start)
    now = parse_trigger(AVAILABLE_NOW)
    if start == "silver":
        run_hops(green, ["gold"], now)
        return
    name = run.pipeline.name
    note = {"pipeline": name, "hop": "requeue", "generation": FIRST_GENERATION, "batch": CREATION}
    schema = from_ddl(run.spark, REQUEUE_DDL)
    ensure_table(run.spark, green.lake.requeue(name), schema, note)
    run_hops(green, ["silver", "gold"], now)
