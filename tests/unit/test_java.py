"""The archive of Spark's classes is named by what it was made of, and used where there is one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tidelake.errors import JarError
from tidelake.spark import java
from tidelake.spark.java import ARCHIVE_VARIABLE, archive_of, class_settings, make_archive

_PATH = "spark.driver.extraClassPath"


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setenv("TIDELAKE_JARS", str(tmp_path))
    monkeypatch.delenv(ARCHIVE_VARIABLE, raising=False)
    return [tmp_path / "delta.jar", tmp_path / "kafka.jar"]


def test_without_an_archive_a_session_is_as_it_was(jars: list[Path]) -> None:
    assert class_settings(jars) == ({}, "")


def test_an_archive_is_used_with_its_jars_on_javas_own_path(jars: list[Path]) -> None:
    archive_of(jars).touch()
    settings, option = class_settings(jars)
    assert settings == {_PATH: os.pathsep.join(map(str, jars))}
    assert f"-XX:SharedArchiveFile={archive_of(jars)} " in option


def test_other_jars_have_another_archive(jars: list[Path]) -> None:
    archive_of(jars).touch()
    assert class_settings(jars[:1]) == ({}, "")


def test_the_process_that_makes_it_takes_the_same_path(
    jars: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ARCHIVE_VARIABLE, "/scratch/new.jsa")
    settings, option = class_settings(jars)
    assert settings == {_PATH: os.pathsep.join(map(str, jars))}
    assert option == "-XX:ArchiveClassesAtExit=/scratch/new.jsa"


def test_an_archive_appears_whole_or_not_at_all(
    jars: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = 0

    def run(command: list[str], env: dict[str, str], **_: Any) -> Any:
        Path(env[ARCHIVE_VARIABLE]).write_bytes(b"classes")
        assert archive_of(jars).exists() == bool(code)
        return subprocess.CompletedProcess(command, code, "", "no memory")

    monkeypatch.setattr(java.subprocess, "run", run)
    assert make_archive(jars).read_bytes() == b"classes"
    assert [path.suffix for path in jars[0].parent.iterdir()] == [".jsa"]
    code = 1
    with pytest.raises(JarError, match=r"was not created.*no memory"):
        make_archive(jars)
