"""A server of Spark Connect that refuses what serverless compute refuses."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests import locations
from tidelake.spark.java import ensure_jars

SERVERLESS = Path(__file__).parent / "serverless"
_SECONDS = 180.0
_SETTINGS = {
    **{f"spark.hadoop.{key}": value for key, value in locations.SETTINGS.items()},
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
    "spark.driver.host": "localhost",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    # Compiling each plan of a few rows would be most of the time.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Blocks of a few lines, several of them to a partition, as no user would have them.
    "spark.sql.files.maxPartitionBytes": "4000",
    "spark.sql.files.openCostInBytes": "0",
    # Twenty thousand lines that nobody reads.
    "spark.log.level": "WARN",
    "spark.ui.enabled": "false",
}


@contextmanager
def a_server(folder: Path) -> Iterator[str]:
    """Start a server; give its address, and end it with all that it started."""
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    home = Path(pyspark.__file__).parent
    words = {**_SETTINGS, "spark.connect.grpc.binding.port": str(port)}
    command = [
        # Spark gives a Python worker ten seconds to connect; beside other tests it takes longer.
        # Whoever may not raise the priority runs it with the usual one.
        *("nice", "-n", "-10"),
        str(home / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--master", "local[2]", "--driver-memory", "1g"),
        *("--jars", ",".join(map(str, ensure_jars()))),
        *(word for key, value in words.items() for word in ("--conf", f"{key}={value}")),
        "spark-internal",
    ]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYTHONPATH": python_path(),
        # Otherwise what runs a batch is the first python3 on the path, which has no packages.
        "PYSPARK_PYTHON": sys.executable,
    }
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_for(port, process, folder / "server.log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def python_path() -> str:
    """Put the refusals before whatever is on the path."""
    return os.pathsep.join(filter(None, [str(SERVERLESS), os.environ.get("PYTHONPATH")]))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    ends = time.monotonic() + _SECONDS
    while time.monotonic() < ends:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"the server does not come up: {log.read_text()[-2000:]}")
