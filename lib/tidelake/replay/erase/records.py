"""Find the records of bronze that are a subject's, and the neighbours that they stood in the way.

The definition decides, as it does for silver; where a payload's column cannot be had, its text
does. From then on record ids do.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.bronze import as_never_requeued
from tidelake.config import Pipeline
from tidelake.delta.access import load
from tidelake.delta.tables import Table
from tidelake.replay.erase.subject import EVENT_ID, Subject
from tidelake.replay.requeue import kept_in
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import remembered
from tidelake.silver.classify import FILTERED, REASONS, SELECTED, STAGE

WAS_FILTERED = "filtered"
_STORED = "_stored"


def find_records(run: Run, subject: Subject) -> DataFrame:
    """Find a subject's records in bronze.

    Returns:
        ``record_id``, ``ingested_at``, ``source`` and ``filtered``, whether the record lies outside
        the definition's ``where``; each record once.
    """
    bronze = read(run, run.lake.bronze(run.pipeline.name))
    # Whatever was refused once: what can be read now is read.
    schemas = remembered(run, stands=F.lit(False))
    rows = run.plan.judge(as_never_requeued(bronze), schemas)
    if subject.column == EVENT_ID:
        column = F.col(EVENT_ID)
    else:
        column = F.col(SELECTED).getField(subject.column)
    found = F.coalesce(_same(column, subject), _unreadable() & mentions(subject, run.pipeline))
    stored = _stored(run, subject)
    if stored is not None:
        rows = rows.join(F.broadcast(stored), on="record_id", how="left")
        found = F.coalesce(found, F.lit(False)) | F.coalesce(_STORED, F.lit(False))
    return rows.where(found).select(
        "record_id",
        "ingested_at",
        "source",
        F.coalesce(F.col(STAGE) == FILTERED, F.lit(False)).alias(WAS_FILTERED),
    )


def find_neighbours(run: Run, records: DataFrame) -> DataFrame:
    """Find conflicting duplicates of others whose event was taken before by one of the records.

    Without it they would have been accepted: one of them, by a recomputation, will be.

    Args:
        run: What the command works with.
        records: From :func:`find_records`.

    Returns:
        ``record_id`` and ``ingested_at``.
    """
    lake, name = run.lake, run.pipeline.name
    accepted = [
        read(run, table).select("record_id", EVENT_ID)
        for table in (lake.silver(name), lake.late(name))
    ]
    ids = records.select("record_id")
    events = reduce(DataFrame.unionByName, accepted).join(ids, on="record_id", how="left_semi")
    conflicts = kept_in(run, lake.quarantine(name)).where(F.col("stage") == "conflicting_duplicate")
    return (
        conflicts.join(events.select(EVENT_ID).distinct(), on=EVENT_ID, how="left_semi")
        .join(ids, on="record_id", how="left_anti")
        .select("record_id", "ingested_at")
        .distinct()
    )


def read(run: Run, table: Table) -> DataFrame:
    """Read a table as it is."""
    return load(run.spark, table)


def _same(column: Column, subject: Subject) -> Column:
    return column.cast("string") == F.lit(subject.value)


def _unreadable() -> Column:
    """Tell the rows whose columns may be null because the payload is broken."""
    broken = F.col(STAGE).isin("parse", "contract")
    # What lies outside `where` was not asked for more.
    return broken | ((F.col(STAGE) == FILTERED) & (F.size(REASONS) > 0))


def mentions(subject: Subject, pipeline: Pipeline) -> Column:
    """Tell whether a payload that cannot be read holds a subject's value as a whole word."""
    as_word = F.col("payload").cast("string").rlike(subject.pattern)
    if not pipeline.reads_avro:
        return as_word
    # What stands before and behind a text may look like a letter of it.
    return as_word | F.contains(F.col("payload"), F.lit(subject.avro))


def _stored(run: Run, subject: Subject) -> DataFrame | None:
    """Find what was decided under another definition and would not be found by today's."""
    lake, name = run.lake, run.pipeline.name
    tables = [table for table in (lake.silver(name), lake.late(name)) if table.exists]
    frames = [read(run, table) for table in tables]
    found = [
        frame.where(_same(F.col(subject.column), subject)).select("record_id")
        for frame in frames
        if subject.column in frame.columns
    ]
    if not found:
        return None
    once = reduce(DataFrame.unionByName, found).distinct()
    return once.withColumn(_STORED, F.lit(True))
