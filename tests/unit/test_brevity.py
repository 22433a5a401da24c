"""A run that has little to do is known before Spark starts."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from tests.unit.handmade import NEW_YEAR, write_commit
from tidelake.config import KafkaSource, Pipeline, load_environment, load_pipeline
from tidelake.delta.tables import Lake
from tidelake.ops.status import little_waits
from tidelake.spark.java import SessionUse, driver_options, java_path
from tidelake.spark.session import _settings
from tidelake.spark.tuning import BRIEF_DRIVER

_MEGABYTE = 1 << 20


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder = tmp_path / "landing"
    folder.mkdir()
    return folder


def pipeline_of(landing: Path, root: Path) -> Pipeline:
    return load_pipeline(
        "clickstream", load_environment("local", root=str(root)), source=str(landing)
    )


def file_of(landing: Path, name: str, size: int) -> None:
    with (landing / name).open("wb") as file:
        os.truncate(file.fileno(), size)


def test_files_of_some_megabytes_are_little_and_more_are_not(tmp_path: Path, landing: Path) -> None:
    lake = Lake(tmp_path / "lake")
    file_of(landing, "a.jsonl", 3 * _MEGABYTE)
    pipeline = pipeline_of(landing, lake.root)
    assert little_waits(lake, pipeline)
    file_of(landing, "b.jsonl", 2 * _MEGABYTE)
    assert not little_waits(lake, pipeline)


@pytest.mark.parametrize("hop", ["silver", "gold"])
def test_what_waits_for_silver_or_gold_counts_as_well(
    tmp_path: Path, landing: Path, hop: str
) -> None:
    lake = Lake(tmp_path / "lake")
    file_of(landing, "a.jsonl", _MEGABYTE)
    pipeline = pipeline_of(landing, lake.root)
    table = lake.bronze("clickstream") if hop == "silver" else lake.silver("clickstream")
    # A hundred bytes a row.
    write_commit(table, 0, adds=[(4 * _MEGABYTE // 100, True)])
    assert not little_waits(lake, pipeline)


def test_files_that_were_taken_long_ago_do_not_wait(tmp_path: Path, landing: Path) -> None:
    lake = Lake(tmp_path / "lake")
    file_of(landing, "a.jsonl", 9 * _MEGABYTE)
    os.utime(landing / "a.jsonl", (NEW_YEAR / 1000 - 7200, NEW_YEAR / 1000 - 7200))
    note = {"pipeline": "clickstream", "hop": "bronze", "generation": "g1", "batch": 0}
    write_commit(lake.bronze("clickstream"), 0, note=note)
    assert little_waits(lake, pipeline_of(landing, lake.root))


def test_what_waits_in_a_topic_or_cannot_be_listed_is_not_little(
    tmp_path: Path, landing: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    pipeline = pipeline_of(landing, lake.root)
    assert not little_waits(lake, pipeline)
    topic = KafkaSource(kind="kafka", bootstrap="localhost:1", topic="clicks")
    assert not little_waits(lake, pipeline.model_copy(update={"source": topic}))


def test_only_a_brief_session_is_without_the_second_compiler() -> None:
    environment = load_environment("local", root="/tmp/none")
    option, uses = "-XX:TieredStopAtLevel=1", get_args(SessionUse)
    found = {use: options_of(_settings(environment, [], use)) for use in uses}
    assert [option in found[use] for use in ("brief", "bulk", "lasting")] == [True, False, False]
    assert all("-Duser.timezone=UTC" in options for options in found.values())


def options_of(settings: dict[str, str]) -> list[str]:
    # As Spark splits them.
    return shlex.split(settings["spark.driver.extraJavaOptions"])


@pytest.mark.parametrize("chosen", ["", "-XX:+UseSerialGC"])
@pytest.mark.parametrize("use", get_args(SessionUse))
def test_java_starts_with_the_options_of_each_use_and_a_collector_of_the_users(
    use: SessionUse, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", chosen)
    options = shlex.split(driver_options(use))
    java = java_path()
    assert java is not None
    command = [java, *options, "-XX:+PrintFlagsFinal", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    flags = dict(re.findall(r"^ *bool (\w+) += (\w+)", done.stdout, re.MULTILINE))
    assert flags["UseParallelGC"] == ("true" if use == "bulk" and not chosen else "false")
    assert flags["UseSerialGC"] == ("true" if chosen else "false")
    assert ("1 compiler directives added" in done.stdout) == (use == "bulk")


def test_sparks_launcher_starts_with_its_options_and_a_collector_of_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseG1GC")
    java = java_path()
    assert java is not None
    command = [java, *shlex.split(BRIEF_DRIVER), "-version"]
    subprocess.run(command, capture_output=True, check=True)
