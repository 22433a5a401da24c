"""Test rows for membership in a set of integers shipped by the driver.

Faster than a join, which takes five times as long for 200,000 numbers to build, broadcast and probe
its hash table. A small set becomes an IN expression; a large one becomes a bitmap, which Spark
ships to the tasks as the value of a scalar subquery.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

Numbers = np.ndarray[Any, np.dtype[np.int64]]

_FEW = 1_000
_WORD = 64
# monotonically_increasing_id() holds the partition above these low bits, which number its rows.
_PARTITION_BITS = 33
_WITHIN = (1 << _PARTITION_BITS) - 1
# 32 bits or more per hash (below the cap of 2^26 bits): at most one in 32 other hashes matches by
# chance.
_SPARSE_BITS, _MOST_BITS = 5, 26


def has_number(spark: SparkSession, column: str, numbers: Numbers) -> Column:
    """Return whether a row's number (``monotonically_increasing_id``) is in ``numbers``."""
    if numbers.size <= _FEW:
        return _is_one_of(column, numbers)
    partitions, places = numbers >> _PARTITION_BITS, numbers & _WITHIN
    count = int(partitions.max()) + 1
    sizes = np.zeros(count, dtype=np.int64)
    np.maximum.at(sizes, partitions, places + 1)
    # Layout: start of each partition's bits, size of each partition, then the bits.
    starts = np.cumsum(sizes) - sizes
    bitmap = _bitmap(starts[partitions] + places, int(sizes.sum()))
    shipped = _scalar(spark, np.concatenate((starts, sizes, bitmap)))
    partition = F.shiftright(column, _PARTITION_BITS).cast("int")
    place = F.col(column).bitwiseAND(F.lit(_WITHIN))
    is_known = (partition < count) & (place < F.get(shipped, partition + F.lit(count)))
    bit = F.get(shipped, partition) + place + F.lit(2 * count * _WORD)
    return is_known & _is_set(shipped, bit)


def may_have_hash(spark: SparkSession, column: str, hashes: Numbers) -> Column:
    """Return whether a row's 64-bit hash may be in ``hashes``, with few false positives."""
    if hashes.size <= _FEW:
        return _is_one_of(column, hashes)
    bits = min(int(hashes.size).bit_length() + _SPARSE_BITS, _MOST_BITS)
    # The bitmap is indexed by a hash's leading bits.
    places = (hashes.view(np.uint64) >> np.uint64(64 - bits)).astype(np.int64)
    shipped = _scalar(spark, _bitmap(places, 1 << bits))
    return _is_set(shipped, F.shiftrightunsigned(F.col(column), 64 - bits))


def members(numbers: Numbers, of: Numbers) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask of the numbers that are in the ascending set ``of``."""
    if not of.size:
        return np.zeros(numbers.size, dtype=np.bool_)
    found = np.minimum(np.searchsorted(of, numbers), of.size - 1)
    return np.asarray(of[found] == numbers)


def _is_one_of(column: str, numbers: Numbers) -> Column:
    if not numbers.size:
        return F.lit(False)
    return F.expr(f"{column} IN ({', '.join(f'{number}L' for number in numbers.tolist())})")


def _bitmap(places: Numbers, size: int) -> Numbers:
    words = np.zeros(-(-size // _WORD), dtype=np.uint64)
    set_bits = np.uint64(1) << (places % _WORD).astype(np.uint64)
    np.bitwise_or.at(words, places // _WORD, set_bits)
    return words.view(np.int64)


def _is_set(shipped: Column, place: Column) -> Column:
    word = F.get(shipped, F.shiftright(place, 6).cast("int"))
    return F.getbit(word, place.bitwiseAND(F.lit(_WORD - 1)).cast("int")) == 1


def _scalar(spark: SparkSession, words: Numbers) -> Column:
    """Return an array as a scalar subquery, which each task holds once."""
    array = pa.ListArray.from_arrays(pa.array([0, words.size], pa.int32()), pa.array(words))
    return spark.createDataFrame(pa.table({"words": array})).scalar()
