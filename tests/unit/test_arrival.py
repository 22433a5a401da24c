"""The parts of a bronze commit are in the order by which the first of copies is found."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tidelake.runtime.bronze_hop import in_order

_DDL = "record_id string, source string"


@pytest.mark.parametrize("has_ids", [True, False])
def test_files_are_in_the_order_of_their_names_whatever_their_size(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, has_ids: bool
) -> None:
    if not has_ids:
        # As before Spark 4.1.
        for frame in (DataFrame, type(spark.range(0))):
            monkeypatch.delattr(frame, "repartitionById", raising=False)
    sizes = {"a": 10, "a b": 500, "d": 1_000, "e": 490}
    # As Spark reads them: the largest first.
    by_size = sorted(sizes, key=lambda name: -sizes[name])
    offered = [Row(source=name, bytes=sizes[name]) for name in by_size]
    rows = [(f"{name}:{n}", name) for name in by_size for n in range(sizes[name])]

    placed = in_order(spark.createDataFrame(rows, _DDL), offered, 2)

    assert placed.columns == ["record_id", "source"]
    found = placed.select("source", F.spark_partition_id()).distinct().collect()
    assert sorted(map(tuple, found)) == [("a", 0), ("a b", 0), ("d", 0), ("e", 1)]
    assert placed.count() == sum(sizes.values())


def test_partitions_of_topics_are_in_the_order_of_record_ids(spark: SparkSession) -> None:
    places = [("t", "2"), ("u", "0"), ("t", "10"), ("t", "1")]
    offered = [Row(source=topic, partition=number, bytes=5) for topic, number in places]
    rows = [(f"{topic}:{number}:{n}", topic) for n in range(5) for topic, number in places]
    records = spark.createDataFrame(rows, _DDL).repartition(3)

    placed = in_order(records, offered, 4)

    place = F.substring_index("record_id", ":", 2)
    found = placed.select(F.spark_partition_id(), place).distinct().collect()
    assert sorted(map(tuple, found)) == [(0, "t:10"), (1, "t:1"), (2, "t:2"), (3, "u:0")]
    assert placed.count() == len(rows)


def test_a_row_of_no_file_is_not_lost(spark: SparkSession) -> None:
    offered = [Row(source=name, bytes=10) for name in "ab"]
    records = spark.createDataFrame([("x:0", "x"), ("y:0", None)], _DDL)

    assert in_order(records, offered, 2).count() == 2
