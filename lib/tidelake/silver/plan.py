"""Compile a pipeline's silver definition into columns once, not for each batch."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from tidelake.config import Pipeline
from tidelake.silver.dedup import Comparison
from tidelake.silver.fates import Fates, Routing
from tidelake.silver.payloads import WriterSchemas
from tidelake.silver.stages import Judging, classify
from tidelake.silver.summary import Counting


class SilverPlan:
    """The columns of a silver definition, built once.

    Each function that creates a column is a call into the JVM; for a small batch, building the
    columns would take longer than processing the rows. Columns belong to one Spark application, so
    do not keep a plan longer than the run. ``entry_types`` are the types of the dimensions' entries
    by dimension, ``schemas`` those of silver and late by layer.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        """Build the columns."""
        self.pipeline = pipeline
        self.judging = Judging(pipeline)
        self.comparison = Comparison(pipeline.dedup)
        self.fates = Fates()
        self.routing = Routing(pipeline)
        self.counting = Counting(pipeline)
        self.entry_types: dict[str, StructType] = {}
        self.schemas: dict[str, StructType] = {}

    def judge(self, rows: DataFrame, schemas: WriterSchemas | None = None) -> DataFrame:
        """Classify each row; see :func:`tidelake.silver.stages.classify`."""
        return classify(rows, self.judging, schemas)
