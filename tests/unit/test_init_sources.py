"""`tidelake init` on change events, Delta tables, object stores and folders of several kinds."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.changes import Json, line, mysql, postgres, with_schema
from tests.pipelines import sql_types
from tests.registries import registry
from tests.samples import order
from tests.stores import Store
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config import (
    DeltaSource,
    FilesSource,
    KafkaSource,
    Pipeline,
    load_environment,
    load_pipeline,
)
from tidelake.kafka.client import TopicRecord

_MICROS = 1_767_607_200_000_000
_MINUTE = 60_000_000


@pytest.fixture(autouse=True)
def folder(empty_folder: Path) -> Path:
    return empty_folder


def _init(source: str, *arguments: str) -> Pipeline:
    assert run_command(app, ["init", "shop", "--source", source, *arguments, "--yes"]) == 0
    return load_pipeline("shop", load_environment())


def _refused(
    capsys: pytest.CaptureFixture[str], source: str, *arguments: str, code: int = 2
) -> str:
    assert run_command(app, ["init", "shop", "--source", source, *arguments, "--yes"]) == code
    assert not Path("conf").exists()
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return told


def _customer(key: int, name: str) -> Json:
    return {"id": key, "first_name": name, "last_name": "K", "email": f"{name}@x.org"}


def _only(key: int) -> Json:
    """Give what PostgreSQL logs of a deleted row."""
    return {"id": key, "first_name": None, "last_name": None, "email": None}


# Three rows, of which one is changed twice and one is deleted.
_CHANGES = [
    ("r", None, _customer(1, "Ann")),
    ("r", None, _customer(2, "Bob")),
    ("c", None, _customer(3, "Cid")),
    ("u", _only(1), _customer(1, "Anna")),
    ("d", _only(3), None),
    ("u", _customer(1, "Anna"), _customer(1, "Annie")),
]


def _events(*, wrapped: bool = False) -> list[bytes]:
    events = [
        postgres(op, at=_MICROS + at * _MINUTE, lsn=500 + at, before=before, after=after)
        for at, (op, before, after) in enumerate(_CHANGES)
    ]
    return [line(with_schema(event) if wrapped else event) for event in events]


def _land(lines: list[bytes], file: str = "changes/a.jsonl") -> str:
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path.parent)


@pytest.mark.parametrize("wrapped", [True, False])
def test_change_events_become_a_dimension_keyed_by_what_deletes_carry(
    wrapped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = _init(_land([*_events(wrapped=wrapped), b"null"]))
    assert isinstance(shop.source, FilesSource)
    assert shop.source.envelope == "debezium"
    assert shop.dimension is not None
    assert (shop.dimension.key, shop.dimension.history) == (("id",), True)
    names = ("id", "first_name", "last_name", "email")
    assert sql_types(shop) == dict(
        zip(names, ("BIGINT", "STRING", "STRING", "STRING"), strict=True)
    )
    event = shop.event
    assert (event.id, event.time) == ("record_id", "source_time")
    assert (event.sequence, event.delete_when) == ("source_position", "op = 'd'")
    assert event.select == {name: name for name in names}
    assert "# the fields that deletes carry" in Path("conf/pipelines/shop.yml").read_text()
    test = Path("tests/test_shop.py").read_text()
    assert '{"silver": 6, "quarantined": 1, "filtered": 1}' in test
    assert 'FROM dim.shop") == [(2,)]' in test
    assert "1 records have no row, such as tombstones" in capsys.readouterr().err


def test_change_events_may_be_events_by_their_operation() -> None:
    lines = [
        line(postgres(op, at=_MICROS, lsn=n, before=None, after={"id": n, "total": 2.5}))
        for n, op in enumerate("ccu")
    ]
    shop = _init(_land(lines), "--kind", "events")
    assert shop.dimension is None
    assert list(shop.event.select or {})[-3:] == ["op", "source_time", "source_position"]
    (table,) = shop.gold
    assert table.keys == ("op",)
    # A sum over changes would count a row once for each.
    assert [(m.name, m.aggregate) for m in table.measures] == [("events", "count")]


def test_types_are_those_of_the_schema_in_the_message() -> None:
    row: list[Json] = [
        {"type": "int32", "field": "id"},
        {"type": "int32", "name": "io.debezium.time.Date", "field": "born"},
        {"type": "boolean", "field": "paid"},
        {"type": "string", "field": "op"},
        {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2", "connect.decimal.precision": "12"},
            "field": "total",
        },
    ]
    values = {"id": 1, "born": 20458, "paid": None, "op": "x", "total": "MDk="}
    events = [
        postgres("c", at=_MICROS, lsn=at, before=None, after={**values, "id": at})
        for at in range(1, 4)
    ]
    shop = _init(_land([line(with_schema(event, row)) for event in events]))
    assert sql_types(shop) == {
        "id": "BIGINT",
        "born": "DATE",
        "paid": "BOOLEAN",
        "total": "DECIMAL(12,2)",
    }
    # A row that is deleted later may come with its key alone.
    required = {r.columns[0] for r in shop.rules if r.type.endswith("not_be_null")}
    assert required == {"event_id", "event_time", "id"}


def test_without_positions_the_time_orders_the_changes() -> None:
    events = [
        mysql("c", millis=_MICROS // 1000 + at, pos=4, before=None, after=_customer(at, "A"))
        for at in range(3)
    ]
    for event in events:
        event["source"]["file"] = None
    assert _init(_land([line(event) for event in events])).event.sequence == "source_time"


def test_a_key_of_several_columns_is_given() -> None:
    shop = _init(_land(_events()), "--key", "id,email")
    assert shop.dimension is not None
    assert shop.dimension.key == ("id", "email")


def test_a_column_with_a_name_of_the_history_gets_another() -> None:
    events = [
        postgres("c", at=_MICROS, lsn=at, before=None, after={"id": at, "valid_to": "2026-01-05"})
        for at in range(3)
    ]
    select = _init(_land([line(event) for event in events])).event.select
    assert select == {"id": "id", "payload_valid_to": "valid_to"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--key", "none"], "--key COLUMN[,COLUMN…]"),
        (["--key", "ident"], "--key 'ident' is not a scalar column"),
        (["--window", "1 hour"], "--window is for events"),
        (["--registry", "http://127.0.0.1:1"], "--registry is for the records of a topic"),
    ],
)
def test_what_a_dimension_cannot_have_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in _refused(capsys, _land(_events()), *arguments)


def test_only_change_events_can_become_a_dimension(capsys: pytest.CaptureFixture[str]) -> None:
    source = _land([json.dumps(order(n)).encode() for n in range(5)])
    told = _refused(capsys, source, "--kind", "dimension")
    assert "needs change events in Debezium's envelope" in told


def test_records_with_an_op_of_their_own_are_no_change_events() -> None:
    lines = [json.dumps({"id": f"a{n}", "op": "c", "after": {"x": n}}).encode() for n in range(5)]
    shop = _init(_land(lines))
    assert shop.envelope is None


def test_change_events_without_a_row_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    told = _refused(capsys, _land([line(postgres("t", at=_MICROS, lsn=1, before=None))] * 2))
    assert "a.jsonl line 1: payload: op t empties the whole table" in told


def _topic(monkeypatch: pytest.MonkeyPatch, records: Sequence[tuple[bytes | None, bytes]]) -> str:
    found = [TopicRecord(0, at, value, key) for at, (key, value) in enumerate(records)]
    monkeypatch.setattr("tidelake.cli.init.first_records", lambda *_, **__: found)
    return "kafka://127.0.0.1:1/shop.public.customers"


def test_the_key_of_a_topics_records_is_the_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    events = _events()
    # The key in `before` alone would be taken for it, and a delete without `before` has only this.
    gone = postgres("d", at=_MICROS, lsn=900, before=None, after=None)
    key = b'{"schema": {}, "payload": {"email": "Ann@x.org"}}'
    source = _topic(
        monkeypatch, [*((key, event) for event in events), (key, line(gone)), (key, b"")]
    )
    shop = _init(source)
    assert isinstance(shop.source, KafkaSource)
    assert (shop.source.format, shop.source.envelope) == ("json", "debezium")
    assert shop.dimension is not None
    assert shop.dimension.key == ("email",)
    # The sample's file has no keys, and a row without its key does not become part of it.
    assert len(Path("tests/shop.sample.jsonl").read_bytes().splitlines()) == 5
    assert '"silver": 5' in Path("tests/test_shop.py").read_text()


def test_the_kind_and_the_key_are_asked_for_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        line(postgres("c", at=_MICROS, lsn=n, before=None, after={"a": n, "b": "x"}))
        for n in range(3)
    ]
    answers = iter(["table", "dimension", "c", "a,b", "", "", "1 hour"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: next(answers))
    assert run_command(app, ["init", "shop", "--source", _land(lines)]) == 0
    shop = load_pipeline("shop", load_environment())
    assert shop.dimension is not None
    assert shop.dimension.key == ("a", "b")
    assert shop.watermark.delay.total_seconds() == 3600
    told = capsys.readouterr().err
    assert "'table' is not a kind: write dimension or events" in told
    assert "--key 'c' is not a scalar column" in told


_PERSON = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "born", "type": {"type": "int", "connect.name": "io.debezium.time.Date"}},
        {
            "name": "total",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
        },
    ],
}
_ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", _PERSON]},
        {"name": "after", "type": ["null", "Value"]},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [{"name": "ts_ms", "type": "long"}, {"name": "lsn", "type": "long"}],
            },
        },
        {"name": "op", "type": "string"},
    ],
}
_KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}


def _framed(number: int, schema: Any, value: Any) -> bytes:
    out = BytesIO()
    out.write(b"\0" + number.to_bytes(4, "big"))
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def _person(number: int) -> dict[str, Any]:
    return {"id": number, "born": 20458, "total": Decimal("12.50")}


def test_avro_in_a_topic_is_read_by_the_schemas_of_its_registry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = [(None, _framed(7, _PERSON, _person(n))) for n in range(5)]
    # One is cut off, and one goes on after its datum.
    records += [(None, records[0][1][:-1]), (None, _framed(7, _PERSON, _person(9)) + b"more")]
    source = _topic(monkeypatch, records)
    with registry() as schemas:
        schemas.register("shop.public.customers-value", 7, _PERSON)
        shop = _init(source, "--registry", schemas.url)
    assert isinstance(shop.source, KafkaSource)
    assert shop.source.registry is not None
    assert (shop.source.format, shop.source.registry.subject) == (
        "avro",
        "shop.public.customers-value",
    )
    types = sql_types(shop)
    assert types == {"id": "BIGINT", "born": "BIGINT", "total": "DECIMAL(12,2)"}
    assert [json.loads(row)["total"] for row in _sample()] == [12.5] * 5


def test_change_events_in_avro_are_those_of_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        (
            _framed(8, _KEY, {"id": n}),
            _framed(
                9,
                _ENVELOPE,
                {
                    "before": None,
                    "after": _person(n),
                    "source": {"ts_ms": _MICROS // 1000, "lsn": n},
                    "op": "c",
                },
            ),
        )
        for n in range(5)
    ]
    with registry() as schemas:
        schemas.register("people-key", 8, _KEY)
        schemas.register("people-value", 9, _ENVELOPE)
        shop = _init(
            _topic(monkeypatch, records), "--registry", schemas.url, "--subject", "people-value"
        )
    assert isinstance(shop.source, KafkaSource)
    assert (shop.source.format, shop.source.envelope) == ("avro", "debezium")
    types = sql_types(shop)
    assert types == {"id": "BIGINT", "born": "DATE", "total": "DECIMAL(12,2)"}
    assert shop.dimension is not None
    assert shop.dimension.key == ("id",)
    assert "# the key of the records" in Path("conf/pipelines/shop.yml").read_text()


def test_change_events_in_avro_files_have_the_types_of_the_row() -> None:
    source = {"ts_ms": _MICROS // 1000, "lsn": 1}
    events = [{"before": None, "after": _person(n), "source": source, "op": "c"} for n in range(5)]
    Path("changes").mkdir()
    with Path("changes/a.avro").open("wb") as stream:
        fastavro.writer(stream, _ENVELOPE, events)
    shop = _init("changes")
    assert isinstance(shop.source, FilesSource)
    assert (shop.source.format, shop.source.envelope) == ("avro", "debezium")
    types = sql_types(shop)
    assert types == {"id": "BIGINT", "born": "BIGINT", "total": "DECIMAL(12,2)"}


def test_avro_without_the_right_registry_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _topic(monkeypatch, [(None, _framed(7, _PERSON, _person(n))) for n in range(5)])
    assert "pass --registry URL" in _refused(capsys, source)
    with registry() as schemas:
        told = _refused(capsys, source, "--registry", schemas.url)
        assert "has no subject shop.public.customers-value" in told
        schemas.register("shop.public.customers-value", 8, _PERSON)
        told = _refused(capsys, source, "--registry", schemas.url)
    assert "partition 0 offset 0 cannot be read by the schemas" in told
    assert "(ids 8)" in told


def _delta(path: str, rows: int = 40) -> None:
    table = pa.table(
        {
            "order_id": [f"o{n}" for n in range(rows)],
            "placed": pa.array(
                [_MICROS + n * _MINUTE for n in range(rows)], pa.timestamp("us", "UTC")
            ),
            "total": pa.array([f"{n}.25" for n in range(rows)]).cast(pa.decimal128(12, 2)),
            "items": pa.array(range(rows), pa.int32()),
            "country": [("DE", "FR")[n % 2] for n in range(rows)],
        }
    )
    write_deltalake(path, table, partition_by=["country"])


def test_a_delta_table_is_read_as_a_table_and_not_as_its_files() -> None:
    _delta("orders")
    DeltaTable("orders").delete("items < 30")
    shop = _init("orders")
    assert isinstance(shop.source, DeltaSource)
    assert shop.source.path == str(Path("orders").resolve())
    assert sql_types(shop) == {
        "order_id": "STRING",
        "placed": "TIMESTAMP",
        "total": "DECIMAL(12,2)",
        "items": "BIGINT",
        "country": "STRING",
    }
    assert (shop.event.id, shop.event.time) == ("order_id", "placed")
    ids = {json.loads(row)["order_id"] for row in _sample()}
    assert ids == {f"o{n}" for n in range(30, 40)}


def _append(*minutes: int) -> None:
    rows = [{"order_id": f"o{n}", "placed": _MICROS + n * _MINUTE} for n in minutes]
    schema = pa.schema([("order_id", pa.string()), ("placed", pa.timestamp("us", "UTC"))])
    write_deltalake("orders", pa.Table.from_pylist(rows, schema), mode="append")


def test_the_delay_of_a_table_is_by_the_order_of_its_commits() -> None:
    # A file's rows are in no order, and the newest commit is read first.
    for number in range(20):
        _append(*range(number * 60 + 59, number * 60 - 6, -1))
    watermark = _init("orders").watermark
    assert (watermark.delay, watermark.allowed_lateness) == (
        timedelta(minutes=5),
        timedelta(days=1),
    )
    assert json.loads(_sample()[0])["order_id"] == "o59"


@pytest.mark.parametrize("compacted", [True, False])
def test_a_table_that_does_not_show_its_order_has_the_default_delay(compacted: bool) -> None:
    for number in range(2 if compacted else 1):
        _append(*range(number * 60 + 59, number * 60 - 1, -1))
    if compacted:
        DeltaTable("orders").optimize.compact()
    assert _init("orders").watermark.delay == timedelta(minutes=10)
    file = " ".join(Path("conf/pipelines/shop.yml").read_text().replace("#", "").split())
    assert "does not show in which order the rows of the table arrived; the default" in file


def _sample() -> list[bytes]:
    return Path("tests/shop.sample.jsonl").read_bytes().splitlines()


def test_rows_of_a_table_without_a_time_have_that_of_their_arrival() -> None:
    write_deltalake("names", pa.table({"id": ["a", "b"], "name": ["x", "y"]}))
    assert _init("names").event.time == "ingested_at"


def test_a_folder_of_delta_tables_is_refused_with_one_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _delta("lake/orders")
    told = _refused(capsys, "lake")
    assert "lake holds Delta tables: pass one, such as --source lake/orders" in told


def test_a_damaged_delta_table_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("orders/_delta_log").mkdir(parents=True)
    assert "orders cannot be read: " in _refused(capsys, "orders")


_LINES = b'{"id": "a1", "at": "2026-01-05T10:00:00Z"}\n{"id": "a2", "at": "2026-01-05T10:01:00Z"}\n'
_ROW = '{"id": "b", "at": "2026-01-05T10:00:00Z"}'


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("b.json", f"[{_ROW}]", "b.json is one JSON array"),
        ("b.json", f"[\n  {_ROW}\n]\n", "jq -c '.[]' FILE"),
        ("b.json", '{\n  "id": "b",\n  "at": 1\n}\n', "b.json has JSON objects of several lines"),
        ("b.json", '{ "id": "b",\n  "at": 1 }\n', "jq -c . FILE"),
        ("b.csv", "id,at\nb,1\n", "several formats"),
        ("b", "id,at\nb,1\nc,2\n", "several formats"),
        ("b.parquet", "PAR1", "several formats"),
        ("b.avro", "Obj", "several formats"),
        ("b.jsonl.xz", "", "is an archive that is not supported"),
        ("b.jsonl.GZ", "", "this compression is known as .gz only"),
        ("b.jsonl.lz4", "", "is an archive that is not supported"),
        ("b.orc", "ORC", "convert it to Parquet"),
        ("b.csv.zip", "PK", "b.csv.zip: is an archive that is not supported"),
        ("b.xlsx", "PK", "convert it to Parquet or CSV"),
    ],
)
def test_a_file_of_another_kind_beside_lines_is_refused(
    capsys: pytest.CaptureFixture[str], name: str, content: str, words: str
) -> None:
    Path("landing").mkdir()
    # Of many files only some are read; one of another kind is found by its name among all.
    for number in range(60):
        Path(f"landing/a{number}.jsonl").write_bytes(_LINES)
    Path("landing", name).write_text(content)
    if name in ("b.json", "b", "b.csv.zip"):
        for number in range(59):
            Path(f"landing/a{number}.jsonl").unlink()
    assert words in _refused(capsys, "landing")


def test_a_first_line_that_is_cut_off_is_no_document() -> None:
    Path("landing").mkdir()
    Path("landing/a.jsonl").write_bytes(b'{"id": "a0", "at": "2026\n' + _LINES)
    assert _init("landing").event.id == "id"


def test_columns_of_a_partitioned_folder_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for day in (1, 2):
        Path(f"landing/day=2026-01-0{day}/hour=1").mkdir(parents=True)
        Path(f"landing/day=2026-01-0{day}/hour=1/part-0.jsonl").write_bytes(_LINES)
    _init("landing")
    told = capsys.readouterr().err
    assert "Note: day is in the names of the folders, not in the records" in told
    assert "hour: regexp_extract(source, '/hour=([^/]*)/', 1)" in told


def test_compressed_files_may_be_beside_others() -> None:
    Path("landing").mkdir()
    Path("landing/a.jsonl").write_bytes(_LINES)
    Path("landing/b.jsonl.gz").write_bytes(gzip.compress(_LINES.replace(b"a", b"b")))
    assert _init("landing").event.id == "id"


def _put(s3: Store, place: str, name: str, data: bytes) -> None:
    s3.put(f"{place}/{name}", data)


def test_lines_are_read_from_an_object_store(s3: Store) -> None:
    place = f"{s3.prefix()}/orders"
    for number in range(3):
        lines = [json.dumps(order(n)).encode() for n in range(number * 10, number * 10 + 10)]
        _put(s3, place, f"day={number}/a.jsonl", b"\n".join(lines))
    _put(s3, place, "b.jsonl.gz", gzip.compress(json.dumps(order(99)).encode()))
    _put(s3, place, "_tmp/c.jsonl", b"half")
    shop = _init(place)
    assert isinstance(shop.source, FilesSource)
    assert shop.source.path == place
    assert shop.event.id == "order_id"
    assert "31 records" in Path("conf/pipelines/shop.yml").read_text()


@pytest.mark.parametrize("format_", ["csv", "parquet", "delta"])
def test_other_formats_are_read_from_an_object_store(s3: Store, format_: str) -> None:
    place = f"{s3.prefix()}/orders"
    if format_ == "csv":
        _put(s3, place, "a.csv", b"order_id;total\n" + b"".join(b"o%d;1\n" % n for n in range(9)))
    elif format_ == "parquet":
        table = pa.table({"order_id": [f"o{n}" for n in range(9)], "total": list(range(9))})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        _put(s3, place, "a.parquet", sink.getvalue().to_pybytes())
    else:
        _delta("local")
        for file in Path("local").rglob("*"):
            if file.is_file():
                _put(s3, place, str(file.relative_to("local")), file.read_bytes())
    shop = _init(place)
    written = yaml.safe_load(Path("conf/pipelines/shop.yml").read_text())["source"]
    assert written["path"] == place
    assert (written["kind"], shop.event.id) == (
        "delta" if format_ == "delta" else "files",
        "order_id",
    )


def test_only_the_beginning_of_a_large_object_is_fetched(
    s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = s3.prefix()
    _put(s3, place, "a.jsonl", b'{"id": "a", "at": 1}\n' * 100_000)
    fetched: list[int] = []
    from s3fs.core import S3File  # noqa: PLC0415  slow to import

    fetch_range = S3File._fetch_range

    def fetch(self: Any, start: int, end: int) -> Any:
        fetched.append(end - start)
        return fetch_range(self, start, end)

    monkeypatch.setattr(S3File, "_fetch_range", fetch)
    _init(place, "--lines", "1000")
    assert 0 < sum(fetched) < 1 << 20


def test_a_store_that_is_lost_while_it_is_read_is_named(
    s3: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from botocore.exceptions import EndpointConnectionError  # noqa: PLC0415  slow to import
    from s3fs.core import S3File  # noqa: PLC0415  slow to import

    def fail(*_: Any) -> None:
        raise EndpointConnectionError(endpoint_url="http://store")

    monkeypatch.setattr(S3File, "_fetch_range", fail)
    place = s3.prefix()
    _put(s3, place, "a.jsonl", _LINES)
    told = _refused(capsys, place, code=4)
    assert f"the source {place}: the object store at" in told
    assert "does not answer. Check the store and the network" in told


def test_a_bucket_that_does_not_exist_is_named(
    s3: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    told = _refused(capsys, "s3://nowhere/orders")
    assert "the source s3://nowhere/orders: there is no such bucket" in told


def test_an_empty_prefix_is_named(s3: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert "holds no file, or does not exist" in _refused(capsys, s3.prefix())


def test_missing_credentials_are_named(
    s3: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from s3fs import S3FileSystem  # noqa: PLC0415  slow to import

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    # Clients of this process have the keys; what is made here has none, and serves no other test.
    S3FileSystem.clear_instance_cache()
    try:
        told = _refused(capsys, f"{s3.prefix()}/x", code=4)
    finally:
        S3FileSystem.clear_instance_cache()
    assert "no credentials for the object store" in told


def test_another_scheme_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gs is not supported" in _refused(capsys, "gs://bucket/x")
