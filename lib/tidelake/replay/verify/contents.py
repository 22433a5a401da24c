"""Compare two frames that should hold the same rows: sums of hashes first, rows where they differ.

What a table is made of is its content: neither its files nor their order, nor which batch wrote a
row. A group of rows is summed up by its count and the sum of its rows' hashes, so that a row that
is gone, doubled or altered shows, and only groups that differ are looked at row by row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidelake.silver.classify import utc_date

Kind = Literal["missing", "extra", "doubled", "altered", "changed since"]
Sums = Mapping[str, tuple[int, int]]

# Rows that are named; the rest is counted.
SHOWN = 20
_GROUP, _HASH, _ROW, _COUNT = "_group", "_hash", "_row", "_count"
_BUCKETS = 64
# What may not leave the table: a payload holds whatever its sender put there.
_UNTOLD = frozenset({"payload"})


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
class Difference:
    """One row, or one group of rows, that is not as it should be.

    Attributes:
        kind: ``missing`` from the table, ``extra`` in it, there more than once, or ``altered``.
        where: The row's key, or the group.
        columns: What differs, as expected and as stored.
    """

    kind: Kind
    where: Mapping[str, Any]
    columns: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Give it for machines."""
        told = {name: {"expected": e, "stored": s} for name, (e, s) in self.columns.items()}
        return {"kind": self.kind, "where": dict(self.where), "columns": told}


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    Attributes:
        rows: Rows that the table holds.
        columns: What was compared of each.
        sums: Of the stored rows: count and sum of hashes by group.
        differing: How many rows, or groups where rows cannot be told apart, differ.
        differences: The first of them.
    """

    rows: int
    columns: tuple[str, ...]
    sums: Sums
    differing: int = 0
    differences: tuple[Difference, ...] = ()

    @property
    def equal(self) -> bool:
        """Tell whether nothing differs."""
        return not self.differing

    def with_more(self, differences: Sequence[Difference]) -> Comparison:
        """Add differences that were found in another way."""
        return replace(
            self,
            differing=self.differing + len(differences),
            differences=(*differences[:SHOWN], *self.differences),
        )


def compare(expected: DataFrame, stored: DataFrame, shape: Shape) -> Comparison:
    """Hold a table against what it should hold.

    Args:
        expected: The rows computed anew.
        stored: The rows of the table; columns that ``expected`` does not have are left alone.
        shape: How to compare.
    """
    names = expected.columns
    wanted = _prepared(_typed_like(expected, stored.schema, names), names, shape)
    found = _prepared(stored, names, shape)
    both = _sums(wanted), _sums(found)
    differing = sorted({g for one in both for g in one if both[0].get(g) != both[1].get(g)})
    rows = sum(count for count, _ in both[1].values())
    if not differing and not shape.near:
        return Comparison(rows, tuple(names), both[1])
    if not shape.near:
        in_question = F.col(_GROUP).isin(differing)
        wanted, found = wanted.where(in_question), found.where(in_question)
    count, told = _rows_that_differ(wanted, found, names, shape)
    if differing and not count:
        # Equal by every column and yet not by hash: say so rather than call it equal.
        told = [Difference("altered", {"group": group}) for group in differing[:SHOWN]]
        count = len(differing)
    return Comparison(rows, tuple(names), both[1], count, tuple(told))


def sums_of(stored: DataFrame, shape: Shape) -> Sums:
    """Sum up a table's rows by group, as :func:`compare` does."""
    return _sums(_prepared(stored, stored.columns, shape))


def _typed_like(rows: DataFrame, schema: StructType, names: Sequence[str]) -> DataFrame:
    """Give columns the stored types: a hash depends on them."""
    types = {one.name: one.dataType for one in schema.fields}
    return rows.select(*[F.col(n).cast(types[n]) if n in types else F.col(n) for n in names])


def _prepared(rows: DataFrame, names: Sequence[str], shape: Shape) -> DataFrame:
    inexact = shape.near.keys() | shape.unhashed
    # By name: two computations may have their columns in different orders.
    exact = [_hashable(rows, name) for name in sorted(names) if name not in inexact]
    # A null leaves Spark's hash as it was, so that where it stands must count by itself.
    hashed = F.xxhash64(*exact, *[column.isNull() for column in exact])
    if shape.moment is None:
        group = F.pmod(F.xxhash64(*[F.col(n) for n in shape.key]), F.lit(_BUCKETS)).cast("string")
    else:
        group = F.coalesce(utc_date(shape.moment).cast("string"), F.lit("none"))
    return rows.select(*names, group.alias(_GROUP), hashed.alias(_HASH))


def _hashable(rows: DataFrame, name: str) -> Column:
    kind = rows.schema[name].dataType.simpleString()
    return F.to_json(name) if "map<" in kind or "variant" in kind else F.col(name)


def _sums(rows: DataFrame) -> dict[str, tuple[int, int]]:
    total = F.sum(F.col(_HASH).cast("decimal(20,0)"))
    grouped = rows.groupBy(_GROUP).agg(F.count("*").alias(_COUNT), total.alias(_HASH))
    return {row[_GROUP]: (int(row[_COUNT]), int(row[_HASH])) for row in grouped.collect()}


def _rows_that_differ(
    wanted: DataFrame, found: DataFrame, names: Sequence[str], shape: Shape
) -> tuple[int, list[Difference]]:
    """Join by key; give how many keys differ, and the first of them."""
    sides = [
        rows.groupBy(*shape.key).agg(
            F.count("*").alias(_COUNT),
            F.min(_HASH).alias(_HASH),
            F.first(F.struct(*names)).alias(_ROW),
        )
        for rows in (wanted, found)
    ]
    e, s = (
        side.select(F.struct("*").alias(letter))
        for side, letter in zip(sides, ("e", "s"), strict=True)
    )
    same = [F.col(f"e.{name}").eqNullSafe(F.col(f"s.{name}")) for name in shape.key]
    joined = e.join(s, on=same, how="full_outer")
    near = [
        ~F.coalesce(F.expr(_over_rows(sql, names)), F.lit(False)) for sql in shape.near.values()
    ]
    differs = ~F.col(f"e.{_COUNT}").eqNullSafe(F.col(f"s.{_COUNT}")) | ~F.col(
        f"e.{_HASH}"
    ).eqNullSafe(F.col(f"s.{_HASH}"))
    for column in near:
        differs = differs | column
    differing = joined.where(differs).select(
        F.to_json(f"e.{_ROW}").alias("expected"),
        F.to_json(f"s.{_ROW}").alias("stored"),
        F.coalesce(f"e.{_COUNT}", F.lit(0)).alias("wanted"),
        F.coalesce(f"s.{_COUNT}", F.lit(0)).alias("found"),
        F.array(*[F.coalesce(column, F.lit(False)) for column in near]).alias("off"),
    )
    first = differing.orderBy(F.coalesce("expected", "stored")).limit(SHOWN).collect()
    total = len(first) if len(first) < SHOWN else differing.count()
    return total, [_difference(row.asDict(), names, shape) for row in first]


def _over_rows(sql: str, names: Sequence[str]) -> str:
    """Let ``e.name`` mean a column of the expected row, ``s.name`` of the stored one."""
    for letter in ("e", "s"):
        for name in sorted(names, key=len, reverse=True):
            sql = sql.replace(f"{{{letter}.{name}}}", f"{letter}.{_ROW}.{name}")
    return sql


def _difference(row: Mapping[str, Any], names: Sequence[str], shape: Shape) -> Difference:
    # A fraction stays as it is written.
    wanted = json.loads(row["expected"] or "{}", parse_float=str)
    found = json.loads(row["stored"] or "{}", parse_float=str)
    where = {name: (wanted or found).get(name) for name in shape.key}
    if not row["found"]:
        return Difference("missing", where)
    if not row["wanted"]:
        return Difference("extra", where)
    if row["wanted"] != row["found"]:
        return Difference("doubled", where)
    inexact = shape.near.keys() | shape.unhashed
    off = {name for name, is_off in zip(shape.near, row["off"], strict=True) if is_off}
    columns = {
        name: (None, None) if name in _UNTOLD else (wanted.get(name), found.get(name))
        for name in names
        if name in off or (name not in inexact and wanted.get(name) != found.get(name))
    }
    return Difference("altered", where, columns)
