"""Tables of a backfill under another definition, compared with the live ones."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.unit.handmade import write_commit
from tidelake.delta.append import types_of
from tidelake.delta.log import Commit
from tidelake.delta.tables import Lake
from tidelake.instants import to_micros
from tidelake.replay.compare import RowDifference, TableComparison, TableShape, compare
from tidelake.replay.differences import _comparable, _hashed, _read_whole

_AT = "TIMESTAMP '2026-01-05 10:00:00' AS at"
_CLOSE = "abs({e.mean} - {s.mean}) <= 1e-9D"


def _compared(spark: SparkSession, live: str, green: str, shape: TableShape) -> TableComparison:
    stored, made = (spark.sql(f"SELECT {columns}, {_AT}") for columns in (live, green))
    made, stored, shape = _comparable(made, stored, shape)
    return compare(made, stored, shape)


def test_a_column_that_got_another_type_is_compared_as_text(spark: SparkSession) -> None:
    shape = TableShape(("k",), moment="at")
    for live, green, differs in (
        ("1 AS k, 1 AS status", "1 AS k, 'PAID' AS status", True),
        ("1 AS k, 1 AS status", "1 AS k, '1' AS status", False),
        ("1 AS k, 'PAID' AS status", "1 AS k, 1 AS status", True),
        ("1 AS k, 1 AS n", "1 AS k, 5000000000 AS n", True),
        ("1 AS k, 1 AS n", "1 AS k, 1L AS n", False),
        ("1 AS k, 1L AS n", "1 AS k, 1 AS n", False),
        ("1 AS k, DATE '2026-01-05' AS d", "1 AS k, 20458 AS d", True),
        ("1 AS k, map('a', 1) AS m", "1 AS k, array(1) AS m", True),
        # A key of another type finds the row of its text.
        ("1L AS k, 2 AS n", "'1' AS k, 2 AS n", False),
        ("1L AS k, 2 AS n", "'u1' AS k, 2 AS n", True),
        # Numbers stay numbers.
        ("1 AS k, 12.50BD AS n", "1 AS k, 12.5D AS n", False),
        ("1 AS k, 12.5D AS n", "1 AS k, 12.50BD AS n", False),
        ("1 AS k, 12.5BD AS n", "1 AS k, double('NaN') AS n", True),
    ):
        assert _compared(spark, live, green, shape).equal is not differs, (live, green)


def test_what_reads_a_column_of_another_type_is_compared_exactly(spark: SparkSession) -> None:
    """Its tolerance, and the expression that it is derived by, are of the other definition."""
    shape = TableShape(
        ("k",), near={"mean": _CLOSE}, derived={"twice": "mean * 2"}, unhashed=frozenset({"sketch"})
    )
    live = "1 AS k, 1.5D AS mean, 3D AS twice, 'x' AS sketch"
    for mean, differs in (("'1.5'", False), ("'one'", True), ("1.5D + 1e-12D", False)):
        green = f"1 AS k, {mean} AS mean, 3D AS twice, 'y' AS sketch"
        assert _compared(spark, live, green, shape).equal is not differs, mean
    stored = spark.sql(f"SELECT {live}, 'gone' AS at")
    made = spark.sql(f"SELECT {live}, {_AT}")
    _, found, without = _comparable(made, stored, TableShape(("k",), moment="at"))
    assert (without.moment, types_of(found.schema)["at"]) == (None, "string")


def test_a_type_that_loses_a_part_of_the_values_is_a_difference(spark: SparkSession) -> None:
    """As when another writer replaced the table: the cast loses the same part of what is due."""
    shape = TableShape(("k",), moment="at")
    lossy = (
        ("11.259BD AS n", "999.2BD AS n", "decimal(5,3)", "decimal(4,1)"),
        ("TIMESTAMP '2026-01-05 10:00:00' AS n", "DATE '2026-01-05' AS n", "timestamp", "date"),
        ("array(1) AS n", "'[1]' AS n", "array<int>", "string"),
    )
    for due, stored, *types in lossy:
        sides = [spark.sql(f"SELECT 1 AS k, {column}, {_AT}") for column in (due, stored)]
        found = compare(*sides, shape)
        assert (found.rows, found.differing) == (1, 1), due
        assert found.differences == (
            RowDifference("altered", {"column": "n"}, {"type": tuple(types)}),
        )
    # A row that differs is found beside it.
    assert compare(sides[0], sides[1].withColumn("k", F.lit(2)), shape).differing == 3
    # Where one type holds all values of the other, the values are compared in it.
    for due, stored, differing in (
        ("7L", "7", 0),
        ("7", "7L", 0),
        ("5000000000", "7", 1),
        ("1.259BD", "1.26BD", 1),
        ("0.1D", "0.1F", 1),
    ):
        sides = [spark.sql(f"SELECT 1 AS k, {n} AS n, {_AT}") for n in (due, stored)]
        assert compare(*sides, shape).differing == differing, due


def test_a_null_is_the_same_as_a_column_that_the_other_table_lacks(spark: SparkSession) -> None:
    one, other = "SELECT 1 AS a, 'x' AS c", "SELECT 1 AS a, CAST(NULL AS INT) AS b, 'x' AS c"
    moved = "SELECT 1 AS a, 'x' AS b, CAST(NULL AS STRING) AS c"
    hashes = [spark.sql(sql).select(_hashed(spark.sql(sql), ())).collect() for sql in (one, other)]
    assert hashes[0] == hashes[1]
    assert spark.sql(moved).select(_hashed(spark.sql(moved), ())).collect() != hashes[0]


def test_rows_of_a_commit_that_silver_has_read_in_part_are_pending(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for version in range(3):
        note = {"batch": version, "ingested_at": f"2026-01-05T1{version}:00:00+00:00"}
        write_commit(
            lake.bronze("shop"), version, note={"generation": "g1"} | note, adds=[(5, True)] * 2
        )
    run: Any = SimpleNamespace(lake=lake, pipeline=SimpleNamespace(name="shop"))
    for until, hour in (((2, 1), 12), ((3, -1), 12), ((2, 0), 11), ((1, 0), 10), ((0, 0), None)):
        closing = Commit(0, datetime.now(UTC), 5, {"until": {"bronze": until}})
        live: Any = SimpleNamespace(closing=[closing])
        whole = to_micros(datetime(2026, 1, 5, hour, tzinfo=UTC)) if hour else -1
        assert _read_whole(run, live) == whole, until


def test_a_difference_of_a_microsecond_is_shown_with_its_column(spark: SparkSession) -> None:
    shape = TableShape(("k",), moment="at")
    for kind, zone in (("TIMESTAMP", "Z"), ("TIMESTAMP_NTZ", "")):
        live, green = (f"1 AS k, {kind} '2026-01-05 10:00:00.00000{n}' AS seen" for n in (1, 2))
        (found,) = _compared(spark, live, green, shape).differences
        shown = tuple(f"2026-01-05T10:00:00.00000{n}{zone}" for n in (2, 1))
        assert found == RowDifference("altered", {"k": 1}, {"seen": shown}), kind
