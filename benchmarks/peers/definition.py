"""Tidelake's definition of the pipeline that every side runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pyspark.sql import SparkSession

from tidelake.config import Limits, load_environment, load_pipeline
from tidelake.delta.tables import Lake
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Observer, Progress

NAME, MINUTES = "clicks", "user_minutes"
_DEFINITION: dict[str, Any] = {
    "name": NAME,
    "source": {"kind": "files", "path": "landing"},
    "event": {
        "schema": "event_id STRING, user_id STRING, event_time TIMESTAMP, action STRING, "
        "product_id STRING, value DECIMAL(18,2)",
        "select": {
            "user_id": "user_id",
            "action": "lower(action)",
            "product_id": "product_id",
            "value": "value",
        },
        "id": "event_id",
        "time": "event_time",
    },
    "watermark": {"delay": "10 minutes", "allowed_lateness": "1 day"},
    "dedup": {"ttl": "1 hour"},
    "gold": [
        {
            "name": MINUTES,
            "window": {"kind": "tumbling", "size": "1 minute"},
            "keys": ["user_id"],
            "measures": {"events": {"count": "*"}, "total": {"sum": "value"}},
        }
    ],
}


def run_in(
    spark: SparkSession,
    root: Path,
    *,
    batch_files: int = 5,
    batch_bytes: str = "20m",
    ttl: str = "1 hour",
    observer: Observer | None = None,
) -> Run:
    """Return the context of a run, on a root that also contains the landing folder.

    Args:
        spark: The session.
        root: Root of the tables.
        batch_files: Files a batch of bronze.
        batch_bytes: Compressed input bytes a batch of silver or gold.
        ttl: TTL of deduplication.
        observer: Notified of hops and batches.
    """
    file = root / f"{NAME}.yml"
    source = {**_DEFINITION["source"], "max_files_per_trigger": batch_files}
    definition = {**_DEFINITION, "source": source, "dedup": {"ttl": ttl}}
    file.write_text(yaml.safe_dump(definition, sort_keys=False), encoding="utf-8")
    environment = load_environment("local", root=str(root)).model_copy(
        update={"limits": Limits(silver_bytes=batch_bytes, gold_bytes=batch_bytes)}
    )
    pipeline = load_pipeline(str(file), environment, source=str(root / "landing"))
    progress = Progress(lambda line: None)
    if observer is not None:
        progress = Progress(progress.say, observer)
    return Run(spark, pipeline, Lake(root), environment, progress)
