"""Plan a backfill and fill its green tables, separate from the live ones.

What they are: :mod:`.backfill_state`. Comparing them: :mod:`.differences`. Promoting them and
rolling back: :mod:`.backfill_promotion`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.config import Pipeline
from tidelake.config.table_settings import FILE_RETENTION, LEAST
from tidelake.delta.access import load, load_old
from tidelake.delta.commit_metadata import (
    SilverNote,
    changed_definition,
    pipeline_hash,
    position,
    positions,
)
from tidelake.delta.locks import hold_hops, unfinished
from tidelake.delta.log import CREATION, Commit, last_commit, newest_version
from tidelake.delta.positions import (
    Position,
    added_between,
    files_between,
    rewriting,
    stream_breaks,
)
from tidelake.delta.tables import Hop, Lake, Table, hops_in, require_table
from tidelake.errors import GenerationError, NotBuiltError, RefusedError, UsageError
from tidelake.gold.kinds import OWN, Inputs
from tidelake.instants import Range, ahead, from_json
from tidelake.ledger.history import closed_version, history, rate_of
from tidelake.ledger.query import ask
from tidelake.names import quoted
from tidelake.replay.backfill_state import (
    SWAPS,
    Start,
    State,
    backfill_again,
    clear,
    computed_again,
    green_lake,
    hold_backfill,
    read_state,
    what_next,
    write_state,
)
from tidelake.replay.compatibility import refuse_unlike
from tidelake.replay.generations import is_outdated, rebuild_gold, rebuild_silver
from tidelake.replay.repairing import (
    can_restore,
    fill_table,
    gold_table,
    recomputed_from,
    refuse_narrow,
)
from tidelake.replay.verify_silver import BATCH_COLUMNS, SilverInputs, read_inputs
from tidelake.runtime.accepted_rows import AcceptedRows
from tidelake.runtime.failures import NO_INPUT, naming
from tidelake.runtime.gold import GoldHop
from tidelake.runtime.gold_tables import Target, changed_types, targets_of
from tidelake.runtime.hop import Run
from tidelake.runtime.lookups import lookups
from tidelake.runtime.runner import run_hops
from tidelake.runtime.schemas import check_definition
from tidelake.runtime.silver import SilverHop, Stored
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.typed import runnable

# A range of event time: inclusive start, exclusive end (UTC).
Span = tuple[datetime, datetime]


@dataclass(frozen=True)
class Step:
    """One hop of a planned backfill: it reads ``rows`` of a table's version and fills tables.

    ``rate`` is that of the live hop's newest batches in rows per second, None if unknown.
    """

    hop: Hop
    reads: str
    version: int
    rows: int
    fills: tuple[str, ...]
    rate: float | None

    @property
    def seconds(self) -> float | None:
        """The estimated duration, None if unknown."""
        return None if not self.rate else self.rows / self.rate

    def to_json(self) -> dict[str, Any]:
        """Return the step as JSON types."""
        return asdict(self) | {"seconds": self.seconds}


def green_run(run: Run, start: Start, table: str | None = None) -> Run:
    """Return a run on the green tables, whose hops fill them unless only one ``table`` is green."""
    return replace(run, lake=green_lake(run.lake, run.pipeline, start, table), replays=True)


def kept_gold(lake: Lake, pipeline: Pipeline, state: State) -> dict[Table, Commit | None]:
    """Return the gold tables whose rows a rollback restores, with the commits that it restores.

    Tables that were added later, or held no batch then, are emptied.
    """
    last = {
        one: last_commit(one, up_to=state.before[one.name])
        for one in lake.closing_tables(pipeline, "gold")
        if one.name in state.before
    }
    return {one: held for one, held in last.items() if held and held.batch > CREATION} or last


def recomputes_gold(lake: Lake, pipeline: Pipeline, state: State) -> bool:
    """Return whether a rollback of all tables rebuilds gold.

    It does if gold had not consumed all of silver, which the rollback replaces too, if a run had
    ended between two of its tables, which have no common position to continue from, or if an input
    that the rollback does not restore was rewritten since.
    """
    kept = kept_gold(lake, pipeline, state).values()
    if len({(one.batch, str(positions(one))) for one in kept if one}) > 1:
        return True
    last, inputs = next(iter(kept), None), lake.hop_inputs(pipeline, "gold")
    if state.start == "bronze":
        if not (positions(last) and state.gold_followed):
            return True
        del inputs[OWN]
    since = last.written_at if last else None
    return any(
        any(stream_breaks(inputs[key], "gold", position(last, key), since)) for key in inputs
    )


def plan_rollback(
    lake: Lake, pipeline: Pipeline, state: State
) -> tuple[dict[str, int | None], list[str]]:
    """Return the version that a rollback restores of each table, and the tables that it empties.

    The version is None for a table that it recomputes. Needs no Spark.

    Raises:
        UsageError: A single table is no longer in the pipeline file.
        RefusedError: A single table cannot be recomputed.
    """
    versions: dict[str, int | None] = dict(state.before)
    if state.table:
        if not can_restore(lake, pipeline, state.table, state.before[state.table]):
            versions[state.table] = None
        return versions, []
    name, emptied = pipeline.name, list[Table]()
    if state.start == "bronze" and lake.silver(name).name not in state.before:
        emptied += [lake.silver(name), lake.quarantine(name), lake.late(name)]
    golds, kept = lake.closing_tables(pipeline, "gold"), kept_gold(lake, pipeline, state)
    if recomputes_gold(lake, pipeline, state):
        versions |= {one.name: None for one in golds}
    else:
        emptied += [one for one in golds if one not in kept]
    names = [one.name for one in emptied if one.exists]
    return {one: version for one, version in versions.items() if one not in names}, names


def plan(lake: Lake, pipeline: Pipeline, start: Start, table: str | None = None) -> list[Step]:
    """List what a backfill would read, with the rates at which the live hops read it.

    Raises:
        UsageError: The pipeline has not run under this root.
        RefusedError: Another pipeline fills one of the gold tables.
    """
    bronze, silver = lake.bronze(pipeline.name), lake.silver(pipeline.name)

    def count(one: Table) -> int:
        return int(ask(lake, f"SELECT count(*) FROM {one.name}").rows[0][0])

    steps = []
    rows = count(recomputed_from(lake, pipeline, start))
    if start == "bronze":
        rate = rate_of(history(lake, silver))
        own = green_lake(lake, pipeline, start).own
        fills = tuple(sorted(one for one in own if one.startswith("silver.")))
        steps.append(Step("silver", bronze.name, newest_version(bronze), rows, fills, rate))
        rows = count(silver) if silver.exists else rows
    for gold in lake.closing_tables(pipeline, "gold")[:1]:
        rate = rate_of(history(lake, gold))
        fills = pipeline.gold_names if table is None else (table,)
        steps.append(Step("gold", silver.name, newest_version(silver), rows, fills, rate))
    return steps


def build(
    run: Run,
    start: Start,
    span: Span | None = None,
    *,
    since: datetime | None = None,
    table: str | None = None,
    gives_up: bool = True,
) -> State:
    """Fill green tables from the current contents of their input; live hops may run meanwhile.

    No row is late in a backfill: the result depends on bronze and the definition, but not on
    arrival times or batch boundaries. From silver, ``span`` limits the event times whose gold is
    recomputed, or ``table`` the gold tables (logical name); from bronze, ``since`` the arrivals
    (UTC) that are recomputed. Without ``gives_up`` a promotion that can be rolled back is kept.

    Raises:
        UsageError: The input does not exist, a swap was interrupted, a promotion is to be kept, or
            the live tables do not allow a partial backfill.
        NotBuiltError: The prefilter's state cannot be prepared.
        RefusedError: Another pipeline fills one of the gold tables, or an erasure was interrupted.
        LockedError: Another process fills the same tables, promotes them or rolls back.
    """
    lake, pipeline = run.lake, run.pipeline
    recomputed_from(lake, pipeline, start)
    if start == "bronze" and pipeline.dedup.prefilter == "operator":
        raise NotBuiltError(
            f"{pipeline.file}: a backfill of silver with dedup.prefilter: operator",
            "Set it to none, run "
            f"{runnable('tidelake repair', pipeline.name, '--hop silver')}, then the backfill.",
        )
    wanted = State(
        start,
        pipeline_hash(pipeline),
        # A list, to compare equal with the state read from JSON.
        span=None if span is None else [one.isoformat() for one in span],
        since=None if since is None else since.isoformat(),
        table=table,
    )
    built = replace(wanted, stage="built")
    with hold_backfill(lake, pipeline) as check:
        if begun := unfinished(lake, pipeline.name).get("erasure"):
            raise RefusedError(begun)
        state = read_state(lake, pipeline)
        if state is not None and state.stage in SWAPS:
            raise UsageError(what_next(pipeline, state))
        if state is not None and state.is_promoted and not gives_up:
            raise UsageError(
                f"the backfill of {pipeline.name} was promoted meanwhile, and another one would "
                f"give up its rollback. To decide that: {backfill_again(pipeline, wanted)}"
            )
        if state not in (wanted, built):
            # It has another definition or range, or was swapped already. Until then it can be
            # rolled back, so what cannot be filled is refused first.
            _refuse_unfillable(run, wanted)
            clear(run)
        write_state(lake, pipeline, wanted)
        fill(run, wanted)
        check()
        write_state(lake, pipeline, built)
    return built


def _refuse_unfillable(run: Run, wanted: State) -> None:
    """Raise the errors with which :func:`fill` would refuse the definition or the live tables."""
    check_definition(green_run(run, wanted.start, wanted.table))
    if wanted.table is not None:
        gold_table(run.lake, run.pipeline, wanted.table)
    if wanted.span is not None:
        _pinned_gold(run)
    if (since := from_json(wanted.since)) is not None:
        decided_before(run, since)
    if wanted.start == "silver":
        refuse_narrow(run)


def fill(run: Run, state: State) -> None:
    """Bring green tables up to date with their input, in the range of a backfill.

    If they are filled and the hops can continue them, only the hops run. Otherwise the input that
    exists is computed in one batch first: its first commits and files may be gone, and one batch
    over all rows costs less than many. A single ``table`` is computed up to where the live tables
    have read.
    """
    start, table = state.start, state.table
    green = green_run(run, start, table)
    check_definition(green)
    if start == "silver":
        # Gold would be of types that its next run refuses.
        refuse_narrow(run)
    with naming(run, "backfill", gone=NO_INPUT, retry="The backfill continues where it stopped."):
        if table is not None:
            with hold_hops(green.lake, run.pipeline.name, ["gold"], stop=run.stop) as locks:
                fill_table(replace(run, locks=locks), table, green.lake.table(table))
            return
        for hop in hops_in(run.pipeline)[1 if start == "bronze" else 2 :]:
            with hold_hops(green.lake, run.pipeline.name, [hop], stop=run.stop) as locks:
                held = replace(green, locks=locks)
                if hop == "silver":
                    _begin_silver(held, run, from_json(state.since))
                else:
                    _begin_gold(held, run, state.span)
            with computed_again(green, hop, state):
                run_hops(green, [hop], parse_trigger(AVAILABLE_NOW))


def _can_continue(green: Run, hop: Hop) -> bool:
    """Return whether a hop can continue its green tables.

    They are filled, their checkpoint is theirs, and no input is lost.
    """
    lake, pipeline = green.lake, green.pipeline
    last = [last_commit(table) for table in lake.closing_tables(pipeline, hop)]
    filled = [one for one in last if one is not None and one.batch > CREATION]
    if len(filled) < len(last) or len({one.generation for one in filled}) > 1:
        return False
    if hop == "silver" and _is_looked_up_twice(green, filled[0]):
        return False
    with suppress(GenerationError):
        # Refuses a checkpoint that is damaged or gone.
        (SilverHop if hop == "silver" else GoldHop)(green, creates=False)
        return not any(
            _is_lost(green, hop, table, position(one, key), one.written_at)
            for key, table in lake.hop_inputs(pipeline, hop).items()
            for one in filled
        )
    return False


def _is_looked_up_twice(green: Run, last: Commit) -> bool:
    """Return whether green silver's rows are, or would be, enriched from different dimension rows.

    A promotion makes one batch of them, which records one version of each dimension. Also true if
    that version can no longer be read.
    """
    lake, pipeline = green.lake, green.pipeline
    bronze = lake.bronze(pipeline.name)
    versions: dict[str, set[int]] = defaultdict(set)
    for commit in history(lake, lake.silver(pipeline.name)):
        for use in SilverNote.of(commit).dimensions:
            versions[use.table].add(use.version)
    if added_between(bronze, position(last, "bronze")).rows:
        # These rows would be looked up in the version of the last ones.
        since = datetime.now(UTC) - min(green.environment.recovery_horizon, LEAST[FILE_RETENTION])
        used = [(lake.table(one.table), one.version) for one in SilverNote.of(last).dimensions]
        if any(is_outdated(table, version, since) for table, version in used):
            return True
        for lookup in lookups(lake, pipeline):
            versions[lookup.table.name].add(lookup.version)
    return any(
        rewriting(table, (min(found) + 1, -1)) is not None
        or added_between(table, (min(found) + 1, -1), (max(found) + 1, -1)).rows > 0
        for table, found in ((lake.table(name), found) for name, found in versions.items())
        if len(found) > 1
    )


def _is_lost(green: Run, hop: Hop, table: Table, after: Position, since: datetime) -> bool:
    """Return whether an input cannot be followed from a position, reached at ``since`` (UTC).

    Rows were rewritten, or commits or files are gone: maintenance keeps none for a backfill.
    """
    if any(stream_breaks(table, hop, after, since)):
        return True
    if green.lake.catalog is not None:
        # Its files cannot be listed. Maintenance keeps them at least so long.
        is_old = datetime.now(UTC) - since > green.environment.recovery_horizon
        return is_old and added_between(table, after).rows > 0
    unread = files_between(table, after, (newest_version(table) + 1, -1))
    return not all(file.exists() for file in unread)


def _begin_silver(green: Run, live: Run, since: datetime | None) -> None:
    if _can_continue(green, "silver"):
        if since is not None:
            # They may have been requeued after the green tables were filled.
            _refuse_requeued(live, read_inputs(live), since)
        return
    what = "all of" if since is None else f"arrivals from {since:%F %T} (UTC) on in"
    green.progress.say(f"computing silver from {what} bronze in one batch")
    rebuild_silver(green, decided_before(live, since) if since else None)


def _refuse_requeued(live: Run, inputs: SilverInputs, since: datetime) -> None:
    """Raise a UsageError if rows that arrived before an instant (UTC) were requeued.

    Duplicates that arrived later may have been accepted in their place, and what the live tables
    made of them would be undone.
    """
    if not inputs.requeued.where(F.col("ingested_at") < F.lit(since)).isEmpty():
        raise UsageError(
            f"rows of {live.pipeline.name} that arrived before {since:%Y-%m-%d %H:%M:%S}Z were "
            "requeued since then, and their fates depend on all of bronze. Recompute all of it "
            f"with: {backfill_again(live.pipeline)}"
        )


def decided_before(live: Run, since: datetime) -> Stored:
    """Return the rows of the live tables that arrived before an instant (UTC).

    A row's fate depends only on earlier arrivals, so rows that arrived from the instant on can be
    recomputed alone. Duplicates and filtered rows are in no table: those from before the instant
    are decided again, by today's definition. No row is late in a replay: late rows count as silver.

    Raises:
        UsageError: Silver does not exist or was filled under another event id, time or types, or
            rows from before the instant were requeued.
    """
    lake, pipeline = live.lake, live.pipeline
    require_table(lake.silver(pipeline.name), pipeline.name)
    inputs = read_inputs(live)
    refuse_unlike(live, inputs.closing[0], next(iter(inputs.decided.values())).schema)
    before = F.col("ingested_at") < F.lit(since)
    _refuse_requeued(live, inputs, since)
    silver, quarantine, late = (
        rows.where(before).drop(*BATCH_COLUMNS) for rows in inputs.decided.values()
    )
    # Late lacks the columns of unknown fields that no late row has.
    same = [quoted(name) for name in silver.columns if name in late.columns]
    accepted = silver.unionByName(late.select(*same), allowMissingColumns=True)
    batch = inputs.closing[0].batch + 1
    # The rows that are kept, also if a run commits others meanwhile: these are decided anew.
    known = AcceptedRows(live.spark, pipeline, lake, batch, known=before, version=inputs.version)
    return Stored(known, accepted.withColumn("is_late", F.lit(False)), quarantine)


def _begin_gold(green: Run, live: Run, span: Sequence[str] | None) -> None:
    if _can_continue(green, "gold"):
        return
    if span is None:
        names = green.pipeline.gold_names
        green.progress.say(f"computing {len(names)} gold tables from all of silver")
        rebuild_gold(green)
        return
    versions, until = _pinned_gold(live)
    start, end = map(datetime.fromisoformat, span)
    green.progress.say(f"computing {start:%F %T} to {end:%F %T} (UTC) of gold")
    rebuild_gold(green, until=until, rows_of=_rows_in(live, versions, (start, end)))


def _pinned_gold(run: Run) -> tuple[dict[str, int], Mapping[str, Position]]:
    """Pin the versions of the live gold tables, whose rows outside the range are kept.

    Raises:
        UsageError: A table does not exist, is at another batch than the others, or was filled
            under another definition, so that it would mix rows of two definitions.
    """
    name = run.pipeline.name
    versions, reached = {}, []
    inputs = run.lake.hop_inputs(run.pipeline, "gold")
    for target in targets_of(run.lake, run.pipeline):
        # Read the version before the commit: a batch committed in between must not be read.
        version = closed_version(run.lake, target.table)
        last, kind = last_commit(target.table, up_to=version), target.kind
        is_other = changed_definition(last, kind.definition) or changed_types(
            kind, last, lambda key: load(run.spark, inputs[key])
        )
        if last is None or is_other:
            raise UsageError(
                f"{target.table.name} was not filled under the current definition, and a backfill "
                "of a range would not change that. Fill all of it with: "
                + runnable("tidelake backfill run", name, "--from silver")
            )
        versions[target.table.name] = version
        reached.append(positions(last))
    if any(one != reached[0] for one in reached):
        raise UsageError(
            f"the gold tables of {name} are at different batches. Bring them to the same one with: "
            f"{runnable('tidelake run', name, '--hop gold')}, then run the backfill again"
        )
    return versions, reached[0]


def _rows_in(
    run: Run, versions: Mapping[str, int], span: Span
) -> Callable[[Target, Inputs], DataFrame]:
    """Return a function that recomputes a table's rows in the range and keeps the live others.

    A row is in the range if its first instant is. Tables whose rows have no instant are recomputed
    whole.
    """

    def rows_of(target: Target, inputs: Inputs) -> DataFrame:
        kind = target.kind
        if kind.moment is None:
            return kind.of_all(inputs)
        reach = kind.reach
        if reach is not None:
            # Rows in the range depend on no other events.
            near = Range(span[0], ahead(span[1], reach)).holds("event_time")
            whole = inputs.whole
            inputs = Inputs({}, lambda key: whole(key).where(near))
        inside = F.expr(Range(*span).holds(quoted(kind.moment)))
        name = target.table.name
        stored = load_old(run.spark, run.lake.table(name), versions[name])
        kept = stored.drop(*BATCH_COLUMNS).where(~inside | F.isnull(kind.moment))
        return kept.unionByName(kind.of_all(inputs).where(inside))

    return rows_of
