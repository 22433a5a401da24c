"""Find a subject's records, count the rows that each table loses, and store the erasure.

As in silver, the pipeline's definition decides which records are a subject's; for a payload that
cannot be decoded, a text search does. All later steps use record ids.
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
from tidelake.runtime.schemas import stored_schemas
from tidelake.silver.classify import FILTERED, REASONS, SELECTED, STAGE

_WAS_FILTERED, _STORED = "filtered", "_stored"
_RECORDS, _NEIGHBOURS = "records", "neighbours"


@dataclass(frozen=True)
class Erasure:
    """An erasure in progress, as stored between its steps, without values of any row.

    Attributes:
        name: The instant at which it began (ISO 8601).
        subject: A hash of the subject.
        definition: A hash of the definition by which the records were found.
        rows: Number of rows that tables lose, by logical name.
        arrivals: The rows that bronze loses, by arrival.
        deductions: The rows that silver's batches lose, lost fates without a row, and the records.
        sources: The files or topics of the records.
        folder: The folder that stores it, with the record ids.
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
    """Find the subject's records and store the erasure; None if there are no records.

    Silver must have processed all of bronze. Writing the state file, last, begins the erasure.
    """
    with CheckpointedFrames() as frames:
        records = frames.checkpoint(find_records(run, subject))
        rows, arrivals = count_rows(run, records), _count_arrivals(run, records)
        if not arrivals:
            return None
        deductions = _count_deductions(run, records, rows)
        sources = records.select("source").distinct().orderBy("source").collect()
        neighbours = frames.checkpoint(_find_neighbours(run, records))
        stored = {
            "name": datetime.now(UTC).isoformat(),
            "subject": subject.hashed,
            "definition": hash_of(run.pipeline),
            "rows": rows,
            "arrivals": [[one.ingested_at.isoformat(), *one[1:]] for one in arrivals],
            "deductions": [list(one) for one in deductions],
            "sources": [row["source"] for row in sources],
        }
        run.locks.step("record which rows are erased")
        state = run.lake.erasure(run.pipeline.name)
        folder = state.parent
        remove_tree(folder)
        for found, name in ((records, _RECORDS), (neighbours, _NEIGHBOURS)):
            ids = found.select("record_id", "ingested_at").coalesce(1)
            ids.write.parquet(str(folder / name))
        write_whole(state, json.dumps(stored, indent=1))
        return _read(folder, stored)


def read_begun(run: Run, subject: Subject) -> Erasure | None:
    """Read the interrupted erasure, None if there is none.

    Raises:
        UsageError: It is of another subject, or the definition has changed since it began.
    """
    state = run.lake.erasure(run.pipeline.name)
    if not state.exists():
        return None
    begun = _read(state.parent, json.loads(state.read_text(encoding="utf-8")))
    if begun.subject != subject.hashed:
        raise UsageError(
            f"an erasure of another subject of {run.pipeline.name}, begun at {begun.name}, was "
            "interrupted. Finish that erasure first; its subject is not stored."
        )
    if begun.definition != hash_of(run.pipeline):
        raise UsageError(
            f"the definition of {run.pipeline.name} changed after its erasure began. "
            "Restore the definition, finish the erasure, and change the definition then."
        )
    return begun


def end(run: Run, begun: Erasure) -> None:
    """Remove a stored erasure, the state file first, so that it counts as ended."""
    run.lake.erasure(run.pipeline.name).unlink()
    remove_tree(begun.folder)


def _read(folder: Folder, stored: dict[str, Any]) -> Erasure:
    arrivals = (Arrival(datetime.fromisoformat(at), *rest) for at, *rest in stored["arrivals"])
    parsed = {
        "arrivals": tuple(arrivals),
        "deductions": tuple(Deduction(*one) for one in stored["deductions"]),
        "sources": tuple(stored["sources"]),
    }
    return Erasure(**stored | parsed, folder=folder)


def find_records(run: Run, subject: Subject) -> DataFrame:
    """Find a subject's records in bronze.

    Returns:
        ``record_id``, ``ingested_at``, ``source`` and ``filtered``: whether the definition's
        ``where`` excludes the record.
    """
    bronze = load(run.spark, run.lake.bronze(run.pipeline.name))
    # Request refused schemas again: some payloads may be decodable now.
    schemas = stored_schemas(run, still_refused=F.lit(False))
    rows = run.plan.judge(as_never_requeued(bronze), schemas)
    if subject.column == EVENT_ID:
        column = F.col(EVENT_ID)
    else:
        column = F.col(SELECTED).getField(subject.column)
    # Columns are null if the payload is broken; in rows that `where` excludes they may also not
    # have been computed.
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
    """Return the condition that a raw payload contains a subject's value as a whole word."""
    as_word = F.col("payload").cast("string").rlike(subject.pattern)
    if not pipeline.reads_avro:
        return as_word
    # In Avro, the bytes around a string may look like letters, so match its encoding too.
    return as_word | F.contains(F.col("payload"), F.lit(subject.avro))


def _stored(run: Run, subject: Subject) -> DataFrame | None:
    """Find records by the stored column of silver and late.

    An earlier definition may have computed it differently.
    """
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
    """Find other subjects' records that were quarantined as duplicates of an erased record.

    Without that record one of them would have been accepted; a recomputation would accept it.
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
    """Read quarantine's conflicting duplicates that were not requeued."""
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
    """Count the rows of the given records in each table with record ids."""
    tables = tables_with_records(run.lake, run.pipeline.name)
    return {table.name: _rows_of(run, table, records).count() for table in reversed(tables)}


def _count_arrivals(run: Run, records: DataFrame) -> list[Arrival]:
    """Count the rows that bronze loses, by arrival."""
    found = (
        _rows_of(run, run.lake.bronze(run.pipeline.name), records)
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
    """Count the rows that silver's batches lose, the records, and lost fates without a row."""
    lake, name = run.lake, run.pipeline.name
    silver, quarantine, late = lake.silver(name), lake.quarantine(name), lake.late(name)
    deductions = [
        Deduction(generation, batch, fate, count, *ids)
        for fate, table in (("silver", silver), ("quarantined", quarantine), ("late", late))
        if rows[table.name]
        for generation, batch, count, ids in _rows_of(run, table, records)
        .groupBy("_generation", "_batch")
        .agg(F.count("*"), fingerprint())
        .orderBy("_generation", "_batch")
        .collect()
    ]
    total, ids = records.agg(F.count("*"), fingerprint()).collect()[0]
    deductions.append(Deduction("", -1, RECORDS, total, *ids))
    frames = load(run.spark, silver), read_side(run, quarantine), read_side(run, late)
    with_row = reduce(DataFrame.unionByName, [one.select("record_id") for one in frames])
    fate = F.when(F.col(_WAS_FILTERED), "filtered").otherwise("duplicate").alias("fate")
    without_row = records.join(with_row, on="record_id", how="left_anti")
    found = without_row.groupBy(fate).count().orderBy("fate").collect()
    return [*deductions, *[Deduction("", -1, name, count, 0, 0) for name, count in found]]


def _rows_of(run: Run, table: Table, records: DataFrame) -> DataFrame:
    ids = records.select("record_id")
    return load(run.spark, table).join(ids, on="record_id", how="left_semi")
