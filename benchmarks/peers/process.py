"""One side of a benchmark as a process that is given rounds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
VENVS = _ROOT / ".venv-peers"
_PATIENCE = 30


@dataclass
class Side:
    """A running side.

    Attributes:
        name: Name of the program.
        process: The process.
        log: The engine's log file.
        begun: Start of the process, by the monotonic clock.
        first: Seconds from the start to the end of its first round.
        reports: Its report of each round.
    """

    name: str
    process: subprocess.Popen[str]
    log: Path
    begun: float
    first: float = 0.0
    reports: list[Mapping[str, Any]] = field(default_factory=list)

    def round(self, files: Sequence[Path], out: Path, **settings: Any) -> Mapping[str, Any]:
        """Run one round: process files into tables, and return the report.

        Raises:
            RuntimeError: The process ended without a report.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        request = {"files": [str(file) for file in files], "out": str(out), "settings": settings}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            tail = self.log.read_text(errors="replace")[-4_000:]
            raise RuntimeError(f"{self.name} ended; the end of {self.log}:\n{tail}")
        if not self.reports:
            self.first = time.monotonic() - self.begun
        self.reports.append(json.loads(answer))
        return self.reports[-1]


@contextmanager
def running(name: str, folder: Path) -> Iterator[Side]:
    """Run a side's program until the block ends.

    Args:
        name: Name of the program, which starts with the name of its environment, as in
            ``flink_pipeline``; ``template`` and ``tidelake`` use the project's environment.
        folder: Folder of the log.

    Raises:
        FileNotFoundError: The environment is missing; `make peers` creates it.
    """
    environment = name.partition("_")[0]
    own_environment = environment in ("template", "tidelake")
    python = Path(sys.executable) if own_environment else VENVS / environment / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{python} does not exist. Create it with: make peers")
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    begun = time.monotonic()
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [str(python), "-m", f"benchmarks.peers.{name}"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        try:
            yield Side(name, process, log, begun)
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Close the input, on which the program exits, then kill its process group."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_PATIENCE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
