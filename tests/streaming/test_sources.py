"""The sources other than files: Delta tables and the rate source."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tests.running import land, read, run
from tests.worlds import TO_SILVER
from tidelake.bronze.records import read_stream
from tidelake.config import DeltaSource, Environment, FilesSource, load_pipeline
from tidelake.delta.tables import Lake
from tidelake.ledger.terms import read_ledger

_PIPELINE = """
name: other
source: {source}
event:
  schema: "{schema}"
  id: {id}
  time: "{time}"
watermark: {{max_future_skew: 1 hour}}
gold:
  - name: other_total
    window: {{kind: tumbling, size: 1 day}}
    measures: {{events: {{count: "*"}}}}
"""


def _write(tmp_path: Path, **parts: str) -> str:
    file = tmp_path / "other.yml"
    file.write_text(_PIPELINE.format(**parts), encoding="utf-8")
    return str(file)


def test_a_delta_table_is_a_source_whose_rows_become_json(
    spark: SparkSession, environment: Environment, lake: Lake, tmp_path: Path
) -> None:
    source = tmp_path / "orders"
    rows = spark.sql(
        "SELECT concat('o', id) AS id, timestamp'2026-01-05 10:00:00Z' AS at, "
        "cast(id AS decimal(10,2)) AS price FROM range(3)"
    )
    rows.coalesce(1).write.format("delta").save(str(source))
    file = _write(
        tmp_path,
        source=f"{{kind: delta, path: {source}}}",
        schema="id STRING, at TIMESTAMP, price DECIMAL(10,2)",
        id="id",
        time="at",
    )
    pipeline = load_pipeline(file, environment)
    run(spark, environment, pipeline, hops=TO_SILVER)
    rows.coalesce(1).write.format("delta").mode("append").save(str(source))
    run(spark, environment, pipeline, hops=TO_SILVER)

    told = read_ledger(lake, pipeline).to_json()
    assert (told["bronze"], told["silver"], told["duplicates"]) == (6, 3, 3)
    assert told["balanced"]
    payloads = [json.loads(bytes(row[0])) for row in read(lake, "bronze.other", "payload")]
    assert payloads[0] == {"id": "o0", "at": "2026-01-05T10:00:00.000Z", "price": 0.0}
    assert len({row[0] for row in read(lake, "bronze.other", "record_id")}) == 6


def test_the_rate_source_counts_on_from_run_to_run(
    spark: SparkSession, environment: Environment, lake: Lake, tmp_path: Path
) -> None:
    file = _write(
        tmp_path,
        source="{kind: rate, rows_per_second: 50}",
        schema="timestamp TIMESTAMP, value BIGINT",
        id="record_id",
        time="timestamp",
    )
    pipeline = load_pipeline(file, environment)
    for _ in range(2):
        run(spark, environment, pipeline, hops=TO_SILVER)
    values = sorted(row[0] for row in read(lake, "silver.other", "value"))
    assert values == list(range(len(values)))
    assert read_ledger(lake, pipeline).balanced


@pytest.mark.parametrize(
    ("kind", "limit", "taken"),
    [
        ("files", {"max_bytes_per_trigger": "1k"}, [1, 1, 1, 1]),
        ("files", {"max_bytes_per_trigger": "7k"}, [2, 2]),
        ("files", {"max_files_per_trigger": 3}, [3, 1]),
        ("files", {}, [4]),
        ("delta", {"max_bytes_per_trigger": "1k"}, [1, 1, 1, 1]),
        ("delta", {"max_bytes_per_trigger": "1g", "max_files_per_trigger": 3}, [3, 1]),
    ],
)
def test_a_batch_takes_so_many_files_or_bytes_and_its_first_file_whole(
    spark: SparkSession, tmp_path: Path, kind: str, limit: dict[str, Any], taken: list[int]
) -> None:
    folder = tmp_path / "in"
    for number in range(4):
        line = random.Random(number).randbytes(1500).hex()
        if kind == "files":
            land(folder, f"{number}.jsonl", [line.encode()])
        else:
            write_deltalake(str(folder), duckdb.sql(f"SELECT '{line}' AS text"), mode="append")
    told = {"kind": kind, "path": str(folder), **limit}
    source = (FilesSource if kind == "files" else DeltaSource).model_validate(told)
    query = (
        read_stream(spark, source)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = [one["numInputRows"] for one in query.recentProgress]
    assert [count for count in rows if count] == taken
