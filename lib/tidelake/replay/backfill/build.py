"""Fill green tables: all that there is in one batch, then what arrives by the ordinary hops."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from tidelake.delta.locks import hold_hops
from tidelake.delta.log import CREATION, last_commit
from tidelake.delta.notes import hash_of
from tidelake.errors import NotBuiltError, UsageError
from tidelake.replay.backfill.green import (
    Start,
    State,
    clear,
    green_run,
    read_state,
    what_next,
    write_state,
)
from tidelake.replay.backfill.span import Span, live_gold, rows_in
from tidelake.replay.beginning import next_generation
from tidelake.replay.rebuild_gold import rebuild_gold
from tidelake.replay.rebuild_silver import rebuild_silver
from tidelake.replay.stays import what_stays
from tidelake.runtime.hop import Run
from tidelake.runtime.pipeline import run_hops
from tidelake.runtime.schemas import check_definition
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger


def build(
    run: Run, start: Start, span: Span | None = None, *, since: datetime | None = None
) -> State:
    """Fill green tables up to what their input holds now; live hops go on meanwhile.

    Nothing is late in it: what a replay of bronze gives depends on bronze and the definition, and
    neither on when a row came nor on where batches were cut.

    Args:
        run: What the command works with.
        start: The layer to read.
        span: The range of event time whose gold is computed anew from silver; None for all.
        since: When what is decided anew from bronze arrived (UTC); None for all.

    Raises:
        UsageError: The input is not there, a swap was interrupted, or live tables do not allow
            that only a part is filled.
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
    told = None if span is None else (span.start.isoformat(), span.end.isoformat())
    arrived = None if since is None else since.isoformat()
    wanted = State(start, hash_of(pipeline), span=told, since=arrived)
    goes_on = (
        state is not None
        and state.stage in ("building", "built")
        and (state.start, state.definition, state.since) == (start, wanted.definition, arrived)
        and tuple(state.span or ()) == tuple(wanted.span or ())
    )
    if not goes_on:
        # Of another definition, or swapped already.
        clear(run)
    write_state(lake, pipeline, wanted)
    fill(run, start, span, since=since)
    built = replace(wanted, stage="built")
    write_state(lake, pipeline, built)
    return built


def fill(
    run: Run, start: Start, span: Span | None = None, *, since: datetime | None = None
) -> None:
    """Bring green tables up to what their input holds now.

    What there is when a table is begun is computed in one batch: the input's first commits and
    files may be gone, and one batch over all rows costs less than all batches. What arrives after
    that comes in by the ordinary hops.
    """
    green = green_run(run, start)
    now = parse_trigger(AVAILABLE_NOW)
    check_definition(green)
    if start == "bronze":
        _begin_silver(green, run, since)
        run_hops(green, ["silver"], now)
    _begin_gold(green, run, span)
    run_hops(green, ["gold"], now)


def _begin_silver(green: Run, live: Run, since: datetime | None) -> None:
    lake, name = green.lake, green.pipeline.name
    with hold_hops(lake, name, ["silver"]) as locks:
        green = replace(green, locks=locks)
        last = last_commit(lake.silver(name))
        if last is not None and last.batch > CREATION:
            return
        what = "all of" if since is None else f"what arrived from {since:%F %T} (UTC) on in"
        green.progress.say(f"deciding {what} {lake.bronze(name).name} in one batch")
        generation = next_generation(green, "silver", [lake.silver(name)])
        rebuild_silver(green, generation, what_stays(live, since) if since else None)


def _begin_gold(green: Run, live: Run, span: Span | None) -> None:
    lake, pipeline = green.lake, green.pipeline
    tables = [lake.table(name) for name in pipeline.gold_names]
    with hold_hops(lake, pipeline.name, ["gold"]) as locks:
        green = replace(green, locks=locks)
        found = [last_commit(table) for table in tables]
        if None not in found and len({one.generation for one in found if one}) == 1:
            return
        generation = next_generation(green, "gold", tables)
        if span is None:
            green.progress.say(f"computing {len(tables)} gold tables from all of silver")
            rebuild_gold(green, generation)
            return
        pinned = live_gold(live)
        rows = rows_in(live, pinned, span)
        green.progress.say(f"computing {span.start:%F %T} to {span.end:%F %T} (UTC) of gold")
        rebuild_gold(green, generation, until=pinned.until, rows_of=rows)
