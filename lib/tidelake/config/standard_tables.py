"""Columns and tables that every pipeline has: types and descriptions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tidelake.names import IS_DELETE, SEQUENCE


def _columns(ddl: str) -> dict[str, str]:
    """Parse ``name type, name type``; commas inside a type do not precede ``name type``."""
    parts = re.split(r",\s+(?=\w+ )", ddl.strip())
    return {name: kind for name, _, kind in (part.partition(" ") for part in parts)}


# Standard columns of bronze, silver, gold and the side tables.
STANDARD = _columns(
    """
    record_id STRING, key BINARY, payload BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>,
    source STRING, source_timestamp TIMESTAMP, ingested_at TIMESTAMP, ingest_date DATE,
    event_id STRING, event_time TIMESTAMP, event_date DATE, is_late BOOLEAN, watermark TIMESTAMP,
    lateness_seconds DOUBLE, reasons ARRAY<STRING>, stage STRING, window_start TIMESTAMP,
    window_end TIMESTAMP, session_id STRING, session_start TIMESTAMP, session_end TIMESTAMP,
    rule STRING, evidence STRING, valid_from TIMESTAMP, valid_to TIMESTAMP, is_current BOOLEAN
    """
)


def standard_types(names: Iterable[str]) -> dict[str, str | None]:
    """Return the types of some standard columns."""
    return {name: STANDARD[name] for name in names}


BOOKS_COLUMNS = _columns(
    """
    pipeline string, table_name string, hop string, generation string, batch bigint, version bigint,
    committed_at timestamp, rows bigint, watermark timestamp, taken map<string, bigint>,
    counts array<struct<fate: string, stage: string, origin: string, rows: bigint, fingerprint: bigint>>,
    note string
    """  # noqa: E501  a type is a line
)
# `final` maps each gold table to the time up to which its rows are final.
EPOCHS_COLUMNS = _columns(
    """
    pipeline string, epoch bigint, closed_at timestamp, watermark timestamp, generation string,
    batch bigint, versions map<string, bigint>, final map<string, timestamp>
    """
)
PROGRESS_COLUMNS = _columns(
    """
    pipeline string, hop string, generation string, batch bigint, run string, started_at timestamp,
    ended_at timestamp, seconds double, interval_seconds double, rows bigint,
    input_rows_per_second double, processed_rows_per_second double, phases map<string, bigint>,
    checkpoint_seconds double, state_rows bigint, state_bytes bigint, waiting bigint,
    lag_seconds double, watermark timestamp, event_time_lag_seconds double,
    watermark_age_seconds double, fates map<string, bigint>, limit bigint, error_class string,
    error string
    """
)
OPS_TABLES = {
    "ops.books": BOOKS_COLUMNS,
    "ops.epochs": EPOCHS_COLUMNS,
    "ops.progress": PROGRESS_COLUMNS,
}

# Descriptions of tables, by layer and side table or by name.
TABLES = {
    "bronze": "Every payload that arrived, byte for byte; rows are only appended.",
    "bronze__requeue": "Rows requeued to silver by late apply or quarantine replay.",
    "bronze__schemas": "Writer schemas of Avro records, with the registry's answer for each id.",
    "silver": "Accepted events, each once.",
    "silver__quarantine": "Rows that failed a check, byte for byte, with every reason.",
    "silver__late": "Events that were too late for silver, with the watermark that decided it.",
    "silver__discarded": "Quarantined rows that were discarded, with the reason.",
    "ops.books": "Metadata of each commit, kept longer than Delta's log.",
    "ops.progress": "Duration, rows and error of each batch of each hop, one row per batch.",
    "ops.epochs": "Versions of a pipeline's tables that are consistent with each other.",
}
# Descriptions of columns, by name; a pipeline's column may have such a name and another meaning.
COLUMNS = {
    "record_id": "Origin of the record: file and line, or topic, partition and offset.",
    "key": "The record's key; null where the source has none.",
    "payload": "The record's bytes, unchanged.",
    "headers": "The record's headers; null where the source has none.",
    "source": "The file or topic of the record.",
    "source_timestamp": "When the record was written, according to the source (UTC).",
    "ingested_at": "When the record arrived in bronze (UTC); never decreases.",
    "ingest_date": "The day of the arrival (UTC).",
    "reason": "Reason for the requeue.",
    "requeued_at": "When the row was requeued (UTC).",
    "event_id": "The event's id.",
    "event_time": "When the event happened (UTC).",
    "event_date": "The day on which the event happened (UTC).",
    "is_late": "Whether the event was behind the watermark, within the allowed lateness.",
    "watermark": "The watermark in effect (UTC).",
    "lateness_seconds": "How far the event was behind the watermark, in seconds.",
    "reasons": "Every check of the stage that the row failed.",
    "stage": "The stage at which the row failed.",
    "why": "Reason for discarding the row.",
    "discarded_at": "When the row was discarded (UTC).",
    "window_start": "Where the window begins (UTC); included.",
    "window_end": "Where the window ends (UTC); not included.",
    "session_id": "Names the session: a hash of its keys and its start.",
    "session_start": "The session's first event (UTC).",
    "session_end": "The session's last event so far (UTC).",
    "rule": "The rule that was broken.",
    "evidence": "The values that the rule compared, as JSON.",
    "valid_from": "When the version begins (UTC); included.",
    "valid_to": "When the version ends (UTC); not included, null if it is current.",
    "is_current": "Whether the version is current.",
    "pipeline": "The pipeline's name.",
    "table_name": "The table that the commit belongs to.",
    "hop": "The hop: bronze, silver or gold.",
    "generation": "The generation of the hop.",
    "batch": "The micro-batch, from 0; -1 for the creation of the table.",
    "version": "The table's version that the commit created.",
    "committed_at": "When it was committed (UTC).",
    "rows": "Rows that the commit wrote; in ops.progress, rows that the hop read.",
    "taken": "Rows that the batch read, by input.",
    "counts": "Rows by fate, stage and origin, with a fingerprint of their record ids.",
    "note": "The commit's metadata, as JSON.",
    "epoch": "Number of the epoch, counted per pipeline.",
    "closed_at": "When the epoch was determined (UTC).",
    "versions": "The version of each table.",
    "final": "Up to when the rows of each gold table are final.",
    "schema_id": "The id by which records refer to the schema.",
    "schema": "The schema's text.",
    "refusal": "Why rows of the schema are not read; null where they are.",
    "refused_through": "The last arrival whose rows were refused (UTC).",
    "found_at": "When the schema was looked up (UTC).",
    "run": "The run: one process from start to end.",
    "started_at": "When the batch began (UTC).",
    "ended_at": "When the batch ended (UTC).",
    "seconds": "Seconds from the batch's start to its end.",
    "interval_seconds": "The trigger interval in seconds; null without one.",
    "input_rows_per_second": "Rows that arrived per second since the previous batch began.",
    "processed_rows_per_second": "Rows processed per second.",
    "phases": "Milliseconds by phase, in Spark's names.",
    "checkpoint_seconds": "Seconds of the writes into the checkpoint.",
    "state_rows": "Accepted ids that silver compared with; null for bronze and gold.",
    "state_bytes": "Bytes of Spark's state store; null without dedup.prefilter: operator.",
    "waiting": "Input that waits for the hop: rows, for bronze files or records.",
    "lag_seconds": "How long the oldest waiting input has waited, in seconds.",
    "event_time_lag_seconds": "How far the watermark was behind the end of the batch, in seconds.",
    "watermark_age_seconds": "Seconds since the watermark last advanced.",
    "fates": "Rows of a batch of silver by their fate.",
    "limit": "Maximum input of the batch, in the hop's own unit.",
    "error_class": "Class of the error that stopped the hop; null for a committed batch.",
    "error": "The error's type and condition, without values; of Tidelake's errors the first line.",
    "_generation": "The generation that wrote the row.",
    "_batch": "The micro-batch that wrote the row.",
    "_payload_hash": "A hash of the payload: distinguishes a copy from a conflict.",
    "_id_hash": "A hash of event_id, by which events are found before their ids are compared.",
    "_requeued_at": "When the row was requeued (UTC); null for a first arrival.",
    "_rescued_data": "Payload fields that the schema does not know, as JSON.",
    "_left": "The left event's record id.",
    "_left_time": "When the left event happened (UTC).",
    "_right": "The matching event's record id; null without a match.",
    "_right_time": "When the matching event happened (UTC); null without a match.",
    "_record": "The event's record id.",
    "_change": "The record id of the change that set the row.",
    "_changed_at": "When the change happened (UTC).",
    SEQUENCE: "Orders the changes of a key.",
    IS_DELETE: "Whether the change deletes its key.",
}
