"""Send rows of a side table into silver once more, each at most once at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from tidelake.config.names import BRONZE_COLUMNS
from tidelake.delta.access import load, rows_that_came
from tidelake.delta.append import append
from tidelake.delta.locks import hold_hops
from tidelake.delta.log import last_commit
from tidelake.delta.notes import position
from tidelake.delta.positions import Position
from tidelake.delta.tables import Table
from tidelake.errors import TidelakeError, UsageError
from tidelake.fingerprints import fingerprint
from tidelake.instants import from_json, from_micros
from tidelake.ops.side import closed_batch, still_there, unless_discarded
from tidelake.replay.views import query_over
from tidelake.runtime.hop import Run

Reason = Literal["late", "quarantine"]


def waiting(run: Run, side: Table) -> DataFrame:
    """Read the rows of a side table that are still there and that nobody gave up."""
    return _over_side(run, side, unless_discarded(_there(run, side), _discarded(run)))


def kept_in(run: Run, side: Table) -> DataFrame:
    """Read the rows of a side table that are still there, given up or not."""
    return _over_side(run, side, _there(run, side))


def _there(run: Run, side: Table) -> str:
    lake, name = run.lake, run.pipeline.name
    return still_there(side, lake.requeue(name), closed_batch(lake, name))


def _discarded(run: Run) -> Table:
    return run.lake.discarded(run.pipeline.name)


def _over_side(run: Run, side: Table, query: str) -> DataFrame:
    requeue, discarded = run.lake.requeue(run.pipeline.name), _discarded(run)
    frames = {table: load(run.spark, table) for table in (side, requeue, discarded) if table.exists}
    return query_over(run.spark, query, frames)


@contextmanager
def holding_silver(run: Run, command: str) -> Iterator[Run]:
    """Keep silver to ourselves while its side tables are read and its input grows.

    Args:
        run: What the command works with.
        command: The command, to be typed again where its lock is lost.

    Yields:
        The same with the lock.

    Raises:
        UsageError: The pipeline has not run under this root.
        LockedError: A run of silver holds the hop.
    """
    name = run.pipeline.name
    if not run.lake.silver(name).exists:
        raise UsageError(f"silver.{name} does not exist yet. Fill it with: tidelake run {name}")
    again = f"tidelake {command} {name}"
    with hold_hops(run.lake, name, ["silver"], command=again) as locks:
        yield replace(run, locks=locks)


def as_requeued(run: Run, rows: DataFrame, reason: Reason) -> DataFrame:
    """Find rows of a side table in bronze, in the shape in which silver takes them again.

    Bronze may hold a record more than once, where two writers appended one batch: each row of the
    side table is matched with one of bronze.

    Args:
        run: What the command works with.
        rows: With ``record_id`` and ``ingested_at``.
        reason: Why they are sent.

    Returns:
        Bronze's columns with ``reason`` and ``requeued_at``, later than every one before.
    """
    name = run.pipeline.name
    reach = rows.agg(
        F.min(F.unix_micros("ingested_at")), F.max(F.unix_micros("ingested_at"))
    ).collect()[0]
    first, last = from_micros(reach[0]), from_micros(reach[1])
    bronze = load(run.spark, run.lake.bronze(name))
    if first is not None and last is not None:
        # Literals, so that Delta skips the files of other days.
        bronze = bronze.where(F.col("ingested_at").between(F.lit(first), F.lit(last)))
    same = ("record_id", "ingested_at")
    number = F.row_number().over(Window.partitionBy(*same).orderBy(F.lit(0))).alias("_number")
    theirs = bronze.join(rows, on=list(same), how="left_semi").select("*", number)
    return (
        theirs.join(rows.select(*same, number), on=[*same, "_number"], how="left_semi")
        .select(*BRONZE_COLUMNS)
        # One file, which a batch of silver takes whole.
        .coalesce(1)
        .withColumn("reason", F.lit(reason))
        .withColumn("requeued_at", F.lit(_now(run)))
    )


def requeued_after(run: Run, version: int, silver_version: int | None) -> DataFrame:
    """Read the rows of the requeue that a version of silver had not taken.

    Args:
        run: What the command works with.
        version: Of the requeue; what came later is left out.
        silver_version: Of silver; None: silver was not there.
    """
    lake, name = run.lake, run.pipeline.name
    last = None if silver_version is None else last_commit(lake.silver(name), up_to=silver_version)
    return requeued_between(run, position(last, "requeue"), (version + 1, -1))


def requeued_between(run: Run, after: Position, until: Position) -> DataFrame:
    """Read the rows that were requeued between two positions of the requeue."""
    requeue = run.lake.requeue(run.pipeline.name)
    rows = rows_that_came(run.spark, requeue, after, until)
    return load(run.spark, requeue).limit(0) if rows is None else rows


def send_again(run: Run, rows: DataFrame) -> int:
    """Append rows of an earlier version of the requeue to it once more.

    Args:
        run: What the command works with; it holds silver's lock.
        rows: Kept rows of the requeue; of several for one record, one is sent.

    Returns:
        How many rows were sent.
    """
    once = rows.dropDuplicates(["record_id"])
    counts = {row["reason"]: row["count"] for row in once.groupBy("reason").count().collect()}
    for reason, count in sorted(counts.items()):
        wanted = once.where(F.col("reason") == reason)
        send(run, wanted.withColumn("requeued_at", F.lit(_now(run))), expected=count)
    return sum(counts.values())


def send(run: Run, rows: DataFrame, *, expected: int) -> int:
    """Append rows to the requeue; the next run of silver takes them in.

    Args:
        run: What the command works with; it holds silver's lock.
        rows: From :func:`as_requeued`.
        expected: How many they must be.

    Raises:
        TidelakeError: Bronze lacks some of them; nothing was written.
    """
    found = rows.agg(
        F.count("*").alias("rows"),
        fingerprint().alias("fingerprint"),
        F.first("reason").alias("reason"),
        F.max(F.unix_micros("requeued_at")).alias("at"),
    ).collect()[0]
    if found["rows"] != expected:
        raise TidelakeError(
            f"{expected:,} rows were to be sent again, bronze.{run.pipeline.name} holds "
            f"{found['rows']:,} of them. Nothing was requeued. "
            f"See the books with: tidelake ledger {run.pipeline.name}"
        )
    if not expected:
        return 0
    requeue = run.lake.requeue(run.pipeline.name)
    last = last_commit(requeue)
    at = from_micros(found["at"])
    note = {
        "pipeline": run.pipeline.name,
        "hop": "requeue",
        "generation": last.generation if last else "g1",
        "batch": last.batch + 1 if last else 0,
        "reason": found["reason"],
        "requeued_at": at.isoformat() if at else None,
        "records": expected,
        "fingerprint": found["fingerprint"]["xor"],
        "id_sum": found["fingerprint"]["total"],
    }
    run.locks.step(f"append {expected:,} rows to {requeue.name}")
    append(rows, requeue, note)
    return expected


def _now(run: Run) -> datetime:
    """Take the present moment, or just after the last requeue when the clock went back."""
    now = datetime.now(UTC)
    last = last_commit(run.lake.requeue(run.pipeline.name))
    before = from_json(last.note.get("requeued_at")) if last else None
    return now if before is None else max(now, before + timedelta(microseconds=1))
