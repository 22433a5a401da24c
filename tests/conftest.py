"""One Spark session for all tests, in a zone that is not UTC so that none leans on it."""

from __future__ import annotations

import faulthandler
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tests.brokers import Kafka, a_broker
from tests.recovery.reporting import add_to, reports_of, table
from tests.stores import Store, a_free_port, a_store, variables
from tests.unit.judged import without_codegen
from tidelake.config import Environment, load_environment
from tidelake.delta.tables import Lake
from tidelake.gold.kinds import OWN
from tidelake.runtime import gold, runner, schemas
from tidelake.runtime.gold_tables import Target
from tidelake.runtime.hop import Run
from tidelake.silver.plan import SilverPlan
from tidelake.spark.session import build_session

# No test asks a store that is not its own. The JVM takes this over when it starts, so the port is
# chosen now; whoever listens there comes later, or never.
os.environ.update(variables(a_free_port()))
for _name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
    os.environ.pop(_name, None)
# A test's rows are few: what the second compiler makes never pays (six files of streams that two
# workers run in ten minutes take an eighth longer with it). The collector does not begin with a
# small heap and little room for classes, which it would fill every second; and Spark's classes are
# not verified again each time that they are loaded.
os.environ["JAVA_TOOL_OPTIONS"] = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC "
    "-XX:MetaspaceSize=400m -XX:InitialRAMPercentage=7 -XX:NewRatio=1 "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# An example may take any time: machines are slow, and run other tests beside it.
hypothesis_settings.register_profile("tidelake", deadline=None)
hypothesis_settings.load_profile("tidelake")
# The longest test that each change runs takes a tenth of it on a slow machine.
_HANGS_AFTER = 900
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
    settings = environment.spark | {
        # The state of a table of a few commits is read in one task.
        "spark.databricks.delta.snapshotPartitions": "1",
        # The jobs of a batch are counted some batches later.
        "spark.ui.retainedJobs": "400",
    }
    environment = environment.model_copy(update={"spark": settings})
    session = build_session(environment, reads=["s3://tests/of-the-store"])
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture(scope="session", autouse=True)
def _definitions_are_analysed_once() -> Iterator[None]:
    """Let Spark analyse each definition once: a run would spend a tenth of its time on it again.

    A definition is its file with all that it names: schemas, and the files of its dimensions.
    """
    check, silver, of_gold = runner.check_definition, schemas.silver_schemas, gold.target_schema
    checked: set[str] = set()
    of_silver: dict[str, dict[str, StructType]] = {}
    of_tables: dict[tuple[str, str], StructType] = {}

    def check_once(run: Run) -> None:
        if (asked := repr(run.pipeline)) not in checked:
            check(run)
            checked.add(asked)

    def silver_once(spark: SparkSession, plan: SilverPlan) -> dict[str, StructType]:
        asked = repr(plan.pipeline)
        plan.schemas = plan.schemas or of_silver.get(asked, {})
        of_silver[asked] = silver(spark, plan)
        return of_silver[asked]

    def of_gold_once(run: Run, target: Target) -> StructType:
        asked = repr(run.pipeline), target.table.name
        if asked not in of_tables or {*target.kind.sources} != {OWN}:
            of_tables[asked] = of_gold(run, target)
        return of_tables[asked]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "check_definition", check_once)
        patch.setattr(schemas, "silver_schemas", silver_once)
        patch.setattr(gold, "target_schema", of_gold_once)
        yield


@pytest.fixture(scope="module")
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Let the session interpret expressions, as it does in small batches.

    For tests whose many plans of a few rows are compiled once each: that takes up to a seventh of
    the processor's time. Tests of frames, and processes of their own, run compiled code.
    """
    with without_codegen(spark):
        yield


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Give a broker that all tests share, each with topics of its own."""
    with a_broker(tmp_path_factory.getbasetemp() / "kafka") as found:
        yield found


@pytest.fixture(scope="session")
def s3() -> Iterator[Store]:
    """Give an object store that all tests share, each with a prefix of its own."""
    with a_store() as found:
        yield found


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work as a new user does: in an empty folder."""
    for name in ("TIDELAKE_ENV", "TIDELAKE_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """Give the local environment on an empty root."""
    return load_environment("local", root=str(tmp_path / "lake"))


@pytest.fixture
def lake(environment: Environment) -> Lake:
    """Give the tables of that root."""
    assert environment.root is not None
    return Lake(environment.root)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """End a worker whose test hangs, and print the stacks of its threads and its JVM's."""
    if item.get_closest_marker("long"):
        return (yield)
    capture = item.config.pluginmanager.getplugin("capturemanager")
    watch = threading.Timer(_HANGS_AFTER, _end_hanging, (item.nodeid, capture))
    watch.daemon = True
    watch.start()
    try:
        return (yield)
    finally:
        watch.cancel()


def _end_hanging(test: str, capture: Any) -> None:
    try:
        stacks = [f"{test} hangs since {_HANGS_AFTER} s"]
        with TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file)
            file.seek(0)
            stacks.append(file.read())
        jvm = SparkContext._gateway and SparkContext._gateway.proc
        if jvm and (tool := shutil.which("jcmd")):
            command = [tool, str(jvm.pid), "Thread.print"]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
            stacks.append(done.stdout)
        capture.suspend()
        print(*stacks, sep="\n", file=sys.__stderr__, flush=True)
    finally:
        # Also if nobody reads the output, or the JVM does not answer.
        os._exit(1)


def pytest_collection() -> None:
    """Collect no garbage while tests are found: what is made then lives as long as the session."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave the tests out of the garbage collections that each batch ends with."""
    gc.enable()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let plugins that load at the end find what refers to what."""
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the recovery tests tried, and keep it where TIDELAKE_REPORT says."""
    results = [result for found in terminalreporter.stats.values() for result in found]
    reports = reports_of(results)
    if not reports:
        return
    terminalreporter.section("recovery")
    for line in table(reports):
        terminalreporter.write_line(line)
    kept = os.environ.get("TIDELAKE_REPORT")
    if kept:
        add_to(Path(kept), reports)
