"""The records of a table version: what differs, and how its values are written."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tidelake.errors import RefusedError, TidelakeError, UnpublishedError
from tidelake.runtime import publish
from tidelake.runtime.progress import Progress
from tidelake.runtime.publish import RecordHead, differing, to_records

_HEAD = RecordHead("gold.clicks", "g2", 7, 41)


def totals(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    texts = spark.createDataFrame(list(rows), "user_id STRING, total STRING, _batch BIGINT")
    return texts.selectExpr("user_id", "CAST(total AS DECIMAL(20,2)) AS total", "_batch")


def test_rows_are_paired_by_key_and_those_that_look_the_same_are_left_out(
    spark: SparkSession,
) -> None:
    before = totals(spark, ("same", "1", 1), ("changed", "2", 1), ("gone", None, 1), (None, "4", 1))
    after = totals(spark, ("same", "1", 2), ("changed", "3", 2), ("new", "5", 2), (None, "6", 2))
    found = {row["key"]: row for row in differing(before, after, ["user_id"]).collect()}
    assert sorted(found) == [
        f'{{"user_id":{name}}}' for name in ('"changed"', '"gone"', '"new"', "null")
    ]
    gone, new = found['{"user_id":"gone"}'], found['{"user_id":"new"}']
    assert (gone["before"], gone["after"]) == ('{"user_id":"gone","total":null}', None)
    assert (new["before"], new["after"]) == (None, '{"user_id":"new","total":"5.00"}')


def test_a_record_says_which_version_it_is_of_and_what_was_before_and_after(
    spark: SparkSession,
) -> None:
    before = totals(spark, ("a", "1", 1), ("b", "2", 1))
    pairs = differing(before, totals(spark, ("a", "1.50", 2)), ["user_id"])
    records = {row["key"]: row for row in to_records(pairs, _HEAD).collect()}
    of_a, of_b = records['{"user_id":"a"}'], records['{"user_id":"b"}']
    assert of_a["value"] == (
        '{"table":"gold.clicks","generation":"g2","batch":7,"version":41,"op":"upsert",'
        '"before":{"user_id":"a","total":"1.00"},"after":{"user_id":"a","total":"1.50"}}'
    )
    deleted = json.loads(of_b["value"])
    assert (deleted["op"], deleted["after"]) == ("delete", None)
    assert {one["key"]: bytes(one["value"]) for one in of_b["headers"]} == {
        "table": b"gold.clicks",
        "version": b"41",
        "op": b"delete",
    }


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_values_are_exact_and_in_utc_whatever_the_session_says(
    spark: SparkSession, ansi: str
) -> None:
    row = spark.sql(
        "SELECT CAST('0' AS DECIMAL(38,18)) AS nothing, "
        "CAST('12345678901234567890.5' AS DECIMAL(38,2)) AS much, "
        "9007199254740993 AS big, double('NaN') AS nan, "
        "TIMESTAMP'2026-01-05 10:00:00.000001Z' AS at, DATE'2026-01-05' AS day, "
        "struct(CAST('1.10' AS DECIMAL(4,2)) AS price, CAST(NULL AS INT) AS none) AS nested, "
        "array(CAST('2.20' AS DECIMAL(4,2))) AS many, X'0102' AS raw, 'a\"b' AS text"
    )
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        [(_, _, found)] = differing(row.limit(0), row, ["text"]).collect()
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert json.loads(found) == {
        "nothing": "0.000000000000000000",
        "much": "12345678901234567890.50",
        "big": 9007199254740993,
        "nan": "NaN",
        "at": "2026-01-05T10:00:00.000001Z",
        "day": "2026-01-05",
        "nested": {"price": "1.10", "none": None},
        "many": ["2.20"],
        "raw": "AQI=",
        "text": 'a"b',
    }


def test_a_continuous_run_goes_on_without_a_broker_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    outcomes: list[Any] = [None, "away", "still away", None, None]

    def tried(_: object) -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise UnpublishedError(outcome)

    monkeypatch.setattr(publish, "publish_gold", tried)
    publishing = publish.Publishing(SimpleNamespace(progress=Progress(said.append)))  # type: ignore[arg-type]
    while outcomes:
        publishing.step()
    assert said == ["publish waits, and is tried again: away", "publish goes on"]


@pytest.mark.parametrize(
    ("of_b", "expected", "code"),
    [(UnpublishedError, UnpublishedError, 1), (RefusedError, RefusedError, 3)],
)
def test_a_table_that_fails_stops_no_other_and_all_failures_are_told(
    monkeypatch: pytest.MonkeyPatch,
    of_b: type[TidelakeError],
    expected: type[TidelakeError],
    code: int,
) -> None:
    tried: list[str] = []

    def fails(_: object, table: Any, *__: object) -> None:
        tried.append(table.name)
        if table.name != "gold.c":
            raise (UnpublishedError if table.name == "gold.a" else of_b)(f"{table.name} failed")

    targets = [
        SimpleNamespace(
            table=SimpleNamespace(name=f"gold.{name}"), kind=SimpleNamespace(identity=())
        )
        for name in "abcd"
    ]
    monkeypatch.setattr(publish, "targets_of", lambda *_: targets)
    monkeypatch.setattr(publish, "_publish", fails)
    run: Any = SimpleNamespace(lake=None, pipeline=None)
    run.published = {f"gold.{name}": "a topic" for name in "abc"}
    with pytest.raises(expected, match=r"^gold\.a failed\ngold\.b failed$") as caught:
        publish.publish_gold(run)
    assert (caught.value.exit_code, tried) == (code, ["gold.a", "gold.b", "gold.c"])
