"""The machine's checks: each one that fails says what to do."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession

import tidelake
from tests.catalogs import a_catalog
from tidelake.delta.store import Catalog
from tidelake.delta.tables import Lake
from tidelake.errors import JarError
from tidelake.names import LAYERS
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

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    finding = doctor.check_root(tmp_path)
    assert (finding.found, finding.remedy) == (
        f"{tmp_path}: Permission denied",
        "choose a --root that you may write",
    )


def test_a_root_without_locks_is_told_unless_the_environment_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    finding = doctor.check_root(tmp_path)
    assert finding.found == f"{tmp_path} has no locks"
    assert "`locks: none`" in finding.remedy
    assert doctor.check_root(tmp_path, needs_locks=False).well
    assert doctor.check_volume(tmp_path).well
    assert list(tmp_path.iterdir()) == []


class _Twice:
    """What runs do on a volume, of which the second time fails."""

    def __init__(self, step: Callable[..., object]) -> None:
        self.step, self.times = step, 0

    def __call__(self, *values: object, **options: object) -> object:
        self.times += 1
        if self.times == 2:
            raise OSError(errno.ENOSYS, "Function not implemented")
        return self.step(*values, **options)


@pytest.mark.parametrize("step", ["hold", "write_whole"])
def test_a_volume_on_which_a_step_of_a_run_fails_the_second_time_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    assert doctor.check_volume(tmp_path) == DoctorFinding("Volume", f"{tmp_path} is writable")

    monkeypatch.setattr(doctor, step, _Twice(getattr(doctor, step)))
    finding = doctor.check_volume(tmp_path)
    assert finding.found == f"{tmp_path}: Function not implemented"
    assert "grant READ VOLUME and WRITE VOLUME" in finding.remedy
    assert list(tmp_path.iterdir()) == []


def test_a_volume_that_keeps_old_content_or_deletes_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as stale:
        stale.setattr(doctor, "write_whole", lambda file, _: file.write_text("first"))
        assert "old content" in doctor.check_volume(tmp_path).found
    monkeypatch.setattr(doctor, "remove_tree", lambda _: None)
    assert "cannot be deleted" in doctor.check_volume(tmp_path).found


def test_the_volume_of_the_input_files_must_be_listed(tmp_path: Path) -> None:
    assert doctor.check_landing(tmp_path).well
    finding = doctor.check_landing(tmp_path / "gone")
    assert finding.found == f"{tmp_path / 'gone'}: No such file or directory"
    assert "under `landing` of the environment, and grant READ VOLUME" in finding.remedy


class _Session:
    """A session of a catalog that takes every statement."""

    version = "4.0.0"

    def __init__(self) -> None:
        self.statements: list[str] = []

    def sql(self, statement: str) -> None:
        self.statements.append(statement)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_catalog_whose_history_has_no_commit_metadata_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_recorded: bool
) -> None:
    session: Any = _Session()
    catalog = Catalog("main", lambda: session)
    lake = Lake(tmp_path, catalog=catalog, needs_locks=False)
    monkeypatch.setattr(Catalog, "layers", lambda _: set(LAYERS))
    monkeypatch.setattr("tidelake.delta.append.append_nothing", lambda *_: None)
    monkeypatch.setattr(
        "tidelake.delta.log.last_commit", lambda _: object() if is_recorded else None
    )
    findings = {one.what: one for one in doctor.examine_lake(lake, landing=str(tmp_path))}

    assert {"Volume", "Landing"} < set(findings)
    assert [findings[f"Schema {layer}"].well for layer in LAYERS] == [is_recorded] * len(LAYERS)
    if not is_recorded:
        assert "userMetadata" in findings["Schema gold"].remedy
    dropped = [one for one in session.statements if one.startswith("DROP TABLE")]
    assert len(dropped) == len(LAYERS)
    # Spark alone reads an external location.
    spark_alone = doctor.examine_lake(lake, landing="abfss://c@a.dfs.core.windows.net/x")
    assert "Landing" not in [one.what for one in spark_alone]


def _no_decoder(*_: object) -> Any:
    raise ImportError("no msgspec")


def test_what_a_worker_of_a_server_lacks_is_told_a_line_each(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its findings come back in a table."""
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "offsets" / "0").touch()
    rows = spark.createDataFrame([('{"n": 7}',)], "value STRING")

    def found(version: str, batch: int) -> dict[str, tuple[str, str]]:
        spark.sql(f"CREATE OR REPLACE TABLE ops.answers ({doctor._FINDING}) USING delta")
        doctor.probe_worker(version, str(tmp_path / "checkpoint"), "ops.answers", rows, batch)
        return {row[0]: (row[1], row[2]) for row in spark.table("ops.answers").collect()}

    with a_catalog(spark, tmp_path):
        assert found(tidelake.__version__, 0) == {
            "Worker: Tidelake": (f"version {tidelake.__version__}", ""),
            "Worker: files": ("the checkpoint can be listed", ""),
            "Worker: decoder": ("payloads are decoded", ""),
            "Worker: casts": ("a value that cannot be cast is null", ""),
        }

        def unguarded(value: Column) -> Column:
            return value

        monkeypatch.setattr("tidelake.spark.internals.null_on_error", unguarded)
        monkeypatch.setattr("tidelake.silver.payloads.decoder_of", _no_decoder)
        lacks = found("0.0.9", 1)
    told = [
        ("Worker: Tidelake", f"{tidelake.__version__}, expected 0.0.9", "install the same wheel"),
        ("Worker: files", "0, expected 1", "use compute on which Python sees the volume"),
        ("Worker: decoder", "no msgspec", "install the same wheel"),
        ("Worker: casts", "[CAST_INVALID_INPUT]", "use another runtime"),
    ]
    for what, words, remedy in told:
        assert lacks[what][0].startswith(words)
        assert lacks[what][1].startswith(remedy)


def test_a_batch_in_this_process_needs_no_check_of_a_worker(tmp_path: Path) -> None:
    catalog = Catalog("main", lambda: pytest.fail("a session is asked for"))
    assert doctor.check_workers(catalog, tmp_path) == []
