"""Private API of Spark that a managed runtime lacks is replaced by public functions."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidelake.spark import internals
from tidelake.spark.internals import BridgeError, clone_of, collected, moved, null_on_error


class _Refusing:
    """A JVM of which a security manager allows no class."""

    def __getattr__(self, name: str) -> Any:
        raise BridgeError(f"{name} is not allowed")


def _without_class(spark: SparkSession) -> Any:
    # What Py4J makes of packages that are not there.
    jvm: Any = spark.sparkContext._jvm
    return SimpleNamespace(org=jvm.nowhere)


@pytest.fixture(params=["no class", "refused"])
def other_jvm(request: pytest.FixtureRequest, spark: SparkSession) -> Any:
    return _without_class(spark) if request.param == "no class" else _Refusing()


def test_an_expression_that_fails_is_null_also_in_another_spark(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, other_jvm: Any
) -> None:
    context = SimpleNamespace(_jvm=other_jvm)
    monkeypatch.setattr(internals, "SparkContext", SimpleNamespace(_active_spark_context=context))
    rows = spark.sql("SELECT * FROM VALUES ('1'), ('x'), (NULL) AS t(s)")

    found = rows.select(null_on_error(F.struct(F.expr("CAST(s AS INT)").alias("n"))).alias("t"))

    assert [row["t"] and row["t"]["n"] for row in found.collect()] == [1, None, None]
    assert [row["t"] is None for row in found.collect()] == [False, True, False]


def test_rows_are_not_collected_where_spark_s_constructors_differ(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing: Any = _without_class(spark).org.apache
    monkeypatch.setattr(internals, "_relation_classes", lambda _: (nothing,) * 4)
    assert collected(spark.range(2)) is None


def _no_lookup(_: object) -> Any:
    raise BridgeError("Dataset is not allowed")


@pytest.mark.parametrize("lookup", [_no_lookup, lambda _: (None,) * 4])
def test_rows_are_read_in_another_session_also_in_another_spark(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, lookup: Callable[[object], Any]
) -> None:
    """Merges that run at once need a session each: their commit metadata is a setting of it."""
    kept = spark.range(3).select((F.col("id") * 2).alias("double")).localCheckpoint()
    session = clone_of(spark)
    monkeypatch.setattr(internals, "_relation_classes", lookup)
    # Other tests of this session may have left views, as Great Expectations does.
    views = spark.catalog.listTables("global_temp")

    mine = moved(kept, session)

    assert mine.sparkSession is session
    assert sorted(row["double"] for row in mine.collect()) == [0, 2, 4]
    assert mine.schema == kept.schema
    assert spark.catalog.listTables("global_temp") == views
