"""Delta logs and checkpoints written by hand, so that a test needs neither Spark nor seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidelake.sinks.commits import encode
from tidelake.tables import Table

# 2024-01-01 00:00:00 UTC, in milliseconds.
NEW_YEAR = 1_704_067_200_000


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
) -> None:
    """Write one commit file; ``adds`` holds (rows, dataChange) of each file that it adds."""
    info: dict[str, Any] = {"timestamp": NEW_YEAR + version * 1000, "operation": operation}
    if parameters is not None:
        info["operationParameters"] = parameters
    if note is not None:
        info["userMetadata"] = encode(note)
    if metadata is not None:
        info["userMetadata"] = metadata
    if rows is not None:
        info["operationMetrics"] = {"numOutputRows": str(rows)}
    actions: list[dict[str, Any]] = [{"commitInfo": info}]
    for number, (records, changes) in enumerate(adds):
        stats = json.dumps({"numRecords": records})
        path = f"part-{version}-{number}.parquet"
        actions.append({"add": {"path": path, "dataChange": changes, "stats": stats}})
    log = table.path / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(action) + "\n" for action in actions)
    (log / f"{version:020}.json").write_text(text, encoding="utf-8")


def write_batches(table: Table, newest: int, *, generation: str = "g1") -> None:
    """Give a table the commit that made it and one for each batch up to the newest."""
    for version, batch in enumerate(range(-1, newest + 1)):
        write_commit(table, version, note={"generation": generation, "batch": batch})


def write_checkpoint(checkpoint: Path, *, planned: int, committed: int) -> None:
    """Write a checkpoint's offsets and commits up to two batches; -1 for none."""
    for folder, newest in (("offsets", planned), ("commits", committed)):
        (checkpoint / folder).mkdir(parents=True, exist_ok=True)
        for batch in range(newest + 1):
            (checkpoint / folder / str(batch)).write_text("v1\n{}\n", encoding="utf-8")


def write_offset(checkpoint: Path, batch: int, *offsets: dict[str, Any]) -> None:
    """Write the offset log of one batch, an offset for each input."""
    lines = ["v1", '{"batchWatermarkMs":0}', *[json.dumps(offset) for offset in offsets]]
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(lines), encoding="utf-8")
