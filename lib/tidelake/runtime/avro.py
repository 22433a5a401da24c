"""What Spark's reader of Avro can take, and what it must be kept from."""

from __future__ import annotations

import re

from pyspark.sql import SparkSession

from tidelake.errors import UsageError
from tidelake.runtime.failures import FOREIGN
from tidelake.silver.avro_schema import problem_of
from tidelake.silver.payloads import trial
from tidelake.spark.java import AVRO_LIMITS, AVRO_OPTIONS

_SHOWN = 300
_PYTHONS_OWN = re.compile(r"^An error occurred while calling \S+ : (?:[\w.$]+: )?")


def reading_problem(spark: SparkSession, schema: str) -> str:
    """Say why records of a schema cannot be read; empty where they can."""
    problem = problem_of(schema)
    if problem:
        return problem
    try:
        spark.range(0).select(trial(schema))
    except FOREIGN as error:
        told = " ".join(str(error).split())
        return f"cannot be read by Spark: {_PYTHONS_OWN.sub('', told)[:_SHOWN]}"
    return ""


def refuse_unlimited(spark: SparkSession) -> None:
    """Want the JVM to refuse lengths that no record has.

    A broken record may announce two billion letters; the reader makes room for them before it
    looks whether they are there, and the JVM dies of it, again at each restart.

    Raises:
        UsageError: The session was started without the limits.
    """
    given = spark.conf.get("spark.driver.extraJavaOptions", "") or ""
    if not all(limit in given for limit in AVRO_LIMITS):
        raise UsageError(
            "Avro is read only where the JVM bounds the lengths that a broken record may announce. "
            "Add to spark.driver.extraJavaOptions and spark.executor.extraJavaOptions: "
            f"{AVRO_OPTIONS}"
        )
