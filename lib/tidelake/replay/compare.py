"""Compare two frames as multisets of rows, ignoring order, files and batches.

Rows are counted, and the hashes of their columns summed, by group: a missing, doubled or altered
row changes the sums of its group. Only groups whose sums differ are compared row by row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.columns import EXACT_TIMES, VALUE, try_eval
from tidelake.config.expressions import columns_in
from tidelake.delta.append import schema_differences, types_of
from tidelake.silver.stages import utc_date

Kind = Literal["missing", "extra", "doubled", "altered", "changed since"]
# By group (None for rows without marks): the count, the sum of the hashes of the columns that must
# be equal, and that of all columns (0 if all must be equal).
Sums = Mapping[str | None, tuple[int, int, int]]

# The maximum number of differences that are listed; others are only counted.
SHOWN = 20
_GROUP, _HASH, _WHOLE = "_group", "_hash", "_whole"
_ROW, _COUNT = "_row", "_count"
# Never shown: a payload may hold sensitive data.
_SECRET = frozenset({"payload"})
# A column reference in the conditions of ``TableShape.near``.
COLUMN = re.compile(r"\{([es])\.(\w+)\}")
# Types in which different values can have the same hash: Spark's skips the nulls inside, and does
# not separate the elements.
_NESTED = ("array<", "struct<", "map<", "variant")
_BUCKETS = 64
_THIRD = 21


@dataclass(frozen=True)
class TableShape:
    """How the rows of a table are identified and compared.

    Attributes:
        key: Columns that identify a row; nulls are equal.
        moment: Timestamp column by whose day (UTC) rows are grouped; None: by a hash of the key.
        near: For columns compared with a tolerance: the SQL condition for equality, over
            ``{e.name}`` (expected) and ``{s.name}`` (stored).
        unhashed: Columns that only ``near`` reads; the stored rows may lack them.
        derived: Columns that must equal an expression over their own stored row, name to SQL, null
            where it fails: what it reads may be inexact.
    """

    key: tuple[str, ...]
    moment: str | None = None
    near: Mapping[str, str] = field(default_factory=dict)
    unhashed: frozenset[str] = frozenset()
    derived: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RowDifference:
    """A row, or a group of rows, that differs.

    ``where`` is its key or the group; ``columns`` has the expected and the stored values.
    """

    kind: Kind
    where: Mapping[str, Any]
    columns: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        values = {name: {"expected": e, "stored": s} for name, (e, s) in self.columns.items()}
        return {"kind": self.kind, "where": dict(self.where), "columns": values}


@dataclass(frozen=True)
class TableComparison:
    """The result of a comparison: the number of differing rows or groups, and the first of them.

    ``rows`` are those of the stored table, ``columns`` its compared columns with their types,
    ``sums`` its counts and sums of hashes by group.
    """

    rows: int
    columns: Mapping[str, str]
    sums: Mapping[str, tuple[int, int]]
    differing: int = 0
    differences: tuple[RowDifference, ...] = ()

    @property
    def equal(self) -> bool:
        """Return whether nothing differs."""
        return not self.differing

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "equal": self.equal,
            "rows": self.rows,
            "differing": self.differing,
            "differences": [one.to_json() for one in self.differences],
        }

    def with_more(self, differences: Sequence[RowDifference]) -> TableComparison:
        """Add differences from another check."""
        return replace(
            self,
            differing=self.differing + len(differences),
            differences=(*differences[:SHOWN], *self.differences),
        )


def compare(
    expected: DataFrame, stored: DataFrame, shape: TableShape, expected_sums: Sums | None = None
) -> TableComparison:
    """Compare a table's rows with the expected ones, in the expected columns.

    ``expected_sums`` are the sums of the expected rows, in the stored types and columns; None to
    compute them. Columns that the table lacks, because the definition changed, are differences, and
    so are those without a common type; a condition of the shape that reads one is not applied.
    """
    types, changed = common_types(expected, stored)
    added = [name for name in expected.columns if name not in types.keys() | shape.unhashed]
    if added or changed:
        off = [RowDifference("missing", {"column": name}) for name in added]
        off += [RowDifference("altered", {"column": n}, {"type": t}) for n, t in changed.items()]
        if not {*shape.key, shape.moment} - {None} <= types.keys() - changed.keys():
            return TableComparison(stored.count(), {}, {}).with_more(off)
        sums = None if changed else expected_sums
        return compare(expected.drop(*added, *changed), stored, shape, sums).with_more(off)
    # Hashes depend on the types.
    cast = {name: F.col(name).cast(types[name]) for name in expected.columns if name in types}
    wanted = expected.withColumns(cast)
    lacking = shape.unhashed - set(stored.columns)
    names = {name: types[name] for name in wanted.columns if name not in lacking}
    found = stored.select(*[F.col(name).cast(kind) for name, kind in names.items()])
    shape, follows = _applied(shape, wanted, found)
    if expected_sums is None:
        expected_sums = sums_of(wanted.drop(*lacking), shape)
    stored_sums = sums_of(found, shape)
    rows = sum(count for count, *_ in stored_sums.values())
    stored_groups, expected_groups = by_group(stored_sums), by_group(expected_sums)
    # Even values compared with a tolerance are mostly equal, so this skips most groups.
    in_question = {group for group, _ in expected_sums.items() ^ stored_sums.items()}
    if not in_question:
        return TableComparison(rows, names, stored_groups)
    # Spark Connect refuses an empty mapping.
    found = found.withColumns(follows) if follows else found
    among = F.col(_GROUP).isin(in_question)
    wanted, found = (_marked(side, shape, keep=True).where(among) for side in (wanted, found))
    count, differences = _rows_that_differ(wanted, found, list(names), shape)
    if not count:
        # Every column is equal but the hashes differ: report the groups rather than hide it.
        groups = sorted({group for group, _ in expected_groups.items() ^ stored_groups.items()})
        differences = [RowDifference("altered", {"group": group}) for group in groups[:SHOWN]]
        count = len(groups)
    return TableComparison(rows, names, stored_groups, count, tuple(differences))


def common_types(
    expected: DataFrame, stored: DataFrame
) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Return the types to compare in by column, and the columns that cannot be compared.

    The first are the stored types, or wider ones that are expected: the definition may have widened
    a column since the last run. The others are columns where neither type holds the values of the
    other, with the expected and the stored type: a cast could lose a part of the expected values.
    """
    types, changed = types_of(stored.schema), dict[str, tuple[str, str]]()
    narrows = schema_differences(expected.schema, stored.schema, "types")
    exact = {one.column for one in narrows if one.verdict == "widened"}
    for one in schema_differences(stored.schema, expected.schema, "types"):
        if one.stored and one.defined and one.column not in exact:
            if one.verdict == "widened":
                types[one.column] = one.defined
            else:
                changed[one.column] = one.defined, one.stored
    return types, changed


def _applied(
    shape: TableShape, wanted: DataFrame, found: DataFrame
) -> tuple[TableShape, dict[str, Column]]:
    """Return the shape with the conditions that apply, and the columns to add to stored rows.

    Such a column says whether a derived one follows from its row.
    """
    sides, stored = {"e": wanted.columns, "s": found.columns}, types_of(found.schema)
    near = {
        name: sql
        for name, sql in shape.near.items()
        if name in stored and all(read in sides[side] for side, read in COLUMN.findall(sql))
    }
    follows = {}
    for name, sql in shape.derived.items():
        if {name.lower(), *columns_in(sql)} <= {column.lower() for column in stored}:
            # No other column begins with two underscores.
            follow = f"__{name}_follows"
            near[name] = f"{{s.{follow}}}"
            value, kind = try_eval(sql).getField(VALUE).cast(stored[name]), {name: stored[name]}
            # By hash, because not all types can be compared.
            follows[follow] = row_hash({name: value}, kind) == row_hash({name: F.col(name)}, kind)
    return replace(shape, near=near, unhashed=shape.unhashed | follows.keys()), follows


def by_group(sums: Sums) -> dict[str, tuple[int, int]]:
    """Return the counts and the sums over the columns that must be equal, by group."""
    return {str(group): (count, exact) for group, (count, exact, _) in sums.items()}


def sums_of(rows: DataFrame, shape: TableShape) -> Sums:
    """Sum up rows by group."""
    return summed(_marked(rows, shape), F.lit(0)).get(0, {})


def _marked(rows: DataFrame, shape: TableShape, *, keep: bool = False) -> DataFrame:
    """Select each row's group and hashes, and with ``keep`` its columns."""
    columns = {name: F.col(name) for name in rows.columns}
    kept = rows.columns if keep else []
    of_row = marks(columns, types_of(rows.schema), shape).alias("_of_row")
    return rows.select(*kept, of_row).select(*kept, "_of_row.*")


def marks(columns: Mapping[str, Column], types: Mapping[str, str], shape: TableShape) -> Column:
    """Return a row's group and hashes, as a struct for :func:`summed`."""
    inexact = shape.near.keys() | shape.unhashed
    exact = {name: column for name, column in columns.items() if name not in inexact}
    if shape.moment is None:
        key = F.xxhash64(*[columns[name] for name in shape.key])
        group = F.pmod(key, F.lit(_BUCKETS)).cast("string")
    else:
        group = F.coalesce(utc_date(columns[shape.moment]).cast("string"), F.lit("none"))
    whole = row_hash(columns, types) if inexact else F.lit(0).cast("bigint")
    return F.struct(group.alias(_GROUP), row_hash(exact, types).alias(_HASH), whole.alias(_WHOLE))


def row_hash(columns: Mapping[str, Column], types: Mapping[str, str]) -> Column:
    """Hash a row in the order of column names, which may differ between computations."""
    hashable = []
    for name in sorted(columns):
        column = columns[name]
        is_nested = types[name].startswith(_NESTED)
        hashable.append(F.to_json(column, EXACT_TIMES) if is_nested else column)
    # Spark's hash skips nulls, so the columns that are null are hashed too.
    return F.xxhash64(*hashable, *[column.isNull() for column in hashable])


def summed(marked: DataFrame, by: Column) -> dict[Any, Sums]:
    """Sum rows that have the columns of :func:`marks`, by the values of ``by`` and then by group.

    Each sum has the row count and the sums of both hashes.
    """
    hashes = [*sums_of_hash(F.col(_HASH)), *sums_of_hash(F.col(_WHOLE))]
    grouped = marked.groupBy(by.alias("_by"), _GROUP).agg(F.count("*"), *hashes)
    found: dict[Any, dict[str | None, tuple[int, int, int]]] = {}
    for value, group, count, *sums in grouped.collect():
        found.setdefault(value, {})[group] = count, joined(sums[:3]), joined(sums[3:])
    return dict(found)


def sums_of_hash(hashed: Column) -> list[Column]:
    """Return sums of a hash in three parts: one BIGINT sum would overflow, DECIMAL is slow."""
    low = F.lit((1 << _THIRD) - 1)
    middle = F.shiftright(hashed, _THIRD).bitwiseAND(low)
    parts = F.shiftright(hashed, 2 * _THIRD), middle, hashed.bitwiseAND(low)
    return [F.sum(part) for part in parts]


def joined(sums: Sequence[int | None]) -> int:
    """Return the sum of the hashes from the sums of their parts."""
    high, middle, low = (part or 0 for part in sums)
    return (high << 2 * _THIRD) + (middle << _THIRD) + low


def _rows_that_differ(
    wanted: DataFrame, found: DataFrame, names: Sequence[str], shape: TableShape
) -> tuple[int, list[RowDifference]]:
    """Join by key; return the number of keys that differ, and the first differences."""
    e, s = (
        rows.groupBy(*shape.key)
        .agg(
            F.count("*").alias(_COUNT),
            F.min(_HASH).alias(_HASH),
            F.first(F.struct(*rows.drop(_GROUP, _HASH, _WHOLE).columns)).alias(_ROW),
        )
        .select(F.struct("*").alias(letter))
        for rows, letter in ((wanted, "e"), (found, "s"))
    )

    def same(name: str) -> Column:
        return F.col(f"e.{name}").eqNullSafe(F.col(f"s.{name}"))

    sides = e.join(s, on=[same(name) for name in shape.key], how="full_outer")
    near = [
        ~F.coalesce(F.expr(COLUMN.sub(rf"\1.{_ROW}.\2", sql)), F.lit(False))
        for sql in shape.near.values()
    ]
    differs = ~same(_COUNT) | ~same(_HASH)
    for column in near:
        differs = differs | column
    differing = sides.where(differs).select(
        F.to_json(f"e.{_ROW}", EXACT_TIMES).alias("expected"),
        F.to_json(f"s.{_ROW}", EXACT_TIMES).alias("stored"),
        F.coalesce(f"e.{_COUNT}", F.lit(0)).alias("wanted"),
        F.coalesce(f"s.{_COUNT}", F.lit(0)).alias("found"),
        F.array(*[F.coalesce(column, F.lit(False)) for column in near]).alias("off"),
    )
    first = differing.orderBy(F.coalesce("expected", "stored")).limit(SHOWN).collect()
    total = len(first) if len(first) < SHOWN else differing.count()
    return total, [_difference(row.asDict(), names, shape) for row in first]


def _difference(row: Mapping[str, Any], names: Sequence[str], shape: TableShape) -> RowDifference:
    # Read fractions as text to keep all digits.
    wanted = json.loads(row["expected"] or "{}", parse_float=str)
    found = json.loads(row["stored"] or "{}", parse_float=str)
    where = {name: (wanted or found).get(name) for name in shape.key}
    if not row["found"]:
        return RowDifference("missing", where)
    if not row["wanted"]:
        return RowDifference("extra", where)
    if row["wanted"] != row["found"]:
        return RowDifference("doubled", where)
    inexact = shape.near.keys() | shape.unhashed
    off = {name for name, is_off in zip(shape.near, row["off"], strict=True) if is_off}
    columns = {
        name: (None, None) if name in _SECRET else (wanted.get(name), found.get(name))
        for name in names
        if name in off or (name not in inexact and wanted.get(name) != found.get(name))
    }
    return RowDifference("altered", where, columns)
