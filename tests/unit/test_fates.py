"""Routing: each row in one table, with the columns that explain why it is there."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.pipelines import bronze, shop
from tidelake.names import ID_HASH
from tidelake.silver.dedup import IDENTITY, VERDICT, Repeats
from tidelake.silver.driver_dedup import CONFLICT, DUPLICATE
from tidelake.silver.fates import (
    FATE,
    QUARANTINE_DDL,
    Fates,
    Routing,
    decide,
    to_late,
    to_quarantine,
    to_silver,
)
from tidelake.silver.stages import PAYLOAD_HASH, Judging, classify

WATERMARK = datetime(2024, 1, 1, 11, tzinfo=UTC)
ALLOWED = timedelta(hours=1)
AGAIN = "_requeued_at"
ORIGIN = [PAYLOAD_HASH, ID_HASH, "_generation", "_batch"]


def payload(clock: str, **changes: object) -> str:
    event = {"event_id": "e", "event_time": f"2024-01-01T{clock}Z", "user_id": "u", "value": 1.5}
    return json.dumps({**event, **changes})


def decided(spark: SparkSession, folder: Path, watermark: datetime = WATERMARK) -> DataFrame:
    again = {"reason": "late", "requeued_at": "2024-01-02 00:00:00"}
    mended = {"reason": "quarantine", "requeued_at": "2024-01-02 00:00:01"}
    rows = bronze(
        spark,
        [
            {"record_id": "on time", "payload": payload("11:00:00")},
            {"record_id": "late", "payload": payload("10:59:59.999999")},
            {"record_id": "too late", "payload": payload("09:59:58.500000")},
            {"record_id": "let in", "payload": payload("09:00:00"), **again},
            {"record_id": "mended but too late", "payload": payload("09:00:01"), **mended},
            {"record_id": "still broken", "payload": payload("11:30:00", event_id=None), **mended},
            {"record_id": "copy", "payload": payload("09:00:00")},
            {"record_id": "conflict", "payload": payload("09:00:00")},
            {"record_id": "unparsed", "payload": b"\xff"},
            {"record_id": "filtered", "payload": payload("09:00:00", user_id="bot")},
            {"record_id": "ahead", "payload": payload("23:00:00")},
            {"record_id": "broken", "payload": payload("11:30:00", event_id=None, value=0.001)},
        ],
    )
    classified = classify(rows, Judging(shop(folder, event={"where": "user_id <> 'bot'"})))
    named = F.when(F.col("record_id") == "copy", DUPLICATE)
    verdicts = classified.where(F.col("record_id").isin("copy", "conflict")).select(
        *IDENTITY, named.otherwise(CONFLICT).alias(VERDICT)
    )
    return decide(classified, Repeats(verdicts, 0), Fates(), watermark=watermark, allowed=ALLOWED)


def test_every_row_has_one_fate(spark: SparkSession, tmp_path: Path) -> None:
    rows = decided(spark, tmp_path).select("record_id", FATE).collect()
    assert {row["record_id"]: row[FATE] for row in rows} == {
        "on time": "silver",
        "late": "silver",
        "too late": "late",
        "let in": "silver",
        "mended but too late": "late",
        "still broken": "quarantined",
        "copy": "duplicate",
        "conflict": "quarantined",
        "unparsed": "quarantined",
        "filtered": "filtered",
        "ahead": "quarantined",
        "broken": "quarantined",
    }
    assert len(rows) == 12


def test_without_verdicts_and_watermark_nothing_is_a_duplicate_or_late(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = bronze(spark, [{"record_id": "old", "payload": payload("00:00:00")}])
    fate = decide(
        classify(rows, Judging(shop(tmp_path))),
        Repeats(None, 0),
        Fates(),
        watermark=None,
        allowed=timedelta(0),
    )
    assert [row[FATE] for row in fate.collect()] == ["silver"]


def test_silver_holds_the_selected_columns_between_the_event_and_its_origin(
    spark: SparkSession, tmp_path: Path
) -> None:
    silver = to_silver(decided(spark, tmp_path), Routing(shop(tmp_path)), generation="g1", batch=7)
    assert silver.columns == [
        "event_id",
        "event_time",
        "user_id",
        "value",
        "is_late",
        "record_id",
        "ingested_at",
        "event_date",
        *ORIGIN,
    ]
    rows = {row["record_id"]: row for row in silver.collect()}
    assert {name: row["is_late"] for name, row in rows.items()} == {
        "on time": False,
        "late": True,
        "let in": True,
    }
    assert {(row["_generation"], row["_batch"]) for row in rows.values()} == {("g1", 7)}


def test_a_late_row_keeps_its_payload_and_says_how_late_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    late = to_late(
        decided(spark, tmp_path),
        Routing(shop(tmp_path)),
        watermark=WATERMARK,
        generation="g",
        batch=0,
    )
    assert late.columns[-8:] == ["payload", "watermark", "lateness_seconds", AGAIN, *ORIGIN]
    texts = {name: F.col(name).cast("string") for name in ("watermark", AGAIN)}
    rows = {row["record_id"]: row for row in late.withColumns(texts).collect()}
    assert {name: row[AGAIN] for name, row in rows.items()} == {
        "too late": None,
        "mended but too late": "2024-01-02 00:00:01",
    }
    row = rows["too late"]
    assert row["lateness_seconds"] == 3601.5
    assert row["watermark"] == "2024-01-01 11:00:00"
    assert bytes(row["payload"]).decode() == payload("09:59:58.500000")


def test_later_batches_run_the_classes_that_spark_compiled_for_the_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    routing = Routing(shop(tmp_path))
    source = "org.apache.spark.metrics.source.CodegenMetrics$"
    metrics = spark._jvm.java.lang.Class.forName(source).getField("MODULE$").get(None)
    compiled = metrics.METRIC_COMPILATION_TIME().getCount
    classes = [compiled()]
    for batch in range(1, 7):
        watermark = WATERMARK + timedelta(minutes=batch)
        rows, origin = decided(spark, tmp_path, watermark), {"generation": "g", "batch": batch}
        late = to_late(rows, routing, watermark=watermark, **origin)
        for table in (to_silver(rows, routing, **origin), late, to_quarantine(rows, **origin)):
            table.write.format("noop").mode("append").save()
        classes.append(compiled())
    # Spark puts common subexpressions in the order of their hash codes, which a batch's number is
    # part of: what compares two of them has two forms, of two classes. Numbers in the code would
    # make eight classes anew with each batch.
    assert classes[1] > classes[0]
    assert classes[-1] - classes[1] <= 4


def test_quarantine_keeps_the_payload_with_stage_and_every_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    quarantined = to_quarantine(decided(spark, tmp_path), generation="g", batch=0)
    stored = spark.createDataFrame([], QUARANTINE_DDL)
    assert quarantined.dtypes == stored.dtypes
    again = F.col(AGAIN).cast("string")
    rows = {row["record_id"]: row for row in quarantined.withColumn(AGAIN, again).collect()}
    assert {name: (row["stage"], row["reasons"]) for name, row in rows.items()} == {
        "conflict": (
            "conflicting_duplicate",
            ["event_id: seen before with another payload"],
        ),
        "unparsed": ("parse", ["payload: not one JSON object"]),
        "ahead": ("future_event_time", ["event_time: in the future"]),
        "broken": ("contract", ["value: not exactly DECIMAL(18,2)", "event_id: missing"]),
        "still broken": ("contract", ["event_id: missing"]),
    }
    assert {name for name, row in rows.items() if row[AGAIN]} == {"still broken"}
    assert rows["still broken"][AGAIN] == "2024-01-02 00:00:01"
    assert bytes(rows["unparsed"]["payload"]) == b"\xff"
