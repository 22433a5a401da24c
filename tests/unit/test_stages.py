"""Classification: the first test that a row fails is its only fate."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.pipelines import bronze, shop
from tidelake.config.types import is_internal
from tidelake.names import BRONZE_COLUMNS, ID_HASH
from tidelake.silver.payloads import REFUSAL, SKIPPED, UNKNOWN, read_payloads
from tidelake.silver.stages import (
    ORIGIN,
    PAYLOAD_HASH,
    REASONS,
    REQUEUED_AT,
    ROW,
    SELECTED,
    STAGE,
    WARNINGS,
    Judging,
    classify,
    payload_scope,
    reasons_by_stage,
)

GOOD = {"event_id": "e1", "event_time": "2024-01-01T12:00:00Z", "user_id": "u", "value": 1.5}


def payload(**changes: object) -> str:
    return json.dumps({**GOOD, **changes})


def judgements(classified: DataFrame) -> dict[str, tuple[str | None, list[str]]]:
    rows = classified.select("record_id", STAGE, reasons_by_stage().alias("reasons")).collect()
    return {row["record_id"]: (row[STAGE], row["reasons"]) for row in rows}


def stages(
    spark: SparkSession, folder: Path, payloads: dict[str, str], **event: Any
) -> dict[str, tuple[str | None, list[str]]]:
    rows = bronze(spark, [{"record_id": name, "payload": p} for name, p in payloads.items()])
    pipeline = shop(folder, event=event, watermark={"max_future_skew": "5 minutes"})
    return judgements(classify(rows, Judging(pipeline)))


def test_a_text_without_a_date_is_no_event_time(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's cast would make it a time of today, and of another day when it is verified."""
    sound = ("2024-01-01 12:00", " 2024-01-01T12:00:00Z", "2024-01")
    broken = ("12:30", "T12:30", "T12", "  1:05", "\t12:30:01.5", "soon")
    rows = {text: payload(user_id=text) for text in (*sound, *broken)}
    reasons = ["event.time: cannot be computed", "event_time: missing"]
    for time in ("user_id", "concat(user_id, '')"):
        assert stages(spark, tmp_path, rows, time=time) == {
            **dict.fromkeys(sound, (None, [])),
            **dict.fromkeys(broken, ("contract", reasons)),
        }


def test_a_row_has_the_first_fate_that_applies_and_every_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    future = "2024-01-01T12:05:00.000001Z"
    payloads = {
        "good": payload(),
        "at the skew": payload(event_time="2024-01-01T12:05:00Z"),
        "past the skew": payload(event_time=future),
        "unparsed": "{",
        "filtered": payload(user_id="bot"),
        "filtered before its breaks and the future": payload(
            user_id="bot", event_id=None, event_time=future, value="12,50"
        ),
        "where is null": payload(user_id=None),
        "broken before the future": payload(event_time=future, value=12.999),
        "everything": payload(event_id=None, event_time="10:15", value="12,50"),
        "empty id": payload(event_id=""),
        "no time": payload(event_time=None),
    }
    assert stages(spark, tmp_path, payloads, where="user_id <> 'bot'") == {
        "good": (None, []),
        "at the skew": (None, []),
        "past the skew": ("future_event_time", ["event_time: in the future"]),
        "unparsed": ("parse", ["payload: not one JSON object"]),
        "filtered": ("filtered", []),
        "filtered before its breaks and the future": (
            "filtered",
            ["value: not exactly DECIMAL(18,2)", "event_id: missing"],
        ),
        "where is null": ("filtered", []),
        "broken before the future": ("contract", ["value: not exactly DECIMAL(18,2)"]),
        "everything": (
            "contract",
            [
                "event_time: not exactly TIMESTAMP",
                "value: not exactly DECIMAL(18,2)",
                "event_id: missing",
                "event_time: missing",
            ],
        ),
        "empty id": ("contract", ["event_id: missing"]),
        "no time": ("contract", ["event_time: missing"]),
    }


def test_a_time_that_cannot_be_carried_further_breaks_the_contract(
    spark: SparkSession, tmp_path: Path
) -> None:
    stamps = ("0001-01-01T00:00:00Z", "0999-12-31T23:59:59.999999Z", "1000-01-01T00:00:00Z")
    found = stages(spark, tmp_path, {stamp: payload(event_time=stamp) for stamp in stamps})
    refused = ("contract", ["event_time: not in the years 1000 to 9999"])
    assert list(found.values()) == [refused, refused, (None, [])]


def test_a_broken_value_that_the_filter_reads_is_null_to_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    payloads = {"broken": payload(value="12,50"), "missing": payload(value=None)}
    assert stages(spark, tmp_path, payloads, where="value IS NULL OR value > 0") == {
        "broken": ("contract", ["value: not exactly DECIMAL(18,2)"]),
        "missing": (None, []),
    }


def test_a_deletion_needs_no_more_than_its_key(spark: SparkSession, tmp_path: Path) -> None:
    """A database may send nothing else of the deleted row; it would stay in the dimension."""
    pipeline = shop(
        tmp_path,
        kind="dimension",
        event={"sequence": "event_id", "delete_when": "user_id = 'gone'"},
        dimension={"key": ["user_id"]},
        gold=[],
        quality={"rules": {"has_value": "value IS NOT NULL", "dear": "value > 1"}},
    )
    payloads = {"kept": payload(value=None), "deleted": payload(value=None, user_id="gone")}
    rows = bronze(spark, [{"record_id": name, "payload": p} for name, p in payloads.items()])
    found = judgements(classify(rows, Judging(pipeline)))
    assert {name: stage for name, (stage, _) in found.items()} == {
        "kept": "expectation",
        "deleted": None,
    }


def test_a_payload_field_hides_the_bronze_column_of_its_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = shop(
        tmp_path,
        event={
            "schema": "event_id STRING, event_time TIMESTAMP, user_id STRING, Source STRING, "
            "value DECIMAL(18,2)",
            "select": {"user_id": "concat(source, '/', record_id)", "value": "value"},
            "where": "source = 'phone'",
        },
    )
    rows = bronze(
        spark, [{"record_id": "f:0", "source": "file", "payload": payload(Source="phone")}]
    )
    [row] = (
        classify(rows, Judging(pipeline)).select("source", f"{SELECTED}.user_id", STAGE).collect()
    )
    assert row.asDict() == {"source": "file", "user_id": "phone/f:0", STAGE: None}


def test_a_field_that_begins_with_an_underscore_is_no_internal_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As the id of MongoDB. A field of an internal column's name is refused by its schema."""
    pipeline = shop(
        tmp_path,
        event={
            "schema": "_id STRING, event_time TIMESTAMP, _row STRING, _values STRING, value INT",
            "select": {"user_id": "_row", "given": "_values", "value": "value"},
            "id": "_id",
        },
    )
    sent = payload(_id="m1", _row="r", _values="v", value=1)
    rows = bronze(spark, [{"record_id": "f:0", "payload": sent}])
    [row] = classify(rows, Judging(pipeline)).select("event_id", f"{SELECTED}.*", STAGE).collect()
    assert row.asDict() == {
        "event_id": "m1", "user_id": "r", "given": "v", "value": 1, STAGE: None,
    }  # fmt: skip
    scope = payload_scope(read_payloads(rows, pipeline), pipeline).columns
    internal = {SKIPPED, *scope} - {*pipeline.payload_columns, *BRONZE_COLUMNS}
    assert {name for name in internal if not is_internal(name)} == set()


def test_a_requeued_row_is_another_row_that_knows_why_and_when_it_was_sent_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    again = "2024-01-03 00:00:00"
    rows = bronze(
        spark,
        [
            {"record_id": "f:0", "payload": payload()},
            {"record_id": "f:0", "payload": payload(), "reason": "late", "requeued_at": again},
            {
                "record_id": "f:0",
                "payload": payload(),
                "reason": "quarantine",
                "requeued_at": "2024-01-04 00:00:00",
            },
        ],
    )
    stamp = F.col(REQUEUED_AT).cast("string").alias("again")
    found = (
        classify(rows, Judging(shop(tmp_path))).select(ORIGIN, stamp, ROW, PAYLOAD_HASH).collect()
    )
    assert [(row[ORIGIN], row["again"]) for row in found] == [
        ("bronze", None),
        ("late", "2024-01-03 00:00:00"),
        ("quarantine", "2024-01-04 00:00:00"),
    ]
    assert found[0][ROW] == "f:0"
    assert len({row[ROW] for row in found}) == len(found)
    assert len({row[PAYLOAD_HASH] for row in found}) == 1


def test_classification_carries_what_later_steps_need(spark: SparkSession, tmp_path: Path) -> None:
    text = payload(event_time="2024-01-01T23:30:00-01:00")
    rows = bronze(
        spark, [{"record_id": "f:0", "payload": text, "ingested_at": "2024-01-02 12:00:00"}]
    )
    pipeline = shop(tmp_path)
    assert pipeline.watermark.max_future_skew == timedelta(minutes=5)
    classified = classify(rows, Judging(pipeline))
    assert classified.columns == [
        "record_id",
        "payload",
        "source",
        "ingested_at",
        "event_id",
        "event_time",
        "event_date",
        SELECTED,
        UNKNOWN,
        PAYLOAD_HASH,
        ID_HASH,
        ROW,
        ORIGIN,
        REQUEUED_AT,
        STAGE,
        REASONS,
        REFUSAL,
        WARNINGS,
    ]
    [row] = classified.select(
        "payload",
        F.col("event_date").cast("string").alias("day"),
        F.to_json(SELECTED).alias("selected"),
    ).collect()
    assert bytes(row["payload"]) == text.encode()
    assert (row["day"], row["selected"]) == ("2024-01-02", '{"user_id":"u","value":1.50}')


@pytest.mark.long
def test_a_payload_may_have_hundreds_of_fields(spark: SparkSession, tmp_path: Path) -> None:
    """Their tests, nested in one another, would overflow the stack of Spark's analyzer."""
    names = [f"f{number}" for number in range(500)]
    own = ["event_id STRING", "event_time TIMESTAMP", "user_id STRING"]
    schema = ", ".join([*own, *(f"{name} INT" for name in names)])
    select = {"user_id": "user_id", **{name: f"{name} + 0" for name in names}}
    payloads = {"sound": payload(**dict.fromkeys(names, 1)), "broken": payload(f499="x")}
    found = stages(spark, tmp_path, payloads, schema=schema, select=select)
    assert found["sound"] == (None, [])
    assert found["broken"][0] == "contract"
