"""Small pipelines and bronze rows for tests; times are texts, read as UTC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.bronze.records import HEADERS_DDL
from tidelake.config import Environment, GoldTable, Pipeline, load_pipeline

_COUNTED = {
    "name": "counted",
    "window": {"kind": "global"},
    "keys": ["user_id"],
    "measures": {"events": {"count": "*"}},
}
# The sections of a pipeline of visitors, without its gold tables.
VISITORS: dict[str, Any] = {
    "name": "shop",
    "source": {"kind": "files", "path": "${root}/landing"},
    "event": {
        "schema": (
            "id STRING, at TIMESTAMP, who STRING, action STRING, n INT, money DECIMAL(18,2)"
        ),
        "select": {name: name for name in ("who", "action", "n", "money")},
        "id": "id",
        "time": "at",
    },
}
_SHOP: dict[str, Any] = {
    "name": "shop",
    "source": {"kind": "files", "path": "${root}/landing"},
    "event": {
        "schema": "event_id STRING, event_time TIMESTAMP, user_id STRING, value DECIMAL(18,2)",
        "select": {"user_id": "user_id", "value": "value"},
        "id": "event_id",
        "time": "event_time",
    },
    "gold": [_COUNTED],
}
_TEXTS = (
    "record_id string, payload binary, source string, ingested_at string, reason string, "
    "requeued_at string"
)


def shop(folder: Path, *, event: dict[str, Any] | None = None, **keys: Any) -> Pipeline:
    """Load a small pipeline; ``event`` is laid over its event, other keys replace its own."""
    content = {**_SHOP, **keys, "event": {**_SHOP["event"], **(event or {})}}
    file = folder / "shop.yml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return load_pipeline(str(file), Environment(name="local", root=folder))


def gold(folder: Path, **keys: Any) -> GoldTable:
    """Load a gold table that counts events, with some keys replaced."""
    return shop(folder, gold=[{**_COUNTED, **keys}]).gold[0]


def bronze(spark: SparkSession, rows: list[dict[str, str | bytes | None]]) -> DataFrame:
    """Make rows as silver reads them; each needs a ``record_id`` and a ``payload``."""
    default = {"source": "file", "ingested_at": "2024-01-01 12:00:00"}
    names = [part.split()[0] for part in _TEXTS.split(", ")]
    tuples = []
    for row in rows:
        full = {**default, **row}
        payload = full["payload"]
        full["payload"] = payload.encode() if isinstance(payload, str) else payload
        tuples.append(tuple(full.get(name) for name in names))
    texts = spark.createDataFrame(tuples, _TEXTS)
    return texts.select(
        "record_id",
        F.lit(None).cast("binary").alias("key"),
        "payload",
        F.lit(None).cast(HEADERS_DDL).alias("headers"),
        "source",
        F.lit(None).cast("timestamp").alias("source_timestamp"),
        F.col("ingested_at").cast("timestamp").alias("ingested_at"),
        F.to_date("ingested_at").alias("ingest_date"),
        "reason",
        F.col("requeued_at").cast("timestamp").alias("requeued_at"),
    )


def timed(spark: SparkSession, rows: list[tuple[Any, ...]], ddl: str) -> DataFrame:
    """Make a frame whose ``timestamp`` and ``date`` columns are written as text."""
    parts = [part.strip().split(" ", 1) for part in ddl.split(";")]
    kinds = {name: kind for name, kind in parts if kind in ("timestamp", "date")}
    texts = ", ".join(f"{name} {'string' if name in kinds else kind}" for name, kind in parts)
    return spark.createDataFrame(rows, texts).withColumns(
        {name: F.col(name).cast(kind) for name, kind in kinds.items()}
    )


def sql_types(pipeline: Pipeline) -> dict[str, str]:
    """Give the types of a pipeline's payload fields, as SQL, by name."""
    return {field.name: field.type.sql for field in pipeline.event.fields}
