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


def test_records_of_topics_are_in_the_order_of_record_ids(spark: SparkSession) -> None:
    # The largest has more than one part; one has records without payloads alone.
    places = {("t", "2"): 8, ("u", "0"): 2, ("t", "10"): 2, ("t", "1"): 4}
    offered = [
        Row(source=topic, partition=number, bytes=count * 10, min=100, max=99 + count)
        for (topic, number), count in places.items()
    ]
    offered.append(Row(source="v", partition="0", bytes=None, min=0, max=3))
    rows = [
        (f"{topic}:{number}:{100 + n}", topic)
        for n in range(8)
        for (topic, number), count in places.items()
        if n < count
    ]
    rows += [(f"v:0:{n}", "v") for n in range(4)]
    records = spark.createDataFrame(rows, _DDL).repartition(3)

    placed = in_order(records, offered, 4).select(F.spark_partition_id(), "record_id").collect()

    found = [[record for part, record in placed if part == number] for number in range(4)]
    assert [len(part) for part in found] == [4, 4, 4, 8]
    in_order_of_arrival = [
        *[f"t:10:{100 + n}" for n in range(2)],
        *[f"t:1:{100 + n}" for n in range(4)],
        *[f"t:2:{100 + n}" for n in range(8)],
        *[f"u:0:{100 + n}" for n in range(2)],
        *[f"v:0:{n}" for n in range(4)],
    ]
    parts = iter(in_order_of_arrival)
    assert [{*part} for part in found] == [{next(parts) for _ in part} for part in found]


def test_a_row_of_no_file_is_not_lost(spark: SparkSession) -> None:
    offered = [Row(source=name, bytes=10) for name in "ab"]
    records = spark.createDataFrame([("x:0", "x"), ("y:0", None)], _DDL)

    assert in_order(records, offered, 2).count() == 2
