"""Run a command as a process of its own, and tell what it took with all that it started."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Linux: who outlives its parent becomes a child of this process, so that its seconds are told.
_SUBREAPER = 36


@dataclass(frozen=True)
class Took:
    """What a command took.

    Attributes:
        seconds: From its start to its own end.
        cpu: Seconds of cores, of it and of all that it started.
    """

    seconds: float
    cpu: float


def took(command: Sequence[str], log: Path) -> Took:
    """Run a command to its end; its words go to a file. Starts nothing else meanwhile.

    Raises:
        SystemExit: It failed; its last words are told.
    """
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with log.open("wb") as words:
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=words, stderr=words)
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
        last = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise SystemExit(f"{' '.join(command)} ended with {code}:\n{last}")
    return Took(seconds, cpu)
