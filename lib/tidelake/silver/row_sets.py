"""Test rows against sets of numbers that the driver holds.

A join would do the same, and takes five times as long for two hundred thousand numbers: the set is
sorted into a hash table, sent out and probed. Here few numbers are part of the expression, and many
are a bitmap, which Spark sends out with the tasks as the value of a scalar subquery.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

Numbers = np.ndarray[Any, np.dtype[np.int64]]
NOTHING: Numbers = np.empty(0, dtype=np.int64)

_FEW = 1_000
_WORD = 64
# monotonically_increasing_id() numbers the rows of each partition from a multiple of this.
_PARTITION_BITS = 33
_WITHIN = (1 << _PARTITION_BITS) - 1
# So many bits a hash that one in 32 hashes meets the bitmap by chance.
_SPARSE_BITS, _MOST_BITS = 5, 26


def has_number(spark: SparkSession, column: str, numbers: Numbers) -> Column:
    """Return whether a row's number, by ``monotonically_increasing_id``, is one of some."""
    if numbers.size <= _FEW:
        return _is_one_of(column, numbers)
    partitions, places = numbers >> _PARTITION_BITS, numbers & _WITHIN
    count = int(partitions.max()) + 1
    sizes = np.zeros(count, dtype=np.int64)
    np.maximum.at(sizes, partitions, places + 1)
    # The bitmap has a range of bits for each partition; before it stand their starts and sizes.
    starts = np.cumsum(sizes) - sizes
    bitmap = _bitmap(starts[partitions] + places, int(sizes.sum()))
    held = _scalar(spark, np.concatenate((starts, sizes, bitmap)))
    partition = F.shiftright(column, _PARTITION_BITS).cast("int")
    place = F.col(column).bitwiseAND(F.lit(_WITHIN))
    is_known = (partition < count) & (place < F.get(held, partition + F.lit(count)))
    bit = F.get(held, partition) + place + F.lit(2 * count * _WORD)
    return is_known & _is_set(held, bit)


def may_have_hash(spark: SparkSession, column: str, hashes: Numbers) -> Column:
    """Return whether a row's 64-bit hash is one of some: rarely true for any other."""
    if hashes.size <= _FEW:
        return _is_one_of(column, hashes)
    bits = min(int(hashes.size).bit_length() + _SPARSE_BITS, _MOST_BITS)
    # The leading bits of a hash.
    places = (hashes.view(np.uint64) >> np.uint64(64 - bits)).astype(np.int64)
    held = _scalar(spark, _bitmap(places, 1 << bits))
    return _is_set(held, F.shiftrightunsigned(F.col(column), 64 - bits))


def members(numbers: Numbers, of: Numbers) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each number whether it is in a set.

    Args:
        numbers: In any order.
        of: The set, ascending.
    """
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


def _is_set(held: Column, place: Column) -> Column:
    word = F.get(held, F.shiftright(place, 6).cast("int"))
    return F.getbit(word, place.bitwiseAND(F.lit(_WORD - 1)).cast("int")) == 1


def _scalar(spark: SparkSession, words: Numbers) -> Column:
    """Make an array that each task holds once."""
    array = pa.ListArray.from_arrays(pa.array([0, words.size], pa.int32()), pa.array(words))
    return spark.createDataFrame(pa.table({"words": array})).scalar()
