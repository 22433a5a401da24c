"""Compare green tables with the live ones, swap them, and put back what the live ones held.

Each table is replaced in one commit, so readers see it whole, as it was or as it becomes.
Interrupted between two tables, the swap is done again or taken back before anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.columns import stamped
from tidelake.config.names import ID_HASH
from tidelake.delta.access import load, rows_that_came
from tidelake.delta.locks import HopLocks, hold_hops
from tidelake.delta.log import CREATION, last_commit, newest_version
from tidelake.delta.notes import (
    SilverNote,
    as_one,
    changed_definition,
    hash_of,
    position,
    positions,
    silver_note,
)
from tidelake.delta.positions import BEGINNING, Position, rows_between
from tidelake.errors import RefusedError, UnbalancedError, UsageError
from tidelake.gold.plan import OWN
from tidelake.ops.history import history
from tidelake.ops.ledger import read_ledger
from tidelake.replay.backfill import State, fill, green_lake, green_run, need_state, write_state
from tidelake.replay.compare import TableComparison, compare
from tidelake.replay.generations import (
    FIRST,
    begin,
    closing_tables,
    fitted_to_bronze,
    go_on_gold,
    go_on_silver,
    heads,
    next_generation,
    rebuild_gold,
    replace_gold,
    replace_rows,
)
from tidelake.replay.requeue import next_instant, send, waiting
from tidelake.replay.verify import shape_of
from tidelake.replay.verify_silver import ORIGIN, read_inputs
from tidelake.runtime.gold_tables import inputs_of, targets_of
from tidelake.runtime.held import Held
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import create_silver

Cause = Literal["late rows", "dimension", "definition", "arrived since"]

# Differ by when a batch was cut, not by what is in the event.
_OF_THE_BATCH = ("is_late", "_requeued_at", ID_HASH)
_PLACE, _WHOLE, _OWN = "_place", "_whole", "_own"


@dataclass(frozen=True)
class Change:
    """Rows of bronze that a backfill gives another fate, or other values.

    Attributes:
        was: The live table that holds them; None for none.
        becomes: The green one; None for none.
        example: The record id of one of them.
    """

    was: str | None
    becomes: str | None
    cause: Cause
    rows: int
    example: str


@dataclass(frozen=True)
class Differences:
    """What a swap would change; ``redefined`` are gold tables whose definition is another one."""

    silver: tuple[Change, ...]
    gold: dict[str, TableComparison]
    redefined: frozenset[str]

    @property
    def equal(self) -> bool:
        """Return whether nothing would change."""
        return not self.silver and all(one.equal for one in self.gold.values())


def differences(run: Run, state: State) -> Differences:
    """Compare live tables with green ones; nothing is written.

    Raises:
        UsageError: There is no live silver to compare with.
    """
    name = run.pipeline.name
    if state.start == "bronze" and not run.lake.silver(name).exists:
        raise UsageError(
            f"silver.{name} does not exist yet: there is nothing to compare. "
            f"Swap with: tidelake backfill promote {name}"
        )
    green = green_run(run, state.start)
    silver = tuple(_silver_changes(run, green)) if state.start == "bronze" else ()
    gold, redefined = {}, set()
    for live, target in zip(
        targets_of(run.lake, run.pipeline), targets_of(green.lake, run.pipeline), strict=True
    ):
        exists = live.table.exists
        if not exists or changed_definition(last_commit(live.table), live.kind.definition):
            redefined.add(live.table.name)
        if exists:
            made = load(run.spark, target.table).drop(*ORIGIN)
            stored = load(run.spark, live.table).drop(*ORIGIN)
            both = [name for name in made.columns if name in stored.columns]
            gold[live.table.name] = compare(
                made.select(*both), stored, shape_of(target.kind, stored)
            )
    return Differences(silver, gold, frozenset(redefined))


def _silver_changes(run: Run, green: Run) -> list[Change]:
    looked_up = [name for one in run.pipeline.enrich for name in one.columns]
    was, becomes = _fates(run, looked_up), _fates(green, looked_up)
    reached = becomes.agg(F.max(F.unix_micros("ingested_at"))).collect()[0][0]
    same = F.col("l.record_id") == F.col("g.record_id")
    joined = was.alias("l").join(becomes.alias("g"), on=same, how="full_outer")
    moved = ~F.col(f"l.{_PLACE}").eqNullSafe(F.col(f"g.{_PLACE}"))
    altered = ~F.col(f"l.{_WHOLE}").eqNullSafe(F.col(f"g.{_WHOLE}"))
    cause = (
        F.when(F.unix_micros("l.ingested_at") > F.lit(reached), "arrived since")
        .when(F.col(f"l.{_PLACE}").endswith("__late"), "late rows")
        .when(F.col(f"g.{_PLACE}").endswith("__late"), "late rows")
        .when(~moved & (F.col(f"l.{_OWN}") == F.col(f"g.{_OWN}")), "dimension")
        .otherwise("definition")
    )
    found = (
        joined.where(moved | altered)
        .groupBy(F.col(f"l.{_PLACE}").alias("was"), F.col(f"g.{_PLACE}").alias("becomes"), cause)
        .agg(F.count("*").alias("rows"), F.min(F.coalesce("l.record_id", "g.record_id")))
        .orderBy(F.desc("rows"), "was", "becomes")
        .collect()
    )
    return [Change(*row) for row in found]


def _fates(run: Run, enriched: Sequence[str]) -> DataFrame:
    """Select each record of silver's tables: its table, and hashes of its values."""
    lake, name, inputs = run.lake, run.pipeline.name, read_inputs(run)
    return reduce(
        DataFrame.unionByName,
        [
            rows.select(
                "record_id",
                "ingested_at",
                F.lit(table.name).alias(_PLACE),
                _hashed(rows, ()).alias(_WHOLE),
                _hashed(rows, enriched).alias(_OWN),
            )
            for table, rows in (
                (lake.silver(name), inputs.silver),
                (lake.quarantine(name), inputs.quarantine),
                (lake.late(name), inputs.late),
            )
        ],
    )


def _hashed(rows: DataFrame, but: Sequence[str]) -> Column:
    left_out = {*ORIGIN, *_OF_THE_BATCH, *but}
    names = sorted(name for name in rows.columns if name not in left_out)
    return F.xxhash64(*[F.to_json(F.struct(name)) for name in names])


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
    from_bronze = state.start == "bronze"
    with _holding(run, "promote") as locks:
        run = replace(run, locks=locks)
        locks.step("fill the green tables")
        # Green tables have locks of their own.
        fill(replace(run, locks=HopLocks()), state.start)
        green = green_run(run, state.start)
        if state.stage == "built":
            own = map(lake.table, sorted(green_lake(lake, pipeline, state.start).own))
            state = replace(
                state,
                stage="promoting",
                before={table.name: newest_version(table) for table in own if table.exists},
                gold_followed=_gold_followed(run),
            )
            locks.step("note the versions that a rollback restores")
            write_state(lake, pipeline, state)
        with fitted_to_bronze(run):
            if from_bronze:
                _install_silver(run, green)
                _requeue_quarantined(run, state)
            _install_gold(run, green, follows_new_silver=from_bronze)
        state = replace(state, stage="promoted")
        locks.step("note that all tables are swapped")
        write_state(lake, pipeline, state)
        if from_bronze:
            remedy = f"Take it back with: tidelake backfill rollback {pipeline.name}"
            _check_ledger(run, f"{pipeline.name} is promoted", remedy)
    return state


def _holding(run: Run, command: str) -> AbstractContextManager[HopLocks]:
    name = run.pipeline.name
    again = f"tidelake backfill {command} {name}"
    return hold_hops(run.lake, name, ["silver", "gold"], goes_on_with="swap", command=again)


def _check_ledger(run: Run, done: str, remedy: str) -> None:
    """Raise UnbalancedError where the ledger does not balance over the tables just replaced."""
    problems = read_ledger(run.lake, run.pipeline).problems
    if problems:
        raise UnbalancedError(
            f"{done}, and its ledger does not balance: {problems[0]}. See all of it with: "
            f"tidelake ledger {run.pipeline.name}. {remedy}"
        )


def _gold_followed(run: Run) -> bool:
    """Return whether gold's tables stand alike, at silver's head."""
    reached = [positions(last_commit(one)) for one in closing_tables(run, "gold") if one.exists]
    if any(one != reached[0] for one in reached):
        return False
    return not reached or not any(
        rows_between(table, reached[0].get(key, BEGINNING))
        for key, table in inputs_of(run.lake, run.pipeline).items()
    )


def _install_silver(run: Run, green: Run) -> None:
    """Replace silver, quarantine and late by the green ones as one batch; empty the requeue."""
    lake, name = run.lake, run.pipeline.name
    inputs = read_inputs(green)
    notes = [SilverNote.of(commit) for commit in inputs.closing]
    counts = as_one(count for note in notes for count in note.counts)
    generation = next_generation(run, "silver")
    requeue = lake.requeue(name)
    emptied = {"pipeline": name, "hop": "requeue", "generation": generation, "batch": FIRST}
    replace_rows(run, requeue, None, emptied, "empty {}")
    until = {"bronze": notes[0].until["bronze"]} | heads({"requeue": requeue})
    note = begin(run, "silver", generation, FIRST, until)
    books = replace(
        notes[0],
        watermark_in=None,
        counts=counts,
        taken={"bronze": sum(count.rows for count in counts), "requeue": 0},
        until=until,
        warnings={},
        searched=0,
        seconds=0.0,
        columns=(),
    )
    for rows, table, more in (
        (inputs.quarantine, lake.quarantine(name), {}),
        (inputs.late, lake.late(name), {}),
        (inputs.silver, lake.silver(name), books.to_json() | silver_note(run.pipeline)),
    ):
        made = stamped(rows.drop(*ORIGIN), generation=generation, batch=FIRST)
        replace_rows(run, table, made, note | more)


def _requeue_quarantined(run: Run, state: State) -> None:
    """Requeue the rows that waited in the requeue and are in quarantine after the swap.

    The green tables took the others in with bronze.
    """
    with Held() as hold:
        quarantine = run.lake.quarantine(run.pipeline.name)
        quarantined = waiting(run, quarantine).select("record_id")
        waited = _waited(run, state)
        _send_again(run, hold(waited.join(quarantined, on="record_id", how="left_semi")))


def _waited(run: Run, state: State) -> DataFrame:
    """Read the rows of the requeue that silver had not taken before the promotion."""
    lake, name = run.lake, run.pipeline.name
    version = state.before.get(lake.silver(name).name)
    last = None if version is None else last_commit(lake.silver(name), up_to=version)
    until = state.before[lake.requeue(name).name] + 1, -1
    return _requeued_between(run, position(last, "requeue"), until)


def _requeued_between(run: Run, after: Position, until: Position) -> DataFrame:
    requeue = run.lake.requeue(run.pipeline.name)
    rows = rows_that_came(run.spark, requeue, after, until)
    return load(run.spark, requeue).limit(0) if rows is None else rows


def _send_again(run: Run, rows: DataFrame) -> None:
    """Append kept rows of an earlier version of the requeue to it once more, each record once."""
    once = rows.dropDuplicates(["record_id"])
    for reason, count in sorted(once.groupBy("reason").count().collect()):
        wanted = once.where(F.col("reason") == reason)
        send(run, wanted.withColumn("requeued_at", F.lit(next_instant(run))), expected=count)


def _install_gold(run: Run, green: Run, *, follows_new_silver: bool) -> None:
    """Replace gold's tables by the green ones; silver may have been replaced just now."""
    contents, until = [], {}
    for live, made in zip(
        targets_of(run.lake, run.pipeline), targets_of(green.lake, run.pipeline), strict=True
    ):
        newest_first = history(green.lake, made.table)
        last = newest_first[0]
        until = positions(last)
        books: dict[str, Any] = {
            key: value for key, value in last.note.items() if key in ("definition", "final")
        }
        for key in ("rows", "eligible", "failed"):
            books[key] = sum(int(commit.note.get(key, 0)) for commit in newest_first)
        contents.append((live.table, load(run.spark, made.table).drop(*ORIGIN), books))
    inputs = inputs_of(run.lake, run.pipeline)
    until = {key: until[key] for key in inputs}
    if follows_new_silver:
        until |= heads({OWN: inputs[OWN]})
    replace_gold(run, until, contents)


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
    name = pipeline.name
    state = need_state(lake, pipeline, "promoting", "promoted", "rolling back")
    from_bronze = state.start == "bronze"
    with _holding(run, "rollback") as locks:
        run = replace(run, locks=locks)
        requeue = lake.requeue(name)
        if state.stage != "rolling back":
            state = replace(state, stage="rolling back", requeue=newest_version(requeue))
        locks.step("note that the tables are put back")
        write_state(lake, pipeline, state)
        # The requeue comes last: while the promoted silver is there, nobody may read it restored.
        with fitted_to_bronze(run):
            for own in sorted(state.before, key=lambda one: (one == requeue.name, one)):
                _restore(run, state, own)
            if from_bronze:
                _put_silver_on(run, state)
            _put_gold_on(run, state)
        state = replace(state, stage="rolled back")
        locks.step("note that all tables are put back")
        write_state(lake, pipeline, state)
        if from_bronze:
            remedy = (
                f"Compute its tables anew with: tidelake backfill run {name}, "
                f"then: tidelake backfill promote {name}"
            )
            _check_ledger(run, f"{name} is rolled back", remedy)
    return state


def _restore(run: Run, state: State, own: str) -> None:
    table, version, name = run.lake.table(own), state.before[own], run.pipeline.name
    run.locks.step(f"restore {own}")
    try:
        run.spark.sql(f"RESTORE TABLE {table.sql} TO VERSION AS OF {version}")
    except PySparkException as error:
        # Not to be finished any more: another backfill may begin.
        write_state(run.lake, run.pipeline, replace(state, stage="promoted"))
        raise RefusedError(
            f"{own} cannot be restored to version {version}, from before the promotion: "
            f"{str(error).splitlines()[0]}\n"
            f"Compute the tables anew with: tidelake backfill run {name}, "
            f"then: tidelake backfill promote {name}"
        ) from error


def _put_silver_on(run: Run, state: State) -> None:
    """Let silver go on behind the restored requeue, and append to that what nobody has taken.

    Its stream cannot pass over a RESTORE, so rows that waited before it are appended behind it.
    """
    lake, name = run.lake, run.pipeline.name
    silver, requeue = lake.silver(name), lake.requeue(name)
    if silver.name not in state.before:
        _empty_silver(run)
    bronze = position(last_commit(silver), "bronze")
    go_on_silver(run, {"bronze": bronze} | heads({"requeue": requeue}))
    restored = state.before[requeue.name]
    sent = restored if state.requeue is None else max(state.requeue, restored)
    since = _requeued_between(run, (restored + 1, -1), (sent + 1, -1))
    with Held() as hold:
        side = waiting(run, lake.quarantine(name)).select("record_id")
        side = side.union(waiting(run, lake.late(name)).select("record_id"))
        # Others of these arrived after what silver holds now: it decides them when it takes them.
        known = since.join(side, on="record_id", how="left_semi")
        _send_again(run, hold(_waited(run, state).unionByName(known)))


def _empty_silver(run: Run) -> None:
    """Remove all rows of silver and its side tables, as of tables that were just made."""
    lake, name = run.lake, run.pipeline.name
    generation = next_generation(run, "silver")
    note = {"pipeline": name, "hop": "silver", "generation": generation, "batch": CREATION}
    if not lake.silver(name).exists:
        # The promotion did not come so far.
        run.locks.step(f"create {lake.silver(name).name}")
        create_silver(run, note)
    for table in (lake.quarantine(name), lake.late(name), lake.silver(name)):
        replace_rows(run, table, None, note, "empty {}")


def _put_gold_on(run: Run, state: State) -> None:
    """Let gold go on; where it had not followed all of silver, compute it anew."""
    from_bronze = state.start == "bronze"
    tables = [table for table in closing_tables(run, "gold") if table.name in state.before]
    until = positions(last_commit(tables[0])) if tables else {}
    if not tables and not from_bronze:
        return
    if from_bronze and not (until and state.gold_followed):
        rebuild_gold(run)
        return
    if from_bronze:
        until |= heads({OWN: run.lake.silver(run.pipeline.name)})
    go_on_gold(run, tables, until)
