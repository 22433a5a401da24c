"""What executors get depends on where they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidelake.config import Environment
from tidelake.session import _settings

JARS = [Path("/jars/a.jar"), Path("/jars/b.jar")]


@pytest.mark.parametrize(
    ("master", "gets_jars", "stays_here"),
    [
        (None, False, True),
        ("local[2]", False, True),
        ("local-cluster[2,1,1024]", True, True),
        ("spark://host:7077", True, False),
    ],
)
def test_executors_in_processes_of_their_own_begin_with_the_jars(
    monkeypatch: pytest.MonkeyPatch, master: str | None, gets_jars: bool, stays_here: bool
) -> None:
    monkeypatch.setenv("SPARK_HOME", "/spark")
    environment = Environment(name="x", root=Path("/lake"), master=master)
    found = _settings(environment, JARS)
    path = os.pathsep.join(map(str, JARS)) if gets_jars else None
    assert found.get("spark.executor.extraClassPath") == path
    assert found.get("spark.driver.host") == ("localhost" if stays_here else None)


def test_the_environment_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/spark")
    spark = {"spark.driver.host": "10.0.0.9"}
    environment = Environment(name="x", root=Path("/lake"), master="spark://host:1", spark=spark)
    assert _settings(environment, JARS)["spark.driver.host"] == "10.0.0.9"
