"""A batch of bronze keeps the order in which its files arrived."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tidelake.runtime.bronze_hop import in_order_of_arrival
from tidelake.runtime.landed_files import LandedFile


@pytest.mark.parametrize("has_ids", [True, False])
def test_older_files_come_first_whatever_their_size(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ids: bool
) -> None:
    if not has_ids:
        # As before Spark 4.1.
        for frame in (DataFrame, type(spark.range(0))):
            monkeypatch.delattr(frame, "repartitionById", raising=False)
    sizes = {"a b": 10, "c": 500, "d": 1_000, "e": 490}
    files = [(LandedFile(str(tmp_path / name), size, 0), size) for name, size in sizes.items()]
    uris = {name: (tmp_path / name).as_uri() for name in sizes}
    offered = [Row(source=uri) for uri in uris.values()]
    # As Spark reads them: the largest first.
    by_size = sorted(sizes, key=lambda name: -sizes[name])
    rows = [(f"{uris[name]}:{n}", uris[name]) for name in by_size for n in range(sizes[name])]
    records = spark.createDataFrame(rows, "record_id string, source string")

    placed = in_order_of_arrival(records, files, offered, 2)

    assert placed.columns == records.columns
    found = placed.select("source", F.spark_partition_id()).distinct().collect()
    parts = sorted((Path(row[0]).name.replace("%20", " "), row[1]) for row in found)
    assert parts == [("a b", 0), ("c", 0), ("d", 0), ("e", 1)]
    assert placed.count() == sum(sizes.values())


def test_a_row_of_no_file_is_not_lost(spark: SparkSession, tmp_path: Path) -> None:
    files = [(LandedFile(str(tmp_path / name), 10, 0), 1) for name in "ab"]
    offered = [Row(source=(tmp_path / name).as_uri()) for name in "ab"]
    records = spark.createDataFrame(
        [("x:0", "x"), ("y:0", None)], "record_id string, source string"
    )

    assert in_order_of_arrival(records, files, offered, 2).count() == len(records.collect())
