"""Whose rows an erasure means, and what it says of tables that are not its own."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pipelines import bronze, shop
from tests.unit.handmade import write_commit
from tidelake.config import load_environment, load_pipeline
from tidelake.delta.tables import Lake
from tidelake.errors import UsageError
from tidelake.replay.erase import _others
from tidelake.replay.erase_records import mentions
from tidelake.replay.subject import Subject, parse_subject


@pytest.mark.parametrize(
    ("value", "text", "found"),
    [
        ("u1", '{"user_id": "u1"', True),
        ("u1", "u1", True),
        ("u1", "user=u1;", True),
        ("u1", '{"user_id":u1}', True),
        ("u1", '{"user_id": "u10"', False),
        ("u1", '{"user_id": "xu1"', False),
        ("u1", '{"user_id": "my_u1"', False),
        ("u1", '{"user_id": "u1-b"', False),
        ("u1", '{"user_id": "U1"', False),
        ("a.b", '"axb"', False),
        ("a.b", '"a.b"', True),
        ("(x", '"(x"', True),
        ("Zoë", '{"name": "Zoë"', True),
        ("Zoë", '{"name": "Zo\\u00eb"', True),
        ('a"b', '{"name": "a\\"b"', True),
        ("-5", '{"n": -5}', True),
        ("-5", '{"n": 3-5}', False),
    ],
)
def test_a_value_is_found_in_a_broken_payload_as_a_whole_word(
    value: str, text: str, found: bool
) -> None:
    assert bool(re.search(Subject("user_id", value).pattern, text)) is found


def test_a_value_is_found_in_broken_avro_by_the_length_that_stands_before_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = {"kind": "kafka", "bootstrap": "b:1", "topic": "t", "format": "avro"}
    (tmp_path / "click.avsc").write_text("{}")
    pipeline = shop(tmp_path, source=source | {"schema": "click.avsc"})
    of_24 = "customer-0123456789-abcd"
    cases = [
        # The length of 24 letters is written as the digit 0.
        (of_24, b"\x00\x07\x30" + of_24.encode() + b"zz", True),
        (of_24, b"\x32" + of_24.encode() + b"zz", False),
        ("u1", b"\xff\x04u1next", True),
        ("u1", b"\xff\x06u10", False),
        ("Zoë", b"\x08Zo\xc3\xabx", True),
        ("x" * 100, b"\xc8\x01" + b"x" * 100 + b"x", True),
    ]
    for value, payload, found in cases:
        frame = bronze(spark, [{"record_id": "r", "payload": payload}])
        told = frame.select(mentions(Subject("user_id", value), pipeline).alias("found"))
        assert told.collect()[0]["found"] is found, value


def test_a_subject_is_a_column_of_silver_and_a_value(tmp_path: Path) -> None:
    pipeline = load_pipeline("clickstream", load_environment("local", root=str(tmp_path)))
    assert parse_subject("user_id=a=b", pipeline) == Subject("user_id", "a=b")
    assert parse_subject("event_id=e1", pipeline).column == "event_id"
    for text in ("user_id", "=u1", "user_id=", ""):
        with pytest.raises(UsageError, match="COLUMN=VALUE"):
            parse_subject(text, pipeline)
    # What a dimension gives is no property of the event.
    for text in ("category=c1", "record_id=x", "USER_ID=u1"):
        with pytest.raises(UsageError, match="Its event columns: event_id, user_id") as refused:
            parse_subject(text, pipeline)
        assert "u1" not in str(refused.value)


def test_a_hash_of_a_subject_tells_it_from_others_and_does_not_hold_it() -> None:
    assert Subject("a", "zoe").hashed != Subject("b", "zoe").hashed != Subject("b", "zoey").hashed
    assert "zoe" not in Subject("a", "zoe").hashed


def test_tables_that_hold_what_came_from_the_pipeline_are_named_with_their_commands(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path)
    use = {"dimensions": [["dim.users", 3, 0]], "counts": [], "taken": {}, "partitions": {}}
    books = {**use, "watermark_in": None, "watermark": None, "until": {}, "warnings": {}}
    silver = {**books, "dedup": {"searched": 0, "seconds": 0}, "prefiltered": None, "columns": []}
    notes: dict[str, dict[str, Any]] = {
        "gold.mine": {"pipeline": "users", "hop": "gold"},
        "gold.dropped": {"pipeline": "users", "hop": "gold"},
        "gold.joined": {"pipeline": "shop", "hop": "gold", "until": {"silver.users": [1, -1]}},
        "gold.apart": {"pipeline": "alone", "hop": "gold", "until": {"silver": [1, -1]}},
        "silver.shop": {"pipeline": "shop", "hop": "silver", **silver},
        "silver.users": {"pipeline": "users", "hop": "silver", **silver},
    }
    for name, note in notes.items():
        write_commit(lake.table(name), 0, note={"generation": "g1", "batch": 1, **note})
    (tmp_path / "backfill" / "shop").mkdir(parents=True)
    mine: Any = SimpleNamespace(pipeline=SimpleNamespace(name="users", gold_names=("dim.users",)))
    mine.pipeline.gold_names = ("dim.users", "gold.mine")
    mine.pipeline.published = {"gold.mine": SimpleNamespace(topic="mine")}

    told = {one.where: one.remedy for one in _others(lake, mine)}

    assert told == {
        "gold.dropped": "remove the table's folder",
        "silver.shop": "tidelake erase shop --subject COLUMN=VALUE",
        "topic mine": "delete the topic: the next run publishes all rows of the table to a new one",
        "gold of shop": "tidelake repair shop --hop gold",
        "backfill/shop": "tidelake backfill run shop from the start, or remove the folder",
    }
