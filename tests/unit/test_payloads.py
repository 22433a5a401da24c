"""Avro payloads, read as what they say; the oracle is fastavro, in plain Python."""

from __future__ import annotations

import io
import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.pipelines import bronze, shop
from tidelake.config import Pipeline
from tidelake.errors import UsageError
from tidelake.runtime.schemas import reading_problem, refuse_unlimited
from tidelake.silver import payloads as reading
from tidelake.silver.avro_schema import schema_problem
from tidelake.silver.payloads import (
    BROKEN,
    PARSED,
    REFUSAL,
    UNKNOWN,
    VALUES,
    Refusal,
    WriterSchemas,
    read_payloads,
)

SUBJECT = "clicks-value"
# 2024-01-01 12:00:00, when the rows of these tests arrive.
NOON = 1_704_110_400_000_000
_NAN = struct.pack("<d", float("nan"))
REGISTRY = {"url": "http://localhost:1", "subject": SUBJECT}
WRITTEN_FIRST = {
    "type": "record",
    "name": "Click",
    "fields": [{"name": "event_id", "type": "string"}],
}
WRITTEN_LATER = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "action", "type": ["null", "string"], "default": None},
        {"name": "event_id", "type": "string"},
    ],
}


def record(**fields: Any) -> dict[str, Any]:
    """Make a record's schema of its fields' types."""
    told = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {"type": "record", "name": "Click", "namespace": "shop.web", "fields": told}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    """Make a decimal's schema."""
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def datum(schema: Any, value: Any) -> bytes:
    """Write a value as fastavro does."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def framed(number: int, body: bytes) -> bytes:
    """Put Confluent's framing in front of a datum."""
    return b"\x00" + struct.pack(">I", number) + body


def following(folder: Path, ddl: str, *, evolution: str = "additive", **source: Any) -> Pipeline:
    """Define a pipeline over Avro."""
    topic = {"kind": "kafka", "bootstrap": "b:1", "topic": "clicks", "format": "avro"}
    return shop(
        folder,
        source={**topic, **(source or {"registry": REGISTRY})},
        event={
            "schema": f"event_id STRING, event_time TIMESTAMP, {ddl}",
            "select": {"user_id": "event_id"},
            "evolution": evolution,
        },
    )


def read(
    spark: SparkSession,
    pipeline: Pipeline,
    payloads: list[bytes | None],
    schemas: dict[int, Any],
    *refusals: Refusal,
) -> DataFrame:
    """Read payloads with the schemas that are known."""
    rows = bronze(spark, [{"record_id": f"t:0:{n}", "payload": p} for n, p in enumerate(payloads)])
    known = {number: json.dumps(schema) for number, schema in schemas.items()}
    return read_payloads(rows, pipeline, WriterSchemas(SUBJECT, known, refusals))


def values(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """Give the values of some fields, in the order of the payloads."""
    return [tuple(row) for row in frame.orderBy("record_id").select(*names).collect()]


def refusals_of(frame: DataFrame) -> list[str | None]:
    """Give why payloads were not read."""
    return [row[REFUSAL] for row in frame.orderBy("record_id").select(REFUSAL).collect()]


def test_records_of_several_writers_are_each_read_by_their_own_schema(
    spark: SparkSession, tmp_path: Path
) -> None:
    payloads = [
        framed(7, datum(WRITTEN_FIRST, {"event_id": "a"})),
        framed(300, datum(WRITTEN_LATER, {"event_id": "b", "action": "view"})),
        framed(7, datum(WRITTEN_FIRST, {"event_id": "c"})),
        framed(300, datum(WRITTEN_LATER, {"event_id": "d", "action": None})),
    ]
    pipeline = following(tmp_path, "action STRING")
    frame = read(spark, pipeline, list(payloads), {7: WRITTEN_FIRST, 300: WRITTEN_LATER})
    assert values(frame, PARSED, f"{VALUES}.event_id", f"{VALUES}.action") == [
        (True, "a", None),
        (True, "b", "view"),
        (True, "c", None),
        (True, "d", None),
    ]
    assert refusals_of(frame) == [None] * 4


def test_every_type_comes_through_exactly(spark: SparkSession, tmp_path: Path) -> None:
    schema = record(
        big="long",
        money={"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2},
        price={
            "type": "fixed", "name": "Price", "size": 12,
            "logicalType": "decimal", "precision": 20, "scale": 5,
        },
        millis={"type": "long", "logicalType": "timestamp-millis"},
        micros={"type": "long", "logicalType": "timestamp-micros"},
        here={"type": "long", "logicalType": "local-timestamp-micros"},
        day={"type": "int", "logicalType": "date"},
        clock={"type": "long", "logicalType": "time-micros"},
        raw="bytes",
        kind={"type": "enum", "name": "Kind", "symbols": ["A", "B"]},
        tags={"type": "array", "items": "string"},
        counts={"type": "map", "values": "long"},
        maybe=["null", {"type": "record", "name": "Inner", "fields": [
            {"name": "x", "type": ["null", "int"]}, {"name": "again", "type": "Price"}]}],
        ratio="double",
        small="float",
    )  # fmt: skip
    said = {
        "big": 9_007_199_254_740_993,
        "money": Decimal("-1234567890123456789012345678.91"),
        "price": Decimal("123456789012345.67890"),
        "millis": datetime(2026, 1, 5, 1, 2, 3, 4000, UTC),
        "micros": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        "here": datetime(2026, 1, 5, 1, 2, 3, 456_789),
        "day": date(1582, 10, 10),
        "clock": 86_399_999_999,
        "raw": b"\x00\xff~",
        "kind": "B",
        "tags": ["a", "", 'b"'],
        "counts": {"k": 2**62},
        "maybe": {"x": None, "again": Decimal("1.00000")},
        "ratio": 0.1,
        "small": 0.5,
    }
    ddl = (
        "big BIGINT, money DECIMAL(30,2), price DECIMAL(20,5), millis TIMESTAMP, micros TIMESTAMP, "
        "here TIMESTAMP_NTZ, day DATE, clock BIGINT, raw BINARY, kind STRING, "
        "tags ARRAY<STRING>, counts MAP<STRING, BIGINT>, "
        "maybe STRUCT<x: INT, again: DECIMAL(20,5)>, ratio DOUBLE, small FLOAT"
    )
    # As a raw number, which fastavro would want as a time.
    writing = json.loads(json.dumps(schema).replace('"logicalType": "time-micros"', '"doc": ""'))
    payload = framed(1, datum(writing, said))
    frame = read(spark, following(tmp_path, ddl), [payload], {1: schema})
    instants = [f"date_format({VALUES}.{name}, 'yyyy-MM-dd HH:mm:ss.SSSSSS')" for name in
                ("millis", "micros", "here")]  # fmt: skip
    row = frame.selectExpr(f"{VALUES}.*", BROKEN, *[f"{sql} AS t{n}" for n, sql in
                           enumerate(instants)]).collect()[0].asDict(recursive=True)  # fmt: skip
    assert row.pop(BROKEN) == []
    assert [row.pop(f"t{n}") for n in range(3)] == [
        "2026-01-05 01:02:03.004000",
        "1969-12-31 23:59:59.999999",
        "2026-01-05 01:02:03.456789",
    ]
    plain = {key: value for key, value in row.items() if key in said}
    plain["raw"] = bytes(plain["raw"])
    times = ("millis", "micros", "here")
    assert {key: plain[key] for key in said if key not in times} == {
        key: value for key, value in said.items() if key not in times
    }


CASES: list[tuple[Any, bytes, str, Any]] = [
    # Digits beyond the precision that the schema declares: the value of the bytes.
    (decimal(5, 2), b"\x08\x7f\xff\xff\xff", "DECIMAL(18,2)", Decimal("21474836.47")),
    # Whose lower 64 bits are 5.
    (
        decimal(5, 2),
        b"\x12\x01" + bytes(7) + b"\x05",
        "DECIMAL(38,2)",
        Decimal("184467440737095516.21"),
    ),
    (decimal(5, 3), b"\x04\x30\x39", "DECIMAL(18,2)", "not exactly DECIMAL(18,2)"),
    ("double", _NAN, "DOUBLE", "not exactly DOUBLE"),
    ("double", _NAN, "STRING", "NaN"),
    ("long", b"\xfe\xff\xff\xff\x1f", "INT", "not exactly INT"),
    # The year 11967.
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        b"\x80\xe0\xe9\x96\xc2\xbc\x8f\x01",
        "TIMESTAMP",
        "not exactly TIMESTAMP",
    ),
    (["int", "string"], b"\x02\x02x", "STRING", '{"member_int":null,"member_string":"x"}'),
]


def test_what_does_not_survive_exactly_breaks_the_contract(
    spark: SparkSession, tmp_path: Path
) -> None:
    names = [f"v{n}" for n in range(len(CASES))]
    declared = ", ".join(f"{name} {case[2]}" for name, case in zip(names, CASES, strict=True))
    schemas = {n: record(**{f"v{n}": case[0]}) for n, case in enumerate(CASES)}
    payloads = [framed(n, case[1]) for n, case in enumerate(CASES)]
    frame = read(spark, following(tmp_path, declared), list(payloads), schemas)
    found = values(frame, REFUSAL, BROKEN, *[f"{VALUES}.{name}" for name in names])
    for n, case in enumerate(CASES):
        refusal, broken, *typed = found[n]
        assert refusal is None
        if str(case[3]).startswith("not exactly"):
            assert (broken, typed[n]) == ([f"v{n}: {case[3]}"], None)
        else:
            assert (broken, typed[n]) == ([], case[3])


def test_what_is_no_datum_is_refused_with_its_reason_and_harms_no_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    good = framed(7, datum(WRITTEN_FIRST, {"event_id": "a"}))
    listed = record(event_id="string", many={"type": "array", "items": "long"})
    endless = b"\x80\xd0\xac\xf3\x0e"  # 2,000,000,000
    payloads = [
        good,
        None,
        b"",
        b"\x00\x00\x00\x00",
        b"\x01" + good[1:],
        b'{"event_id": "a"}',
        good[:-1],
        good + b"\x00",
        framed(7, b""),
        framed(7, b"\x02\xff"),
        framed(7, datum(WRITTEN_FIRST, {"event_id": "\ufffd"})),
        framed(7, endless + b"x"),
        framed(8, b"\x02a" + endless),
        framed(8, b"\x02a" + b"\x01" + b"\x00"),
        framed(4_294_967_295, b"\x02a"),
        framed(7, datum(WRITTEN_FIRST, {"event_id": "z"})),
    ]
    frame = read(
        spark, following(tmp_path, "many ARRAY<BIGINT>"), payloads, {7: WRITTEN_FIRST, 8: listed}
    )
    unframed = "payload: not framed as Avro: a zero byte, a schema's id"
    found = dict(
        (row["record_id"], row[REFUSAL]) for row in frame.select("record_id", REFUSAL).collect()
    )
    assert [found[f"t:0:{n}"] for n in range(len(payloads))] == [
        None,
        "payload: missing",
        unframed,
        unframed,
        unframed,
        unframed,
        *["payload: not one Avro datum of schema 7"] * 4,
        None,
        "payload: not one Avro datum of schema 7",
        *["payload: not one Avro datum of schema 8"] * 2,
        "payload: schema 4294967295 is not in subject clicks-value",
        None,
    ]


def test_text_that_is_not_utf_8_is_refused_wherever_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    inner = {"type": "record", "name": "In", "fields": [{"name": "t", "type": "string"}]}
    # Java's reader would replace the bytes of such a text itself.
    java = {"type": "string", "avro.java.string": "String"}
    schema = record(
        event_id=java,
        raw="bytes",
        plain=["null", "string"],
        record=["null", inner],
        array={"type": "array", "items": ["null", "string"]},
        records={"type": "array", "items": {"type": "array", "items": "In"}},
        map={"type": "map", "values": ["null", "string"], "avro.java.string": "String"},
        union=["long", "string"],
        numbers={"type": "array", "items": "long"},
    )
    value = {
        "event_id": "id-1",
        # The bytes of three such characters, which are no text.
        "raw": "\ufffd".encode() * 3,
        "plain": "plain-1",
        "record": {"t": "record-1"},
        "array": [None, "array-1"],
        "records": [[], [{"t": "x"}, {"t": "records-1"}]],
        "map": {"none": None, "key-1": "map-1"},
        "union": "union-1",
        "numbers": [1],
    }
    texts = [f"{name}-1" for name in ("id", *list(value)[2:7], "key", "union")]
    assert len(texts) == 8
    sound = datum(schema, value)
    written = [sound.replace(text.encode(), b"\xff" * len(text)) for text in texts]
    # In these the character is text: the same length in bytes.
    real = [
        sound.replace(text.encode(), "\ufffd".encode() + b"." * (len(text) - 3)) for text in texts
    ]
    nothing = {"plain": None, "record": None, "array": [], "map": {}, "union": 1}
    empty = datum(schema, value | nothing | {"event_id": "\ufffd"})
    pipeline = following(tmp_path, "raw BINARY")
    payloads = [framed(7, body) for body in (*written, *real, sound, empty)]
    frame = read(spark, pipeline, payloads, {7: schema, 8: WRITTEN_FIRST})
    found = {row["record_id"]: row[REFUSAL] for row in frame.select("record_id", REFUSAL).collect()}
    refused = "payload: not one Avro datum of schema 7"
    assert [found[f"t:0:{n}"] for n in range(len(payloads))] == [refused] * 8 + [None] * 10


@pytest.mark.parametrize(
    ("evolution", "broken", "unknown"),
    [
        ("strict", ["action: not in schema"], None),
        ("additive", [], {"action": "view"}),
        ("rescue", [], '{"action":"view"}'),
    ],
)
def test_fields_beside_the_schema_evolve_by_their_names(
    spark: SparkSession,
    tmp_path: Path,
    evolution: str,
    broken: list[str],
    unknown: dict[str, str] | str | None,
) -> None:
    payload = framed(3, datum(WRITTEN_LATER, {"event_id": "b", "action": "view"}))
    pipeline = following(tmp_path, "value INT", evolution=evolution)
    frame = read(spark, pipeline, [payload], {3: WRITTEN_LATER})
    found = frame.select(BROKEN, UNKNOWN).collect()[0]
    assert (found[BROKEN], found[UNKNOWN]) == (broken, unknown)


def test_a_refusal_holds_for_what_had_arrived_and_no_longer(
    spark: SparkSession, tmp_path: Path
) -> None:
    payload = framed(7, datum(WRITTEN_FIRST, {"event_id": "a"}))
    pipeline, known = following(tmp_path, "value INT"), {7: WRITTEN_FIRST}
    before, after = Refusal(7, "payload: no", NOON), Refusal(7, "payload: no", NOON - 1)
    assert refusals_of(read(spark, pipeline, [payload], known, before)) == ["payload: no"]
    assert refusals_of(read(spark, pipeline, [payload], known, after)) == [None]


def test_a_row_that_was_sent_again_arrives_when_it_was_sent(
    spark: SparkSession, tmp_path: Path
) -> None:
    payload = framed(7, datum(WRITTEN_FIRST, {"event_id": "a"}))
    again = {"reason": "quarantine", "requeued_at": "2024-01-01 12:00:01"}
    rows = bronze(spark, [{"record_id": "t:0:0", "payload": payload, **again}])
    known = WriterSchemas(
        SUBJECT, {7: json.dumps(WRITTEN_FIRST)}, [Refusal(7, "payload: no", NOON)]
    )
    assert refusals_of(read_payloads(rows, following(tmp_path, "value INT"), known)) == [None]


def test_the_first_refusal_that_covers_an_arrival_is_the_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    payload = framed(7, b"\x02a")
    pipeline = following(tmp_path, "value INT")
    lines = [Refusal(7, "payload: later", NOON + 1), Refusal(7, "payload: first", NOON)]
    assert refusals_of(read(spark, pipeline, [payload], {}, *lines)) == ["payload: first"]
    lines = [Refusal(7, "payload: later", NOON), Refusal(7, "payload: first", NOON - 1)]
    assert refusals_of(read(spark, pipeline, [payload], {}, *lines)) == ["payload: later"]


def test_without_a_registry_the_whole_payload_is_one_datum_of_the_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "click.avsc").write_text(json.dumps(WRITTEN_LATER))
    pipeline = following(tmp_path, "action STRING", schema="click.avsc")
    payloads = [
        datum(WRITTEN_LATER, {"event_id": "a", "action": "view"}),
        datum(WRITTEN_LATER, {"event_id": "a", "action": "view"}) + b"\x00",
        None,
    ]
    frame = read(spark, pipeline, payloads, {})
    no = "payload: not one Avro datum of source.schema"
    assert refusals_of(frame) == [None, no, no]
    assert values(frame, f"{VALUES}.event_id", f"{VALUES}.action")[0] == ("a", "view")


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("{", "is no JSON"),
        ('{"type": ' * 100_000, "is nested too deeply"),
        ('"string"', "is not a record"),
        ('{"type": "array", "items": "int"}', "is not a record"),
        (json.dumps(record(next=["null", "Click"])), "is recursive: shop.web.Click holds itself"),
        (
            json.dumps(record(a=record(b={"type": "map", "values": "shop.web.Click"}))),
            "is recursive: shop.web.Click holds itself",
        ),
        (
            json.dumps(record(a="int", A="int")),
            "has fields of shop.web.Click that differ by case alone: a",
        ),
        (json.dumps(record(a="integer")), "cannot be read by Spark: "),
        (json.dumps(WRITTEN_LATER), ""),
    ],
)
def test_a_schema_that_cannot_be_read_is_told_why(
    spark: SparkSession, schema: str, problem: str
) -> None:
    found = reading_problem(spark, schema)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)
    assert "calling" not in found


def test_one_type_may_stand_in_two_fields() -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
    assert schema_problem(json.dumps(record(a=inner, b="Inner"))) == ""


def test_sessions_of_tidelake_bound_what_a_record_may_announce(spark: SparkSession) -> None:
    refuse_unlimited(spark)
    bare: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda key, default: default))
    with pytest.raises(UsageError, match=r"Add to spark\.driver\.extraJavaOptions and"):
        refuse_unlimited(bare)


def test_spark_without_arrow_functions_of_columns_reads_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ['{"event_id":"a","event_time":"2026-01-01T00:00:00Z","value":1.50}', "x", None]
    payloads = [*texts, '{"event_id":"b","value":"12,50","colour":"red"}']
    rows = bronze(spark, [{"record_id": f"{n}", "payload": p} for n, p in enumerate(payloads)])
    pipeline = shop(tmp_path)
    read = read_payloads(rows, pipeline)
    expected = sorted(read.collect())
    monkeypatch.setattr(reading, "arrow_udf", None)
    mapped = read_payloads(rows, pipeline)
    assert mapped.schema == read.schema
    assert sorted(mapped.collect()) == expected
    assert [row[PARSED] for row in expected] == [True, False, False, True]


def test_the_rows_other_columns_stay_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    rows = bronze(spark, [{"record_id": "f:0", "payload": "{}"}])
    read = read_payloads(rows, shop(tmp_path))
    assert read.columns == [*rows.columns, PARSED, REFUSAL, VALUES, BROKEN, UNKNOWN]
