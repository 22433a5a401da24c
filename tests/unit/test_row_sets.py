"""A row is found in a set of numbers however many there are."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidelake.silver.driver_dedup import Numbers, has_number, may_have_hash, members


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 1.0])
def test_exactly_the_rows_with_one_of_the_numbers_are_found(
    spark: SparkSession, share: float
) -> None:
    rows = spark.range(0, 20_000, 1, 7).select("id", F.monotonically_increasing_id().alias("n"))
    # The last partitions have none of the numbers, and one has none at all.
    rows = rows.where("id NOT BETWEEN 3000 AND 5800").localCheckpoint()
    numbers = np.array(rows.where("id < 15000").select("n").toArrow()["n"])
    chosen = np.random.default_rng(7).permutation(numbers)[: int(numbers.size * share)]
    found = rows.where(has_number(spark, "n", chosen)).select("n").toArrow()["n"]
    assert sorted(found.to_pylist()) == sorted(chosen.tolist())
    others = rows.where(~has_number(spark, "n", chosen)).count()
    assert others == rows.count() - chosen.size


@pytest.mark.parametrize("count", [0, 1, 900, 30_000])
def test_each_row_with_one_of_the_hashes_is_found_and_few_others(
    spark: SparkSession, count: int
) -> None:
    rows = spark.range(60_000).select("id", F.xxhash64("id").alias("h"))
    hashes: Numbers = np.array(rows.where(F.col("id") < count).select("h").toArrow()["h"])
    found = rows.where(may_have_hash(spark, "h", hashes)).select("id").toArrow()["id"].to_pylist()
    assert set(range(count)) <= set(found)
    assert len(found) - count < 60_000 / 20


def test_the_least_and_the_greatest_number_are_found(spark: SparkSession) -> None:
    ends = np.array([-(1 << 63), (1 << 63) - 1, 0], dtype=np.int64)
    rows = spark.range(1).select(F.explode(F.array(*[F.lit(int(end)) for end in ends])).alias("h"))
    assert rows.where(may_have_hash(spark, "h", ends)).count() == 3
    many = np.concatenate((ends, np.arange(1, 5_000, dtype=np.int64)))
    assert rows.where(may_have_hash(spark, "h", many)).count() == 3


def test_numbers_are_looked_up_in_a_sorted_set() -> None:
    some = np.array([5, -3, 9, 9, 0], dtype=np.int64)
    assert members(some, np.array([-3, 9], dtype=np.int64)).tolist() == [0, 1, 1, 1, 0]
    assert not members(some, np.empty(0, dtype=np.int64)).any()
