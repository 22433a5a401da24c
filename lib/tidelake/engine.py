"""Ask the engine that a session speaks to, which may be a server of Spark Connect."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

# Enough that each slot gets a part of the range.
_SPREAD = 1 << 16


def slots_of(spark: SparkSession) -> int:
    """Tell how many tasks the engine runs at once.

    Through Spark Connect there is no Spark context to ask; a range has a partition for each slot.
    """
    if not is_remote():
        return int(spark.sparkContext.defaultParallelism)
    parts = spark.range(_SPREAD).select(F.spark_partition_id()).distinct()
    return max(1, parts.count())
