"""Tables of a backfill under another definition, compared with the live ones."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tidelake.delta.append import types_of
from tidelake.replay.compare import RowDifference, TableComparison, TableShape, compare
from tidelake.replay.differences import _comparable, _hashed

_AT = "TIMESTAMP '2026-01-05 10:00:00' AS at"
_CLOSE = "abs({e.mean} - {s.mean}) <= 1e-9D"


def _compared(spark: SparkSession, live: str, green: str, shape: TableShape) -> TableComparison:
    stored, made = (spark.sql(f"SELECT {columns}, {_AT}") for columns in (live, green))
    stored, shape = _comparable(made, stored, shape)
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
    found, without = _comparable(made, stored, TableShape(("k",), moment="at"))
    assert (without.moment, types_of(found.schema)["at"]) == (None, "string")


def test_a_null_is_the_same_as_a_column_that_the_other_table_lacks(spark: SparkSession) -> None:
    one, other = "SELECT 1 AS a, 'x' AS c", "SELECT 1 AS a, CAST(NULL AS INT) AS b, 'x' AS c"
    moved = "SELECT 1 AS a, 'x' AS b, CAST(NULL AS STRING) AS c"
    hashes = [spark.sql(sql).select(_hashed(spark.sql(sql), ())).collect() for sql in (one, other)]
    assert hashes[0] == hashes[1]
    assert spark.sql(moved).select(_hashed(spark.sql(moved), ())).collect() != hashes[0]


def test_a_difference_of_a_microsecond_is_shown_with_its_column(spark: SparkSession) -> None:
    shape = TableShape(("k",), moment="at")
    for kind, zone in (("TIMESTAMP", "Z"), ("TIMESTAMP_NTZ", "")):
        live, green = (f"1 AS k, {kind} '2026-01-05 10:00:00.00000{n}' AS seen" for n in (1, 2))
        (found,) = _compared(spark, live, green, shape).differences
        shown = tuple(f"2026-01-05T10:00:00.00000{n}{zone}" for n in (2, 1))
        assert found == RowDifference("altered", {"k": 1}, {"seen": shown}), kind
