"""Decide all of bronze anew, as one batch, in the place of what silver holds."""

from __future__ import annotations

from tidelake.bronze import REQUEUE_DDL, as_never_requeued
from tidelake.delta.access import load
from tidelake.delta.append import ensure_table
from tidelake.delta.log import CREATION, newest_version
from tidelake.delta.notes import SilverNote
from tidelake.delta.positions import Position
from tidelake.replay.beginning import begin, offsets_of
from tidelake.replay.rebuild_gold import FIRST
from tidelake.replay.stays import Stays
from tidelake.runtime.held import Held
from tidelake.runtime.hop import Run
from tidelake.runtime.prefilter import Recovered
from tidelake.runtime.schemas import create_silver, from_ddl
from tidelake.runtime.silver import BatchContext, silver_batch
from tidelake.spark.engine import fitted


def rebuild_silver(run: Run, generation: str, stays: Stays | None = None) -> None:
    """Replace silver, quarantine and late by what follows from bronze as it is now.

    Bronze is read as a table, not commit by commit: its oldest files and commits may be gone.
    Nothing is late, and what was requeued is in bronze and asks no more.

    Args:
        run: What the command works with; tables beside bronze that do not exist are made.
        generation: The new one, which goes on after that.
        stays: What is not decided anew; None: nothing.
    """
    lake, name = run.lake, run.pipeline.name
    bronze, requeue = lake.bronze(name), lake.requeue(name)
    note = {"pipeline": name, "generation": generation, "batch": CREATION}
    spark = run.spark
    run.locks.step(f"create the tables of {name} that are not there")
    ensure_table(spark, requeue, from_ddl(spark, REQUEUE_DDL), {**note, "hop": "requeue"})
    create_silver(run, {**note, "hop": "silver"})
    version = newest_version(bronze)
    rows = load(spark, bronze, version=version)
    run.locks.step(f"empty {requeue.name}")
    spark.sql(f"DELETE FROM {requeue.sql}")
    until: dict[str, Position] = {
        "bronze": (version + 1, -1),
        "requeue": (newest_version(requeue) + 1, -1),
    }
    inputs = {"bronze": bronze, "requeue": requeue}
    begin(run, "silver", generation, FIRST, offsets_of(run, inputs, until))
    count = rows.count()
    with fitted(spark, count), Held() as keep:
        context = BatchContext(
            run,
            generation,
            FIRST,
            SilverNote(),
            until,
            {"bronze": count, "requeue": 0},
            keep,
            rebuilds=True,
            stored=stays.kept if stays else None,
        )
        undecided = stays.others(rows) if stays else rows
        counted = stays.counted() if stays else []
        silver_batch(Recovered(as_never_requeued(undecided), counted, None), context)
