"""Fingerprints of sets of record ids, the same in Spark and in DuckDB.

A fingerprint is the sum of 60 bits of each id's MD5, modulo 2^64: with equal counts, equal sums
mean equal rows. A lost row and a duplicated one change the sum, but not the count. Commits of
earlier versions have only the exclusive or, in which two equal rows cancel out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from pyspark.sql import Column
from pyspark.sql import functions as F

_DUCKDB_NUMBER = "('0x' || left(md5(record_id), 15))::BIGINT"
_SPARK_NUMBER = "CAST(conv(left(md5(CAST(record_id AS BINARY)), 15), 16, 10) AS BIGINT)"
# The same aggregates in SQL, over a column `record_id`; the sum is exact, not modulo 2^64.
DUCKDB_XOR = f"coalesce(bit_xor({_DUCKDB_NUMBER}), 0)"
DUCKDB_SUM = f"coalesce(sum({_DUCKDB_NUMBER}), 0)"
# The number of distinct record ids, except for collisions of 60 bits.
DUCKDB_DISTINCT = f"count(DISTINCT {_DUCKDB_NUMBER})"
# The equivalent expressions in Spark SQL.
IN_SPARK = {
    DUCKDB_XOR: f"coalesce(bit_xor({_SPARK_NUMBER}), 0)",
    DUCKDB_SUM: f"coalesce(sum(CAST({_SPARK_NUMBER} AS DECIMAL(38, 0))), 0)",
    DUCKDB_DISTINCT: f"count(DISTINCT {_SPARK_NUMBER})",
}

_RECORD = ("record_id", "key", "payload", "headers", "source", "source_timestamp")
_HALF = 30


@dataclass(frozen=True)
class Fingerprint:
    """The exclusive or of a set of rows' numbers, and their signed sum modulo 2^64.

    The sum is None if it includes a commit of an earlier version.
    """

    xor: int = 0
    total: int | None = 0

    @staticmethod
    def of(xor: object, total: object = None) -> Fingerprint:
        """Convert the numbers of a commit or a query."""
        return Fingerprint(int(str(xor)), None if total is None else _wrapped(int(str(total))))

    @staticmethod
    def of_numbers(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Fingerprint:
        """Combine the numbers of record ids, from :func:`id_number`."""
        # Unsigned sums wrap around at 2^64.
        total = int(numbers.astype(np.uint64).sum(dtype=np.uint64))
        return Fingerprint(int(np.bitwise_xor.reduce(numbers)), _wrapped(total))

    def plus(self, other: Fingerprint, *, sign: int = 1) -> Fingerprint:
        """Add the other's rows; with a ``sign`` of -1, subtract them."""
        has_totals = self.total is not None and other.total is not None
        total = _wrapped((self.total or 0) + sign * (other.total or 0)) if has_totals else None
        return Fingerprint(self.xor ^ other.xor, total)

    def agrees(self, other: Fingerprint) -> bool:
        """Return whether both can be fingerprints of the same rows."""
        if self.total is None or other.total is None:
            return self.xor == other.xor
        return self.total == other.total


# The fingerprint of no rows.
EMPTY = Fingerprint()


def fingerprint(record_id: Column | str = "record_id") -> Column:
    """Return the aggregate fingerprint of record ids, ``struct<xor, total>``, never null."""
    number = id_number(record_id)
    return F.struct(_xor(number), _total(number))


def id_number(record_id: Column | str = "record_id") -> Column:
    """Return the 60 bits of a record id's MD5 that fingerprints are computed from."""
    ids = F.col(record_id) if isinstance(record_id, str) else record_id
    digits = F.left(F.md5(ids.cast("binary")), F.lit(15))
    return F.conv(digits, 16, 10).cast("bigint")


def contents(counted: Column | None = None) -> Column:
    """Return the aggregate fingerprint of whole records, sensitive to each byte of the payload.

    ``counted``: a condition of the rows that are records, if not all are.
    """
    columns = [F.col(name) for name in _RECORD]
    # Spark's hash skips nulls, so the null flags are hashed too.
    hashed = F.xxhash64(*columns, *[column.isNull() for column in columns])
    hashed = hashed if counted is None else F.when(counted, hashed)
    return F.struct(_xor(hashed), _total(F.shiftrightunsigned(hashed, 64 - 2 * _HALF)))


def combined(fingerprints: Iterable[Fingerprint]) -> Fingerprint:
    """Return the fingerprint of the union of disjoint sets of rows."""
    return reduce(Fingerprint.plus, fingerprints, EMPTY)


def bronze_marks(ids: Fingerprint, whole: Fingerprint) -> dict[str, Any]:
    """Return a bronze batch's fingerprints as commit metadata."""
    return {
        "fingerprint": ids.xor,
        "contents": whole.xor,
        "id_sum": ids.total,
        "content_sum": whole.total,
    }


def ids_in(note: Mapping[str, Any]) -> Fingerprint:
    """Read the fingerprint of record ids from a commit's metadata."""
    return Fingerprint.of(note["fingerprint"], note.get("id_sum"))


def contents_in(note: Mapping[str, Any]) -> Fingerprint | None:
    """Read the fingerprint of whole records; None where the commit has none."""
    if note.get("contents") is None:
        return None
    return Fingerprint.of(note["contents"], note.get("content_sum"))


def _xor(number: Column) -> Column:
    return F.coalesce(F.bit_xor(number), F.lit(0).cast("bigint")).alias("xor")


def _total(number: Column) -> Column:
    """Sum 60-bit numbers modulo 2^64, in halves, because a BIGINT sum fails on overflow.

    The halves are exact for up to 2^33 rows.
    """
    mask = F.lit((1 << _HALF) - 1).cast("bigint")
    high, low = F.sum(F.shiftright(number, _HALF)), F.sum(number.bitwiseAND(mask))
    # A shift drops the bits beyond the 64th and never fails.
    carried = F.shiftleft(high + F.shiftright(low, _HALF), _HALF)
    total = carried.bitwiseOR(low.bitwiseAND(mask))
    return F.coalesce(total, F.lit(0).cast("bigint")).alias("total")


def _wrapped(number: int) -> int:
    """Return a sum modulo 2^64 as a signed number, like Spark's BIGINT."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
