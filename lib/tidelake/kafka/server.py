"""What a broker's server is started with: Java, its jars, its settings, its folder of topics."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from tidelake.config import conf_file
from tidelake.errors import MachineError
from tidelake.spark.jars import ensure_jars, read_lock

HOST = "127.0.0.1"
SETTINGS = "server.properties"
MAIN = "kafka.Kafka"
_LOCK, _FORMAT = "kafka-broker.lock", "kafka.tools.StorageTool"
# Enough for a laptop's topics; the operating system's cache does the rest.
_HEAP = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC")
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


def java_command() -> list[str]:
    """Give the command that runs a class of Kafka's.

    Raises:
        MachineError: Java or PySpark is missing.
        JarError: A jar cannot be fetched, or its hash differs from the lock.
    """
    jars = [*ensure_jars(read_lock(conf_file(_LOCK))), *_scala()]
    return [_java(), *_HEAP, _QUIET, "-cp", os.pathsep.join(map(str, jars))]


def prepare(folder: Path, port: int, command: list[str], log: int) -> bool:
    """Write a broker's settings, and make its folder of topics; tell whether that went well.

    Args:
        folder: The broker's.
        port: Where it is to listen.
        command: From :func:`java_command`.
        log: Takes what the tool says.
    """
    _write_settings(folder, port)
    if (folder / "topics" / "meta.properties").exists():
        return True
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # An id that began with a dash would be taken for an option.
    told = subprocess.run(
        [*command, _FORMAT, "format", f"--cluster-id={cluster}", "-c", str(folder / SETTINGS)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        check=False,
    )
    return told.returncode == 0


def free_port() -> int:
    """Find a port on the loopback that nobody has."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).exists():
        raise MachineError("Java was not found. Check with: tidelake doctor")
    return found


def _scala() -> list[Path]:
    """Give Scala's library, which Spark's resolver leaves out: Spark brings its own."""
    try:
        import pyspark  # noqa: PLC0415  heavy, and optional
    except ImportError as error:
        raise MachineError(
            "PySpark is not installed. Install it with: pip install 'tidelake[local]'"
        ) from error
    return list((Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar"))


def _write_settings(folder: Path, port: int) -> None:
    controller = free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / "topics"),
        "num.partitions": "4",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    lines = [f"{key}={value}" for key, value in settings.items()]
    (folder / SETTINGS).write_text("\n".join(lines) + "\n", encoding="utf-8")
