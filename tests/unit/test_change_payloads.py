"""Change events in Spark: JSON and Avro are unwrapped alike, and skipped records are filtered."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.changes import Json, line, postgres, with_schema
from tests.pipelines import bronze, shop
from tests.unit.test_payloads import REGISTRY, SUBJECT, datum, framed
from tidelake.config import Pipeline
from tidelake.errors import NotBuiltError
from tidelake.replay import erase_records
from tidelake.replay.subject import Subject
from tidelake.runtime.fast_lane import Lane
from tidelake.silver import payloads as reading
from tidelake.silver.avro_schema import logical_types
from tidelake.silver.payloads import (
    BROKEN,
    PARSED,
    REFUSAL,
    SKIPPED,
    VALUES,
    WriterSchemas,
    read_payloads,
)
from tidelake.silver.stages import STAGE, Judging, classify, reasons_by_stage

AT = 1_704_110_000_123_456
SEEN = datetime(2024, 1, 1, 11, 53, 20, 123_456, tzinfo=UTC)
ANNE = {"id": 1, "first_name": "Anne", "last_name": "K", "email": None}
FILES = {"kind": "files", "path": "${root}/landing", "envelope": "debezium"}
TOPIC = {
    "kind": "kafka",
    "bootstrap": "b:1",
    "topic": "t",
    "format": "avro",
    "envelope": "debezium",
}


def changes(folder: Path, ddl: str, *, source: Json | None = None, **event: Any) -> Pipeline:
    """Define a pipeline over change events."""
    own = {"id": "record_id", "time": "source_time", "select": {"user_id": "op"}, **event}
    return shop(folder, source=source or FILES, event={"schema": ddl, **own})


def rows(spark: SparkSession, records: list[tuple[bytes | None, bytes | None]]) -> DataFrame:
    """Make bronze rows of keys and payloads."""
    payloads = [{"record_id": f"t:0:{n}", "payload": p} for n, (_, p) in enumerate(records)]
    frame = bronze(spark, list(payloads))
    keys = spark.createDataFrame(
        [(f"t:0:{n}", key) for n, (key, _) in enumerate(records)], "record_id string, k binary"
    )
    joined = frame.join(keys, on="record_id", how="left").withColumn("key", F.col("k"))
    return joined.select(frame.columns).orderBy("record_id")


def test_json_events_are_read_and_each_record_without_row_is_filtered(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = postgres("u", at=AT, lsn=7, before=None, after=ANNE)
    key = b'{"id":9}'
    records = [
        (key, line(event)),
        (key, line(with_schema(event))),
        (key, None),
        (None, None),
        (None, b"null"),
        (None, line(postgres("m", at=AT, lsn=7))),
        (None, line(postgres("t", at=AT, lsn=7))),
    ]
    pipeline = changes(tmp_path, "id BIGINT, first_name STRING")
    taken = rows(spark, records)
    classified = classify(taken, Judging(pipeline)).orderBy("record_id")
    told = classified.select(STAGE, "event_time", reasons_by_stage().alias("reasons")).collect()
    assert [row[STAGE] for row in told] == [
        *[None, None, "filtered", "parse", "filtered", "filtered", "parse"]
    ]
    assert [row["event_time"].astimezone(UTC) for row in told[:2]] == [SEEN] * 2
    assert told[6]["reasons"] == ["payload: op t empties the whole table, which no row expresses"]
    read = read_payloads(taken, pipeline)
    ids = [row[0] for row in read.orderBy("record_id").select(F.col(VALUES)["id"]).collect()]
    assert ids == [1, 1, 9, None, None, None, None]
    expected = sorted(read.collect())
    monkeypatch.setattr(reading, "arrow_udf", None)
    mapped = read_payloads(taken, pipeline)
    assert mapped.schema == read.schema
    assert sorted(mapped.collect()) == expected


def test_where_does_not_let_a_tombstone_through(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = changes(tmp_path, "id BIGINT", where="op IS NULL OR op = 'u'")
    event = line(postgres("u", at=AT, lsn=7, after=ANNE))
    classified = classify(rows(spark, [(b"k", None), (b"k", event)]), Judging(pipeline))
    stages = [row[0] for row in classified.orderBy("record_id").select(STAGE).collect()]
    assert stages == ["filtered", None]


def connect(kind: Any, name: str, **more: Any) -> Json:
    """Give a type as Confluent's Avro converter names it."""
    base = {"type": kind} if isinstance(kind, str) else kind
    return {**base, "connect.version": 1, "connect.name": name, **more}


VALUE = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "born", "type": ["null", connect("int", "io.debezium.time.Date")]},
        {"name": "seen", "type": connect("long", "io.debezium.time.MicroTimestamp")},
        {
            "name": "total",
            "type": connect(
                "bytes",
                "org.apache.kafka.connect.data.Decimal",
                logicalType="decimal",
                precision=12,
                scale=2,
            ),
        },
        {
            "name": "free",
            "type": connect(
                {
                    "type": "record",
                    "name": "VariableScaleDecimal",
                    "namespace": "io.debezium.data",
                    "fields": [
                        {"name": "scale", "type": "int"},
                        {"name": "value", "type": "bytes"},
                    ],
                },
                "io.debezium.data.VariableScaleDecimal",
            ),
        },
        {"name": "again", "type": "io.debezium.data.VariableScaleDecimal"},
        {
            "name": "at",
            "type": connect(
                "long", "org.apache.kafka.connect.data.Timestamp", logicalType="timestamp-millis"
            ),
        },
        {
            "name": "days",
            "type": {"type": "array", "items": connect("int", "io.debezium.time.Date")},
        },
    ],
    "connect.name": "shop.customers.Value",
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.customers",
    "fields": [
        {"name": "before", "type": ["null", VALUE], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "namespace": "io.debezium.connector.postgresql",
                "fields": [
                    {"name": "connector", "type": "string"},
                    {"name": "ts_ms", "type": "long"},
                    {"name": "lsn", "type": ["null", "long"], "default": None},
                ],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
    "connect.name": "shop.customers.Envelope",
}
ROW = {
    "id": 1,
    "born": 17702,
    "seen": 1529507596945104,
    "total": Decimal("-1.99"),
    "free": {"scale": 3, "value": b"\x00\xc7"},
    "again": {"scale": 1, "value": b"\x03"},
    "at": datetime(2018, 6, 20, 6, 37, 3, tzinfo=UTC),
    "days": [0, -1],
}
DDL = (
    "id BIGINT, born DATE, seen TIMESTAMP, total DECIMAL(12,2), free DECIMAL(9,3), "
    "again DECIMAL(9,1), at TIMESTAMP, days ARRAY<DATE>"
)
READ = [
    *[
        1,
        date(2018, 6, 20),
        datetime(2018, 6, 20, 15, 13, 16, 945_104, tzinfo=UTC),
        Decimal("-1.99"),
    ],
    *[Decimal("0.199"), Decimal("0.3"), datetime(2018, 6, 20, 6, 37, 3, tzinfo=UTC)],
    [date(1970, 1, 1), date(1969, 12, 31)],
]


def avro(op: str, **images: Json | None) -> bytes:
    source = {"connector": "postgresql", "ts_ms": AT // 1000, "lsn": 7}
    event = {"before": None, "after": None, "source": source, "op": op, "ts_ms": 1, **images}
    return datum(ENVELOPE, event)


@pytest.mark.parametrize("with_registry", [True, False])
def test_avro_events_are_read_by_the_types_that_their_schema_names(
    spark: SparkSession, tmp_path: Path, with_registry: bool
) -> None:
    source: Json = {"registry": REGISTRY} if with_registry else {"schema": "value.avsc"}
    (tmp_path / "value.avsc").write_text(json.dumps(ENVELOPE))
    pipeline = changes(tmp_path, DDL, source=TOPIC | source)
    bodies = [avro("c", after=ROW), avro("d", before=ROW), avro("t"), avro("c", after=ROW)[:-1]]
    framing = [framed(7, body) if with_registry else body for body in bodies]
    taken = rows(spark, [*((b"\x00key", body) for body in framing), (b"\x00key", None)])
    schemas = WriterSchemas(SUBJECT, {7: json.dumps(ENVELOPE)})
    read = read_payloads(taken, pipeline, schemas).orderBy("record_id")
    told = read.select(PARSED, SKIPPED, BROKEN, REFUSAL, VALUES).collect()
    for row, op in zip(told, "cd", strict=False):
        assert (row[PARSED], row[SKIPPED], row[BROKEN]) == (True, False, [])
        found = [v.astimezone(UTC) if isinstance(v, datetime) else v for v in row[VALUES]]
        assert found[:8] == READ
        position, seen = (
            "00000000000000000007",
            datetime(2024, 1, 1, 11, 53, 20, 123_000, tzinfo=UTC),
        )
        assert found[8:] == [op, seen, position]
    assert [row[PARSED] for row in told[2:]] == [False, False, True]
    assert [row[SKIPPED] for row in told] == [False, False, False, False, True]
    of_schema = "schema 7" if with_registry else "source.schema"
    assert told[2][REFUSAL].startswith("payload: op t")
    assert told[3][REFUSAL] == f"payload: not one Avro datum of {of_schema}"


def test_names_of_types_that_the_reader_converts_are_left_out() -> None:
    fields = json.loads(logical_types(json.dumps(VALUE)))["fields"]
    names = {field["field"]: field.get("name") for field in fields}
    assert names["total"] is None and names["at"] is None
    assert names["free"] == names["again"] == "io.debezium.data.VariableScaleDecimal"
    assert names["born"] == "io.debezium.time.Date"


def test_a_fast_lane_over_change_events_is_refused_by_name(tmp_path: Path) -> None:
    run = SimpleNamespace(pipeline=changes(tmp_path, "id BIGINT"))
    lane: Any = SimpleNamespace(
        run=run, detection=SimpleNamespace(features="f", used_columns=frozenset())
    )
    with pytest.raises(NotBuiltError, match="a fast lane over change events"):
        Lane._refuse(lane)


def test_tombstones_in_avro_are_found_by_the_value_in_their_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "value.avsc").write_text(json.dumps(ENVELOPE))
    pipeline = changes(tmp_path, "id BIGINT", source=TOPIC | {"schema": "value.avsc"})
    keys = [b"\x00\x00\x00\x00\x01\x04u1", b"\x00\x00\x00\x00\x01\x06u12", None]
    records = [(key, payload) for key in keys for payload in (None, b"x")]
    nothing = SimpleNamespace(exists=False)
    lake = SimpleNamespace(silver=lambda _: nothing, late=lambda _: nothing)
    run: Any = SimpleNamespace(spark=spark, pipeline=pipeline, lake=lake)
    found = erase_records._found_by_id(run, Subject("user_id", "u1"), rows(spark, records))
    # With a payload, that says whose it is if it can be decoded.
    assert {row["record_id"]: row["_stored"] for row in found.collect()} == {
        "t:0:0": True,
        "t:0:1": False,
    }
