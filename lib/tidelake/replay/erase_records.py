"""Find a subject's records, count what tables lose with them, and store the erasure.

As in silver, the definition decides which records are a subject's; where a payload cannot be
decoded, its text does. All later steps go by record ids.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.bronze import as_never_requeued
from tidelake.config import Pipeline
from tidelake.delta.access import load
from tidelake.delta.notes import RECORDS, Arrival, Deduction, hash_of
from tidelake.delta.tables import Lake, Table
from tidelake.errors import UsageError
from tidelake.fingerprints import contents, fingerprint
from tidelake.folders import Folder, remove_tree, write_whole
from tidelake.instants import from_micros
from tidelake.replay.requeue import read_side
from tidelake.replay.subject import EVENT_ID, Subject
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import remembered
from tidelake.silver.classify import FILTERED, REASONS, SELECTED, STAGE

_WAS_FILTERED, _STORED = "filtered", "_stored"
_RECORDS, _NEIGHBOURS = "records", "neighbours"


@dataclass(frozen=True)
class Erasure:
    """An erasure that has begun, as it is stored between its steps, with no value of any row.

    Attributes:
        name: The instant at which it began.
        subject: A hash of the subject.
        definition: A hash of the definition that found the records.
        rows: Number of rows that tables lose, by logical name.
        arrivals: The rows that bronze loses.
        deductions: The rows that silver's batches lose, fates without a row, and the records.
        sources: The files or topics of the records.
        folder: Where it is stored, with the record ids.
    """

    name: str
    subject: str
    definition: str
    rows: dict[str, int]
    arrivals: tuple[Arrival, ...]
    deductions: tuple[Deduction, ...]
    sources: tuple[str, ...]
    folder: Folder

    def records(self, run: Run) -> DataFrame:
        """Read ``record_id`` and ``ingested_at`` of the erased records."""
        return run.spark.read.parquet(str(self.folder / _RECORDS))

    def neighbours(self, run: Run) -> DataFrame:
        """Read ``record_id`` and ``ingested_at`` of the neighbours to requeue."""
        return run.spark.read.parquet(str(self.folder / _NEIGHBOURS))


def begin(run: Run, subject: Subject) -> Erasure | None:
    """Find the subject's records and store the erasure; None where there are no records.

    Silver must have taken all of bronze. The file written last makes the erasure begin.
    """
    with CheckpointedFrames() as frames:
        records = frames.checkpoint(find_records(run, subject))
        rows, arrivals = count_rows(run, records), _count_arrivals(run, records)
        if not arrivals:
            return None
        deductions = _count_deductions(run, records, rows)
        sources = records.select("source").distinct().orderBy("source").collect()
        neighbours = frames.checkpoint(_find_neighbours(run, records))
        told = {
            "name": datetime.now(UTC).isoformat(),
            "subject": subject.hashed,
            "definition": hash_of(run.pipeline),
            "rows": rows,
            "arrivals": [[one.ingested_at.isoformat(), *one[1:]] for one in arrivals],
            "deductions": [list(one) for one in deductions],
            "sources": [row["source"] for row in sources],
        }
        run.locks.step("note the records that are erased")
        state = run.lake.erasure(run.pipeline.name)
        folder = state.parent
        remove_tree(folder)
        for found, name in ((records, _RECORDS), (neighbours, _NEIGHBOURS)):
            ids = found.select("record_id", "ingested_at").coalesce(1)
            ids.write.parquet(str(folder / name))
        write_whole(state, json.dumps(told, indent=1))
        return _read(folder, told)


def read_begun(run: Run, subject: Subject) -> Erasure | None:
    """Read the interrupted erasure, if there is one.

    Raises:
        UsageError: It is of another subject, or the definition has changed since.
    """
    state = run.lake.erasure(run.pipeline.name)
    if not state.exists():
        return None
    begun = _read(state.parent, json.loads(state.read_text(encoding="utf-8")))
    if begun.subject != subject.hashed:
        raise UsageError(
            f"an erasure of another subject of {run.pipeline.name} was interrupted at some point "
            f"after {begun.name}. Go on with that one first; its subject is not written down."
        )
    if begun.definition != hash_of(run.pipeline):
        raise UsageError(
            f"the definition of {run.pipeline.name} is not the one under which its erasure began. "
            "Restore it, erase again, and change it then."
        )
    return begun


def end(run: Run, begun: Erasure) -> None:
    """Remove a stored erasure, first the file that makes it begin."""
    run.lake.erasure(run.pipeline.name).unlink()
    remove_tree(begun.folder)


def _read(folder: Folder, told: dict[str, Any]) -> Erasure:
    arrivals = (Arrival(datetime.fromisoformat(at), *rest) for at, *rest in told["arrivals"])
    parsed = {
        "arrivals": tuple(arrivals),
        "deductions": tuple(Deduction(*one) for one in told["deductions"]),
        "sources": tuple(told["sources"]),
    }
    return Erasure(**told | parsed, folder=folder)


def find_records(run: Run, subject: Subject) -> DataFrame:
    """Find a subject's records in bronze.

    Returns:
        ``record_id``, ``ingested_at``, ``source`` and ``filtered``: whether the record is outside
        of the definition's ``where``.
    """
    bronze = load(run.spark, run.lake.bronze(run.pipeline.name))
    # Schemas that were refused before are requested again, to decode what can be decoded now.
    schemas = remembered(run, stands=F.lit(False))
    rows = run.plan.judge(as_never_requeued(bronze), schemas)
    if subject.column == EVENT_ID:
        column = F.col(EVENT_ID)
    else:
        column = F.col(SELECTED).getField(subject.column)
    # Columns may be null because the payload is broken; those of rows outside of `where` also
    # because they were not computed.
    unreadable = F.col(STAGE).isin("parse", "contract") | (
        (F.col(STAGE) == FILTERED) & (F.size(REASONS) > 0)
    )
    is_same = column.cast("string") == F.lit(subject.value)
    found = F.coalesce(is_same, unreadable & mentions(subject, run.pipeline))
    stored = _stored(run, subject)
    if stored is not None:
        rows = rows.join(F.broadcast(stored), on="record_id", how="left")
        found = F.coalesce(found, F.lit(False)) | F.coalesce(_STORED, F.lit(False))
    return rows.where(found).select(
        "record_id",
        "ingested_at",
        "source",
        F.coalesce(F.col(STAGE) == FILTERED, F.lit(False)).alias(_WAS_FILTERED),
    )


def mentions(subject: Subject, pipeline: Pipeline) -> Column:
    """Return whether a payload that cannot be decoded has a subject's value as a whole word."""
    as_word = F.col("payload").cast("string").rlike(subject.pattern)
    if not pipeline.reads_avro:
        return as_word
    # In Avro, the bytes before and after a text may look like letters.
    return as_word | F.contains(F.col("payload"), F.lit(subject.avro))


def _stored(run: Run, subject: Subject) -> DataFrame | None:
    """Find records by silver's and late's stored column, which an earlier definition computed."""
    lake, name = run.lake, run.pipeline.name
    frames = [load(run.spark, one) for one in (lake.silver(name), lake.late(name)) if one.exists]
    is_same = F.col(subject.column).cast("string") == F.lit(subject.value)
    found = [
        frame.where(is_same).select("record_id")
        for frame in frames
        if subject.column in frame.columns
    ]
    if not found:
        return None
    once = reduce(DataFrame.unionByName, found).distinct()
    return once.withColumn(_STORED, F.lit(True))


def _find_neighbours(run: Run, records: DataFrame) -> DataFrame:
    """Find conflicting duplicates of other subjects, whose event one of the records had taken.

    Without that record one of them would have been accepted, as a recomputation would.
    """
    lake, name = run.lake, run.pipeline.name
    accepted = [
        load(run.spark, table).select("record_id", EVENT_ID)
        for table in (lake.silver(name), lake.late(name))
    ]
    ids = records.select("record_id")
    events = reduce(DataFrame.unionByName, accepted).join(ids, on="record_id", how="left_semi")
    return (
        conflicting(run)
        .join(events.select(EVENT_ID).distinct(), on=EVENT_ID, how="left_semi")
        .join(ids, on="record_id", how="left_anti")
        .select("record_id", "ingested_at")
        .distinct()
    )


def conflicting(run: Run) -> DataFrame:
    """Read the conflicting duplicates that are still in quarantine."""
    quarantined = read_side(run, run.lake.quarantine(run.pipeline.name))
    return quarantined.where(F.col("stage") == "conflicting_duplicate")


def tables_with_records(lake: Lake, name: str) -> list[Table]:
    """List the existing tables with record ids, bronze last."""
    known = [
        lake.requeue(name),
        lake.quarantine(name),
        lake.late(name),
        lake.discarded(name),
        lake.silver(name),
        lake.bronze(name),
    ]
    return [table for table in known if table.exists]


def count_rows(run: Run, records: DataFrame) -> dict[str, int]:
    """Count the rows of some records in each table with record ids."""
    tables = tables_with_records(run.lake, run.pipeline.name)
    return {table.name: _of(run, table, records).count() for table in reversed(tables)}


def _count_arrivals(run: Run, records: DataFrame) -> list[Arrival]:
    """Count the rows that bronze loses, by arrival."""
    found = (
        _of(run, run.lake.bronze(run.pipeline.name), records)
        .groupBy(F.unix_micros("ingested_at").alias("at"))
        .agg(F.count("*"), fingerprint(), contents())
        .orderBy("at")
        .collect()
    )
    return [
        Arrival(at, rows, ids["xor"], whole["xor"], ids["total"], whole["total"])
        for micros, rows, ids, whole in found
        if (at := from_micros(micros)) is not None
    ]


def _count_deductions(run: Run, records: DataFrame, rows: dict[str, int]) -> list[Deduction]:
    """Count the rows that silver's batches lose, the records, and the fates without a row."""
    lake, name = run.lake, run.pipeline.name
    silver, quarantine, late = lake.silver(name), lake.quarantine(name), lake.late(name)
    deductions = [
        Deduction(generation, batch, fate, count, *ids)
        for fate, table in (("silver", silver), ("quarantined", quarantine), ("late", late))
        if rows[table.name]
        for generation, batch, count, ids in _of(run, table, records)
        .groupBy("_generation", "_batch")
        .agg(F.count("*"), fingerprint())
        .orderBy("_generation", "_batch")
        .collect()
    ]
    total, ids = records.agg(F.count("*"), fingerprint()).collect()[0]
    deductions.append(Deduction("", -1, RECORDS, total, *ids))
    frames = load(run.spark, silver), read_side(run, quarantine), read_side(run, late)
    somewhere = reduce(DataFrame.unionByName, [one.select("record_id") for one in frames])
    fate = F.when(F.col(_WAS_FILTERED), "filtered").otherwise("duplicate").alias("fate")
    nowhere = records.join(somewhere, on="record_id", how="left_anti")
    found = nowhere.groupBy(fate).count().orderBy("fate").collect()
    return [*deductions, *[Deduction("", -1, name, count, 0, 0) for name, count in found]]


def _of(run: Run, table: Table, records: DataFrame) -> DataFrame:
    ids = records.select("record_id")
    return load(run.spark, table).join(ids, on="record_id", how="left_semi")
