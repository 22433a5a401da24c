"""The session that a catalog's runtime has: taken as it is, set where that is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.conf import RuntimeConfig

from tidelake.config import Environment
from tidelake.errors import MachineError
from tidelake.session import build_session, lake_of, starts_spark

_ZONE, _OURS = "spark.sql.session.timeZone", "spark.tidelake.test"


def named(**settings: str) -> Environment:
    """Make an environment of a catalog."""
    return Environment(
        name="prod", catalog="spark_catalog", volume=Path("/Volumes/v"), spark=settings
    )


@pytest.fixture
def runtime(spark: SparkSession) -> Iterator[SparkSession]:
    """Give a session as a runtime would, in another zone."""
    spark.conf.set(_ZONE, "America/New_York")
    try:
        yield spark
    finally:
        spark.conf.set(_ZONE, "UTC")
        spark.conf.unset(_OURS)


def test_the_runtimes_own_session_is_taken_and_reads_times_as_utc(runtime: SparkSession) -> None:
    session = build_session(named(**{_OURS: "yes", "spark.driver.memory": "9g"}))

    assert session.sparkContext is runtime.sparkContext
    assert (session.conf.get(_ZONE), session.conf.get(_OURS)) == ("UTC", "yes")
    # Fixed when a runtime starts, and left as it is.
    assert session.conf.get("spark.driver.memory") != "9g"
    assert not starts_spark(named())


def test_a_zone_that_cannot_be_set_stops_the_run_by_name(
    runtime: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(conf: RuntimeConfig, key: str, value: Any) -> None:
        raise AnalysisException("not on this compute")

    with monkeypatch.context() as patch:
        patch.setattr(RuntimeConfig, "set", refuse)
        with pytest.raises(MachineError, match="time zone is America/New_York and cannot be set"):
            build_session(named())
    runtime.conf.set(_ZONE, "UTC")
    with monkeypatch.context() as patch:
        patch.setattr(RuntimeConfig, "set", refuse)
        assert build_session(named()).version == runtime.version


def test_away_from_a_runtime_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)

    with pytest.raises(MachineError, match="only a Databricks runtime reaches"):
        build_session(named())


def test_a_catalogs_tables_are_named_without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)

    lake = lake_of(named())

    assert lake.bronze("shop").sql == "`spark_catalog`.`bronze`.`shop`"
    assert lake.checkpoints("shop", "gold") == Path("/Volumes/v/checkpoints/shop/gold")
