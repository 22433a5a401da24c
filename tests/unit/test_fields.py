"""Payload fields that the schema does not know: refused, made columns of, or kept as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.pipelines import bronze, shop
from tidelake.config import Pipeline
from tidelake.silver.dedup import Repeats
from tidelake.silver.fates import (
    MOST_COLUMNS,
    RESCUED,
    Fates,
    Routing,
    decide,
    extra_columns,
    new_columns,
    to_late,
    to_silver,
)
from tidelake.silver.payloads import UNKNOWN
from tidelake.silver.stages import STAGE, Judging, classify, reasons_by_stage
from tidelake.silver.summary import Counting, summarize, unknown_fields

GOOD = '"event_id":"e","event_time":"2024-01-01T12:00:00Z","user_id":"u","value":1.5'
LONG, VERY_LONG = "x" * 50_000, "x" * 1_000_000
HOSTILE = [
    "",
    " ",
    "a.b",
    "a b",
    "`",
    "'",
    '"',
    "\\",
    "$",
    "[0]",
    "ü",
    "\U0001f600",
    "_x",
    "1x",
    "a" * 64,
]
DIGITS = "12345678901234567890.123456789012345678"
STORED = {
    "event_id": "string",
    "event_time": "timestamp",
    "user_id": "string",
    "value": "decimal(18,2)",
    "is_late": "boolean",
    "record_id": "string",
    "colour": "string",
    "size": "int",
    "_generation": "string",
}
DEFINED = ("user_id", "value")


def event(*fields: str) -> str:
    """Write a good event with more fields, as JSON texts."""
    return "{" + ",".join([GOOD, *fields]) + "}"


def classified(spark: SparkSession, pipeline: Pipeline, payloads: Mapping[str, str]) -> DataFrame:
    rows = bronze(spark, [{"record_id": name, "payload": text} for name, text in payloads.items()])
    return classify(rows, Judging(pipeline))


def decided(spark: SparkSession, pipeline: Pipeline, payloads: Mapping[str, str]) -> DataFrame:
    rows = classified(spark, pipeline, payloads)
    return decide(rows, Repeats(None, 0), Fates(), watermark=None, allowed=timedelta(0))


def reasons(
    spark: SparkSession, pipeline: Pipeline, payloads: Mapping[str, str]
) -> dict[str, tuple[str | None, list[str]]]:
    found = classified(spark, pipeline, payloads).select(
        "record_id", STAGE, reasons_by_stage().alias("why")
    )
    return {row["record_id"]: (row[STAGE], row["why"]) for row in found.collect()}


def test_strict_refuses_every_unknown_field_by_name(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = shop(tmp_path, event={"evolution": "strict"})
    payloads = {
        "known": event(),
        "null": event('"x":null'),
        "nested": event('"x":{"event_id":1}'),
        "two": event('"y":1', '"x":[]'),
        "case": event('"User_ID":"v"'),
        "broken as well": '{"event_id":"e","value":"12,50","x":1}',
        "no object": '["x"]',
        "inside a known one": event().replace('"u"', '{"x":1}'),
    }
    assert reasons(spark, pipeline, payloads) == {
        "known": (None, []),
        "null": ("contract", ["x: not in schema"]),
        "nested": ("contract", ["x: not in schema"]),
        "two": ("contract", ["y: not in schema", "x: not in schema"]),
        "case": ("contract", ["User_ID: not in schema"]),
        "broken as well": (
            "contract",
            ["value: not exactly DECIMAL(18,2)", "x: not in schema", "event_time: missing"],
        ),
        "no object": ("parse", ["payload: not one JSON object"]),
        "inside a known one": (None, []),
    }


def test_strict_names_at_most_twenty_fields_by_their_first_hundred_letters(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = shop(tmp_path, event={"evolution": "strict"})
    many = [f'"f{number:03}":1' for number in range(150)]
    hostile = [f"{json.dumps(name)}:1" for name in HOSTILE]
    payloads = {
        "long": event(f'"{LONG}":1'),
        "very long": event(f'"{VERY_LONG}":1'),
        "many": event(*many),
        "hostile": event(*hostile),
        "twice": event('"x":1', '"x":2'),
    }
    found = reasons(spark, pipeline, payloads)
    assert found == {
        "long": ("contract", ["x" * 100 + ": not in schema"]),
        "many": ("contract", [f"f{number:03}: not in schema" for number in range(20)]),
        "hostile": ("contract", [f"{name}: not in schema" for name in HOSTILE]),
        "twice": ("contract", ["x: not in schema"]),
        "very long": ("contract", ["x" * 100 + ": not in schema"]),
    }


def rescued(spark: SparkSession, pipeline: Pipeline, payloads: Mapping[str, str]) -> dict[str, Any]:
    silver = to_silver(
        decided(spark, pipeline, payloads), Routing(pipeline), generation="g1", batch=0
    )
    return {row["record_id"]: row[RESCUED] for row in silver.select("record_id", RESCUED).collect()}


def test_rescue_keeps_unknown_fields_as_json_digit_for_digit(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = shop(tmp_path, event={"evolution": "rescue"})
    found = rescued(
        spark,
        pipeline,
        {
            "known": event(),
            "null": event('"x":null'),
            "nested": event('"x":{"b":[1,{"c":"ü"}],"a":true}', '"y":"1"'),
            "digits": event(f'"x":{DIGITS}', f'"y":[{DIGITS}]'),
            "case": event('"User_ID":"v"', '"USER_ID":"w"'),
            "hostile": event(*[f"{json.dumps(name)}:1" for name in HOSTILE]),
            "long": event(f'"{LONG}":1'),
        },
    )
    assert found.pop("known") is None
    assert DIGITS in found["digits"]
    assert found["digits"] == f'{{"x":{DIGITS},"y":[{DIGITS}]}}'
    assert {name: json.loads(text) for name, text in found.items() if name != "digits"} == {
        "null": {"x": None},
        "nested": {"x": {"a": True, "b": [1, {"c": "ü"}]}, "y": "1"},
        "case": {"User_ID": "v", "USER_ID": "w"},
        "hostile": dict.fromkeys(HOSTILE, 1),
        "long": {LONG: 1},
    }


def test_rescue_and_additive_stand_where_silver_and_late_expect_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    payloads = {"a": event('"colour":"red"')}
    rescue = shop(tmp_path, event={"evolution": "rescue"})
    rows = decided(spark, rescue, payloads)
    silver = to_silver(rows, Routing(rescue), generation="g1", batch=0)
    late = to_late(rows, Routing(rescue), watermark=None, generation="g1", batch=0)
    assert silver.columns[-5:-4] == late.columns[-6:-5] == [RESCUED]

    plain = shop(tmp_path)
    rows = decided(spark, plain, payloads)
    silver = to_silver(rows, Routing(plain), extra=("colour", "size"), generation="g1", batch=0)
    late = to_late(
        rows, Routing(plain), watermark=None, extra=("colour",), generation="g1", batch=0
    )
    assert silver.columns[-6:-4] == ["colour", "size"]
    assert late.columns[-6:-5] == ["colour"]
    assert UNKNOWN not in silver.columns
    assert RESCUED not in silver.columns


def test_additive_writes_unknown_values_as_text(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = shop(tmp_path)
    payloads = {
        "text": event('"x":"a b"'),
        "digits": event(f'"x":{DIGITS}'),
        "truth": event('"x":true'),
        "nested": event('"x":{"b":[1,2]}'),
        "null": event('"x":null'),
        "other": event('"y":1'),
        "none": event(),
        "case": event('"X":"1"'),
    }
    rows = decided(spark, pipeline, payloads)
    silver = to_silver(rows, Routing(pipeline), extra=("x",), generation="g1", batch=0)
    assert {row["record_id"]: row["x"] for row in silver.collect()} == {
        "text": "a b",
        "digits": DIGITS,
        "truth": "true",
        "nested": '{"b":[1,2]}',
        "null": None,
        "other": None,
        "none": None,
        "case": None,
    }


@pytest.mark.parametrize("evolution", ["additive", "rescue"])
def test_a_payload_parses_alike_with_and_without_an_unknown_field(
    spark: SparkSession, tmp_path: Path, evolution: str
) -> None:
    pipeline = shop(tmp_path, event={"evolution": evolution})
    payloads = {
        "known twice": event('"user_id":"v"'),
        "known twice beside an unknown": event('"user_id":"v"', '"x":1'),
        "unknown twice": event('"x":1', '"x":2'),
    }
    found = reasons(spark, pipeline, payloads)
    assert found == dict.fromkeys(payloads, (None, []))


def test_only_fields_of_accepted_rows_that_hold_a_value_and_could_be_columns_are_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = shop(tmp_path, event={"where": "user_id <> 'bot'"})
    payloads = {
        "a": event('"colour":"red"', '"empty":null', '"size":[]'),
        "b": event('"colour":"blue"', *[f"{json.dumps(name)}:1" for name in HOSTILE]),
        "long": event(f'"{LONG}":1'),
        "very long": event(f'"{VERY_LONG}":1'),
        "filtered": event('"bots":1').replace('"u"', '"bot"'),
        "broken": event('"broken":1').replace('"e"', "null"),
        "none": event(),
    }
    rows = decided(spark, pipeline, payloads)
    summary = summarize(rows, Counting(pipeline))
    assert summary.has_unknown()
    assert unknown_fields(rows) == {"colour", "size"}
    assert sum(summary.rows().values()) == len(payloads)


@pytest.mark.parametrize("evolution", ["strict", "rescue"])
def test_without_additive_nothing_becomes_a_column(
    spark: SparkSession, tmp_path: Path, evolution: str
) -> None:
    pipeline = shop(tmp_path, event={"evolution": evolution})
    rows = decided(spark, pipeline, {"a": event('"x":1'), "b": event()})
    assert not summarize(rows, Counting(pipeline)).has_unknown()


def test_a_nested_known_field_is_read_beside_unknown_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = "event_id STRING, event_time TIMESTAMP, user_id STRING, value STRUCT<a: INT>"
    pipeline = shop(
        tmp_path,
        event={"schema": schema, "select": {"value": "value.a"}, "evolution": "rescue"},
        gold=[
            {
                "name": "n",
                "window": {"kind": "global"},
                "keys": ["value"],
                "measures": {"n": {"count": "*"}},
            }
        ],
    )
    text = event('"x":{"a":2}').replace("1.5", '{"a":1,"b":3}')
    silver = to_silver(
        decided(spark, pipeline, {"a": text}), Routing(pipeline), generation="g", batch=0
    )
    [row] = silver.select("value", F.col(RESCUED)).collect()
    assert (row["value"], json.loads(row[RESCUED])) == (1, {"value.b": 3, "x": {"a": 2}})


def test_stored_text_columns_of_no_definition_are_filled_from_unknown_fields() -> None:
    assert extra_columns(STORED, DEFINED) == ("colour",)
    assert extra_columns(STORED, ()) == ("user_id", "colour")
    assert extra_columns(STORED, ("Colour", "USER_ID")) == ()
    assert extra_columns({}, DEFINED) == ()


def test_new_columns_come_in_order_and_leave_out_what_cannot_be_one() -> None:
    names = ["zone", "Alpha", *HOSTILE, LONG, VERY_LONG, "a" * 63]
    assert new_columns(names, defined=DEFINED, stored=STORED) == ("Alpha", "a" * 63, "zone")


@pytest.mark.parametrize(
    "name",
    ["USER_ID", "Value", "EVENT_ID", "Is_Late", "colour", "COLOUR", "size", "payload", "Watermark"],
)
def test_a_field_that_collides_but_for_its_case_becomes_no_column(name: str) -> None:
    assert new_columns([name], defined=DEFINED, stored=STORED) == ()


def test_of_two_fields_that_differ_in_case_only_the_first_becomes_a_column() -> None:
    assert new_columns({"zone", "Zone", "ZONE"}, defined=DEFINED, stored=STORED) == ("ZONE",)


def test_there_are_at_most_a_hundred_columns_of_unknown_fields() -> None:
    names = [f"f{number:03}" for number in range(150)]
    assert MOST_COLUMNS == 100
    assert new_columns(names, defined=DEFINED, stored={}) == tuple(names[:100])
    some = dict.fromkeys(names[:99], "string")
    assert new_columns(names, defined=DEFINED, stored=some) == (names[99],)
    full = dict.fromkeys(names[:100], "string")
    assert new_columns(names, defined=DEFINED, stored=full) == ()
    over = dict.fromkeys(names[:120], "string")
    assert new_columns(names, defined=DEFINED, stored=over) == ()
    # Other columns take no room.
    assert len(new_columns(names, defined=DEFINED, stored=STORED)) == 99
