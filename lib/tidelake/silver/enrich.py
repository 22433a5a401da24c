"""Enrich silver events with columns of a dimension, once, at write time."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from tidelake.columns import as_timestamp, equal
from tidelake.config import Enrich
from tidelake.names import SILVER_RESERVED
from tidelake.silver.stages import SELECTED


def looked_up(number: int) -> str:
    """Return the name of the struct column with an enrichment's entry, null if none matched."""
    return f"_dimension_{number}"


def look_up(rows: DataFrame, dimension: DataFrame, enrich: Enrich, number: int) -> DataFrame:
    """Left-join a dimension; add each row's entry as the struct ``_dimension_<number>``.

    ``dimension`` holds the latest state or, with ``as_of``, the versions, of which at most one per
    key is valid at an instant.
    """
    keys = list(enrich.on.values())
    bounds = ["valid_from", "valid_to"] if enrich.as_of else []
    entries = dimension.select(
        *[F.col(name).alias(f"_key_{name}") for name in keys],
        *[F.col(name).alias(f"_{name}") for name in bounds],
        F.struct(*enrich.columns).alias(looked_up(number)),
    )
    kinds = entries.schema
    same = []
    for column, key_name in enrich.on.items():
        key = f"_key_{key_name}"
        same.append(equal(*_of_row(rows, column), F.col(key), kinds[key].dataType))
    if enrich.as_of:
        at = as_timestamp(_of_row(rows, enrich.as_of)[0])
        same += [
            F.col("_valid_from") <= at,
            F.col("_valid_to").isNull() | (at < F.col("_valid_to")),
        ]
    found = rows.join(entries, on=same, how="left")
    return found.drop(*[f"_key_{name}" for name in keys], *[f"_{name}" for name in bounds])


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
