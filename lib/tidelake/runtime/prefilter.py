"""Account for what the prefilter held back: in the books as copies, or back into the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.bronze import as_never_requeued
from tidelake.delta.access import rows_that_came
from tidelake.delta.log import last_commit
from tidelake.delta.notes import FRESH, SilverNote
from tidelake.delta.positions import Position
from tidelake.delta.tables import Table
from tidelake.errors import GenerationError, UsageError
from tidelake.fingerprints import fingerprint
from tidelake.instants import from_micros
from tidelake.runtime.checkpoints import Fence
from tidelake.runtime.held import Held
from tidelake.runtime.hop import Run
from tidelake.silver.classify import ORIGIN, PAYLOAD_HASH, STAGE
from tidelake.silver.driver_dedup import DUPLICATE
from tidelake.silver.prefilter import copies_of, held_back
from tidelake.silver.route import FATE
from tidelake.silver.watermark import partition_of
from tidelake.spark.engine import REFUSED, runs_batches_here
from tidelake.spark.tuning import STATE_SETTINGS


def refuse_other_prefilter(table: Table, fence: Fence, *, wanted: bool) -> None:
    """Stop where the checkpoint holds the prefilter's state and needs none, or the reverse."""
    last = last_commit(table)
    if last is None or last.batch < 0:
        return
    had = SilverNote.of(last).prefiltered is not None
    if had == wanted:
        return
    if wanted:
        raise GenerationError(
            "dedup.prefilter is operator now, and was none in the batches of the checkpoint",
            "Set it back to none, or begin with it on a new --root.",
        )
    raise fence.refusal(
        "dedup.prefilter is none now, and was operator in the batches of the checkpoint"
    )


def prepare_state(spark: SparkSession) -> None:
    """Give the session the settings that the operator's state needs; a UsageError if refused."""
    refused = UsageError(
        "dedup.prefilter: operator needs settings of the session that this compute refuses. "
        "Set it to none."
    )
    if not runs_batches_here():
        raise refused
    try:
        for key, value in STATE_SETTINGS.items():
            spark.conf.set(key, value)
    except REFUSED as error:
        raise refused from error


@dataclass(frozen=True)
class Recovered:
    """A batch with what its prefilter held back.

    Attributes:
        rows: What goes the ordinary way: survivors, and held back rows that are no sure copies.
        copies: Counts of the sure copies, in the shape of a count by fate.
        held_back: How many rows the operator dropped; None where there is none.
        judged: Whether the rows come from :func:`tidelake.silver.classify.classify`.
    """

    rows: DataFrame
    copies: list[dict[str, Any]]
    held_back: int | None
    judged: bool = False


def recover(
    run: Run,
    survivors: DataFrame,
    accepted: DataFrame,
    between: tuple[Position, Position],
    hold: Held,
) -> Recovered:
    """Find out what became of each row of bronze that the batch took.

    Args:
        run: What the hop works with.
        survivors: The batch as the stream gives it; held, since it must not run twice.
        accepted: Silver and late as the last closed batch left them.
        between: The batch's positions in bronze.
        hold: Keeps a frame that is read more than once.
    """
    pipeline = run.pipeline
    bronze = run.lake.bronze(pipeline.name)
    taken = rows_that_came(survivors.sparkSession, bronze, *between)
    if taken is None:
        return Recovered(survivors, [], 0)
    missing = hold(held_back(taken, survivors.where(F.col("requeued_at").isNull())))
    reach = missing.agg(F.count("*"), F.min(F.unix_micros("ingested_at"))).collect()[0]
    first = from_micros(reach[1])
    if first is None:
        return Recovered(survivors, [], 0)
    since = F.lit(first - pipeline.dedup.ttl)
    known = accepted.where(F.col("ingested_at") >= since)
    known = known.select("event_id", PAYLOAD_HASH, "ingested_at")
    copies = hold(copies_of(missing, known, pipeline))
    groups = (
        copies.groupBy(partition_of(pipeline.source).alias("partition"))
        .agg(
            F.count("*").alias("rows"),
            fingerprint().alias("fingerprint"),
            F.max(F.unix_micros("ingested_at")).alias("last"),
        )
        .collect()
    )
    counted = [
        {**row.asDict(), FATE: DUPLICATE, STAGE: None, ORIGIN: FRESH, "newest": None}
        for row in groups
    ]
    back = missing.join(copies.select("record_id"), on="record_id", how="left_anti")
    ordinary = as_never_requeued(back.select(*taken.columns))
    return Recovered(survivors.unionByName(ordinary), counted, int(reach[0]))
