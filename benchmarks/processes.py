"""Run a command in a separate process, and measure it with all its descendants."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Linux: orphaned descendants become children of this process, so that their CPU time is counted.
_SUBREAPER = 36


@dataclass(frozen=True)
class Took:
    """Elapsed and CPU time of a command.

    Attributes:
        seconds: Elapsed seconds from its start to its own end.
        cpu: CPU seconds, including all descendants.
    """

    seconds: float
    cpu: float


def took(command: Sequence[str], log: Path, variables: Mapping[str, str] | None = None) -> Took:
    """Run a command to its end, with its output in a file.

    It waits for any child of this process, so start no other process meanwhile. ``variables`` of
    the environment are set for it in addition to those of this process.

    Raises:
        SystemExit: The command failed; the message has the end of its output.
    """
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with log.open("wb") as output:
        began = time.monotonic()
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **(variables or {})}
        )
        seconds, cpu, code = 0.0, 0.0, 0
        while True:
            try:
                number, status, used = os.wait4(-1, 0)
            except ChildProcessError:
                break
            cpu += used.ru_utime + used.ru_stime
            if number == process.pid:
                seconds = time.monotonic() - began
                code = os.waitstatus_to_exitcode(status)
                process.returncode = code
    if code:
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise SystemExit(f"{' '.join(command)} ended with {code}:\n{tail}")
    return Took(seconds, cpu)
