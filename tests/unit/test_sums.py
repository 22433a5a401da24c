"""Sums of hashes: exact however large, and changed by whatever changes in a group."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.delta.append import types_of
from tidelake.replay.compare import (
    RowDifference,
    TableShape,
    by_group,
    compare,
    joined,
    row_hash,
    sums_of,
    sums_of_hash,
)

_ROWS = [("a", 1, None), ("a", 1, None), ("b", None, 2), ("c", 3, 3)]
_DDL = "k string, x int, y int"
_SHAPE = TableShape(key=("k",), moment="at")
_DAYS = [datetime(2026, 1, day, 23, 59, 59, tzinfo=UTC) for day in (5, 6)]


def _frame(spark: SparkSession, rows: list[tuple[str, int | None, int | None]]) -> DataFrame:
    late = [(*row, _DAYS[n % 2]) for n, row in enumerate(rows)]
    return spark.createDataFrame(late, f"{_DDL}, at timestamp")


def test_the_sum_of_three_parts_is_the_sum_of_the_hashes(spark: SparkSession) -> None:
    hashed = spark.range(1000).select(F.xxhash64("id").alias("h"))
    least, greatest = -(1 << 63), (1 << 63) - 1
    edges = spark.createDataFrame([(least,), (least,), (greatest,), (-1,)], "h long")
    for rows in (hashed, edges):
        expected = sum(row["h"] for row in rows.collect())
        assert joined(rows.agg(*sums_of_hash(F.col("h"))).collect()[0]) == expected
    assert joined(hashed.limit(0).agg(*sums_of_hash(F.col("h"))).collect()[0]) == 0


def test_rows_are_summed_by_their_day_in_utc(spark: SparkSession) -> None:
    sums = by_group(sums_of(_frame(spark, _ROWS), _SHAPE))
    assert {day: count for day, (count, _) in sums.items()} == {"2026-01-05": 2, "2026-01-06": 2}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("array('a')", "array('a', null)"),
        ("array(cast(null AS string))", "CAST(array() AS array<string>)"),
        ("struct('x' AS a, null AS b)", "struct(null AS a, 'x' AS b)"),
        ("map('a', array(1))", "map('a', array(1, null))"),
        *[
            (f"{kind}(TIMESTAMP'2026-01-05 00:00:00.000001Z')", f"{kind}({second})")
            for kind in ("array", "struct")
            for second in ["TIMESTAMP'2026-01-05 00:00:00.000002Z'"]
        ],
    ],
)
def test_nested_values_that_differ_have_different_hashes(
    spark: SparkSession, one: str, other: str
) -> None:
    rows = spark.sql(f"SELECT {one} AS v").union(spark.sql(f"SELECT {other} AS v"))
    hashed = row_hash({"v": F.col("v")}, types_of(rows.schema))
    assert rows.select(hashed).distinct().count() == 2


def test_nested_values_side_by_side_have_boundaries(spark: SparkSession) -> None:
    rows = spark.sql(
        "SELECT array('a') AS v, array('b', 'c') AS w UNION ALL SELECT array('a', 'b'), array('c')"
    )
    hashed = row_hash({name: F.col(name) for name in "vw"}, types_of(rows.schema))
    assert rows.select(hashed).distinct().count() == 2


def test_a_column_that_a_table_lacks_is_a_difference(spark: SparkSession) -> None:
    stored = _frame(spark, _ROWS)
    added = stored.withColumn("z", F.lit(1))
    found = compare(added, stored, _SHAPE)
    assert (found.rows, found.differing, list(found.columns)) == (4, 1, ["k", "x", "y", "at"])
    assert found.differences == (RowDifference("missing", {"column": "z"}),)
    by_another = TableShape(key=("z",), moment="at")
    found = compare(added, stored, by_another)
    assert (found.rows, found.differing, found.sums) == (4, 1, {})


def test_where_a_null_stands_counts(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("a", 1, None), ("a", None, 1)], _DDL)
    columns = {name: F.col(name) for name in rows.columns}
    one, other = rows.select(row_hash(columns, types_of(rows.schema))).collect()
    assert one != other
