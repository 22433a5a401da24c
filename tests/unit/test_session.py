"""A session is started, opened on a server, or taken from a runtime as it is."""

from __future__ import annotations

import locale
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.conf import RuntimeConfig

from tests.pipelines import shop
from tidelake.config import Environment
from tidelake.config.environment import RESULT_SETTINGS
from tidelake.delta.tables import Lake, lake_of
from tidelake.errors import MachineError
from tidelake.runtime.bronze_hop import BronzeHop
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.spark import engine
from tidelake.spark.internals import jvm_of, local_files
from tidelake.spark.session import (
    _connected,
    _ensure_utf8_names,
    _settings,
    active_session,
    build_session,
    starts_spark,
    whole_file_session,
)
from tidelake.without_pandas import leave_out_of_workers

_ZONE, _OURS = "spark.sql.session.timeZone", "spark.tidelake.test"
_ANSI, _CASE = "spark.sql.ansi.enabled", "spark.sql.caseSensitive"

JARS = [Path("/jars/a.jar"), Path("/jars/b.jar")]


def named(**settings: str) -> Environment:
    """Make an environment of a catalog."""
    return Environment(
        name="prod", catalog="spark_catalog", volume=Path("/Volumes/v"), spark=settings
    )


@pytest.fixture
def runtime(spark: SparkSession) -> Iterator[SparkSession]:
    """Give a session as a runtime would, in another zone and without ANSI mode."""
    spark.conf.set(_ZONE, "America/New_York")
    spark.conf.set(_ANSI, "false")
    spark.conf.set(_CASE, "true")
    try:
        yield spark
    finally:
        spark.conf.set(_ZONE, "UTC")
        for key in (_ANSI, _CASE, _OURS):
            spark.conf.unset(key)


def hides(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """Let a session not show a setting, as serverless compute does."""
    shown = RuntimeConfig.get

    def get(conf: RuntimeConfig, asked: str, *default: Any) -> Any:
        if asked == key:
            raise AnalysisException("[CONFIG_NOT_AVAILABLE] not on this compute")
        return shown(conf, asked, *default)

    monkeypatch.setattr(RuntimeConfig, "get", get)


def test_the_runtimes_own_session_is_taken_and_reads_times_as_utc(runtime: SparkSession) -> None:
    session = build_session(named(**{_OURS: "yes", "spark.driver.memory": "9g"}))

    assert session.sparkContext is runtime.sparkContext
    assert (session.conf.get(_ZONE), session.conf.get(_OURS)) == ("UTC", "yes")
    # Fixed when a runtime starts, and left as it is.
    assert session.conf.get("spark.driver.memory") != "9g"
    assert not starts_spark(named())


def test_every_session_has_the_settings_that_results_depend_on(runtime: SparkSession) -> None:
    session = build_session(named(**{_ANSI: "false"}))

    assert (session.conf.get(_ANSI), session.conf.get(_CASE)) == ("true", "false")
    runtime.conf.set(_ANSI, "false")
    joined = active_session()
    assert joined is not None
    assert joined.conf.get(_ANSI) == "true"
    started = Environment(name="x", root=Path("/lake"), spark={_ZONE: "Asia/Tokyo", _ANSI: "false"})
    assert RESULT_SETTINGS.items() <= _settings(started, JARS).items()


@pytest.mark.parametrize(("of_users", "told"), [(True, ""), (False, "1")])
def test_workers_are_told_whether_pandas_is_used(
    monkeypatch: pytest.MonkeyPatch, of_users: bool, told: str
) -> None:
    monkeypatch.setenv("TIDELAKE_WORKERS_WITHOUT_PANDAS", "")
    leave_out_of_workers(of_users=of_users)
    found = _settings(Environment(name="local", root=Path("/lake")), JARS)
    assert found["spark.executorEnv.TIDELAKE_WORKERS_WITHOUT_PANDAS"] == told


def test_a_sibling_has_the_settings_that_results_depend_on(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SparkSession.newSession

    def new(session: SparkSession) -> SparkSession:
        # As where the cluster's Spark config says so.
        found = real(session)
        found.conf.set(_ANSI, "false")
        return found

    monkeypatch.setattr(SparkSession, "newSession", new)
    sibling = whole_file_session(spark)
    assert [sibling.conf.get(key) for key in RESULT_SETTINGS] == list(RESULT_SETTINGS.values())


def test_a_session_in_one_process_does_not_carry_the_settings_of_services(
    spark: SparkSession, tmp_path: Path
) -> None:
    # What loads more of Hadoop would bring them back.
    spark.range(2).write.format("delta").save(str(tmp_path / "table"))
    assert spark.read.format("delta").load(str(tmp_path / "table")).count() == 2
    jvm: Any = spark.sparkContext._jvm
    settings: Any = spark._jsparkSession.sessionState().newHadoopConf()
    jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass("s3a", settings)
    settings = spark._jsparkSession.sessionState().newHadoopConf()
    assert settings.getValByRegex("^(yarn|ha|mapreduce.(job|map|reduce|task))[.]").isEmpty()
    assert settings.get("mapreduce.fileoutputcommitter.algorithm.version")
    assert settings.get("parquet.page.verify-checksum.enabled") == "true"
    assert settings.size() < 500


def test_a_run_reads_its_source_in_one_session_however_often_it_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark keeps each session: a run that adapts its limit starts many queries."""
    pipeline = shop(tmp_path, source={"kind": "files", "path": str(tmp_path / "landing")})
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing/a.json").write_text("{}")
    environment = Environment(name="local", root=tmp_path)
    run = Run(spark, pipeline, Lake(tmp_path / "lake"), environment, Progress(lambda _: None))
    first, second = (BronzeHop(run).stream().sparkSession for _ in range(2))
    assert first is second is not spark


def test_a_zone_that_cannot_be_set_stops_the_run_by_name(
    runtime: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(conf: RuntimeConfig, key: str, value: Any) -> None:
        raise AnalysisException("not on this compute")

    with monkeypatch.context() as patch:
        patch.setattr(RuntimeConfig, "set", refuse)
        with pytest.raises(
            MachineError, match=f"session.timeZone is America/New_York and cannot .*Set {_ZONE} UTC"
        ):
            build_session(named())
        runtime.conf._jconf.set(_ZONE, "Etc/UTC")
        with pytest.raises(MachineError, match=f"{_ANSI} is false and cannot be set. Set {_ANSI}"):
            build_session(named())
        runtime.conf._jconf.set(_ANSI, "true")
        hides(patch, _CASE)
        assert build_session(named()).version == runtime.version
    for key in (_ANSI, _CASE):
        runtime.conf.unset(key)
    with monkeypatch.context() as patch:
        patch.setattr(RuntimeConfig, "set", refuse)
        assert build_session(named()).version == runtime.version


def test_a_connect_server_that_keeps_ansi_mode_off_is_refused(
    runtime: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(conf: RuntimeConfig, key: str, value: Any) -> None:
        raise AnalysisException("not on this compute")

    builder = SimpleNamespace(remote=lambda _: SimpleNamespace(getOrCreate=lambda: runtime))
    monkeypatch.setattr(SparkSession, "builder", builder)
    runtime.conf.set(_ZONE, "UTC")
    with socket.create_server(("127.0.0.1", 0)) as server:
        remote = f"sc://127.0.0.1:{server.getsockname()[1]}"
        with monkeypatch.context() as patch:
            patch.setattr(RuntimeConfig, "set", refuse)
            with pytest.raises(MachineError, match=f"Start the server with: --conf {_ANSI}=true"):
                _connected(remote)
        assert _connected(remote).conf.get(_ANSI) == "true"


def test_away_from_a_runtime_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)

    with pytest.raises(MachineError, match="only a Databricks runtime can access"):
        build_session(named())


def test_a_catalogs_tables_are_named_without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)

    lake = lake_of(named())

    assert lake.bronze("shop").sql == "`spark_catalog`.`bronze`.`shop`"
    assert lake.checkpoints("shop", "gold") == Path("/Volumes/v/checkpoints/shop/gold")


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


def test_java_reads_names_of_files_as_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """With LC_ALL=C, Spark would not see a file with other letters than ASCII in its name."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    for encoding, used in (("UTF-8", "de_DE.UTF-8"), ("ANSI_X3.4-1968", "C.UTF-8")):
        monkeypatch.setattr(locale, "getencoding", lambda encoding=encoding: encoding)
        _ensure_utf8_names()
        assert os.environ["LC_ALL"] == used


def test_local_files_have_no_checksum_files_and_damage_is_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "rows"
    frame = spark.range(50_000).select(F.uuid().alias("id")).coalesce(1)
    frame.write.option("compression", "none").parquet(str(folder))
    (file,) = folder.glob("*.parquet")
    assert [one.name for one in folder.iterdir() if one.name.endswith(".crc")] == []

    content = bytearray(file.read_bytes())
    # A letter of an id: the file can still be read.
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(Exception, match=r"(?i)crc"):
        spark.read.parquet(str(folder)).where("length(id) = 0").count()


def test_a_checksum_file_of_before_goes_when_its_file_is_overwritten(
    spark: SparkSession, tmp_path: Path
) -> None:
    files, java = local_files(spark), jvm_of(spark)
    assert java is not None
    path = java.org.apache.hadoop.fs.Path(str(tmp_path / "_last_checkpoint"))
    for writes, beside in ((True, [".{}.crc"]), (False, [])):
        files.setWriteChecksum(writes)
        stream = files.create(path, True)
        stream.write(65)
        stream.close()
        found = [one.name for one in tmp_path.iterdir() if one.name.endswith(".crc")]
        assert found == [name.format(path.getName()) for name in beside]


def test_the_environment_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/spark")
    spark = {"spark.driver.host": "10.0.0.9"}
    environment = Environment(name="x", root=Path("/lake"), master="spark://host:1", spark=spark)
    assert _settings(environment, JARS)["spark.driver.host"] == "10.0.0.9"


def test_a_server_that_is_not_there_is_named_without_waiting() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        remote = f"sc://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(MachineError, match=f"no Spark Connect server answers at {remote}"):
        _connected(remote)


@pytest.mark.parametrize("host", ["spark..example", f"{'s' * 64}.example"])
def test_a_server_whose_name_is_none_is_named_too(host: str) -> None:
    with pytest.raises(MachineError, match=f"no Spark Connect server answers at sc://{host}:15002"):
        _connected(f"sc://{host}:15002")


def test_slots_of_a_server_are_counted_once_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "is_remote", lambda: True)
    monkeypatch.setattr(engine.F, "spark_partition_id", Mock())
    first, second = MagicMock(), MagicMock()
    for session, slots in ((first, 4), (first, 4), (second, 2)):
        counted = session.range().select().distinct().count
        counted.return_value = slots
        assert engine.slots_of(session) == slots
        counted.assert_called_once_with()


def test_a_missing_client_is_named_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.connect.session", None)
    with pytest.raises(MachineError, match=r"pip install 'tidelake\[connect\]'"):
        _connected("sc://127.0.0.1:1")


def test_pyspark_looks_a_function_up_in_the_jvm_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
    real, lookups = client.send_command, []

    def send(command: str, *rest: Any, **options: Any) -> Any:
        lookups.extend([command] if command.startswith("r\n") else [])
        return real(command, *rest, **options)

    monkeypatch.setattr(client, "send_command", send)
    for name in ("a", "b"):
        lookups.clear()
        F.upper(F.col(name)), F.struct(F.col(name), F.lit(1))
    assert lookups == []
