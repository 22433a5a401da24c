"""Reports of recovery tests, and a session in which small tables are rebuilt quickly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.recovery.reporting import PROPERTY, Report


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """Begin a test's report; what is written into it until the test ends is printed."""

    def begin(what: str, **values: Any) -> Report:
        made = Report(what, **values)
        request.node.user_properties.append((PROPERTY, vars(made)))
        return made

    return begin


@pytest.fixture(scope="module")
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Let the session interpret expressions, as it does in small batches.

    A swap or an erasure reads each table by plans of its own, and compiling them takes up to a
    seventh of the processor's time. Tests that start a process of their own run compiled code.
    """
    settings = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)
