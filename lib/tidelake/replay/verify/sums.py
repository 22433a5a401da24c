"""Sum up rows by group: how many, and the sums of the hashes of their columns.

A row that is gone, doubled or altered changes the sums of its group, whatever the order of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from tidelake.silver.classify import utc_date

GROUP, HASH, _WHOLE = "_group", "_hash", "_whole"
_BUCKETS = 64
_THIRD = 21


@dataclass(frozen=True)
class Shape:
    """How the rows of a table are told apart and compared.

    Attributes:
        key: Columns that name a row; equal where both are null.
        moment: The instant by whose day (UTC) rows are grouped; None: by a hash of the key.
        near: By column, for values that need not be equal to the last bit: SQL over ``{e.name}``
            (expected) and ``{s.name}`` (stored); null counts as no.
        unhashed: Columns that only ``near`` looks into.
    """

    key: tuple[str, ...]
    moment: str | None = None
    near: Mapping[str, str] = field(default_factory=dict)
    unhashed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Sum:
    """A group of rows.

    Attributes:
        count: How many.
        exact: The sum of their hashes, over the columns that are equal or wrong.
        whole: Likewise, over all columns; 0 where all are such.
    """

    count: int
    exact: int
    whole: int

    @property
    def told(self) -> tuple[int, int]:
        """Leave out what may differ between two computations."""
        return self.count, self.exact


Sums = Mapping[str | None, Sum]


def marks(columns: Mapping[str, Column], types: Mapping[str, DataType], shape: Shape) -> Column:
    """Give a row's group and hashes, as a struct for :func:`summed`.

    Args:
        columns: By name.
        types: Of the columns.
        shape: How rows are grouped, and which columns are not exact.
    """
    inexact = shape.near.keys() | shape.unhashed
    exact = {name: column for name, column in columns.items() if name not in inexact}
    if shape.moment is None:
        key = F.xxhash64(*[columns[name] for name in shape.key])
        group = F.pmod(key, F.lit(_BUCKETS)).cast("string")
    else:
        group = F.coalesce(utc_date(columns[shape.moment]).cast("string"), F.lit("none"))
    whole = hash_of(columns, types) if inexact else F.lit(0).cast("bigint")
    return F.struct(group.alias(GROUP), hash_of(exact, types).alias(HASH), whole.alias(_WHOLE))


def hash_of(columns: Mapping[str, Column], types: Mapping[str, DataType]) -> Column:
    """Hash rows by their columns' names: two computations may have them in different orders."""
    hashable = [_hashable(columns[name], types[name]) for name in sorted(columns)]
    # A null leaves Spark's hash as it was, so that where it stands must count by itself.
    return F.xxhash64(*hashable, *[column.isNull() for column in hashable])


def _hashable(column: Column, kind: DataType) -> Column:
    told = kind.simpleString()
    return F.to_json(column) if "map<" in told or "variant" in told else column


def summed(marked: DataFrame, by: Column) -> dict[Any, dict[str | None, Sum]]:
    """Sum up rows that have the columns of :func:`marks`.

    Args:
        marked: The rows.
        by: What else they are grouped by.

    Returns:
        By the values of ``by``: the sums by group, which is None for rows without marks.
    """
    hashes = [*sums_of_hash(F.col(HASH)), *sums_of_hash(F.col(_WHOLE))]
    grouped = marked.groupBy(by.alias("_by"), GROUP).agg(F.count("*"), *hashes)
    found: dict[Any, dict[str | None, Sum]] = {}
    for value, group, count, *sums in grouped.collect():
        one = Sum(count, joined(sums[:3]), joined(sums[3:]))
        found.setdefault(value, {})[group] = one
    return found


def sums_of_hash(hashed: Column) -> list[Column]:
    """Sum up hashes in three parts: a sum of 64-bit numbers exceeds what Spark adds up quickly."""
    low = F.lit((1 << _THIRD) - 1)
    middle = F.shiftright(hashed, _THIRD).bitwiseAND(low)
    parts = F.shiftright(hashed, 2 * _THIRD), middle, hashed.bitwiseAND(low)
    return [F.sum(part) for part in parts]


def joined(sums: Sequence[int | None]) -> int:
    """Give the sum of the hashes from the sums of their parts."""
    high, middle, low = (part or 0 for part in sums)
    return (high << 2 * _THIRD) + (middle << _THIRD) + low
