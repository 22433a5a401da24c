"""Run a local Apache Kafka broker and controller as one process, without a container.

It listens on the loopback interface. Its settings, log and topics are kept in its folder when it is
stopped or killed. The process outlives the one that started it. Beside the commands, tests and
benchmarks start brokers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tidelake.config import conf_file
from tidelake.errors import MachineError, UsageError, imported
from tidelake.folders import write_whole
from tidelake.spark.java import ensure_jars, java_path, read_lock
from tidelake.typed import runnable

_HOST = "127.0.0.1"
_STATE, _LOG, _SETTINGS, _LOCK = "broker.json", "kafka.log", "server.properties", "broker.lock"
_MAIN, _FORMAT = "kafka.Kafka", "kafka.tools.StorageTool"
_JARS = "kafka-broker.lock"
# Enough for topics on a laptop: Kafka relies on the page cache of the operating system.
_HEAP = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC")
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_START_SECONDS, _STOP_SECONDS, _POLL_SECONDS = 60.0, 30.0, 0.2
_PORT_SECONDS = 3.0
# Of another process that starts the broker: it may fetch jars first.
_LOCK_SECONDS = 2 * _START_SECONDS
_SERVER_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
log.dirs=topics
num.partitions=4
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
# A Kafka ApiVersions request.
_API_VERSIONS = bytes.fromhex("0000000d 0012 0000 00000001 0003 746c6b".replace(" ", ""))


@dataclass(frozen=True)
class Broker:
    """A broker that was started in a folder."""

    folder: str
    port: int
    process: int

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"{_HOST}:{self.port}"

    @property
    def runs(self) -> bool:
        """Whether its process is running and is the broker of its folder."""
        try:
            words = psutil.Process(self.process).cmdline()
        except psutil.Error:
            return False
        return _MAIN in words and str(Path(self.folder) / _SETTINGS) in words

    @property
    def answers(self) -> bool:
        """Whether it answers a Kafka request."""
        try:
            with socket.create_connection((_HOST, self.port), timeout=1) as link:
                link.settimeout(2)
                link.sendall(_API_VERSIONS)
                return len(link.recv(8)) == 8
        except OSError:
            return False


def find(folder: Path) -> Broker | None:
    """Return the broker that was last started in a folder, if any."""
    file = folder.absolute() / _STATE
    try:
        return Broker(**json.loads(file.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        # Damaged: a broker that runs holds its port, which the next start reports.
        return None


def up(folder: Path, port: int) -> Broker:
    """Start a broker in a folder, unless one runs there, and wait until it answers.

    The folder may hold topics already; a ``port`` of 0 is any free one. Of several calls at once,
    in whichever process, one starts the broker and the others wait for it.

    Raises:
        UsageError: The port is taken, a broker runs in the folder on another port, the folder
            cannot be written, or another process does not finish starting a broker there.
        MachineError: Java or PySpark is missing, or the broker does not start or does not answer.
        JarError: A jar cannot be fetched, or its hash differs from the lock.
    """
    folder = folder.absolute()
    with _start_lock(folder, _LOCK_SECONDS):
        running = find(folder)
        if running is None or not running.runs:
            return _start(folder, port)
        if port not in (0, running.port):
            raise UsageError(
                f"a broker runs in {folder} on port {running.port}. "
                f"Stop it first: {runnable('tidelake kafka down --dir', str(folder))}"
            )
        # Whoever started it may have been stopped before it answered.
        if not _wait_for_answer(running, lambda: not running.runs):
            raise _no_answer(running) if running.runs else _not_started(folder)
        return running


def _start(folder: Path, port: int) -> Broker:
    port = port or _free_port()
    if not _wait_for_port(port):
        free = runnable("tidelake kafka up --port 0 --dir", str(folder))
        raise UsageError(f"port {port} is taken. Name another, or take any: {free}")
    command = _java_command()
    with _writing(folder):
        opened = (folder / _LOG).open("ab")
    with opened as log:
        _prepare(folder, port, command, log.fileno())
        started = subprocess.Popen(
            [*command, _MAIN, str(folder / _SETTINGS)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            # So that Ctrl-C in this terminal does not end it.
            start_new_session=True,
        )
    broker = Broker(str(folder), port, started.pid)
    write_whole(folder / _STATE, json.dumps(asdict(broker)))
    if not _wait_for_answer(broker, lambda: started.poll() is not None):
        kill(broker)
        raise _not_started(folder)
    return broker


@contextlib.contextmanager
def _start_lock(folder: Path, seconds: float) -> Iterator[None]:
    """Hold a folder's lock, so that two calls neither format it nor note their broker at once.

    Raises a UsageError if another process holds it for so many ``seconds``.
    """
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        opened = (folder / _LOCK).open("a")
    deadline = time.monotonic() + seconds
    # Closing the file releases the lock. The broker does not inherit it.
    with opened as file:
        while not _is_locked(folder, file.fileno()):
            if time.monotonic() > deadline:
                raise UsageError(
                    f"another process has been starting a broker in {folder} for "
                    f"{seconds:g} s. Wait for it to end, or stop it, then run again, or "
                    "name another folder with --dir"
                )
            time.sleep(_POLL_SECONDS)
        yield


def _is_locked(folder: Path, file: int) -> bool:
    """Try to lock a file of a folder and return whether it is locked now."""
    with _writing(folder), contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn an error of the operating system into a UsageError that names the folder."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written: {error.strerror}. Name another folder with --dir"
        ) from error


def _wait_for_answer(broker: Broker, has_ended: Callable[[], bool]) -> bool:
    """Wait until a broker answers; False if it ends before, or does not in time."""
    deadline = time.monotonic() + _START_SECONDS
    while not broker.answers:
        if has_ended() or time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def down(folder: Path) -> bool:
    """Stop the broker of a folder and return whether one was running; its topics are kept.

    A start that another process has begun there is waited for, since it would fail; a UsageError
    says that it takes too long.
    """
    folder = folder.absolute()
    # No lock is left where nobody started a broker, as in a folder that is misspelt.
    if not any((folder / file).is_file() for file in (_LOCK, _STATE)):
        return False
    with _start_lock(folder, _LOCK_SECONDS):
        broker = find(folder)
        if broker is None or not broker.runs:
            return False
        os.kill(broker.process, signal.SIGTERM)
        if not _wait_for_end(broker):
            kill(broker)
    return True


def kill(broker: Broker) -> None:
    """Kill a broker's process with SIGKILL, to simulate a crash."""
    if broker.runs:
        os.kill(broker.process, signal.SIGKILL)
        _wait_for_end(broker)


def log_tail(folder: Path, lines: int = 20) -> str:
    """Return the last lines of a broker's log."""
    file = folder.absolute() / _LOG
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    return "\n".join(text.splitlines()[-lines:])


def _not_started(folder: Path) -> MachineError:
    last = log_tail(folder, 3)
    return MachineError(
        f"the broker did not start. Correct what the end of its log {folder / _LOG} names, or "
        f"give an empty folder with --dir:\n{last}"
    )


def _no_answer(broker: Broker) -> MachineError:
    stop = runnable("tidelake kafka down --dir", broker.folder)
    return MachineError(
        f"the broker in {broker.folder}, process {broker.process}, has not answered on port "
        f"{broker.port} for {_START_SECONDS:g} s. Stop it with {stop}, then start it again.\n"
        f"Its log {Path(broker.folder) / _LOG} ends with:\n{log_tail(Path(broker.folder), 3)}"
    )


def _wait_for_end(broker: Broker) -> bool:
    deadline = time.monotonic() + _STOP_SECONDS
    while broker.runs and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return not broker.runs


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _wait_for_port(port: int) -> bool:
    """Wait until a port is free: a broker that was just killed still holds its port."""
    deadline = time.monotonic() + _PORT_SECONDS
    while time.monotonic() < deadline:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((_HOST, port))
            return True
        time.sleep(_POLL_SECONDS)
    return False


def _java_command() -> list[str]:
    """Return the command line prefix for running a class of Kafka."""
    java = java_path()
    (pyspark,) = imported("PySpark", "pyspark", extra="local")
    # The lock has no Scala library, because Spark includes it.
    scala = (Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar")
    jars = [*ensure_jars(read_lock(conf_file(_JARS))), *scala]
    if java is None or not Path(java).exists():
        raise MachineError(f"Java was not found. Check with: {runnable('tidelake doctor')}")
    return [java, *_HEAP, _QUIET, "-cp", os.pathsep.join(map(str, jars))]


def _prepare(folder: Path, port: int, command: list[str], log: int) -> None:
    """Write a broker's settings, and format a new folder of topics."""
    settings = _SERVER_PROPERTIES.format(host=_HOST, port=port, controller=_free_port())
    # Java would read another folder's name as Latin-1, and as several at its commas: the topics are
    # in the broker's current folder.
    (folder / _SETTINGS).write_text(settings, encoding="utf-8")
    if (folder / "topics" / "meta.properties").exists():
        return
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # With an equals sign, because an id may start with a dash.
    formatted = subprocess.run(
        [*command, _FORMAT, "format", f"--cluster-id={cluster}", "-c", str(folder / _SETTINGS)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=folder,
        check=False,
    )
    if formatted.returncode:
        raise _not_started(folder)
