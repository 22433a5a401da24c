"""Columns and tables that every pipeline has: types and descriptions."""

from __future__ import annotations

import re

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
    "bronze": "Every payload that arrived, byte for byte; only ever added to.",
    "bronze__requeue": "Rows sent into silver once more, by late apply or quarantine replay.",
    "bronze__schemas": "The schemas that writers of Avro used, and what was found of each.",
    "silver": "Accepted events, each once.",
    "silver__quarantine": "Rows that broke a rule, byte for byte, with every reason.",
    "silver__late": "Events that came too late for silver, with the watermark that made them so.",
    "silver__discarded": "Quarantined rows that somebody gave up, and why.",
    "ops.books": "What each commit says of itself, kept longer than Delta's log.",
    "ops.progress": "How each batch of each hop went, one row a batch.",
    "ops.epochs": "Which versions of a pipeline's tables belong together.",
}
# Descriptions of columns, by name; a pipeline's column may have such a name and another meaning.
COLUMNS = {
    "record_id": "Where the record came from: file and line, or topic, partition and offset.",
    "key": "The record's key; null where the source has none.",
    "payload": "The record's very bytes.",
    "headers": "The record's headers; null where the source has none.",
    "source": "The file or topic that it came from.",
    "source_timestamp": "When the source says that it was written (UTC).",
    "ingested_at": "When it arrived in bronze (UTC); never goes back.",
    "ingest_date": "The day of its arrival (UTC).",
    "reason": "Reason for the requeue.",
    "requeued_at": "When it was requeued (UTC).",
    "event_id": "The event's id.",
    "event_time": "When it happened (UTC).",
    "event_date": "The day on which it happened (UTC).",
    "is_late": "Whether it came behind the watermark, within the allowed lateness.",
    "watermark": "The watermark at that time (UTC).",
    "lateness_seconds": "How far behind the watermark it came, in seconds.",
    "reasons": "Every rule that it broke.",
    "stage": "Where it failed.",
    "why": "Reason for discarding the row.",
    "discarded_at": "When it was discarded (UTC).",
    "window_start": "Where the window begins (UTC); included.",
    "window_end": "Where the window ends (UTC); not included.",
    "session_id": "Names the session: a hash of its keys and its start.",
    "session_start": "The session's first event (UTC).",
    "session_end": "The session's last event so far (UTC).",
    "rule": "The rule that was broken.",
    "evidence": "What the rule saw, as JSON.",
    "valid_from": "From when on the version holds (UTC); included.",
    "valid_to": "Until when it held (UTC); not included, null while it holds.",
    "is_current": "Whether the version holds now.",
    "pipeline": "The pipeline's name.",
    "table_name": "The table that the commit belongs to.",
    "hop": "The hop that wrote it: bronze, silver or gold.",
    "generation": "The generation of the hop.",
    "batch": "The micro-batch, from 0; -1 made the table.",
    "version": "The table's version that the commit made.",
    "committed_at": "When it was committed (UTC).",
    "rows": "Rows that it wrote.",
    "taken": "Rows that it took, by input.",
    "counts": "Rows by fate, stage and origin, with a fingerprint of their record ids.",
    "note": "The commit's note, as JSON.",
    "epoch": "Counts up, each pipeline for itself.",
    "closed_at": "When the epoch was found (UTC).",
    "versions": "The version of each table.",
    "final": "Up to when the rows of each gold table are final.",
    "schema_id": "Under which number records name the schema.",
    "schema": "The schema's text.",
    "refusal": "Why rows of the schema are not read; null where they are.",
    "refused_through": "Up to which arrival its rows were refused (UTC).",
    "found_at": "When it was looked up (UTC).",
    "run": "The run that did it: one process from start to end.",
    "started_at": "When the batch began (UTC).",
    "ended_at": "When the batch was over (UTC).",
    "seconds": "From the one to the other.",
    "interval_seconds": "How long a batch may take; null in a run that ends by itself.",
    "input_rows_per_second": "Rows that came in a second, since the batch before began.",
    "processed_rows_per_second": "Rows that were worked on in a second.",
    "phases": "Milliseconds by phase, in Spark's names.",
    "checkpoint_seconds": "What the writes into the checkpoint took.",
    "state_rows": "Accepted ids that silver compared with; null for bronze and gold.",
    "state_bytes": "Bytes of Spark's state store; null without dedup.prefilter: operator.",
    "waiting": "What waits for the hop: rows, for bronze files or records.",
    "lag_seconds": "How long the oldest of it has waited.",
    "event_time_lag_seconds": "How far the watermark trails the end of the batch.",
    "watermark_age_seconds": "How long ago the watermark last moved.",
    "fates": "Rows of a batch of silver by their fate.",
    "limit": "What the batch took at most, in the hop's own unit.",
    "error_class": "What stopped the hop, by its kind; null for a batch that was closed.",
    "error": "Its kind and condition, without values; of Tidelake's own errors the first line.",
    "_generation": "The generation that wrote the row.",
    "_batch": "The micro-batch that wrote the row.",
    "_payload_hash": "A hash of the payload: distinguishes a copy from a conflict.",
    "_id_hash": "A hash of event_id: events are looked for by it before their ids are compared.",
    "_requeued_at": "When the row had been requeued (UTC); null for a first arrival.",
    "_rescued_data": "Payload fields that the schema does not know, as JSON.",
    "_left": "The left event's record id.",
    "_left_time": "When the left event happened (UTC).",
    "_right": "The matching event's record id; null without a match.",
    "_right_time": "When the matching event happened (UTC); null without a match.",
    "_record": "The event's record id.",
    "_change": "The record id of the change that the row follows from.",
    "_changed_at": "When the change happened (UTC).",
    SEQUENCE: "Orders the changes of a key.",
    IS_DELETE: "Whether the change deletes its key.",
}
