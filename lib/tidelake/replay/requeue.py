"""Read silver's side tables, and requeue their rows: ``late apply``, ``quarantine replay``.

The next run decides requeued rows again. A row that waits in the requeue is not requeued twice.
Commands raise a UsageError if the pipeline has not run under this root, and a LockedError while a
run writes silver, unless they are dry runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from tidelake.columns import between
from tidelake.delta.access import load
from tidelake.delta.append import append, ensure_table
from tidelake.delta.commit_metadata import SilverNote, position
from tidelake.delta.locks import hold_hops
from tidelake.delta.log import (
    CREATION,
    FIRST_GENERATION,
    Commit,
    batch_reached,
    commits,
    last_commit,
    newest_version,
)
from tidelake.delta.tables import Table, require_table
from tidelake.errors import LockedError, TidelakeError
from tidelake.fingerprints import fingerprint
from tidelake.gold.merge_plan import span
from tidelake.instants import ALWAYS, Range, from_micros, now, now_after, to_json
from tidelake.ledger.side_tables import not_requeued, unless_discarded
from tidelake.names import BRONZE_COLUMNS
from tidelake.runtime.accepted_rows import AcceptedRows
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import from_ddl, schemas_for
from tidelake.runtime.silver import decide_fates
from tidelake.runtime.transformed_rows import same_rows
from tidelake.silver.fates import FATE, QUARANTINED
from tidelake.silver.stages import STAGE
from tidelake.typed import runnable

Reason = Literal["late", "quarantine"]
_DISCARDED_DDL = (
    "record_id string, stage string, reasons array<string>, why string, discarded_at timestamp"
)


def waiting(run: Run, side: Table) -> DataFrame:
    """Read the rows of a side table that were neither requeued nor discarded."""
    return read_side(run, side, exclude_discarded=True)


def read_side(
    run: Run,
    side: Table,
    closed: Commit | None = None,
    *,
    requeued: DataFrame | None = None,
    exclude_discarded: bool = False,
) -> DataFrame:
    """Read the rows of quarantine or late that were not requeued after they were stored.

    Args:
        run: The run.
        side: The quarantine or late table.
        closed: The commit of silver up to whose batch rows are read; None for the newest.
        requeued: The requeued rows to exclude; None for the whole requeue, including rows that
            silver has not processed yet.
        exclude_discarded: Whether rows that were discarded are left out.

    Raises:
        UsageError: The side table or the requeue was deleted.
    """
    lake, name = run.lake, run.pipeline.name
    requeue, discarded = lake.requeue(name), lake.discarded(name)
    query = not_requeued(side, requeue, closed or last_commit(lake.silver(name)))
    named = [side, requeue]
    if exclude_discarded:
        query = unless_discarded(query, discarded)
        named.append(discarded)
    # The query is shared with DuckDB and uses logical table names. The frames are passed with it:
    # through Spark Connect a view is looked up when the rows are read, and a backfill's tables have
    # the names of the live ones.
    frames: dict[str, Any] = {}
    for table in named:
        if table.exists:
            given = requeued if table == requeue else None
            frames[table.bare] = load(run.spark, table) if given is None else given
            query = query.replace(f"FROM {table.name} ", f"FROM {{{table.bare}}} ")
    return run.spark.sql(query, **frames)


@contextmanager
def _holding_silver(
    run: Run, command: str, written: Table, *, dry_run: bool
) -> Iterator[tuple[Run, CheckpointedFrames, int]]:
    """Hold silver's lock; yield the run with the lock and a scope for checkpointed frames.

    Also the version of the table to be ``written``, from before it is read. A dry run does without
    the lock: it writes nothing, and may be asked for beside a run.
    """
    name = run.pipeline.name
    require_table(run.lake.silver(name), name)
    retry = runnable(f"tidelake {command}", name)
    silver = hold_hops(run.lake, name, ["silver"], command=retry, stop=run.stop)
    with nullcontext(run.locks) if dry_run else silver as locks, CheckpointedFrames() as frames:
        yield replace(run, locks=locks), frames, newest_version(written)


def apply_late(run: Run, within: Range = ALWAYS, *, dry_run: bool = False) -> int:
    """Requeue the waiting late rows, and return their number; with ``dry_run`` only count them.

    All of them, or those ``within`` a range of event time. Requeued late rows skip the lateness
    test.
    """
    lake, name = run.lake, run.pipeline.name
    holding = _holding_silver(run, "late apply", lake.requeue(name), dry_run=dry_run)
    with holding as (locked, _, version):
        rows = waiting(run, lake.late(name)).where(within.holds("event_time"))
        if dry_run:
            return rows.count()
        return requeue_from(locked, rows.select("record_id", "ingested_at"), "late", version)


@dataclass(frozen=True)
class Choice:
    """A filter of quarantined rows.

    By the stage where they failed, a text in one of the reasons, and a range of arrival.
    """

    stage: str | None = None
    rule: str | None = None
    within: Range = ALWAYS

    def of(self, rows: DataFrame) -> DataFrame:
        """Filter the rows of quarantine."""
        rows = rows.where(self.within.holds("ingested_at"))
        if self.stage is not None:
            rows = rows.where(F.col("stage") == self.stage)
        if self.rule is not None:
            wanted = F.lit(self.rule)
            rows = rows.where(F.exists("reasons", lambda reason: F.contains(reason, wanted)))
        return rows


@dataclass(frozen=True)
class Outcome:
    """The current fate of rows quarantined at ``stage``; ``now`` is the stage that fails now."""

    stage: str
    fate: str
    now: str | None
    rows: int


@dataclass(frozen=True)
class Replay:
    """The fates that the chosen rows would have now, and the number of requeued rows."""

    outcomes: tuple[Outcome, ...]
    requeued: int

    @property
    def released(self) -> int:
        """The number of rows that the current definition would not quarantine."""
        return sum(one.rows for one in self.outcomes if one.fate != QUARANTINED)


def replay_quarantine(run: Run, choice: Choice, *, dry_run: bool = False) -> Replay:
    """Requeue the chosen rows that the current definition would no longer quarantine.

    The others would only be quarantined again. With ``dry_run`` nothing is requeued.
    """
    lake, name = run.lake, run.pipeline.name
    holding = _holding_silver(run, "quarantine replay", lake.requeue(name), dry_run=dry_run)
    with holding as (locked, frames, version):
        chosen = choice.of(waiting(run, lake.quarantine(name)))
        columns = ("record_id", "ingested_at", F.col("stage").alias("failed"))
        failed = frames.checkpoint(chosen.select(*columns))
        rows = frames.checkpoint(as_requeued(run, failed, "quarantine"))
        last = last_commit(lake.silver(name))
        mark, batch = SilverNote.of(last).watermark, batch_reached(lake.silver(name)) + 1
        accepted = AcceptedRows(run.spark, run.pipeline, lake, batch, position(last, "requeue"))
        # Do not store the schemas: the run that processes the rows requests them itself.
        schemas = schemas_for(run, rows, keeps=False)
        place = f"{name}, quarantine replay"
        judged = same_rows(rows, run.plan.judge(rows, schemas), run.pipeline, frames, place)
        decision = decide_fates(judged, run.plan, accepted, mark, frames)
        decided = frames.checkpoint(decision.rows.select("record_id", FATE, STAGE))
        both = decided.join(failed.dropDuplicates(["record_id"]), on="record_id", how="inner")
        found = both.groupBy("failed", FATE, STAGE).count().orderBy("failed", FATE, STAGE)
        outcomes = (
            Outcome(before, fate, stage if fate == QUARANTINED else None, count)
            for before, fate, stage, count in found.collect()
        )
        shown = Replay(tuple(outcomes), 0)
        if dry_run or not shown.released:
            return shown
        freed = decided.where(F.col(FATE) != QUARANTINED).select("record_id")
        sent = frames.checkpoint(rows.join(freed, on="record_id", how="left_semi"))
        requeued = requeue_rows(locked, sent, expected=shown.released, version=version)
        return replace(shown, requeued=requeued)


def discard_quarantine(run: Run, choice: Choice, *, why: str, dry_run: bool = False) -> int:
    """Discard quarantined rows with a reason, and return their number.

    With ``dry_run`` they are only counted. Discarded rows stay in quarantine and in the ledger, but
    no longer count as waiting.
    """
    name, discarded = run.pipeline.name, run.lake.discarded(run.pipeline.name)
    holding = _holding_silver(run, "quarantine discard", discarded, dry_run=dry_run)
    with holding as (locked, frames, version):
        rows = frames.checkpoint(
            choice.of(waiting(run, run.lake.quarantine(name))).select(
                "record_id",
                "stage",
                "reasons",
                F.lit(why).alias("why"),
                F.lit(now()).alias("discarded_at"),
            )
        )
        count, (xor, total) = rows.agg(F.count("*"), fingerprint()).collect()[0]
        if count and not dry_run:
            note = {"pipeline": name, "hop": "discard"}
            created = {**note, "generation": FIRST_GENERATION, "batch": CREATION}
            ensure_table(run.spark, discarded, from_ddl(run.spark, _DISCARDED_DDL), created)
            note |= {"why": why, "fingerprint": xor, "id_sum": total}
            # The first one creates the table.
            _append_next(locked, rows, discarded, count, note, max(version, 0))
        return int(count)


def _append_next(
    run: Run,
    rows: DataFrame,
    table: Table,
    count: int,
    note: Mapping[str, Any],
    version: int | None,
) -> None:
    """Append rows as the next batch of a table, in its current generation.

    ``version`` is the table's from before it was read to choose the rows. Where locks may be
    missing, only one append of rows chosen at a version is committed: a client of Spark Connect may
    have been killed, and its server have gone on.
    """
    last = last_commit(table)
    generation, batch = (last.generation, last.batch + 1) if last else (FIRST_GENERATION, 0)
    run.locks.step(f"append {count:,} rows to {table.name}")
    made = {**note, "generation": generation, "batch": batch}
    append(rows, table, made, chosen_at=version)
    if version is not None and not any(one.note == made for one in commits(table)):
        raise LockedError(f"{table.name} was written by another process meanwhile. Try again.")


def requeue_from(run: Run, rows: DataFrame, reason: Reason, version: int | None = None) -> int:
    """Requeue rows of a side table, and return their number; see :func:`as_requeued`.

    ``version`` is the requeue's from before it was read; by default the present one.
    """
    if version is None:
        version = newest_version(run.lake.requeue(run.pipeline.name))
    with CheckpointedFrames() as frames:
        chosen = frames.checkpoint(rows)
        expected = chosen.count()
        if not expected:
            return 0
        requeued = frames.checkpoint(as_requeued(run, chosen, reason))
        return requeue_rows(run, requeued, expected=expected, version=version)


def as_requeued(run: Run, rows: DataFrame, reason: Reason) -> DataFrame:
    """Return the bronze rows of a side table's rows, in the columns of the requeue.

    The rows have ``record_id`` and ``ingested_at``. ``requeued_at`` is later than all earlier ones.
    Bronze may hold a record more than once if two writers appended the same batch: each row of the
    side table is matched with one bronze row.
    """
    bronze = load(run.spark, run.lake.bronze(run.pipeline.name))
    if reach := span(rows, "ingested_at"):
        # Literal bounds let Delta skip the files of other days.
        bronze = bronze.where(between("ingested_at", reach))
    same = ["record_id", "ingested_at"]
    number = F.row_number().over(Window.partitionBy(*same).orderBy(F.lit(0))).alias("_number")
    matching = bronze.join(rows, on=same, how="left_semi").select("*", number)
    return (
        matching.join(rows.select(*same, number), on=[*same, "_number"], how="left_semi")
        .select(*BRONZE_COLUMNS)
        # One file, so that one batch of silver takes all of it.
        .coalesce(1)
        .withColumn("reason", F.lit(reason))
        .withColumn("requeued_at", F.lit(next_instant(run)))
    )


def requeue_rows(run: Run, rows: DataFrame, *, expected: int, version: int | None = None) -> int:
    """Append the rows of :func:`as_requeued` to the requeue, under silver's lock.

    Raises:
        TidelakeError: The number of rows is not the expected one; nothing was written.
    """
    count, (xor, total), reason, micros = rows.agg(
        F.count("*"), fingerprint(), F.first("reason"), F.max(F.unix_micros("requeued_at"))
    ).collect()[0]
    if count != expected:
        raise TidelakeError(
            f"{expected:,} rows were to be requeued, but bronze of {run.pipeline.name} holds "
            f"{count:,} of them. Nothing was requeued. "
            f"See the ledger with: {runnable('tidelake ledger', run.pipeline.name)}"
        )
    note = {
        "pipeline": run.pipeline.name,
        "hop": "requeue",
        "reason": reason,
        "requeued_at": to_json(from_micros(micros)),
        "records": expected,
        "fingerprint": xor,
        "id_sum": total,
    }
    _append_next(run, rows, run.lake.requeue(run.pipeline.name), expected, note, version)
    return expected


def requeue_again(run: Run, rows: DataFrame) -> None:
    """Append rows of an earlier version of the requeue to it, each record once."""
    with CheckpointedFrames() as frames:
        # They are read from the table that is appended to.
        once = frames.checkpoint(rows.dropDuplicates(["record_id"]))
        for reason, count in sorted(once.groupBy("reason").count().collect()):
            wanted = once.where(F.col("reason") == reason)
            # One file, as in as_requeued.
            wanted = wanted.coalesce(1).withColumn("requeued_at", F.lit(next_instant(run)))
            requeue_rows(run, wanted, expected=count)


def next_instant(run: Run) -> datetime:
    """Return the current time, after the last requeue and all that is in bronze."""
    lake, name = run.lake, run.pipeline.name
    stamps = ((lake.requeue(name), "requeued_at"), (lake.bronze(name), "ingested_at"))
    last = ((last_commit(table), stamp) for table, stamp in stamps)
    return max(now_after(commit.note.get(stamp) if commit else None) for commit, stamp in last)
