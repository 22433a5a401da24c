"""Fingerprints of sets of record ids, the same in Spark and in DuckDB.

A fingerprint is the sum of 60 bits of each id's MD5, modulo 2^64: with equal counts, equal sums
mean equal rows. A row that is lost while another is doubled changes the sum, though not the count.
Commits of earlier versions have only the exclusive or, in which two equal rows cancel out.
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
# The same numbers in SQL, over a column `record_id`; the sum is exact there, not modulo 2^64.
DUCKDB_XOR = f"coalesce(bit_xor({_DUCKDB_NUMBER}), 0)"
DUCKDB_SUM = f"coalesce(sum({_DUCKDB_NUMBER}), 0)"
# The number of distinct record ids, except for collisions of 60 bits.
DUCKDB_DISTINCT = f"count(DISTINCT {_DUCKDB_NUMBER})"
# The expressions of Spark in their place.
IN_SPARK = {
    DUCKDB_XOR: f"coalesce(bit_xor({_SPARK_NUMBER}), 0)",
    DUCKDB_SUM: f"coalesce(sum(CAST({_SPARK_NUMBER} AS DECIMAL(38, 0))), 0)",
    DUCKDB_DISTINCT: f"count(DISTINCT {_SPARK_NUMBER})",
}

_RECORD = ("record_id", "key", "payload", "headers", "source", "source_timestamp")
_HALF = 30


@dataclass(frozen=True)
class Fingerprint:
    """The exclusive or of the numbers of a set of rows, and their sum modulo 2^64, signed.

    The sum is None where a commit of an earlier version contributes.
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
        # Sums of unsigned numbers wrap around by themselves.
        total = int(numbers.astype(np.uint64).sum(dtype=np.uint64))
        return Fingerprint(int(np.bitwise_xor.reduce(numbers)), _wrapped(total))

    def plus(self, other: Fingerprint, *, sign: int = 1) -> Fingerprint:
        """Add rows; subtract them with a sign of -1."""
        known = self.total is not None and other.total is not None
        total = _wrapped((self.total or 0) + sign * (other.total or 0)) if known else None
        return Fingerprint(self.xor ^ other.xor, total)

    def minus(self, other: Fingerprint) -> Fingerprint:
        """Subtract rows."""
        return self.plus(other, sign=-1)

    def agrees(self, other: Fingerprint) -> bool:
        """Return whether both may be of the same rows."""
        if self.total is None or other.total is None:
            return self.xor == other.xor
        return self.total == other.total


# The fingerprint of no rows.
EMPTY = Fingerprint()


def fingerprint(record_id: Column | str = "record_id") -> Column:
    """Aggregate the fingerprint of a column of record ids, ``xor`` and ``total``, without nulls."""
    number = id_number(record_id)
    return F.struct(_xor(number), _total(number))


def id_number(record_id: Column | str = "record_id") -> Column:
    """Return the 60 bits of a record id's MD5 that count in a fingerprint."""
    ids = F.col(record_id) if isinstance(record_id, str) else record_id
    digits = F.left(F.md5(ids.cast("binary")), F.lit(15))
    return F.conv(digits, 16, 10).cast("bigint")


def contents() -> Column:
    """Aggregate a fingerprint of whole records, which each byte of a payload changes."""
    columns = [F.col(name) for name in _RECORD]
    # Spark's hash skips nulls, so that their positions are hashed too.
    hashed = F.xxhash64(*columns, *[column.isNull() for column in columns])
    return F.struct(_xor(hashed), _total(F.shiftrightunsigned(hashed, 64 - 2 * _HALF)))


def combined(fingerprints: Iterable[Fingerprint]) -> Fingerprint:
    """Return the fingerprint of several sets of rows together."""
    return reduce(Fingerprint.plus, fingerprints, EMPTY)


def bronze_marks(ids: Fingerprint, whole: Fingerprint) -> dict[str, Any]:
    """Return a bronze batch's fingerprints as metadata of its commit."""
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
    """Add up numbers of 60 bits modulo 2^64, in halves, since a sum of BIGINT fails at overflow.

    The halves are exact for up to 2^33 rows.
    """
    mask = F.lit((1 << _HALF) - 1).cast("bigint")
    high, low = F.sum(F.shiftright(number, _HALF)), F.sum(number.bitwiseAND(mask))
    # A shift drops the bits beyond the 64th and never fails.
    carried = F.shiftleft(high + F.shiftright(low, _HALF), _HALF)
    total = carried.bitwiseOR(low.bitwiseAND(mask))
    return F.coalesce(total, F.lit(0).cast("bigint")).alias("total")


def _wrapped(number: int) -> int:
    """Return a sum modulo 2^64 as a signed number, which is what Spark's BIGINT holds."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
