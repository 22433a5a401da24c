"""Compile a pipeline's silver definition into columns once, not for each batch."""

from __future__ import annotations

from functools import cached_property

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from tidelake.config import Pipeline
from tidelake.silver.dedup import Comparison
from tidelake.silver.fates import Fates, Routing
from tidelake.silver.payloads import WriterSchemas
from tidelake.silver.stages import Judging, classify
from tidelake.silver.summary import Counting


class SilverPlan:
    """The columns of a silver definition, each built on first use.

    Each function that creates a column is a call into the JVM; for a small batch, building the
    columns would take longer than processing the rows. Columns belong to one Spark application, so
    do not keep a plan longer than the run. ``entry_types`` are the types of the dimensions' entries
    by dimension, ``schemas`` those of silver and late by layer.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        """Store the definition; nothing is built yet."""
        self.pipeline = pipeline
        self.entry_types: dict[str, StructType] = {}
        self.schemas: dict[str, StructType] = {}

    @cached_property
    def judging(self) -> Judging:
        """Column expressions that decode rows and evaluate contract and rules."""
        return Judging(self.pipeline)

    @cached_property
    def comparison(self) -> Comparison:
        """Column expressions that compare rows with accepted ones."""
        return Comparison(self.pipeline.dedup)

    @cached_property
    def fates(self) -> Fates:
        """Column expressions that decide the fate of each row."""
        return Fates()

    @cached_property
    def routing(self) -> Routing:
        """Column expressions that select the columns of silver and late."""
        return Routing(self.pipeline)

    @cached_property
    def counting(self) -> Counting:
        """Column expressions that count rows by fate, and their keys."""
        return Counting(self.pipeline)

    def judge(self, rows: DataFrame, schemas: WriterSchemas | None = None) -> DataFrame:
        """Classify each row; see :func:`tidelake.silver.stages.classify`."""
        return classify(rows, self.judging, schemas)
