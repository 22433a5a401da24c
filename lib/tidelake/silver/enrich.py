"""Enrich silver events with columns of a dimension, once, at write time."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegralType, StringType, StructType

from tidelake.columns import as_timestamp, equal, in_type_of
from tidelake.config import Enrich
from tidelake.names import SILVER_RESERVED
from tidelake.silver.stages import SELECTED


def looked_up(number: int) -> str:
    """Return the name of the struct column with an enrichment's entry, null if none matched."""
    return f"_dimension_{number}"


def look_up(rows: DataFrame, dimension: DataFrame, enrich: Enrich, number: int) -> DataFrame:
    """Left-join a dimension; add each row's entry as the struct ``_dimension_<number>``.

    ``dimension`` holds the latest state or, with ``as_of``, the versions, of which at most one per
    key is valid at an instant. If several keys become equal to a row's value when cast to its type,
    the smallest is used.
    """
    sides = [(*_of_row(rows, column), key) for column, key in enrich.on.items()]
    bounds = ("valid_from", "valid_to") if enrich.as_of else ()
    entries = dimension.select(
        *[F.col(key).alias(f"_key_{key}") for *_, key in sides],
        *[F.col(name).alias(f"_{name}") for name in bounds],
        F.struct(*enrich.columns).alias(looked_up(number)),
    )
    kinds = {key: entries.schema[f"_key_{key}"].dataType for *_, key in sides}

    def is_valid(valid_from: Column, valid_to: Column) -> Column:
        at = as_timestamp(_of_row(rows, enrich.as_of or "")[0])
        return (valid_from <= at) & (valid_to.isNull() | (at < valid_to))

    if all(_is_one_to_one(kind, kinds[key]) for _, kind, key in sides):
        same = [equal(one, kind, F.col(f"_key_{key}"), kinds[key]) for one, kind, key in sides]
        if bounds:
            same.append(is_valid(*[F.col(f"_{name}") for name in bounds]))
        found = rows.join(entries, on=same, how="left")
        return found.drop(*[f"_key_{key}" for *_, key in sides], *[f"_{name}" for name in bounds])
    # Spark would join a row once for each key that is the same in the row's type.
    names = [f"_same_{key}" for *_, key in sides]
    casts = [
        in_type_of(F.col(f"_key_{key}"), kinds[key], kind).alias(name)
        for name, (_, kind, key) in zip(names, sides, strict=True)
    ]
    key = F.struct(*[f"_key_{key}" for *_, key in sides]).alias("key")
    entry = F.struct(key, *[f"_{name}" for name in bounds], looked_up(number))
    groups = entries.groupBy(*casts).agg(F.collect_list(entry).alias("_entries"))
    same = [
        in_type_of(one, kind, kinds[key]) == F.col(name)
        for name, (one, kind, key) in zip(names, sides, strict=True)
    ]
    known = F.col("_entries")
    if bounds:
        known = F.filter(known, lambda one: is_valid(*[one[f"_{name}"] for name in bounds]))
    least = F.array_min(F.transform(known, lambda one: one["key"]))
    chosen = F.get(F.filter(known, lambda one: one["key"] == least), F.lit(0))
    found = rows.join(groups, on=same, how="left")
    return found.withColumn(looked_up(number), chosen[looked_up(number)]).drop(*names, "_entries")


def _is_one_to_one(kind: DataType, of_key: DataType) -> bool:
    """Return whether a value of a row equals at most one key."""
    integers = isinstance(kind, IntegralType) and isinstance(of_key, IntegralType)
    return kind == of_key or isinstance(kind, StringType) or integers


def without_entry(rows: DataFrame, kind: StructType, number: int) -> DataFrame:
    """Add a null entry to every row, for a dimension that is still empty."""
    # Not a cast: a Spark Connect client would include the collation of each string type in it.
    nothing = F.from_json(F.lit(None).cast("string"), kind)
    return rows.withColumn(looked_up(number), nothing)


def enriched_columns(enrichments: Sequence[Enrich]) -> list[Column]:
    """Return silver's columns that come from dimensions, in order."""
    return [
        F.col(looked_up(number)).getField(name).alias(name)
        for number, enrich in enumerate(enrichments)
        for name in enrich.columns
    ]


def _of_row(rows: DataFrame, name: str) -> tuple[Column, DataType]:
    """Return a column of silver, and its type."""
    if name in SILVER_RESERVED:
        return F.col(name), rows.schema[name].dataType
    selected = rows.schema[SELECTED].dataType
    assert isinstance(selected, StructType)
    return F.col(SELECTED).getField(name), selected[name].dataType
