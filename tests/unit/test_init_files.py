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

from tests.pipelines import sql_types
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.cli.init.file_schema import UNTYPED, common_types, of_arrow, of_avro, of_connect
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
    assert sql_types(shop) == _TYPES
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
    types = sql_types(_init())
    assert (types["items"], types["day"]) == ("STRING", "STRING")
    # Times are found in text too.
    assert (types["extra"], types["seen"]) == ("DOUBLE", "TIMESTAMP")
    agreed = _TYPES.keys() - {"items", "day"}
    assert {name: types[name] for name in agreed} == {name: _TYPES[name] for name in agreed}


def test_fields_of_a_struct_that_differ_in_case_are_read_as_a_map() -> None:
    """No table has columns that differ only in case."""
    struct = pa.array([{"size": 1, "Size": 2}] * 2)
    pq.write_table(pa.table({"order_id": ["a", "b"], "of": struct}), "orders/a.parquet")
    types = sql_types(_init())
    assert types == {"order_id": "STRING", "of": "MAP<STRING, BIGINT>"}
    image = {"type": "struct", "fields": [{"field": name, "type": "int32"} for name in ("a", "A")]}
    assert of_connect(image).sql == "STRING"
    record = {"type": "record", "name": "R"}
    record["fields"] = [{"name": name, "type": "int"} for name in ("a", "A")]
    assert of_avro(record, {}).sql == "STRING"


def _every_other(*values: Any) -> list[Any]:
    return [values[at % len(values)] for at in range(30)]


def _write(columns: dict[str, pa.Array]) -> None:
    ids = [f"o-{at}" for at in range(30)]
    pq.write_table(pa.table({"order_id": ids, **columns}), "orders/a.parquet")


def test_values_that_silver_would_refuse_in_the_schemas_type_are_converted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    instant = int(_START.timestamp()) * 10**9
    nan, infinity = float("nan"), float("-inf")
    inner = {"rate": infinity, "at": [instant + 1], "rates": [nan], "fit": 0.5}
    kinds = {"rate": pa.float64(), "at": pa.list_(pa.timestamp("ns", "UTC"))}
    kinds |= {"rates": pa.list_(pa.float64()), "fit": pa.float64()}
    _write(
        {
            "placed": pa.array(_every_other(instant, instant + 7), pa.timestamp("ns", "UTC")),
            "local": pa.array(_every_other(instant + 7), pa.timestamp("ns")),
            "micros": pa.array(_every_other(instant, instant + 1000), pa.timestamp("ns", "UTC")),
            "rate": pa.array(_every_other(1.5, nan)),
            "fit": pa.array(_every_other(1.5, 2.5)),
            "s": pa.array(_every_other(inner), pa.struct(list(kinds.items()))),
            "m": pa.array(_every_other([("a", nan)]), pa.map_(pa.string(), pa.float64())),
        }
    )
    shop = _init()
    assert sql_types(shop) == {
        "order_id": "STRING",
        "placed": "STRING",
        "local": "STRING",
        "micros": "TIMESTAMP",
        "rate": "STRING",
        "fit": "DOUBLE",
        "s": "STRUCT<rate: STRING, at: ARRAY<STRING>, rates: ARRAY<STRING>, fit: DOUBLE>",
        "m": "MAP<STRING, STRING>",
    }
    select = shop.event.select or {}
    pattern = "yyyy-MM-dd''T''HH:mm:ss[.SSSSSSSSS]"
    assert shop.event.time == f"try_to_timestamp(placed, '{pattern}XXX')"
    assert select["placed"] == f"to_timestamp(placed, '{pattern}XXX')"
    assert select["local"] == f"to_timestamp(local, '{pattern}')"
    for name, field in (("rate", "rate"), ("s_rate", "s.rate")):
        condition = f"{field} NOT IN ('NaN', 'Infinity', '-Infinity')"
        assert select[name] == f"CAST(CASE WHEN {condition} THEN {field} END AS DOUBLE)"
    assert (select["fit"], select["s_fit"], select["s_at"]) == ("fit", "s.fit", "s.at")
    told = capsys.readouterr().err
    for note in (
        "placed: nanoseconds, cut to microseconds",
        "rate: NaN and infinities are null",
        "s.rate: NaN and infinities are null",
        "s.rates: as text, because values of the sample do not fit ARRAY<DOUBLE>",
        "m: as text, because values of the sample do not fit MAP<STRING, DOUBLE>",
    ):
        assert f"Note: {note}\n" in told
    # The examples of the test are accepted, as all rows of the sample are.
    assert len(Path("tests/shop.sample.jsonl").read_bytes().splitlines()) == 20


def test_bytes_of_each_kind_are_bytes_and_an_id_of_them_is_their_base64() -> None:
    kinds = {"one": pa.binary(1), "large": pa.large_binary(), "view": pa.binary_view()}
    assert {of_arrow(kind).sql for kind in kinds.values()} == {"BINARY"}
    _write({"one": pa.array(_every_other(b"x"), kinds["one"])})
    ids = [at.to_bytes(16, "big") for at in range(30)]
    users = pa.array(_every_other(b"x", b"y"), pa.binary(1))
    table = {"event_id": pa.array(ids, pa.binary(16)), "user_id": users}
    pq.write_table(pa.table(table), "orders/a.parquet")
    shop = _init()
    assert [field.type.sql for field in shop.event.fields] == ["BINARY", "BINARY"]
    assert shop.event.id == "base64(event_id)"
    assert [measure.name for measure in shop.gold[0].measures] == ["events"]


def test_a_decimal_beyond_38_digits_is_text_and_not_guessed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wide = pa.decimal256(76, 38)
    _write({"rate": pa.array(_every_other(Decimal("1.5")), wide)})
    assert [field.type.sql for field in _init().event.fields] == ["STRING", "STRING"]
    note = "rate: as text, because its schema gives no type that a column can have"
    assert note in capsys.readouterr().err


def test_a_union_of_several_types_is_text_whatever_the_sample_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wide = {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}
    point = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}
    of = [{"name": "fee", "type": ["string", "long"]}, {"name": "net", "type": "string"}]
    kinds = {
        "order_id": ["null", "string", {"type": "enum", "name": "E", "symbols": ["e"]}],
        "seen": ["string", "null"],
        "code": ["null", "string", "long"],
        "rate": ["float", "double"],
        "wide": ["null", wide],
        "place": ["null", point, {"type": "map", "values": "long"}],
        "next": ["null", "P"],
        "tax": ["null", "string", "long"],
        "day": [wide, "string"],
        "of": {"type": "record", "name": "F", "fields": of},
    }
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    row = {"seen": "2026-01-05T10:00:00Z", "code": 5, "rate": 0.5, "wide": Decimal("1.50")}
    row |= {"place": {"x": 1}, "next": {"x": 2}, "tax": "1,5", "day": "31.12.2026 10:00"}
    row |= {"of": {"fee": "1,5", "net": "2,5"}}
    rows = [{"order_id": f"o-{at}", **row} for at in range(30)]
    with Path("orders/a.avro").open("wb") as stream:
        fastavro.writer(stream, {"type": "record", "name": "Order", "fields": fields}, rows)
    shop = _init()
    assert sql_types(shop) == {
        "order_id": "STRING",
        "seen": "TIMESTAMP",
        "code": "STRING",
        "rate": "DOUBLE",
        "wide": "STRING",
        "place": "STRING",
        "next": "STRUCT<x: BIGINT>",
        "tax": "STRING",
        "day": "STRING",
        "of": "STRUCT<fee: STRING, net: STRING>",
    }
    # Though all values are texts in which numbers and times would be found.
    select = shop.event.select or {}
    assert [select[name] for name in ("tax", "day", "of_fee")] == ["tax", "day", "of.fee"]
    assert select["of_net"].startswith("CAST(")
    assert shop.event.time == "seen"
    told = capsys.readouterr().err
    texts = [line for line in told.splitlines() if "as text, because its schema" in line]
    assert [line.split(": ")[1] for line in texts] == [
        "code",
        "wide",
        "place",
        "tax",
        "day",
        "of.fee",
    ]


def test_a_field_that_one_of_the_files_gives_no_type_is_text() -> None:
    union, plain = of_avro(["string", "long"], {}), of_avro("long", {})
    assert common_types([{"code": plain}, {"code": union}])["code"].sql == "STRING"
    assert common_types([{"code": union}, {"code": plain}])["code"].sql == "STRING"
    # Also within a struct of which the other file is sure that the field is text.
    structs = [
        of_avro({"type": "record", "name": "R", "fields": [{"name": "code", "type": kind}]}, {})
        for kind in (["string", "long"], "string")
    ]
    for order in (structs, structs[::-1]):
        common = common_types([{"of": struct} for struct in order])
        assert common["of"].fields[0].type is UNTYPED
    # Text alone is left to be looked at.
    assert common_types([{"code": of_avro("string", {})}]) == {}


def test_a_struct_with_a_name_that_no_pipeline_file_can_hold_is_read_as_a_map() -> None:
    _write({"of": pa.array(_every_other({"${size}": 1}))})
    types = sql_types(_init())
    assert types == {"order_id": "STRING", "of": "MAP<STRING, BIGINT>"}


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
