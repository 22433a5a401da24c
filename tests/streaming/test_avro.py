"""Avro from a real broker, by several writers; the oracle decodes with fastavro alone."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

from tests.brokers import Followed, Kafka, following
from tests.registries import Standin, registry
from tests.running import read
from tidelake.delta.tables import Hop, Table
from tidelake.errors import SourceError
from tidelake.ledger.terms import read_ledger
from tidelake.replay.generations import rebuild_silver
from tidelake.replay.requeue import Choice, replay_quarantine
from tidelake.replay.verify import verify
from tidelake.runtime import silver as silver_hop

SUBJECT = "clicks-value"
SILVER: tuple[Hop, ...] = ("bronze", "silver")
_MINUTE = 60_000_000


def click_schema(*more: dict[str, Any], identified_by: str = "string") -> dict[str, Any]:
    """Make a version of the schema of clicks."""
    return {
        "type": "record",
        "name": "Click",
        "fields": [
            {"name": "event_id", "type": identified_by},
            {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "user_id", "type": ["null", "string"]},
            *more,
        ],
    }


FIRST = click_schema()
SECOND = click_schema({"name": "action", "type": "string", "default": "view"})
# Its ids are numbers: nobody who expects text can read them.
THIRD = click_schema(identified_by="long")


@pytest.fixture
def standin() -> Iterator[Standin]:
    """Run a registry."""
    with registry() as found:
        yield found


def written(number: int, schema: dict[str, Any], **values: Any) -> bytes:
    """Write a click of a schema under an id, with fastavro."""
    told = {"event_id": "e", "event_time": number * _MINUTE, "user_id": "u", **values}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), told)
    return b"\x00" + struct.pack(">I", number) + out.getvalue()


def said(payload: bytes | None, schemas: dict[int, Any]) -> dict[str, Any] | None:
    """Read a payload, all of it and nothing more; None where it says nothing."""
    if not payload or len(payload) < 5 or payload[0]:
        return None
    schema = schemas.get(struct.unpack(">I", payload[1:5])[0])
    rest = io.BytesIO(payload[5:])
    try:
        value = fastavro.schemaless_reader(rest, schema) if schema else None
    except (EOFError, IndexError, ValueError, OverflowError):
        return None
    return None if rest.read() else value  # type: ignore[return-value]


def follow(
    spark: SparkSession, folder: Path, kafka: Kafka, standin: Standin, topic: str, **keys: str
) -> Followed:
    """Define a pipeline over a topic of Avro."""
    told = {"url": standin.url, "subject": SUBJECT, **keys}
    return following(spark, folder, kafka, topic=topic, format="avro", registry=told)


def reasons(clicks: Followed) -> list[tuple[str, list[str]]]:
    """Give the reasons of the rows in quarantine."""
    return read(clicks.lake, "silver.clicks__quarantine", "stage, reasons")


def assert_balanced(clicks: Followed) -> None:
    """Want balanced books."""
    books = read_ledger(clicks.lake, clicks.pipeline)
    assert books.balanced, books.problems


def assert_sound(clicks: Followed) -> None:
    """Want balanced books and a recomputation that comes out the same."""
    assert_balanced(clicks)
    judged = verify(clicks.context)
    assert judged.equal, judged.to_json()


@pytest.mark.long
def test_every_writer_is_read_and_what_cannot_be_comes_back_when_it_can(
    spark: SparkSession, tmp_path: Path, kafka: Kafka, standin: Standin
) -> None:
    topic = kafka.topic()
    subject = f"{topic}-value"
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    serializers = [AvroSerializer(client, json.dumps(schema)) for schema in (FIRST, SECOND)]
    place = SerializationContext(topic, MessageField.VALUE)
    # Each value twice over two partitions, so that schemas alternate in both.
    values = [
        serializers[n // 2 % 2](
            {
                "event_id": f"e{n}",
                "event_time": n * _MINUTE,
                "user_id": None if n % 5 == 0 else f"u{n % 3}",
                "action": "click",
            },
            place,
        )
        for n in range(40)
    ]
    good = list(filter(None, values))
    ids = []
    for schema in (FIRST, SECOND):
        ids.append(client.get_version(subject, len(ids) + 1).schema_id)
        standin.register(subject, ids[-1], schema)
    standin.register(subject, 15, THIRD)
    bad = [
        None,
        b"",
        b'{"event_id": "e1"}',
        good[0][:-2],
        good[1] + b"\x00",
        b"\x00" + struct.pack(">I", ids[0]) + b"\x80\xd0\xac\xf3\x0e",
    ]
    refused = [
        *[written(15, THIRD, event_id=100 + n) for n in range(3)],
        *[written(99, SECOND, event_id=f"n{n}", action="buy") for n in range(3)],
    ]
    for start in range(0, 40, 8):
        kafka.send(topic, [*good[start : start + 8], *bad, *refused])
    clicks = follow(spark, tmp_path, kafka, standin, topic, subject=subject)
    clicks.run(SILVER)

    known: dict[int, Any] = {ids[0]: FIRST, ids[1]: SECOND}
    held = {place: value for place, _, value, _ in kafka.records(topic)}
    read_by_oracle = {place: said(value, known) for place, value in held.items()}
    assert {place for (place,) in read(clicks.lake, "silver.clicks__quarantine", "record_id")} == {
        place for place, value in read_by_oracle.items() if value is None
    }
    columns = "event_id, epoch_us(event_time), user_id, action"
    assert read(clicks.lake, "silver.clicks", columns) == sorted(
        {
            (v["event_id"], int(v["event_time"].timestamp() * 1e6), v["user_id"], v.get("action"))
            for v in read_by_oracle.values()
            if v is not None
        },
        key=repr,
    )
    found = {reason for _, told in reasons(clicks) for reason in told}
    assert found == {
        "payload: missing",
        "payload: not framed as Avro: a zero byte, a schema's id",
        f"payload: not one Avro datum of schema {ids[0]}",
        f"payload: schema 99 is not in subject {subject}",
        f"payload: schema 15 is not backward compatible with schema {ids[1]}: type mismatch: "
        "reader type: long not compatible with writer type: string",
    }
    assert_balanced(clicks)

    # Now the registry knows both, and the rule lets them in.
    standin.register(subject, 99, SECOND)
    clicks = follow(spark, tmp_path, kafka, standin, topic, subject=subject, compatibility="none")
    assert replay_quarantine(clicks.context, Choice(stage="parse")).released == 30
    clicks.run(SILVER)
    assert len(read(clicks.lake, "silver.clicks", "record_id")) == 46
    assert_sound(clicks)
    # What a registry said is in the lake: nobody asks for it again.
    standin.subjects.clear()
    rebuild_silver(clicks.context)
    assert len(read(clicks.lake, "silver.clicks", "record_id")) == 46
    assert_sound(clicks)


@pytest.mark.long
def test_a_retry_reads_what_its_first_try_read_whatever_the_registry_says_now(
    spark: SparkSession,
    tmp_path: Path,
    kafka: Kafka,
    standin: Standin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = kafka.topic()
    first = written(1, FIRST, event_id="a")
    kafka.send(topic, [first, written(9, SECOND, event_id="b", action="x")])
    clicks = follow(spark, tmp_path, kafka, standin, topic)
    # A registry that cannot say anything decides nothing.
    with pytest.raises(SourceError, match="has no subject clicks-value"):
        clicks.run(SILVER)
    assert (reasons(clicks), read(clicks.lake, "silver.clicks", "event_id")) == ([], [])
    standin.register(SUBJECT, 1, FIRST)
    append = silver_hop.append

    def fail_at_silver(rows: Any, table: Table, *args: Any, **more: Any) -> None:
        if table.name == "silver.clicks":
            raise OSError("No space left on device")
        append(rows, table, *args, **more)

    with monkeypatch.context() as patched, pytest.raises(Exception, match="No space left"):
        patched.setattr(silver_hop, "append", fail_at_silver)
        clicks.run(SILVER)
    standin.register(SUBJECT, 9, SECOND)
    clicks.run(SILVER)
    unknown = ("parse", ["payload: schema 9 is not in subject clicks-value"])
    assert reasons(clicks) == [unknown]
    assert read(clicks.lake, "silver.clicks", "event_id") == [("a",)]
    # What comes now is read, and what had come stays where it is.
    kafka.send(topic, [written(9, SECOND, event_id="c", action="x")])
    clicks.run(SILVER)
    assert reasons(clicks) == [unknown]
    assert read(clicks.lake, "silver.clicks", "event_id, action") == [("a", None), ("c", "x")]
    assert_sound(clicks)
