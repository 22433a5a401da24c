"""The sources other than files: Delta tables and the rate source."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tests.catalogs import a_catalog
from tests.running import land, read, run
from tests.stores import Store
from tests.worlds import TO_SILVER
from tidelake.bronze.records import read_stream
from tidelake.config import DeltaSource, Environment, FilesSource, Pipeline, load_pipeline
from tidelake.delta.access import load
from tidelake.delta.tables import Lake, lake_of
from tidelake.errors import GenerationError, RefusedError, SourceChangedError, SourceError
from tidelake.ledger.history import offered_files
from tidelake.ledger.terms import read_ledger
from tidelake.replay.repairing import repair
from tidelake.runtime.hop import Run
from tidelake.runtime.landed_files import list_files
from tidelake.runtime.progress import Progress

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
        "SELECT concat('o', id) AS id, timestamp'2026-01-05 10:00:00.123456Z' AS at, "
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
    assert payloads[0] == {"id": "o0", "at": "2026-01-05T10:00:00.123456Z", "price": 0.0}
    assert len({row[0] for row in read(lake, "bronze.other", "record_id")}) == 6

    # Delta asks for a new query, with which it fails again.
    writer = rows.selectExpr("id", "at", "cast(price AS string) AS price").coalesce(1).write
    writer.format("delta").mode("overwrite").option("overwriteSchema", True).save(str(source))
    why = "other, hop bronze: the schema of a table that it reads changed .* with another --root"
    with pytest.raises(RefusedError, match=why):
        run(spark, environment, pipeline, hops=["bronze"])
    assert read(lake, "bronze.other", "count(*)") == [(6,)]


@pytest.mark.long
def test_a_table_of_a_catalog_is_a_source_and_a_missing_one_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    def defined(table: str) -> Pipeline:
        source = f"{{kind: delta, table: {table}}}"
        parts = {"schema": "id STRING, at TIMESTAMP", "id": "id", "time": "at"}
        return load_pipeline(_write(tmp_path, source=source, **parts), environment)

    rows = spark.sql(
        "SELECT concat('o', id) AS id, timestamp'2026-01-05 10:00:00Z' AS at FROM range(3)"
    )
    with a_catalog(spark, tmp_path) as environment:
        spark.sql(f"CREATE SCHEMA landed LOCATION '{tmp_path / 'landed'}'")
        try:
            rows.write.format("delta").saveAsTable("landed.orders")
            run(spark, environment, defined("spark_catalog.landed.orders"), hops=["bronze"])
            taken = load(spark, lake_of(environment).bronze("other")).collect()
            assert sorted(json.loads(row.payload)["id"] for row in taken) == ["o0", "o1", "o2"]
            assert {row.source for row in taken} == {"spark_catalog.landed.orders"}
            with pytest.raises(SourceError, match=r"spark_catalog\.landed\.other does not exist"):
                run(spark, environment, defined("spark_catalog.landed.other"), hops=["bronze"])
        finally:
            spark.sql("DROP SCHEMA landed CASCADE")


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("on", ["disk", "store"])
def test_the_folders_of_a_pipeline_come_and_go_and_each_line_is_ingested_once(
    spark: SparkSession, environment: Environment, lake: Lake, tmp_path: Path, s3: Store, on: str
) -> None:
    top = str(tmp_path / "in") if on == "disk" else s3.prefix()
    wanted: list[tuple[str, bytes]] = []

    def put(place: str, *lines: bytes) -> None:
        data = b"".join(line + b"\n" for line in lines)
        file = Path(f"{top}/{place}")
        if on == "disk":
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        else:
            s3.put(f"{top}/{place}", data)
        wanted.extend((f"{place}:{at}", line) for at, line in enumerate(lines))

    def reading(*folders: str) -> Run:
        paths = [f"{top}/{name}" for name in folders]
        source = json.dumps({"kind": "files", "path": paths, "max_files_per_trigger": 1})
        file = _write(tmp_path, source=source, schema="a STRING", id="a", time="source_timestamp")
        told = load_pipeline(file, environment)
        return Run(spark, told, lake, environment, Progress(lambda _: None))

    def ingested(context: Run) -> list[tuple[str, bytes]]:
        run(spark, environment, context.pipeline, hops=["bronze"])
        rows = read(lake, "bronze.other", "record_id, payload")
        return sorted((unquote(name).partition(f"{top}/")[2], bytes(row)) for name, row in rows)

    put("de/a.jsonl", b'{"a": "1"}', b"  no json\r")
    put("a ü/deep/a.jsonl", b'{"a": "2"}')
    assert ingested(reading("de", "a ü")) == sorted(wanted)
    # One folder more, one file, and one line in a folder that was there.
    put("fr/x.jsonl", b'{"a": "3"}')
    put("one.jsonl", b'{"a": "4"}')
    put("a ü/b.jsonl", b'{"a": "5"}')
    many = reading("de", "a ü", "fr", "one.jsonl")
    assert ingested(many) == sorted(wanted)
    assert isinstance(many.pipeline.source, FilesSource)
    assert offered_files(many.pipeline) == list_files(*many.pipeline.source.paths)
    # A folder that is left out is not read, and its files are no loss.
    few = reading("fr", "de")
    assert ingested(few) == sorted(wanted)
    shutil.rmtree(lake.checkpoints("other", "bronze"))
    with pytest.raises(GenerationError, match="repair other --hop bronze"):
        run(spark, environment, few.pipeline, hops=["bronze"])
    repair(few, "bronze")
    put("fr/y.jsonl", b'{"a": "6"}')
    assert ingested(many) == sorted(wanted)
    counts = read_ledger(lake, many.pipeline).source
    assert (counts.offered, counts.taken) == (6, 6)
    put("fr/x.jsonl", b'{"a": "3"}', b'{"a": "7"}')
    with pytest.raises(SourceChangedError, match=r"fr/x\.jsonl: 11 bytes when read, 22 bytes now"):
        run(spark, environment, many.pipeline, hops=["bronze"])
