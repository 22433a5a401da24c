"""The columns of the tables that all pipelines share, each with its type in Spark."""

from __future__ import annotations

BOOKS_COLUMNS = {
    "pipeline": "string",
    "table_name": "string",
    "hop": "string",
    "generation": "string",
    "batch": "bigint",
    "version": "bigint",
    "committed_at": "timestamp",
    "rows": "bigint",
    "watermark": "timestamp",
    "taken": "map<string, bigint>",
    "counts": (
        "array<struct<fate: string, stage: string, origin: string, rows: bigint, "
        "fingerprint: bigint>>"
    ),
    "note": "string",
}
EPOCHS_COLUMNS = {
    "pipeline": "string",
    "epoch": "bigint",
    "closed_at": "timestamp",
    "watermark": "timestamp",
    "generation": "string",
    "batch": "bigint",
    "versions": "map<string, bigint>",
    # By gold table, up to when rows are final.
    "final": "map<string, timestamp>",
}
PROGRESS_COLUMNS = {
    "pipeline": "string",
    "hop": "string",
    "generation": "string",
    "batch": "bigint",
    "run": "string",
    "started_at": "timestamp",
    "ended_at": "timestamp",
    "seconds": "double",
    "interval_seconds": "double",
    "rows": "bigint",
    "input_rows_per_second": "double",
    "processed_rows_per_second": "double",
    "phases": "map<string, bigint>",
    "checkpoint_seconds": "double",
    "state_rows": "bigint",
    "state_bytes": "bigint",
    "waiting": "bigint",
    "lag_seconds": "double",
    "watermark": "timestamp",
    "event_time_lag_seconds": "double",
    "watermark_age_seconds": "double",
    "fates": "map<string, bigint>",
    "limit": "bigint",
    "error_class": "string",
    "error": "string",
}
OPS_TABLES = {
    "ops.books": BOOKS_COLUMNS,
    "ops.epochs": EPOCHS_COLUMNS,
    "ops.progress": PROGRESS_COLUMNS,
}
