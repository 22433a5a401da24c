"""Run Apache Kafka as one process on the loopback: broker and controller in one, no container.

A broker lives in a folder: its settings, its log and its topics, which stay when it is stopped or
killed. It is a process of its own that outlives the one that started it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tidelake.errors import MachineError, UsageError
from tidelake.kafka.server import HOST, MAIN, SETTINGS, free_port, java_command, prepare

_STATE, _LOG = "broker.json", "kafka.log"
_START_SECONDS, _STOP_SECONDS, _LOOK_SECONDS = 60.0, 30.0, 0.2
_FREED_SECONDS = 3.0
# A request of Kafka's protocol that asks which versions a broker speaks.
_API_VERSIONS = bytes.fromhex("0000000d 0012 0000 00000001 0003 746c6b".replace(" ", ""))


@dataclass(frozen=True)
class Broker:
    """A broker that was started.

    Attributes:
        folder: Where it keeps everything.
        port: Where it listens, on the loopback.
        process: Its process id.
    """

    folder: str
    port: int
    process: int

    @property
    def bootstrap(self) -> str:
        """Give the address that clients take."""
        return f"{HOST}:{self.port}"

    @property
    def runs(self) -> bool:
        """Tell whether its process lives, and is a broker still."""
        try:
            words = Path(f"/proc/{self.process}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return _lives(self.process) and not Path("/proc/self").exists()
        return MAIN.encode() in words and str(Path(self.folder) / SETTINGS).encode() in words

    @property
    def answers(self) -> bool:
        """Tell whether it speaks Kafka's protocol."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as link:
                link.settimeout(2)
                link.sendall(_API_VERSIONS)
                return len(link.recv(8)) == 8
        except OSError:
            return False


def find(folder: Path) -> Broker | None:
    """Read which broker was last started in a folder; None where none was."""
    file = folder.absolute() / _STATE
    return Broker(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def up(folder: Path, port: int) -> Broker:
    """Start a broker in a folder, and wait until it answers; one that runs there stays.

    Args:
        folder: Where it keeps its topics; what is there is used again.
        port: Where it listens; 0 takes a free one.

    Raises:
        UsageError: The port is taken, or another one runs in the folder on another port.
        MachineError: Java is missing, or the broker does not start.
        JarError: A jar cannot be fetched, or its hash differs from the lock.
    """
    folder = folder.absolute()
    running = find(folder)
    if running is not None and running.runs:
        if port not in (0, running.port):
            raise UsageError(
                f"a broker runs in {folder} on port {running.port}. "
                f"Stop it first: tidelake kafka down --dir {folder}"
            )
        return running
    port = port or free_port()
    if not _gets_free(port):
        raise UsageError(f"port {port} is taken. Name another: tidelake kafka up --port {port + 1}")
    command = java_command()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOG).open("ab") as log:
        if not prepare(folder, port, command, log.fileno()):
            raise _not_started(folder)
        started = subprocess.Popen(
            [*command, MAIN, str(folder / SETTINGS)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            # It outlives us, and a Ctrl-C that is meant for us.
            start_new_session=True,
        )
    broker = Broker(str(folder), port, started.pid)
    (folder / _STATE).write_text(json.dumps(asdict(broker)), encoding="utf-8")
    _wait_for(broker, started)
    return broker


def down(folder: Path) -> bool:
    """Stop the broker of a folder; tell whether one ran. Its topics stay."""
    broker = find(folder)
    if broker is None or not broker.runs:
        return False
    os.kill(broker.process, signal.SIGTERM)
    if not _ends(broker, _STOP_SECONDS):
        kill(broker)
    return True


def kill(broker: Broker) -> None:
    """End a broker's process at once, as a power cut would."""
    if broker.runs:
        os.kill(broker.process, signal.SIGKILL)
        _ends(broker, _STOP_SECONDS)


def words_of(folder: Path, lines: int = 20) -> str:
    """Give the end of what a broker wrote into its log."""
    file = folder.absolute() / _LOG
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    return "\n".join(text.splitlines()[-lines:])


def _wait_for(broker: Broker, started: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_SECONDS
    while not broker.answers:
        if started.poll() is not None:
            raise _not_started(Path(broker.folder))
        if time.monotonic() > until:
            kill(broker)
            raise _not_started(Path(broker.folder))
        time.sleep(_LOOK_SECONDS)


def _not_started(folder: Path) -> MachineError:
    last = words_of(folder, 3)
    return MachineError(f"the broker did not start. Its own words are in {folder / _LOG}:\n{last}")


def _ends(broker: Broker, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while broker.runs:
        _reap(broker.process)
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _reap(process: int) -> None:
    """Take the end of a broker that is our own child; others have their own parent."""
    try:
        os.waitpid(process, os.WNOHANG)
    except ChildProcessError:
        return


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def _gets_free(port: int) -> bool:
    """Wait a moment: a broker that was killed just now lets go of its port a little later."""
    until = time.monotonic() + _FREED_SECONDS
    while _is_taken(port):
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False
