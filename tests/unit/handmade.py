"""Delta logs and checkpoints written by hand, so that a test needs neither Spark nor seconds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import reduce
from hashlib import md5
from operator import xor
from pathlib import Path
from typing import Any

import duckdb
from deltalake import CommitProperties, write_deltalake

from tidelake.config.standard_tables import PROGRESS_COLUMNS
from tidelake.delta.log import encode
from tidelake.delta.tables import Lake, Table
from tidelake.ops.metrics import Measured

# 2024-01-01 00:00:00 UTC, in milliseconds.
NEW_YEAR = 1_704_067_200_000
# A pipeline with one table of totals.
SHOP: dict[str, Any] = {
    "name": "shop",
    "source": {"kind": "files", "path": "${root}/landing"},
    "event": {
        "schema": "event_id STRING, event_time TIMESTAMP, user_id STRING",
        "id": "event_id",
        "time": "event_time",
    },
    "gold": [
        {
            "name": "totals",
            "window": {"kind": "global"},
            "keys": ["user_id"],
            "measures": {"events": {"count": "*"}},
        }
    ],
}


def write_commit(
    table: Table,
    version: int,
    *,
    note: dict[str, Any] | None = None,
    metadata: str | None = None,
    rows: int | None = None,
    adds: Sequence[tuple[int, bool]] = (),
    operation: str = "WRITE",
    parameters: dict[str, Any] | None = None,
    second: float | None = None,
    table_id: str | None = None,
) -> None:
    """Write one commit file, by default a second after the one before.

    ``adds`` holds (rows, dataChange) of each file that it adds, ``second`` when it is written,
    from the new year on, ``table_id`` the id that it gives the table.
    """
    written = NEW_YEAR + int(1000 * (version if second is None else second))
    info: dict[str, Any] = {"timestamp": written, "operation": operation}
    if parameters is not None:
        info["operationParameters"] = parameters
    if note is not None:
        info["userMetadata"] = encode(note)
    if metadata is not None:
        info["userMetadata"] = metadata
    if rows is not None:
        info["operationMetrics"] = {"numOutputRows": str(rows)}
    actions: list[dict[str, Any]] = [{"commitInfo": info}]
    if table_id is not None:
        actions.append({"metaData": {"id": table_id}})
    for number, (records, changes) in enumerate(adds):
        stats = json.dumps({"numRecords": records})
        path = f"part-{version}-{number}.parquet"
        size = 100 * records
        add = {"path": path, "dataChange": changes, "stats": stats, "size": size}
        actions.append({"add": add})
    log = table.path / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(action) + "\n" for action in actions)
    (log / f"{version:020}.json").write_text(text, encoding="utf-8")


def write_rows(table: Table, sql: str, *, note: dict[str, Any], rows: int | None = None) -> None:
    """Append what a DuckDB query gives, for real; ``rows`` is what Delta says of it if not that."""
    with duckdb.connect() as connection:
        found = connection.sql(sql)
        counted = len(found.fetchall()) if rows is None else rows
        metadata = {"userMetadata": encode(note)}
        write_deltalake(
            str(table.path),
            connection.sql(sql),
            mode="append",
            commit_properties=CommitProperties(custom_metadata=metadata),
        )
    file = max((table.path / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for action in actions:
        if "commitInfo" in action:
            # Spark's name for it; the deltalake package has another.
            action["commitInfo"]["operationMetrics"] = {"numOutputRows": str(counted)}
    file.write_text("".join(json.dumps(action) + "\n" for action in actions), encoding="utf-8")


def write_measures(lake: Lake, measures: Iterable[Measured]) -> None:
    """Write rows of ``ops.progress``."""
    kinds = {"map<string, bigint>": "MAP(VARCHAR, BIGINT)", "timestamp": "TIMESTAMPTZ"}
    rows = " UNION ALL ".join(
        "SELECT "
        + ", ".join(
            f"{_literal(value)}::{kinds.get(PROGRESS_COLUMNS[name], PROGRESS_COLUMNS[name])} "
            f'AS "{name}"'
            for name, value in asdict(one).items()
        )
        for one in measures
    )
    write_rows(lake.progress(), rows, note={"generation": "g1", "batch": 0})


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        pairs = ", ".join(f"'{name}': {number}" for name, number in value.items())
        return f"MAP {{{pairs}}}"
    if value is None:
        return "NULL"
    return "'" + str(value).replace("'", "''") + "'"


def fingerprint_of(ids: Iterable[str]) -> int:
    """Compute the exclusive or of record ids in the ledger: of 60 bits of each MD5."""
    return reduce(xor, map(_number_of, ids), 0)


def sum_of(ids: Iterable[str]) -> int:
    """Compute the sum of record ids in the ledger: of the same bits, modulo 2^64 and signed."""
    total: int = sum(map(_number_of, ids)) % (1 << 64)
    return total - (1 << 64) if total >> 63 else total


def _number_of(record_id: str) -> int:
    return int(md5(record_id.encode()).hexdigest()[:15], 16)


def write_batches(table: Table, newest: int, *, generation: str = "g1") -> None:
    """Give a table the commit that made it and one for each batch up to the newest."""
    for version, batch in enumerate(range(-1, newest + 1)):
        write_commit(table, version, note={"generation": generation, "batch": batch})


def write_checkpoint(checkpoint: Path, *, planned: int, committed: int) -> None:
    """Write a checkpoint's offsets and commits up to two batches; -1 for none."""
    # Offsets have a line for each input; this one has no data yet.
    for folder, newest, text in (
        ("offsets", planned, "v1\n{}\n-"),
        ("commits", committed, "v1\n{}"),
    ):
        (checkpoint / folder).mkdir(parents=True, exist_ok=True)
        for batch in range(newest + 1):
            (checkpoint / folder / str(batch)).write_text(text, encoding="utf-8")


def write_offset(checkpoint: Path, batch: int, *offsets: dict[str, Any] | None) -> None:
    """Write the offset log of one batch, an offset for each input; None before its first row."""
    own = [json.dumps(offset) if offset else "-" for offset in offsets]
    lines = ["v1", '{"batchWatermarkMs":0}', *own]
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(lines), encoding="utf-8")
