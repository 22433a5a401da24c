"""Formats that need a whole file: file rows and records, compression, size."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tidelake.bronze import records, whole_files
from tidelake.bronze.file_format import BrokenFileError, Chunk, FileReader
from tidelake.bronze.whole_files import reader_of, to_chunks
from tidelake.config import FilesSource

_FILES = pa.schema(
    [
        ("content", pa.binary()),
        ("source", pa.string()),
        ("source_timestamp", pa.timestamp("us", "UTC")),
        ("_size", pa.int64()),
    ]
)
_WRITTEN = datetime(2026, 1, 5, tzinfo=UTC)


def _words(content: bytes) -> Iterator[Chunk]:
    """Read words as records, two a chunk; a ``!`` breaks the file."""
    words = content.split()
    for at in range(0, len(words), 2):
        if b"!" in words[at : at + 2]:
            raise BrokenFileError("it has a !")
        yield pa.array(words[at : at + 2], pa.binary()), {"at": b"%d" % at}


def _chunks(files: dict[str, bytes], reader: FileReader = _words) -> list[dict[str, Any]]:
    rows = [
        {"content": content, "source": path, "source_timestamp": _WRITTEN, "_size": 9}
        for path, content in files.items()
    ]
    batch = pa.RecordBatch.from_pylist(rows, _FILES)
    return [row for part in to_chunks(reader)([batch]) for row in part.to_pylist()]


def test_each_file_has_a_file_row_and_chunks_of_records_with_headers() -> None:
    rows = _chunks({"a": b"x y z", "b": b""})
    shown = [(row["source"], row["_begin"], row["_payloads"], row["_bytes"]) for row in rows]
    assert shown == [
        ("a", None, None, 5),
        ("a", 0, [b"x", b"y"], None),
        ("a", 2, [b"z"], None),
        ("b", None, None, 0),
    ]
    assert [row["headers"] for row in rows] == [
        None,
        [{"key": "at", "value": b"0"}],
        [{"key": "at", "value": b"2"}],
        None,
    ]
    assert {(row["source_timestamp"], row["_size"], row["_error"]) for row in rows} == {
        (_WRITTEN, 9, None)
    }


def test_a_broken_file_ends_with_its_reason_and_others_go_on() -> None:
    rows = _chunks({"a": b"x y z !", "b": b"z"})
    assert [(row["source"], row["_payloads"], row["_error"]) for row in rows] == [
        ("a", None, None),
        ("a", [b"x", b"y"], None),
        ("a", None, "it has a !"),
        ("b", None, None),
        ("b", [b"z"], None),
    ]


def test_large_chunks_of_a_reader_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(content: bytes) -> Iterator[Chunk]:
        yield pa.array(content.split(), pa.binary()), {}
        yield pa.array([], pa.binary()), {}

    monkeypatch.setattr(whole_files, "_MOST_PAYLOADS", 3)
    few = _chunks({"a": b"1 2 3 4 5 6 7"}, read)[1:]
    assert [(row["_begin"], row["_payloads"]) for row in few] == [
        (0, [b"1", b"2", b"3"]),
        (3, [b"4", b"5", b"6"]),
        (6, [b"7"]),
    ]
    monkeypatch.setattr(whole_files, "_CHUNK_BYTES", 100)
    long = _chunks({"a": b" ".join([b"x" * 150] * 3)}, read)[1:]
    assert [(row["_begin"], len(row["_payloads"])) for row in long] == [(0, 1), (1, 1), (2, 1)]


def test_a_worker_that_reads_files_imports_no_configuration() -> None:
    readers = [
        reader_of(FilesSource(kind="files", path="x", format=format_))
        for format_ in ("avro", "csv", "parquet")
    ]
    program = "import pickle, sys; pickle.load(sys.stdin.buffer); print('pydantic' in sys.modules)"
    command = [sys.executable, "-c", program]
    sent = pickle.dumps((to_chunks, readers))
    done = subprocess.run(command, input=sent, capture_output=True, check=True)
    assert done.stdout == b"False\n"


def test_lines_of_text_need_no_reader() -> None:
    assert reader_of(FilesSource(kind="files", path="x")) is None


def test_the_content_of_a_large_file_is_not_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing, answer = tmp_path / "landing", tmp_path / "answer"
    landing.mkdir()
    pq.write_table(pa.table({"n": [1, 2]}), landing / "small.parquet")
    limit = (landing / "small.parquet").stat().st_size
    with (landing / "large.parquet").open("wb") as stream:
        # With its content, a row of Spark would be too large.
        stream.truncate(3 << 30)
    monkeypatch.setattr(records, "WHOLE_FILE_BYTES", limit)
    source = FilesSource(kind="files", path=str(landing), format="parquet")
    stream = records.read_stream(spark, source)
    query = (
        stream.writeStream.trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(lambda rows, _: records.records_in(rows).write.parquet(str(answer)))
        .start()
    )
    query.awaitTermination()
    read = pq.read_table(answer).to_pylist()
    assert {Path(row["source"]).name for row in read} == {"small.parquet"}
    assert [(row["_position"], row["payload"], row["_bytes"]) for row in read] == [
        (None, None, limit),
        ("0", b'{"n":1}', None),
        ("1", b'{"n":2}', None),
    ]
    assert {row["_size"] for row in read} == {limit}
