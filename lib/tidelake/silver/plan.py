"""Compile a definition of silver into columns: once, not for each batch."""

from __future__ import annotations

from functools import cached_property

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from tidelake.config import Pipeline
from tidelake.silver.classify import Judging, classify
from tidelake.silver.dedup import Comparison
from tidelake.silver.payloads import WriterSchemas
from tidelake.silver.route import Fates, Routing
from tidelake.silver.summary import Counting


class SilverPlan:
    """What follows from a definition of silver alone, each part built when it is first asked for.

    A batch of a few rows would spend more time on building its columns than on its rows: each
    function that makes a column is a call into the JVM. Columns belong to one Spark application,
    and so does a plan: it lives no longer than the run that holds it.

    Attributes:
        pipeline: The definition.
        entry_types: The types of the dimensions that rows are looked up in, by dimension.
        schemas: Of silver and late, by layer.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        """Build nothing yet."""
        self.pipeline = pipeline
        self.entry_types: dict[str, StructType] = {}
        self.schemas: dict[str, StructType] = {}

    @cached_property
    def judging(self) -> Judging:
        """Columns of decoding, contract and rules."""
        return Judging(self.pipeline)

    @cached_property
    def comparison(self) -> Comparison:
        """Columns of deduplication."""
        return Comparison(self.pipeline.dedup)

    @cached_property
    def fates(self) -> Fates:
        """Columns of verdicts and fates."""
        return Fates()

    @cached_property
    def routing(self) -> Routing:
        """Columns of silver and late."""
        return Routing(self.pipeline)

    @cached_property
    def counting(self) -> Counting:
        """Keys and aggregates of the counts."""
        return Counting(self.pipeline)

    def judge(self, rows: DataFrame, schemas: WriterSchemas | None = None) -> DataFrame:
        """Judge each row by itself; see :func:`tidelake.silver.classify.classify`."""
        return classify(rows, self.judging, schemas)
