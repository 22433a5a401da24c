"""The machine's checks: each one that fails says what to do."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections import namedtuple
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tidelake.delta.tables import Lake
from tidelake.errors import JarError
from tidelake.ops import doctor
from tidelake.ops.doctor import DoctorFinding
from tidelake.spark import java
from tidelake.spark.java import CACHE_VARIABLE, Jar

JAR = Jar("a:b:1", hashlib.sha256(b"good").hexdigest())
Usage = namedtuple("Usage", "total used free")


def use_java(monkeypatch: pytest.MonkeyPatch, home: Path, script: str) -> None:
    """Put a `java` in place that runs this shell script."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(home))


def use_jars(monkeypatch: pytest.MonkeyPatch, cache: Path, content: bytes | None) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(cache))
    monkeypatch.setattr(java, "read_lock", lambda: (JAR,))
    if content is not None:
        (cache / JAR.file_name).write_bytes(content)


def test_a_finding_is_well_when_nothing_is_to_be_done() -> None:
    assert DoctorFinding("a", "b").well
    assert not DoctorFinding("a", "b", "do this").well


def test_every_check_runs_and_names_a_different_thing(tmp_path: Path) -> None:
    findings = doctor.examine_lake(Lake(tmp_path))

    assert [f.what for f in findings] == [
        "Python",
        "Java",
        "Spark",
        "Memory",
        "Disk",
        "Jars",
        "Root",
    ]
    assert all(finding.found for finding in findings)


def test_an_old_python_says_which_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_python().well

    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    assert doctor.check_python() == DoctorFinding("Python", "3.10.4", "install Python 3.11")


@pytest.mark.parametrize("version", ["17.0.2", "21", "25-ea"])
def test_a_new_enough_java_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    use_java(monkeypatch, tmp_path, f"echo 'openjdk version \"{version}\"' >&2")

    assert doctor.check_java() == DoctorFinding("Java", version)


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'java version \"1.8.0_392\"' >&2", "1.8.0_392"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "11.0.2"),
        ("echo whatever", "unknown version"),
        ("exit 1", "unknown version"),
    ],
)
def test_an_old_or_broken_java_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, found: str
) -> None:
    use_java(monkeypatch, tmp_path, script)

    finding = doctor.check_java()

    assert finding.found == found
    assert "install a JDK 17 or newer" in finding.remedy


def test_a_wrong_java_home_says_how_to_set_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    finding = doctor.check_java()

    assert finding.found == f"{tmp_path}/bin/java does not run"
    assert "set JAVA_HOME" in finding.remedy


def test_a_machine_without_java_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    finding = doctor.check_java()

    assert finding.found == "not found"
    assert "install a JDK" in finding.remedy


def test_missing_spark_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_spark().well

    def version(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(doctor, "version", version)
    assert doctor.check_spark().remedy == "pip install 'tidelake[local]'"


def test_too_little_memory_says_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 19}.__getitem__)

    finding = doctor.check_memory()

    assert finding.found == "2.0 GiB"
    assert "spark.driver.memory" in finding.remedy


def test_too_little_disk_says_so_before_the_root_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(10 << 30, 9 << 30, 1 << 30))

    finding = doctor.check_disk(tmp_path / "not" / "there")

    assert finding.found == "1.0 GiB free"
    assert "--root" in finding.remedy
    assert list(tmp_path.iterdir()) == []


def test_good_jars_are_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_jars(monkeypatch, tmp_path, b"good")

    assert doctor.check_jars() == DoctorFinding("Jars", f"1 verified in {tmp_path}")


def test_missing_jars_say_how_to_fetch_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_jars(monkeypatch, tmp_path, None)

    finding = doctor.check_jars()

    assert finding.found == "0 of 1 fetched"
    assert "tidelake doctor --fetch" in finding.remedy


def test_a_jar_with_another_hash_is_named_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_jars(monkeypatch, tmp_path, b"bad")

    finding = doctor.check_jars()

    assert finding.found == f"wrong hash: {JAR.file_name}"
    assert finding.remedy == f"delete them from {tmp_path}, run `tidelake doctor --fetch`"


def test_a_broken_lock_says_what_is_wrong_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_lock() -> tuple[Jar, ...]:
        raise JarError("conf/jars.lock, line 2: write `group:artifact:version sha256:HEX`")

    monkeypatch.setattr(java, "read_lock", read_lock)

    assert "line 2: write" in doctor.check_jars().remedy


def test_a_root_that_may_not_be_written_says_to_choose_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor.check_root(tmp_path / "lake").well
    assert list(tmp_path.iterdir()) == []

    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "NamedTemporaryFile", refuse)
    finding = doctor.check_root(tmp_path)
    assert (finding.found, finding.remedy) == (
        f"{tmp_path}: Permission denied",
        "choose a --root that you may write",
    )
