"""Settings of Spark for tests of whole runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.unit.judged import without_codegen


@pytest.fixture(scope="module", autouse=True)
def _interpreted(spark: SparkSession) -> Iterator[None]:
    """Interpret what tests ask beside the batches, as small batches are.

    Plans are compiled in tests of frames, of recovery, and in processes of their own.
    """
    with without_codegen(spark):
        yield
