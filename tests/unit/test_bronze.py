"""Bronze: every payload verbatim, with the place and the moment that it came from."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.pipelines import shop
from tests.unit.handmade import write_offset
from tidelake.bronze.records import (
    BRONZE_DDL,
    HEADERS_DDL,
    RECORD,
    identify,
    only_records,
    pattern_of,
    read_stream,
    to_bronze,
)
from tidelake.config import DeltaSource, FilesSource, RateSource
from tidelake.delta.log import Commit
from tidelake.delta.tables import Lake
from tidelake.errors import RefusedError, SourceError
from tidelake.runtime.bronze_hop import BronzeHop
from tidelake.runtime.fence import Fence

ARRIVED = datetime(2024, 1, 1, 23, 59, 59, 999999, tzinfo=UTC)
READ_DDL = (
    f"key binary, payload binary, headers {HEADERS_DDL}, source string, "
    "source_timestamp timestamp, _position bigint"
)

FILES = FilesSource(kind="files", path="landing")
RATE = RateSource(kind="rate")
DELTA = DeltaSource(kind="delta", path="orders")


def read(spark: SparkSession, rows: list[tuple[bytes | None, str, int | None]]) -> DataFrame:
    full = [(b"k", payload, [("h", b"1")], source, None, at) for payload, source, at in rows]
    return spark.createDataFrame(full, READ_DDL).coalesce(1)


def test_bronze_has_its_columns_and_the_payload_as_it_was(spark: SparkSession) -> None:
    records = identify(read(spark, [(b"\xff\r\x00", "s", 3), (None, "s", 4)]), RATE, 0)
    bronze = to_bronze(records, ingested_at=ARRIVED)
    schema = spark.createDataFrame([], BRONZE_DDL).schema
    assert [(f.name, f.dataType) for f in bronze.schema] == [(f.name, f.dataType) for f in schema]
    first, second = bronze.select(
        "*",
        F.col("ingested_at").cast("string").alias("at"),
        F.col("ingest_date").cast("string").alias("day"),
    ).collect()
    assert bytes(first["payload"]) == b"\xff\r\x00"
    assert second["payload"] is None
    assert (first["record_id"], second["record_id"]) == ("s:3", "s:4")
    assert (first["at"], first["day"]) == ("2024-01-01 23:59:59.999999", "2024-01-01")
    assert (bytes(first["key"]), first["headers"][0]["key"]) == (b"k", "h")
    assert set(RECORD) <= set(bronze.columns)


def test_a_row_without_a_position_takes_its_number_in_its_partition(spark: SparkSession) -> None:
    partition = F.spark_partition_id()
    batch = spark.range(0, 6, 1, 2).select(
        F.concat(F.lit("file"), partition).alias("source"),
        F.lit(None).cast("bigint").alias("_position"),
    )
    ids = [row["record_id"] for row in identify(batch, FILES, 5).collect()]
    assert ids == ["file0:0", "file0:1", "file0:2", "file1:0", "file1:1", "file1:2"]


def test_a_position_that_the_source_gave_is_kept(spark: SparkSession) -> None:
    rows = identify(read(spark, [(b"", "p", 7), (b"", "p", 9)]), RATE, 0).collect()
    assert [row["record_id"] for row in rows] == ["p:7", "p:9"]


def test_rows_of_a_table_are_numbered_by_batch_and_place_in_it(spark: SparkSession) -> None:
    rows = read(spark, [(b"", "orders", None), (b"", "orders", None)])
    assert [row["record_id"] for row in identify(rows, DELTA, 4).collect()] == [
        "orders:4:0",
        "orders:4:1",
    ]


_WHOLE_DDL = "source string, _position string, _size bigint, _bytes bigint, _error string"


def test_file_rows_are_not_records(spark: SparkSession) -> None:
    rows = [("s", None, 3, 3, None), ("s", "0", 3, None, None), ("s", "1", 3, None, None)]
    records = only_records(identify(spark.createDataFrame(rows, _WHOLE_DDL), FILES, 0))
    assert [row["record_id"] for row in records.collect()] == ["s:0", "s:1"]


@pytest.mark.parametrize("file_row", [("s", None, 3, 4, None), ("s", None, 3, None, "broken")])
def test_a_file_that_changed_between_two_reads_fails_the_second(
    spark: SparkSession, file_row: tuple[object, ...]
) -> None:
    rows = spark.createDataFrame([("s", "0", 3, None, None), file_row], _WHOLE_DDL)
    with pytest.raises(PySparkException, match="a file changed between two reads"):
        only_records(rows).collect()


@pytest.mark.parametrize(
    ("paths", "pattern"),
    [
        (("/l/de/",), "/l/de"),
        (("/l/[1]/a,b/{c}*?\\",), "/l/\\[1\\]/a,b/\\{c\\}\\*\\?\\\\"),
        (("/l/de", "/l/at"), "/l/{de/,at/}"),
        (("/l/de", "/l/de-2/x.json"), "/l/{de/,de-2/x.json/}"),
        (("/a", "/l/../b c"), "/{a/,b c/}"),
        (("s3://bucket/in/de/", "s3://bucket/out"), "s3://bucket/{in/de/,out/}"),
    ],
)
def test_a_path_is_opened_literally_and_several_as_alternatives_that_hadoop_expands(
    paths: tuple[str, ...], pattern: str
) -> None:
    assert pattern_of(paths) == pattern


def test_a_delta_table_in_the_home_folder_is_opened_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/anna")
    spark = MagicMock()
    opened = spark.readStream.format.return_value.options.return_value.load
    opened.side_effect = PySparkException("opened")
    with pytest.raises(PySparkException, match="opened"):
        read_stream(spark, DeltaSource(kind="delta", path="~/orders"))
    opened.assert_called_once_with("/home/anna/orders")


def test_bronze_of_files_takes_no_topic_and_no_repair_is_named(tmp_path: Path) -> None:
    hop: Any = BronzeHop.__new__(BronzeHop)
    pipeline = shop(tmp_path, source={"kind": "files", "path": str(tmp_path)})
    hop.run, hop._landing = SimpleNamespace(pipeline=pipeline, lake=Lake(tmp_path)), None
    words = "filled from a source of kind kafka, source.kind is now files: restore it, or use anoth"
    with pytest.raises(RefusedError, match=words):
        hop.offset_mismatch(Commit(0, ARRIVED, None, {"source": "kafka"}))


def test_bronze_takes_no_csv_into_a_table_of_json_nor_json_into_one_of_csv(tmp_path: Path) -> None:
    files = {"kind": "files", "path": str(tmp_path)}
    for is_csv, other in ((True, "json"), (True, "parquet"), (False, "csv")):
        hop: Any = BronzeHop.__new__(BronzeHop)
        pipeline = shop(tmp_path, source=files | {"format": other})
        hop.run, hop._landing = SimpleNamespace(pipeline=pipeline, lake=Lake(tmp_path)), None
        note = {"source": "files", "csv": is_csv}
        words = f"payloads in bronze.shop are {'' if is_csv else 'not '}CSV"
        with pytest.raises(RefusedError, match=f"{words}, .* another pipeline or --root"):
            hop.offset_mismatch(Commit(0, ARRIVED, None, note))
        assert hop.offset_mismatch(Commit(0, ARRIVED, None, note | {"csv": not is_csv})) == ""
        # Commits of earlier versions do not say it.
        assert hop.offset_mismatch(Commit(0, ARRIVED, None, {"source": "files"})) == ""


def test_bronze_reads_no_batch_that_was_planned_with_files_of_another_source(
    tmp_path: Path,
) -> None:
    """Spark would read them, whatever the source is now."""
    hop: Any = BronzeHop.__new__(BronzeHop)
    hop.checkpoint, hop._landing = tmp_path, SimpleNamespace(read=dict)

    def mismatch(*paths: str, closed: Commit | None = None) -> str:
        pipeline = shop(tmp_path, source={"kind": "files", "path": list(paths)})
        hop.run = SimpleNamespace(pipeline=pipeline, lake=Lake(tmp_path))
        return str(hop.offset_mismatch(closed))

    assert mismatch("/a") == ""
    log = tmp_path / "sources" / "0"
    log.mkdir(parents=True)
    for batch, name in enumerate(("file:///a/1.json", "file:///a/b%20c/2.json")):
        write_offset(tmp_path, batch, {"logOffset": batch})
        entry = json.dumps({"path": name, "timestamp": 1, "batchId": batch})
        (log / str(batch)).write_text(f"v1\n{entry}")
    taken = Commit(1, ARRIVED, 1, {"batch": 0, "files": [["/a/1.json", 1, 1, 1]]})
    other = "a batch is planned with files of another source, /a/b c/2.json"
    for folders in (["/a"], ["/a/b c/"], ["/x", "/a/b c/2.json"]):
        assert mismatch(*folders, closed=taken) == ""
    for folders in (["/b"], ["/a/b"], ["/x", "/a/b c/2"]):
        assert mismatch(*folders, closed=taken) == other
    # Before the first batch is closed there is no commit to compare.
    for batch in (0, 1):
        (log / str(batch)).unlink()
    (log / "0").touch()
    unread = "the list of files in its checkpoint (sources) cannot be read"
    assert mismatch("/a") == unread
    (log / "0").unlink()
    write_offset(tmp_path, 1, {"topic": {"0": 5}})
    assert mismatch("/a") == unread


def test_first_offsets_of_a_topic_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    hop: Any = BronzeHop.__new__(BronzeHop)
    hop._landing, source = None, {"kind": "kafka", "bootstrap": "h:1", "topic": "clicks"}
    hop.run = SimpleNamespace(pipeline=shop(tmp_path, source=source), lake=Lake(tmp_path))
    hop.checkpoint = tmp_path / "g1"
    assert hop.offset_mismatch(None) == ""
    first = hop.checkpoint / "sources" / "0" / "0"
    first.parent.mkdir(parents=True)
    for content in ("", "\0v1", '\0v1\n{"clicks'):
        first.write_text(content)
        assert "the first offsets in its checkpoint (sources)" in hop.offset_mismatch(None)
    first.write_text('\0v1\n{"clicks":{"0":0}}')
    assert hop.offset_mismatch(None) == ""


@pytest.mark.parametrize(
    ("told", "is_named"),
    [
        ("[UDF_PYSPARK_USER_CODE_ERROR.MEMORY_LIMIT_SERVERLESS] exceeded the limit", True),
        ("[UDF_PYSPARK_ERROR.OOM] Python worker exited unexpectedly (crashed)", True),
        ("[FAILED_READ_FILE] a.csv.gz", False),
    ],
)
def test_where_python_has_too_little_memory_the_largest_files_of_the_batch_are_named(
    tmp_path: Path, told: str, is_named: bool
) -> None:
    for size in range(1, 6):
        (tmp_path / f"{size}.csv").write_bytes(bytes(size * 1000))
    hop: Any = BronzeHop.__new__(BronzeHop)
    pipeline = shop(tmp_path, source={"kind": "files", "path": str(tmp_path), "format": "csv"})
    hop.run = SimpleNamespace(pipeline=pipeline, stop=Event())
    hop.fence = Fence("shop", "bronze", "g1")
    paths = [str(tmp_path / f"{size}.csv") for size in range(1, 6)]
    error = PySparkException(told)
    kind = SourceError if is_named else PySparkException
    with pytest.raises(kind) as found, hop._naming_broken(paths):
        raise error
    if not is_named:
        assert found.value is error
        return
    lines = str(found.value).splitlines()
    assert lines[1:4] == [f"  - {tmp_path}/{n}.csv: {n},000 bytes" for n in (5, 4, 3)]
    assert "Split it into several files" in lines[0]
    assert "planned anew with: tidelake repair shop --hop bronze" in lines[4]
