"""What the fast lane makes of records: the same events as silver, but for what is merely sloppy."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.bronze.records import BRONZE_DDL
from tidelake.config import Pipeline, load_environment, load_pipeline
from tidelake.config.types import is_internal
from tidelake.silver.lenient_parse import _scope, lenient_parse
from tidelake.silver.payloads import decoder_of
from tidelake.silver.values import MOST_DEPTH

_GOOD = {"id": "e1", "at": "2026-01-05T12:00:00Z", "kind": "paid", "amount": "10.50", "n": 2}

# Payloads that silver's decoder parses, and those that it does not; `..` stands for the members.
_DEEPEST = b"[" * (MOST_DEPTH - 1) + b"]" * (MOST_DEPTH - 1)
_SOUND = [
    b"{..}",
    b" {..} \r\n",
    b'{..,"x":"\\ud83d\\ude00"}',
    b'{..,"x":"\\\\ud800"}',
    b'{..,"x":' + _DEEPEST + b"}",
    # Read with other types than those of the schema: merely sloppy.
    b'{..,"tags":{"a":1}}',
    b'{..,"tags":"[1]"}',
    b'{..,"n":"x"}',
    b'{..,"x":1,"x":2}',
]
_BROKEN = [
    b"{..}}",
    b"{..}{..}",
    b"{..},{..}",
    b"{..}] x",
    b"[{..}]",
    b"{..} garbage",
    b"{..}//",
    b"{..}\xc2\xa0",
    b"{..}\x00",
    b"\xef\xbb\xbf{..}",
    b'{..,"x":NaN}',
    b'{..,"amount":NaN}',
    b'{..,"tags":["a",NaN]}',
    b'{..,"x":-Infinity}',
    b"{..,\"x\":'a'}",
    b"{..,'x':1}",
    b"{..,x:1}",
    b'{..,"x":01}',
    b'{..,"x":"\\q"}',
    b'{..,"x":"a\tb"}',
    b'{..,"x":"\xff"}',
    b'{..,"\xff":1}',
    b'{..,"x":"\xed\xa0\x80"}',
    b'{..,"x":"\\ud800"}',
    b'{..,"x":"\\ude00\\ud83d"}',
    b'{..,"x":"\\\\\\uDE00"}',
    b'{..,"x":[' + _DEEPEST + b"]}",
]
_ODD = [*_SOUND, *_BROKEN]


def _pipeline(folder: Path, **event: Any) -> Pipeline:
    raw = {
        "name": "payments",
        "source": {"kind": "files", "path": str(folder)},
        "event": {
            "schema": "id STRING, at TIMESTAMP, kind STRING, amount DECIMAL(12,2), n INT, "
            "tags ARRAY<STRING>",
            "select": {"amount": "amount", "share": "amount / n", "tags": "tags", "rest": "kind"},
            "where": "kind = 'paid'",
            "id": "id",
            "time": "at",
            **event,
        },
        "gold": [
            {
                "name": "total",
                "window": {"kind": "global"},
                "keys": ["event_id"],
                "measures": {"events": {"count": "*"}},
            }
        ],
    }
    file = folder / "payments.yml"
    file.write_text(yaml.safe_dump(raw))
    return load_pipeline(str(file), load_environment("local", root=str(folder)))


def _seen(
    spark: SparkSession, pipeline: Pipeline, *payloads: Any, needed: frozenset[str]
) -> list[tuple[Any, ...]]:
    """Glance at payloads that arrive at noon; give the id and the needed columns of each event."""
    lines = [one if isinstance(one, str) else json.dumps(one) for one in payloads]
    quoted = ", ".join("('" + line.replace("'", "\\'") + "')" for line in lines)
    payload = spark.sql(f"SELECT * FROM VALUES {quoted} AS t(payload)")
    seen = lenient_parse(_records(spark, payload), pipeline, needed)
    assert set(seen.columns) == {"record_id", "event_id", "event_time", "ingested_at", *needed}
    return [tuple(row) for row in seen.select("event_id", *sorted(needed)).collect()]


def _records(spark: SparkSession, payloads: DataFrame) -> DataFrame:
    """Give bronze's columns of payloads that arrive at noon."""
    return payloads.select(
        *[
            (
                F.col("payload").cast("binary")
                if name == "payload"
                else F.expr("timestamp'2026-01-05 12:00:00Z'")
                if name == "ingested_at"
                else F.lit(None).cast(kind)
            ).alias(name)
            for name, kind in _columns(spark)
        ]
    )


def _columns(spark: SparkSession) -> list[tuple[str, str]]:
    schema = spark.range(0).select(F.from_json(F.lit(""), f"struct<{BRONZE_DDL}>").alias("b"))
    return [(f.name, f.dataType.simpleString()) for f in schema.select("b.*").schema.fields]


def test_events_that_silver_would_not_take_are_passed_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    passed_over = [
        "{broken",
        "null",
        {**_GOOD, "id": None},
        {**_GOOD, "id": ""},
        {**_GOOD, "at": None},
        {**_GOOD, "at": "yesterday"},
        {**_GOOD, "at": "2026-01-05T12:05:00.001Z"},
        {**_GOOD, "kind": "refunded"},
        {**_GOOD, "kind": None},
    ]
    found = _seen(
        spark,
        _pipeline(tmp_path),
        *passed_over,
        {**_GOOD, "id": "last", "at": "2026-01-05T12:05:00Z"},
        needed=frozenset({"amount"}),
    )
    assert [str(value) for row in found for value in row] == ["last", "10.50"]


def test_what_cannot_be_computed_is_null_and_stops_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = _seen(
        spark,
        _pipeline(tmp_path),
        {**_GOOD, "tags": ["a", "b"]},
        {**_GOOD, "id": "e2", "n": 0},
        {**_GOOD, "id": "e3", "amount": "12,50"},
        needed=frozenset({"share", "tags"}),
    )
    assert [(one, None if share is None else float(share), tags) for one, share, tags in found] == [
        ("e1", 5.25, ["a", "b"]),
        ("e2", None, None),
        ("e3", None, None),
    ]


def test_a_text_that_is_no_condition_leaves_its_event_out_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    payloads = [{**_GOOD, "id": kind, "kind": kind} for kind in ("maybe", "true", "false")]
    pipeline = _pipeline(tmp_path, where="kind")
    assert _seen(spark, pipeline, *payloads, needed=frozenset()) == [("true",)]


def test_a_number_that_a_double_cannot_hold_is_left_to_the_exact_lane(
    spark: SparkSession, tmp_path: Path
) -> None:
    payload = json.dumps({**_GOOD, "kind": "paid", "amount": "AMOUNT"})
    amounts = ["1e-400", "2e400", '"1e-999999999"', '"1e-400"']
    found = _seen(
        spark,
        _pipeline(tmp_path),
        *[payload.replace('"AMOUNT"', amount) for amount in amounts],
        {**_GOOD, "id": "12e45678"},
        needed=frozenset({"amount"}),
    )
    assert found == [("e1", None), ("e1", Decimal("0.00")), ("12e45678", Decimal("10.50"))]


def test_an_expression_may_name_bronze_s_columns(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = _pipeline(tmp_path, select={"arrived": "ingested_at"}, where="id IS NOT NULL")
    ((one, arrived),) = _seen(spark, pipeline, _GOOD, needed=frozenset({"arrived"}))
    assert one == "e1"
    assert arrived is not None


def test_a_field_that_begins_with_an_underscore_is_no_internal_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = "_id STRING, at TIMESTAMP, _read STRUCT<a: INT>, kind STRING"
    pipeline = _pipeline(tmp_path, schema=schema, select={"a": "_read.a"}, id="_id")
    sent = {**_GOOD, "_id": "m1", "_read": {"a": 7}}
    assert _seen(spark, pipeline, sent, needed=frozenset({"a"})) == [("m1", 7)]
    records = _records(spark, spark.sql("SELECT '{}' AS payload"))
    scope = _scope(records, pipeline, {"_id", "_read"}).columns
    assert {name for name in scope if not is_internal(name)} == {"_id", "_read"}


def test_exactly_the_payloads_that_silver_can_parse_are_seen(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = _pipeline(tmp_path)
    rest = b'"at":"2026-01-05T12:00:00Z","kind":"paid","amount":"10.50","n":2'
    payloads = [
        one.replace(b"..", b'"id":"%d",%s' % (number, rest)) for number, one in enumerate(_ODD)
    ]
    decoder = decoder_of(pipeline.event.fields, "additive")
    parsed = decoder.decode(pa.array(payloads, pa.binary())).field("parsed").to_pylist()
    values = ", ".join(f"(unhex('{one.hex()}'))" for one in payloads)
    records = _records(spark, spark.sql(f"SELECT * FROM VALUES {values} AS t(payload)"))
    seen = lenient_parse(records, pipeline, frozenset({"amount", "tags"}))
    found = {int(row.event_id) for row in seen.select("event_id").collect()}
    assert {_ODD[one] for one in found} == {
        one for one, is_parsed in zip(_ODD, parsed, strict=True) if is_parsed
    }
    assert len(found) == len(_SOUND)


def test_a_payload_is_parsed_once_for_all_its_plain_fields(
    spark: SparkSession, tmp_path: Path
) -> None:
    records = spark.createDataFrame([], BRONZE_DDL).repartition(1)
    seen = lenient_parse(records, _pipeline(tmp_path), frozenset({"amount", "rest", "share"}))
    plan = cast(Any, seen)._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("from_json(") == 1
