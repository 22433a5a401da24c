"""A visits pipeline whose hops run on prepared tables, one commit a batch."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.stateful_data import cut, draw, land
from tidelake.config import Limits, load_environment, load_pipeline
from tidelake.delta.append import append
from tidelake.delta.commit_metadata import SilverNote
from tidelake.delta.log import commits
from tidelake.delta.tables import Lake, Table
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.schemas import create_silver, silver_schemas
from tidelake.silver.search_bounds import with_id_hash

NAME, MINUTES, SESSIONS = "visits", "user_minutes", "user_sessions"
# Smaller than any file, so that a batch reads one commit.
ONE_COMMIT = "1k"

_DEFINITION: dict[str, Any] = {
    "name": NAME,
    "event": {
        "schema": "event_id STRING, user_id STRING, event_time TIMESTAMP, action STRING, "
        "value DECIMAL(18,2)",
        "id": "event_id",
        "time": "event_time",
    },
    "watermark": {"delay": "10 minutes", "allowed_lateness": "1 day"},
}
_BASE = {"events": {"count": "*"}, "total": {"sum": "value"}}
_GOLD: dict[str, dict[str, Any]] = {
    MINUTES: {"window": {"kind": "tumbling", "size": "1 minute"}, "measures": _BASE},
    SESSIONS: {"window": {"kind": "session", "gap": "30 minutes"}, "measures": _BASE},
}


def land_batches(landing: Path, batches: int, rows: int, *, copies: float = 0.05) -> int:
    """Write one file for each batch, with ``rows`` lines each, a share of them duplicates.

    Returns:
        Number of distinct events.
    """
    rng = random.Random(7)
    fresh = draw(batches * rows)
    lines: list[bytes] = []
    taken = 0
    while len(lines) < batches * rows:
        if lines and rng.random() < copies:
            lines.append(lines[-rng.randrange(1, min(len(lines), 2 * rows) + 1)])
        else:
            lines.append(fresh[taken])
            taken += 1
    land(landing, "visits", cut(lines, rows))
    assert len({json.loads(line)["event_id"] for line in lines}) == taken
    return taken


def opened(
    spark: SparkSession,
    root: Path,
    landing: Path,
    *,
    gold: Sequence[str] = (MINUTES,),
    bytes_a_batch: str = ONE_COMMIT,
    files: int = 1,
    ttl: str = "1 hour",
) -> Run:
    """Return the context of a hop, on the tables under a root.

    Args:
        spark: The session.
        root: Root of the tables.
        landing: The landing folder; it may be empty.
        gold: Names of the gold tables.
        bytes_a_batch: Batch limit of silver and gold.
        files: Batch limit of bronze.
        ttl: TTL of deduplication.
    """
    root.mkdir(parents=True, exist_ok=True)
    landing.mkdir(exist_ok=True)
    tables = [{"name": name, "keys": ["user_id"], **_GOLD[name]} for name in gold]
    file = root / f"{NAME}.yml"
    text = json.dumps(
        {
            **_DEFINITION,
            "source": {"kind": "files", "path": "landing", "max_files_per_trigger": files},
            "dedup": {"ttl": ttl, "beyond_ttl": "ignore"},
            "gold": tables,
        }
    )
    file.write_text(yaml.safe_dump(json.loads(text), sort_keys=False), encoding="utf-8")
    limits = Limits(silver_bytes=bytes_a_batch, gold_bytes=bytes_a_batch)
    environment = load_environment("local", root=str(root)).model_copy(update={"limits": limits})
    pipeline = load_pipeline(str(file), environment, source=str(landing))
    return Run(spark, pipeline, Lake(root), environment, Progress(lambda line: None))


def append_silver(run: Run, rows: DataFrame, batch: int) -> None:
    """Append a batch to silver as the hop would, without deduplication, rules and lateness.

    Args:
        run: The context of the silver table, which is created with the first batch.
        rows: Some of silver's columns; the others are null.
        batch: Number of the batch, from 0.
    """
    stamp = {"pipeline": NAME, "hop": "silver", "generation": "g1"}
    if not batch:
        create_silver(run, {**stamp, "batch": -1})
    defaults = {"is_late": False, "_payload_hash": 0, "_generation": "g1", "_batch": batch}
    columns = [
        (F.col(field.name) if field.name in rows.columns else F.lit(defaults.get(field.name)))
        .cast(field.dataType)
        .alias(field.name)
        for field in silver_schemas(run.spark, run.plan)["silver"]
    ]
    note = {**stamp, "batch": batch, **SilverNote().to_json()}
    append(with_id_hash(rows.select(*columns)), run.lake.silver(NAME), note)


def version_of(table: Table) -> dict[int, int]:
    """Return the table version of each batch."""
    return {commit.batch: commit.version for commit in commits(table)}


def feed(source: Table, target: Table, until: int) -> None:
    """Copy the commits of a table, up to a version, to a second table.

    Data files are linked first; rows become visible with their commit. Checkpoints of the Delta
    log are left out: they would contain later versions.
    """
    source_path, target_path = Path(str(source.path)), Path(str(target.path))
    for file in sorted(source_path.rglob("*.parquet")):
        copy = target_path / file.relative_to(source_path)
        if "_delta_log" not in file.parts and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, copy)
    log = target_path / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    for file in sorted((source_path / "_delta_log").glob("*.json")):
        copy = log / file.name
        if int(file.stem) <= until and not copy.exists():
            shutil.copyfile(file, copy)
