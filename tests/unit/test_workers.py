"""What Spark's Python workers do beside their task."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidelake.bronze.whole_files import to_chunks
from tidelake.config import FilesSource, load_environment, load_pipeline
from tidelake.silver.payloads import decoding
from tidelake.spark import workers


def test_a_task_with_a_function_waits_for_no_acknowledgement(spark: SparkSession) -> None:
    def transport(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            name = os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "")
            yield pa.RecordBatch.from_pydict({"name": [name]})

    rows = spark.range(1).mapInArrow(transport, "name string").collect()
    assert [row["name"].lower() for row in rows] == ["true"]


@pytest.mark.parametrize("what", ["files", "json", "csv"])
def test_a_worker_leaves_what_it_has_loaded_out_of_its_collections_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(1))
    workers.prepare_worker.cache_clear()
    payloads, layouts = pa.array([b"{}"]), pa.array([b""])
    pipeline = load_pipeline("clickstream", load_environment("local", root=str(tmp_path)))
    if what == "csv":
        source = FilesSource(kind="files", path=str(tmp_path), format="csv")
        pipeline = pipeline.model_copy(update={"source": source})
    for _ in range(2):
        if what == "files":
            list(to_chunks(lambda _: iter(()))([]))
        else:
            decoding(pipeline).func(payloads, *([layouts] if what == "csv" else []))
    assert calls == [1]
