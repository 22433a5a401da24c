"""Find a subject's records, count the rows that each table loses, and store the erasure.

As in silver, the pipeline's definition decides which records are a subject's; for a payload that
cannot be decoded, a text search does. All later steps use record ids; they are in :mod:`.erase`,
since one file would exceed 500 lines.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from typing import Literal

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.bronze.records import with_requeue_columns
from tidelake.config import Pipeline
from tidelake.csv_records import keeps_bytes
from tidelake.delta.access import load, read_parquet
from tidelake.delta.commit_metadata import (
    RECORDS,
    Arrival,
    Deduction,
    is_of_pipeline,
    pipeline_hash,
)
from tidelake.delta.tables import Lake, Table
from tidelake.errors import UsageError
from tidelake.fingerprints import contents, fingerprint
from tidelake.folders import remove_tree, write_whole
from tidelake.instants import from_micros
from tidelake.ledger.terms import read_ledger
from tidelake.replay.requeue import read_side
from tidelake.replay.subject import EVENT_ID, Subject, refuse_partial
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import stored_schemas
from tidelake.runtime.transformed_rows import same_rows
from tidelake.silver.stages import FILTERED, REASONS, SELECTED, STAGE

_WAS_FILTERED, _STORED = "filtered", "_stored"
# Whether a record is the subject's for sure, and whether only a stored row says so.
_SURE, _BY_ROW = "_sure", "_by_row"


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
        unclear: Number of records that mention the value, in their payload, key or headers, without
            having the column.
    """

    name: str
    subject: str
    definition: str
    rows: dict[str, int]
    arrivals: tuple[Arrival, ...]
    deductions: tuple[Deduction, ...]
    sources: tuple[str, ...]
    unclear: int = 0


def stored_ids(run: Run, of: Literal["records", "neighbours"]) -> DataFrame:
    """Read ``record_id`` and ``ingested_at``: records to erase, or neighbours to requeue."""
    folder = run.lake.erasure(run.pipeline.name).parent / of
    return read_parquet(run.spark, [folder], "record_id string, ingested_at timestamp")


def begin(run: Run, subject: Subject) -> tuple[Erasure | None, int]:
    """Find the subject's records and store the erasure; None if there are no records.

    Silver must have processed all of bronze. Writing the state file, last, begins the erasure.

    Returns:
        The erasure, and the number of records of which it is unclear whose they are.
    """
    with CheckpointedFrames() as frames:
        records, unclear = find_all(run, subject, frames)
        rows, arrivals = count_rows(run, records), _count_arrivals(run, records)
        if not arrivals:
            return None, unclear
        sources = records.select("source").distinct().orderBy("source").collect()
        begun = Erasure(
            name=datetime.now(UTC).isoformat(),
            subject=subject.hashed,
            definition=pipeline_hash(run.pipeline),
            rows=rows,
            arrivals=tuple(arrivals),
            deductions=tuple(_count_deductions(run, records, rows)),
            sources=tuple(row["source"] for row in sources),
            unclear=unclear,
        )
        neighbours = frames.checkpoint(_find_neighbours(run, records))
        run.locks.step("record which rows are erased")
        state = run.lake.erasure(run.pipeline.name)
        remove_tree(state.parent)
        for found, name in ((records, "records"), (neighbours, "neighbours")):
            ids = found.select("record_id", "ingested_at").coalesce(1)
            ids.write.parquet(str(state.parent / name))
        write_whole(state, msgspec.json.encode(begun).decode())
        return begun, unclear


def read_begun(run: Run, subject: Subject) -> Erasure | None:
    """Read the interrupted erasure, None if there is none.

    Raises:
        UsageError: It is of another subject, or the definition has changed since it began; or
            there is none, and the subject would not have all changes of a dimension's key.
    """
    state = run.lake.erasure(run.pipeline.name)
    if not state.exists():
        refuse_partial(subject, run.pipeline)
        return None
    begun = msgspec.json.decode(state.read_text(encoding="utf-8"), type=Erasure)
    if begun.subject != subject.hashed:
        raise UsageError(
            f"an erasure of another subject of {run.pipeline.name}, begun at {begun.name}, was "
            "interrupted. Finish that erasure first; its subject is not stored."
        )
    if not is_of_pipeline(begun.definition, run.pipeline):
        raise UsageError(
            f"the definition of {run.pipeline.name} changed after its erasure began. "
            "Restore the definition, finish the erasure, and change the definition then."
        )
    return begun


def end(run: Run) -> None:
    """Remove the stored erasure, the state file first, so that it counts as ended."""
    state = run.lake.erasure(run.pipeline.name)
    state.unlink()
    remove_tree(state.parent)


def find_all(run: Run, subject: Subject, frames: CheckpointedFrames) -> tuple[DataFrame, int]:
    """Find a subject's records in bronze, and count those of which it is unclear whose they are.

    Returns:
        ``record_id``, ``ingested_at``, ``source`` and ``filtered`` (whether the definition's
        ``where`` excludes the record); and the number of further records that mention the value
        and have no value in the column.

    Raises:
        UsageError: The subject would not have all changes of a dimension's key.
    """
    refuse_partial(subject, run.pipeline)
    found = frames.checkpoint(find_records(run, subject))
    sure = found.where(_SURE).drop(_SURE, _BY_ROW)
    if found.where(_BY_ROW).isEmpty():
        return sure, found.where(~F.col(_SURE)).count()
    copies = frames.checkpoint(_find_copies(run, found.where(_BY_ROW)))
    sure = sure.union(copies.join(sure, on="record_id", how="left_anti").select(*sure.columns))
    unclear = found.where(~F.col(_SURE)).join(copies, on="record_id", how="left_anti")
    return sure, unclear.count()


def find_records(run: Run, subject: Subject) -> DataFrame:
    """Find the records that may be a subject's, by bronze and by the rows of silver and late.

    Returns:
        ``record_id``, ``ingested_at``, ``source``, ``filtered``, ``_sure`` and ``_by_row``.
    """
    bronze = load(run.spark, run.lake.bronze(run.pipeline.name))
    # Request refused schemas again: some payloads may be decodable now.
    schemas = stored_schemas(run, still_refused=F.lit(False))
    records = with_requeue_columns(bronze)
    # A function that drops rows would hide records from the erasure.
    place = f"{run.pipeline.name}, erase"
    rows = same_rows(records, run.plan.judge(records, schemas), run.pipeline, None, place)
    is_id = subject.column == EVENT_ID
    column = F.col(EVENT_ID) if is_id else F.col(SELECTED).getField(subject.column)
    # Columns are null if the payload is broken; in rows that `where` excludes they may also not
    # have been computed.
    unreadable = F.col(STAGE).isin("parse", "contract") | (
        (F.col(STAGE) == FILTERED) & (F.size(REASONS) > 0)
    )
    mentioned = mentions(F.col("payload"), subject, run.pipeline)
    is_same = column.cast("string") == F.lit(subject.value)
    gave_row = F.coalesce(F.col(_STORED), F.lit(False))
    is_mentioned = mentioned | F.col(_STORED).isNotNull()
    is_sure = gave_row | F.coalesce(is_same, unreadable & is_mentioned, F.lit(False))
    return (
        rows.join(F.broadcast(_found_by_id(run, subject, bronze)), on="record_id", how="left")
        .where(is_sure | (is_same.isNull() & is_mentioned))
        .select(
            *("record_id", "ingested_at", "source"),
            F.col(STAGE).eqNullSafe(FILTERED).alias(_WAS_FILTERED),
            is_sure.alias(_SURE),
            (gave_row & is_same.isNull()).alias(_BY_ROW),
        )
    )


def mentions(content: Column, subject: Subject, pipeline: Pipeline) -> Column:
    """Return the condition that some bytes contain a subject's value as a whole word."""
    as_word = content.cast("string").rlike(subject.pattern)
    if pipeline.csv and keeps_bytes(pipeline.csv.encoding):
        # The payload has the bytes of its file. One that the encoding lacks is in no such file.
        with suppress(UnicodeEncodeError):
            written = subject.value.encode(pipeline.csv.encoding).decode("latin-1")
            pattern = replace(subject, value=written).pattern
            as_word |= F.decode(content, "ISO-8859-1").rlike(pattern)
    if pipeline.reads_avro:
        # In Avro, the bytes around a string may look like letters, so match its encoding too.
        as_word |= F.contains(content, F.lit(subject.avro))
    return F.coalesce(as_word, F.lit(False))


def _found_by_id(run: Run, subject: Subject, bronze: DataFrame) -> DataFrame:
    """Find records by the stored column of silver and late, and by their keys and headers.

    An earlier definition may have computed the column differently.

    Returns:
        ``record_id`` and ``_stored``; false if only the record's key or headers mention the value,
        which decides where its payload cannot be decoded.
    """
    lake, name = run.lake, run.pipeline.name
    is_same = F.col(subject.column).cast("string") == F.lit(subject.value)
    found = [
        rows.where(is_same).select("record_id", F.lit(True).alias(_STORED))
        for table in (lake.silver(name), lake.late(name))
        if table.exists and subject.column in (rows := load(run.spark, table)).columns
    ]

    def mentioned(content: Column) -> Column:
        return mentions(content, subject, run.pipeline)

    in_headers = F.exists("headers", lambda header: mentioned(header["value"]))
    beside = bronze.where(mentioned(F.col("key")) | in_headers)
    # A tombstone's key is Avro of a schema that is not known here.
    is_tombstone = F.lit(bool(run.pipeline.envelope) and run.pipeline.reads_avro)
    is_found = is_tombstone & F.col("payload").isNull() & mentioned(F.col("key"))
    found.append(beside.select("record_id", is_found.alias(_STORED)))
    return reduce(DataFrame.union, found).groupBy("record_id").agg(F.max(_STORED).alias(_STORED))


def _find_copies(run: Run, records: DataFrame) -> DataFrame:
    """Find the copies, by payload and key, of records that only a stored row ascribes to a subject.

    Their copies that are duplicates or were quarantined have no row in silver or late.
    """
    bronze = load(run.spark, run.lake.bronze(run.pipeline.name))
    rows = bronze.select("record_id", "ingested_at", "source", "key", "payload")
    known = rows.join(F.broadcast(records.select("record_id", _WAS_FILTERED)), on="record_id")
    known = known.select(
        *(F.col(name).alias(f"_{name}") for name in ("key", "payload")), _WAS_FILTERED
    ).dropDuplicates(["_key", "_payload"])
    is_same = F.col("key").eqNullSafe(F.col("_key")) & F.col("payload").eqNullSafe(
        F.col("_payload")
    )
    return rows.join(F.broadcast(known), on=is_same).drop("key", "payload", "_key", "_payload")


def _find_neighbours(run: Run, records: DataFrame) -> DataFrame:
    """Find other subjects' records that were quarantined as duplicates of an erased record.

    Without that record one of them would have been accepted; a recomputation would accept it.
    """
    lake, name = run.lake, run.pipeline.name
    accepted = (_rows_of(run, table, records) for table in (lake.silver(name), lake.late(name)))
    events = reduce(DataFrame.union, (rows.select(EVENT_ID) for rows in accepted)).distinct()
    return (
        conflicting(run)
        .join(events, on=EVENT_ID, how="left_semi")
        .join(records, on="record_id", how="left_anti")
        .select("record_id", "ingested_at")
        .distinct()
    )


def conflicting(run: Run) -> DataFrame:
    """Read quarantine's conflicting duplicates that were not requeued."""
    quarantined = read_side(run, run.lake.quarantine(run.pipeline.name))
    return quarantined.where(F.col("stage") == "conflicting_duplicate")


def tables_with_records(lake: Lake, name: str) -> list[Table]:
    """List the existing tables with record ids, bronze last."""
    known = (lake.requeue, lake.quarantine, lake.late, lake.discarded, lake.silver, lake.bronze)
    return [table for table in (named(name) for named in known) if table.exists]


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
    lost = {row["fate"]: row["count"] for row in without_row.groupBy(fate).count().collect()}
    filtered, duplicate = lost.get("filtered", 0), lost.get("duplicate", 0)
    # Under an earlier `where`, rows may have been duplicates that today's excludes.
    booked = read_ledger(lake, run.pipeline).fates
    moved = max(filtered - booked["filtered"], 0) - max(duplicate - booked["duplicate"], 0)
    fates = (("duplicate", duplicate + moved), ("filtered", filtered - moved))
    deductions += [Deduction("", -1, name, count, 0, 0) for name, count in fates if count]
    return deductions


def _rows_of(run: Run, table: Table, records: DataFrame) -> DataFrame:
    return load(run.spark, table).join(records, on="record_id", how="left_semi")
