"""Judge whether today's definition may continue on the stored tables, and what it changes there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tidelake.config import Pipeline
from tidelake.ops.query import ask
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import (
    check_definition,
    gold_freedom,
    gold_schema,
    late_schema,
    silver_freedom,
    silver_schema,
)
from tidelake.silver.fields import new_columns
from tidelake.sinks.evolution import Difference, Freedom, differences
from tidelake.tables import Lake, Table

_SAMPLE = 10_000
Drift = Literal["unknown", "absent"]


@dataclass(frozen=True)
class TableVerdict:
    """How a stored table and the definition differ.

    Attributes:
        table: Its logical name.
        exists: Whether it is there yet.
        differences: Column by column; none means that it continues as it is.
    """

    table: str
    exists: bool
    differences: tuple[Difference, ...]

    @property
    def may_continue(self) -> bool:
        """Tell whether a run would go on."""
        return all(one.verdict != "refused" for one in self.differences)


@dataclass(frozen=True)
class FieldDrift:
    """A payload field in which the newest arrivals and ``event.schema`` differ.

    Attributes:
        field: Its name.
        kind: ``unknown`` to the schema, or in it and ``absent`` from every payload.
        rows: Payloads that hold it.
        sampled: Payloads looked at.
        follows: What becomes of it.
    """

    field: str
    kind: Drift
    rows: int
    sampled: int
    follows: str


_FOLLOWS = {
    "strict": "its rows are quarantined (stage contract)",
    "additive": "is a text column of silver",
    "rescue": "is kept in _rescued_data",
}


def judge_tables(run: Run) -> list[TableVerdict]:
    """Hold every stored table against the definition; nothing is written.

    Raises:
        ConfigError: Spark does not understand an expression.
    """
    check_definition(run.spark, run.pipeline)
    return [
        _judge(run.spark, table, wanted, freedom) for table, wanted, freedom in _definition(run)
    ]


def _definition(run: Run) -> Iterator[tuple[Table, StructType, Freedom]]:
    spark, pipeline, lake = run.spark, run.pipeline, run.lake
    freedom = silver_freedom(pipeline)
    yield lake.silver(pipeline.name), silver_schema(spark, pipeline), freedom
    yield lake.late(pipeline.name), late_schema(spark, pipeline), freedom
    for gold in pipeline.gold:
        yield lake.gold(gold.name), gold_schema(spark, pipeline, gold), gold_freedom(pipeline)


def _judge(spark: SparkSession, table: Table, wanted: StructType, freedom: Freedom) -> TableVerdict:
    if not table.exists:
        return TableVerdict(table.name, False, ())
    stored = spark.read.format("delta").load(str(table.path)).schema
    return TableVerdict(table.name, True, tuple(differences(stored, wanted, freedom)))


def payload_drift(lake: Lake, pipeline: Pipeline) -> list[FieldDrift]:
    """Compare the fields of bronze's newest payloads with the schema, without Spark."""
    bronze = lake.bronze(pipeline.name)
    if not bronze.exists:
        return []
    newest = (
        f"SELECT try(decode(payload)) AS payload FROM {bronze.name} WHERE ingested_at = "
        f"(SELECT max(ingested_at) FROM {bronze.name}) LIMIT {_SAMPLE}"
    )
    objects = (
        f"SELECT payload FROM ({newest}) "
        "WHERE json_valid(payload) AND json_type(payload) = 'OBJECT'"
    )
    sampled = int(ask(lake, f"SELECT count(*) FROM ({objects})").rows[0][0])
    seen = dict(
        ask(
            lake,
            f"SELECT name, count(*) FROM (SELECT unnest(json_keys(payload)) AS name "
            f"FROM ({objects})) GROUP BY 1",
        ).rows
    )
    declared = [field.name for field in pipeline.event.fields]
    unknown = [
        FieldDrift(name, "unknown", rows, sampled, _follows(name, pipeline))
        for name, rows in sorted(seen.items())
        if name not in declared
    ]
    absent = [
        FieldDrift(name, "absent", 0, sampled, "is null in silver")
        for name in declared
        if sampled and name not in seen
    ]
    return unknown + absent


def _follows(name: str, pipeline: Pipeline) -> str:
    """Say what becomes of an unknown field."""
    evolution = pipeline.event.evolution
    columns = pipeline.silver_columns
    if evolution == "additive" and not new_columns([name], defined=columns, stored={}):
        return "stays in bronze only: its name cannot be a column of silver"
    return _FOLLOWS[evolution]
