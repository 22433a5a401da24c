"""Compare two frames that should hold the same rows: sums of hashes first, rows where they differ.

What a table is made of is its content: neither its files nor their order, nor which batch wrote a
row. Only groups of rows whose sums differ are looked at row by row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from tidelake.replay.verify.sums import GROUP, HASH, Shape, Sums, marks, summed

# By group: count and sum of hashes.
Told = Mapping[str, tuple[int, int]]
Kind = Literal["missing", "extra", "doubled", "altered", "changed since"]

# Rows that are named; the rest is counted.
SHOWN = 20
_ROW, _COUNT, _EXPECTED = "_row", "_count", "_expected"
# What may not leave the table: a payload holds whatever its sender put there.
_UNTOLD = frozenset({"payload"})


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
    sums: Told
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
    wanted = typed_like(expected, types_in(stored))
    found = stored.select(*expected.columns)
    sides = marked(wanted, shape).withColumn(_EXPECTED, F.lit(True))
    sides = sides.union(marked(found, shape).withColumn(_EXPECTED, F.lit(False)))
    sums = summed(sides, F.col(_EXPECTED))
    return settle(wanted, found, shape, sums.get(True, {}), sums.get(False, {}))


def settle(
    wanted: DataFrame, found: DataFrame, shape: Shape, theirs: Sums, ours: Sums
) -> Comparison:
    """Compare rows whose sums are known.

    Args:
        wanted: The rows computed anew, of the stored types.
        found: The same columns of the table.
        shape: How to compare.
        theirs: Sums of ``wanted``.
        ours: Sums of ``found``.
    """
    names = wanted.columns
    rows = sum(one.count for one in ours.values())
    told = {str(group): one.told for group, one in ours.items()}
    # Values that need not be equal to the last bit mostly are.
    in_question = [group for group in {**theirs, **ours} if theirs.get(group) != ours.get(group)]
    if not in_question:
        return Comparison(rows, tuple(names), told)
    among = F.col(GROUP).isin(in_question)
    wanted, found = (marked(side, shape, keep=True).where(among) for side in (wanted, found))
    count, differences = _rows_that_differ(wanted, found, names, shape)
    if not count:
        none = (0, 0)
        off = sorted(
            str(group)
            for group in in_question
            if (theirs[group].told if group in theirs else none) != told.get(str(group), none)
        )
        # Equal by every column and yet not by hash: say so rather than call it equal.
        differences = [Difference("altered", {"group": group}) for group in off[:SHOWN]]
        count = len(off)
    return Comparison(rows, tuple(names), told, count, tuple(differences))


def sums_of(stored: DataFrame, shape: Shape) -> Told:
    """Sum up a table's rows by group, as :func:`compare` does."""
    return {str(group): one.told for group, one in summed_up(stored, shape).items()}


def summed_up(rows: DataFrame, shape: Shape) -> Sums:
    """Sum up rows by group."""
    return summed(marked(rows, shape), F.lit(0)).get(0, {})


def typed_like(rows: DataFrame, types: Mapping[str, DataType]) -> DataFrame:
    """Give columns the stored types: a hash depends on them."""
    return rows.select(*[F.col(n).cast(types[n]) if n in types else F.col(n) for n in rows.columns])


def types_in(rows: DataFrame) -> dict[str, DataType]:
    """Give the types of a frame's columns."""
    return {one.name: one.dataType for one in rows.schema.fields}


def marked(rows: DataFrame, shape: Shape, *, keep: bool = False) -> DataFrame:
    """Give each row's group and hashes, beside its columns or alone."""
    columns = {name: F.col(name) for name in rows.columns}
    kept = rows.columns if keep else []
    of_row = marks(columns, types_in(rows), shape).alias("_of_row")
    return rows.select(*kept, of_row).select(*kept, "_of_row.*")


def _rows_that_differ(
    wanted: DataFrame, found: DataFrame, names: Sequence[str], shape: Shape
) -> tuple[int, list[Difference]]:
    """Join by key; give how many keys differ, and the first of them."""
    sides = [
        rows.groupBy(*shape.key).agg(
            F.count("*").alias(_COUNT),
            F.min(HASH).alias(HASH),
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
        f"e.{HASH}"
    ).eqNullSafe(F.col(f"s.{HASH}"))
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
