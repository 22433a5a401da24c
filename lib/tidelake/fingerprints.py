"""Sum up a set of record ids in one number, alike in Spark and in DuckDB.

The exclusive or of 60 bits of each id's MD5. Every record id is there once, so equal counts with
equal fingerprints mean equal sets: a row lost and another doubled keep the count, not this.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import xor

from pyspark.sql import Column
from pyspark.sql import functions as F

# The same number in SQL, over a column `record_id`.
DUCKDB_FINGERPRINT = "coalesce(bit_xor(('0x' || left(md5(record_id), 15))::BIGINT), 0)"
SPARK_FINGERPRINT = (
    "coalesce(bit_xor(CAST(conv(left(md5(CAST(record_id AS BINARY)), 15), 16, 10) AS BIGINT)), 0)"
)

_RECORD = ("record_id", "key", "payload", "headers", "source", "source_timestamp")


def fingerprint(record_id: str = "record_id") -> Column:
    """Aggregate the fingerprint of a column of record ids; 0 for no rows."""
    digits = F.left(F.md5(F.col(record_id).cast("binary")), F.lit(15))
    return F.coalesce(F.bit_xor(F.conv(digits, 16, 10).cast("bigint")), F.lit(0).cast("bigint"))


def contents() -> Column:
    """Aggregate a fingerprint of whole records: a byte of a payload changed shows too."""
    columns = [F.col(name) for name in _RECORD]
    # A null leaves Spark's hash as it was, so that where it stands must count by itself.
    hashed = F.xxhash64(*columns, *[column.isNull() for column in columns])
    return F.coalesce(F.bit_xor(hashed), F.lit(0).cast("bigint"))


def combined(fingerprints: Iterable[int]) -> int:
    """Give the fingerprint of the union of disjoint sets."""
    return reduce(xor, fingerprints, 0)
