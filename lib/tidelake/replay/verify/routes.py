"""Compare the tables that silver's decisions fill, in one pass over what was decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.delta.tables import Table
from tidelake.replay.verify.contents import (
    Comparison,
    settle,
    summed_up,
    typed_like,
    types_in,
)
from tidelake.replay.verify.sums import Shape, marks, summed
from tidelake.silver.route import FATE


@dataclass(frozen=True)
class Route:
    """Where rows of one fate go.

    Attributes:
        fate: Theirs.
        table: Which holds them.
        columns: What of a decided row it holds.
        stored: Its rows.
        shape: How they are compared.
    """

    fate: str
    table: Table
    columns: Sequence[Column]
    stored: DataFrame
    shape: Shape


def compare_routes(
    decided: DataFrame, routes: Sequence[Route]
) -> tuple[dict[str, Comparison], dict[str, int]]:
    """Compare each table with its rows, in one pass over what was decided.

    Returns:
        By table what came out, and how many rows each fate has.
    """
    shaped = decided.select(FATE, *[F.struct(*one.columns).alias(one.fate) for one in routes])
    for one in routes:
        types = types_in(one.stored)
        names = shaped.select(f"{one.fate}.*").columns
        typed = {name: F.col(f"{one.fate}.{name}").cast(types[name]) for name in names}
        of_row = F.when(F.col(FATE) == one.fate, marks(typed, types, one.shape))
        shaped = shaped.withColumn(f"_of_{one.fate}", of_row)
    first = F.coalesce(*[f"_of_{one.fate}" for one in routes]).alias("_of_row")
    marked = shaped.select(FATE, first).select(FATE, "_of_row.*")
    theirs = summed(marked, F.col(FATE))
    found = {}
    for one in routes:
        wanted = typed_like(
            decided.where(F.col(FATE) == one.fate).select(*one.columns), types_in(one.stored)
        )
        stored = one.stored.select(*wanted.columns)
        ours = summed_up(stored, one.shape)
        found[one.table.name] = settle(wanted, stored, one.shape, theirs.get(one.fate, {}), ours)
    return found, {fate: sum(one.count for one in sums.values()) for fate, sums in theirs.items()}
