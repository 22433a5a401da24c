"""One Spark session for all tests, in a zone that is not UTC so that none leans on it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidelake.config import Environment, load_environment
from tidelake.session import build_session
from tidelake.tables import Lake

# A test's JVM lives minutes and its rows are few: what the second compiler makes never pays.
os.environ["JAVA_TOOL_OPTIONS"] = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
)
# PySpark takes a main module without a file for its own doctests, and exits; a worker of
# pytest-xdist has such a one.
_main = sys.modules["__main__"]
if not hasattr(_main, "__file__"):
    _main.__file__ = __file__


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give a small local session with Delta."""
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    environment = load_environment("local", root=str(tmp_path_factory.mktemp("spark")))
    session = build_session(environment)
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """Give the local environment on an empty root."""
    return load_environment("local", root=str(tmp_path / "lake"))


@pytest.fixture
def lake(environment: Environment) -> Lake:
    """Give the tables of that root."""
    assert environment.root is not None
    return Lake(environment.root)
