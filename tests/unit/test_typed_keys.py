"""Keys of two types meet without a cast that a row could make fail."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidelake.config import Enrich, Join
from tidelake.config.table_settings import FILE_RETENTION
from tidelake.delta.tables import Lake
from tidelake.gold.joins import Joined, left_side, matched, right_side
from tidelake.runtime.lookups import Lookup, enriched
from tidelake.silver.enrich import look_up, looked_up

_AT = "timestamp'2026-01-05 00:00:00Z'"


def test_a_join_of_a_text_with_a_number_passes_over_texts_that_are_none(
    spark: SparkSession,
) -> None:
    join = Join.model_validate(
        {
            "name": "pairs",
            "left": {"where": "10 / n > 0", "columns": {"n": "n", "inverse": "1 / (n - 1)"}},
            "right": {"pipeline": "other", "columns": {"found": "CAST(code AS INT)"}},
            "on": ["code"],
            "within": "1 hour",
        }
    )
    events = spark.sql(
        f"SELECT record_id, code, n, {_AT} AS event_time, record_id AS event_id FROM VALUES "
        "('l1', '7', 1), ('l2', 'x', 2), ('l3', '8', 0) AS t(record_id, code, n)"
    )
    others = spark.sql(
        f"SELECT 'r1' AS record_id, 7 AS code, {_AT} AS event_time, 'r1' AS event_id"
    )
    rows = matched(left_side(events, join), right_side(others, join), join)
    found = {row["_left"]: (row["n"], row["inverse"], row["found"]) for row in rows.collect()}
    assert found == {"l1": (1, None, 7), "l2": (2, 1.0, None)}
    kind = Joined("gold.pairs", "joins[0]", join, "own")
    failures = events.where(kind.failed("silver", events)).select("record_id").collect()
    assert [row["record_id"] for row in failures] == ["l1", "l3"]


def test_a_lookup_passes_over_texts_that_are_no_key_and_no_instant(spark: SparkSession) -> None:
    enrich = Enrich.model_validate(
        {"dimension": "shops", "on": {"shop": "number"}, "columns": ["city"], "as_of": "sold_at"}
    )
    rows = spark.sql(
        "SELECT id, named_struct('shop', shop, 'sold_at', sold_at) AS _selected FROM VALUES "
        "(1, '7', '2026-01-05 12:00:00'), (2, 'x', '2026-01-05 12:00:00'), (3, '7', 'noon'), "
        "(4, '7', '12:30') AS t(id, shop, sold_at)"
    )
    shops = spark.sql(
        f"SELECT 7 AS number, 'Oslo' AS city, {_AT} AS valid_from, "
        "CAST(NULL AS TIMESTAMP) AS valid_to"
    )
    found = look_up(rows, shops, enrich, 0).select("id", F.col(looked_up(0)).getField("city"))
    assert sorted(map(tuple, found.collect())) == [(1, "Oslo"), (2, None), (3, None), (4, None)]


def test_a_lookup_takes_one_of_several_keys_that_equal_a_value(spark: SparkSession) -> None:
    latest = Enrich.model_validate(
        {"dimension": "shops", "on": {"shop": "code", "x": "number"}, "columns": ["city"]}
    )
    then = latest.model_copy(update={"as_of": "event_time"})
    rows = spark.sql(
        "SELECT id, at AS event_time, named_struct('shop', shop, 'x', x) AS _selected FROM VALUES "
        f"(1, 7, 9007199254740992D, {_AT}), (2, 8, 1D, {_AT}), (3, 7, 5D, {_AT}), "
        f"(4, 7, 5D, {_AT} + INTERVAL 1 HOUR), (5, NULL, 5D, {_AT}) AS t(id, shop, x, at)"
    )
    shops = spark.sql(
        "SELECT code, number, city, valid_from, valid_to FROM VALUES "
        f"('7', 9007199254740993, 'Oslo', {_AT}, NULL), "
        f"('7', 9007199254740992, 'Rome', {_AT}, NULL), "
        f"('07', 5, 'Bonn', {_AT} + INTERVAL 1 HOUR, NULL), "
        f"('7', 5, 'Lima', {_AT}, NULL), ('x', 1, 'none', {_AT}, NULL) "
        "AS t(code, number, city, valid_from, valid_to)"
    )
    for enrich, third in ((latest, "Bonn"), (then, "Lima")):
        found = look_up(rows, shops, enrich, 0)
        assert found.columns == [*rows.columns, looked_up(0)]
        cities = found.select("id", F.col(looked_up(0)).getField("city"))
        wanted = [(1, "Rome"), (2, None), (3, third), (4, "Bonn"), (5, None)]
        assert sorted(map(tuple, cities.collect())) == wanted


def test_a_lookup_reads_the_version_that_is_pinned_however_old_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Delta refuses one that is older than its table keeps removed files, and not the newest."""
    table = Lake(tmp_path).table("dim.shops")
    kept = {FILE_RETENTION: "interval 0 seconds"}
    for city in ("Oslo", "Rome"):
        rows = pa.table({"number": [7], "city": [city]})
        write_deltalake(str(table.path), rows, mode="overwrite", configuration=kept)
    enrich = Enrich.model_validate(
        {"dimension": "shops", "on": {"shop": "number"}, "columns": ["city"]}
    )
    plan = cast(Any, SimpleNamespace(pipeline=SimpleNamespace(enrich=[enrich])))
    rows = spark.sql("SELECT named_struct('shop', 7) AS _selected")
    found = enriched(rows, plan, [Lookup(enrich, table, 0)])
    assert found.select(F.col(looked_up(0)).getField("city")).collect() == [("Oslo",)]
