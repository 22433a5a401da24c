"""Read the dimensions that a batch of silver looks into, each at one version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidelake.bronze import REQUEUE_DDL
from tidelake.config import Enrich, Pipeline
from tidelake.delta.access import load
from tidelake.delta.log import newest_version
from tidelake.delta.tables import Lake, Table
from tidelake.silver.classify import SELECTED
from tidelake.silver.enrich import look_up, without_entry
from tidelake.silver.plan import SilverPlan


@dataclass(frozen=True)
class Lookup:
    """One enrichment of a batch.

    Attributes:
        enrich: The definition.
        table: The dimension's table that it looks into.
        version: At which version; -1 where the table is not there yet, and no row finds anything.
    """

    enrich: Enrich
    table: Table
    version: int


def lookups(lake: Lake, pipeline: Pipeline) -> list[Lookup]:
    """Pin every dimension that a pipeline's silver looks into."""
    found = []
    for enrich in pipeline.enrich:
        suffix = "__history" if enrich.as_of else ""
        table = lake.table(f"dim.{enrich.dimension}{suffix}")
        found.append(Lookup(enrich, table, newest_version(table)))
    return found


def enriched(rows: DataFrame, plan: SilverPlan, pinned: Sequence[Lookup]) -> DataFrame:
    """Look every row up in every dimension.

    Args:
        rows: From :func:`tidelake.silver.route.decide`.
        plan: Of the definition.
        pinned: From :func:`lookups`; none: no row finds anything.
    """
    spark = rows.sparkSession
    for number, enrich in enumerate(plan.pipeline.enrich):
        lookup = pinned[number] if pinned else None
        if lookup is None or lookup.version < 0:
            kind = _entry_type(plan, enrich.dimension, spark)
            chosen = StructType([kind[name] for name in enrich.columns])
            rows = without_entry(rows, chosen, number)
        else:
            entries = load(spark, lookup.table, version=lookup.version)
            rows = look_up(rows, entries, enrich, number)
    return rows


def _entry_type(plan: SilverPlan, dimension: str, spark: SparkSession) -> StructType:
    """Give the types of a dimension's columns by its definition."""
    if dimension not in plan.entry_types:
        of_dimension = SilverPlan(plan.pipeline.dimensions[dimension])
        rows = of_dimension.judge(spark.createDataFrame([], REQUEUE_DDL))
        selected = rows.schema[SELECTED].dataType
        assert isinstance(selected, StructType)
        plan.entry_types[dimension] = selected
    return plan.entry_types[dimension]
