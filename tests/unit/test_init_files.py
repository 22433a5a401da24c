"""`tidelake init` on files that are not lines of JSON: their schema gives the types."""

from __future__ import annotations

import bz2
import gzip
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.cli.init.file_schema import of_avro, of_connect
from tidelake.config import FilesSource, Pipeline, load_environment, load_pipeline

_START = datetime(2026, 1, 5, tzinfo=UTC)


@pytest.fixture(autouse=True)
def folder(empty_folder: Path) -> Path:
    Path("orders").mkdir()
    return empty_folder


def _init(*arguments: str) -> Pipeline:
    assert run_command(app, ["init", "shop", "--source", "orders", *arguments, "--yes"]) == 0
    return load_pipeline("shop", load_environment())


def _refused(capsys: pytest.CaptureFixture[str]) -> str:
    assert run_command(app, ["init", "shop", "--source", "orders", "--yes"]) == 2
    assert not Path("conf").exists()
    return capsys.readouterr().err


def _rows() -> list[dict[str, Any]]:
    return [
        {
            "order_id": f"o-{at}",
            "placed": _START + timedelta(minutes=at),
            "local": datetime(2026, 1, 5) + timedelta(minutes=at),
            "total": Decimal(at).scaleb(-2),
            "rate": 1.0,
            "items": at % 3,
            "day": date(2026, 1, 5),
            "photo": b"\xff",
            "tags": ["a"],
            "customer": {"country": "DE", "age": None},
        }
        for at in range(30)
    ]


_TYPES = {
    "order_id": "STRING",
    "placed": "TIMESTAMP",
    "local": "TIMESTAMP_NTZ",
    "total": "DECIMAL(12,3)",
    "rate": "DOUBLE",
    "items": "BIGINT",
    "day": "DATE",
    "photo": "BINARY",
    "tags": "ARRAY<STRING>",
    "customer": "STRUCT<country: STRING, age: BIGINT>",
}


def _write_parquet(file: Path) -> None:
    customer = pa.struct([("country", pa.string()), ("age", pa.int16())])
    kinds = [
        ("order_id", pa.string()),
        ("placed", pa.timestamp("ms", "UTC")),
        ("local", pa.timestamp("us")),
        ("total", pa.decimal128(12, 3)),
        ("rate", pa.float32()),
        ("items", pa.int32()),
        ("day", pa.date32()),
        ("photo", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("customer", customer),
    ]
    pq.write_table(pa.Table.from_pylist(_rows(), pa.schema(kinds)), file)


def _write_avro(file: Path) -> None:
    customer = {
        "type": "record",
        "name": "Customer",
        "fields": [
            {"name": "country", "type": "string"},
            {"name": "age", "type": ["null", "int"]},
        ],
    }
    kinds = {
        "order_id": "string",
        "placed": {"type": "long", "logicalType": "timestamp-micros"},
        "local": {"type": "long", "logicalType": "local-timestamp-micros"},
        "total": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
        "rate": ["null", "float"],
        "items": "int",
        "day": {"type": "int", "logicalType": "date"},
        "photo": "bytes",
        "tags": {"type": "array", "items": "string"},
        "customer": ["null", customer],
    }
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    with file.open("wb") as stream:
        fastavro.writer(stream, {"type": "record", "name": "Order", "fields": fields}, _rows())


@pytest.mark.parametrize(("format_", "write"), [("parquet", _write_parquet), ("avro", _write_avro)])
@pytest.mark.parametrize("name", ["a.{}", "part-0"])
def test_the_types_are_those_of_the_files_schema(format_: str, write: Any, name: str) -> None:
    write(Path("orders") / name.format(format_))
    shop = _init()
    assert isinstance(shop.source, FilesSource)
    assert shop.source.format == format_
    assert {field.name: field.type.sql for field in shop.event.fields} == _TYPES
    assert (shop.event.id, shop.event.time) == ("order_id", "placed")
    assert shop.event.select is not None
    assert shop.event.select["local"] == "CAST(local AS TIMESTAMP)"
    assert shop.event.select["customer_age"] == "customer.age"
    sample = Path("tests/shop.sample.jsonl").read_bytes().splitlines()
    assert json.loads(sample[1])["placed"] == "2026-01-05T00:01:00.000000Z"


def test_files_whose_schemas_differ_keep_the_types_they_agree_on() -> None:
    _write_parquet(Path("orders/a.parquet"))
    other = {
        "order_id": ["p-1"],
        "placed": [_START],
        "items": ["many"],
        "day": [1.5],
        "extra": [1.5],
        "seen": ["2026-01-05T10:00:00Z"],
    }
    pq.write_table(pa.table(other), "orders/b.parquet")
    types = {field.name: field.type.sql for field in _init().event.fields}
    assert (types["items"], types["day"]) == ("STRING", "STRING")
    # Times are found in text too.
    assert (types["extra"], types["seen"]) == ("DOUBLE", "TIMESTAMP")
    agreed = _TYPES.keys() - {"items", "day"}
    assert {name: types[name] for name in agreed} == {name: _TYPES[name] for name in agreed}


def test_fields_of_a_struct_that_differ_in_case_are_read_as_a_map() -> None:
    """No table has columns that differ only in case."""
    struct = pa.array([{"size": 1, "Size": 2}] * 2)
    pq.write_table(pa.table({"order_id": ["a", "b"], "of": struct}), "orders/a.parquet")
    types = {field.name: field.type.sql for field in _init().event.fields}
    assert types == {"order_id": "STRING", "of": "MAP<STRING, BIGINT>"}
    image = {"type": "struct", "fields": [{"field": name, "type": "int32"} for name in ("a", "A")]}
    assert of_connect(image).sql == "STRING"
    record = {"type": "record", "name": "R"}
    record["fields"] = [{"name": name, "type": "int"} for name in ("a", "A")]
    assert of_avro(record, {}).sql == "STRING"


def test_a_folder_of_several_formats_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    _write_parquet(Path("orders/a.parquet"))
    Path("orders/b.jsonl").write_text('{"order_id": 1}\n')
    message = _refused(capsys)
    assert "several formats" in message
    assert "a.parquet (parquet)" in message
    assert "b.jsonl (json)" in message


def test_a_broken_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("orders/a.parquet").write_bytes(b"PAR1")
    assert "orders/a.parquet cannot be read: not a readable Parquet file" in _refused(capsys)


def test_an_archive_that_spark_cannot_read_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("orders/a.jsonl.xz").write_bytes(b"")
    assert "a.jsonl.xz: is an archive that is not supported" in _refused(capsys)


@pytest.mark.parametrize("suffix", ["gz", "bz2", "zst"])
def test_compressed_lines_are_read(suffix: str) -> None:
    compress = {
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "zst": lambda data: pa.compress(data, "zstd", asbytes=True),
    }[suffix]
    lines = [
        json.dumps({"order_id": at, "at": f"2026-01-05T00:{at}:00Z"}).encode()
        for at in range(10, 40)
    ]
    Path(f"orders/a.jsonl.{suffix}").write_bytes(compress(b"\n".join(lines)))
    shop = _init()
    assert [field.name for field in shop.event.fields] == ["order_id", "at"]
    assert isinstance(shop.source, FilesSource)
    assert shop.source.format == "json"


def test_a_damaged_archive_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    damaged = bytearray(gzip.compress(b'{"id": "a", "at": "2026-01-05T00:00:00Z"}\n' * 500))
    damaged[20:30] = b"\xff" * 10
    Path("orders/a.jsonl.gz").write_bytes(damaged)
    assert "a.jsonl.gz cannot be read: Error -3 while decompressing" in _refused(capsys)
