"""The processes that hold locks: whether they are alive, and how long others wait for them."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tidelake.errors import LockedError

WAIT_SECONDS = 120.0
# For work that is repeated soon, and must not delay other work of its thread.
BRIEF_WAIT_SECONDS = 10.0
_PAUSE_SECONDS, _SILENT_SECONDS = 0.2, 5.0
# Start times are computed from the time of boot, which clock corrections may shift by this much.
_CLOCK_SECONDS = 2.0


@dataclass
class Waiting:
    """One wait for a lock that is held for short work; its holder may be paused for ever.

    Attributes:
        say: Called once with the holder, after a few seconds.
        stop: Set to end the wait.
        seconds: How long to wait for one holder at most; if this is :data:`WAIT_SECONDS`, the wait
            begins anew with each other holder, since the lock moves on then.
    """

    say: Callable[[str], None]
    stop: threading.Event = field(default_factory=threading.Event)
    seconds: float = WAIT_SECONDS
    _began: float | None = None
    _asked: float = 0.0
    _holder: str = ""

    def pause(self, what: str, find_holder: Callable[[], str]) -> None:
        """Pause until the next attempt to take the lock of ``what``.

        Raises:
            LockedError: The time is over.
            KeyboardInterrupt: ``stop`` was set.
        """
        if self._began is None:
            self._began = time.monotonic()
        waited = time.monotonic() - self._began
        if waited >= self.seconds:
            raise LockedError(
                f"{what} is being written by {find_holder()}, and was not released within "
                f"{self.seconds:g} s.\n"
                "If that process is paused, let it continue, or end it; then run again."
            )
        if waited >= _SILENT_SECONDS and time.monotonic() - self._asked >= _SILENT_SECONDS:
            self._asked, before, self._holder = time.monotonic(), self._holder, find_holder()
            if not before:
                self.say(f"waiting for {self._holder}, which holds the lock of {what}")
            elif self._holder != before and self.seconds >= WAIT_SECONDS:
                self._began = self._asked
        if self.stop.wait(_PAUSE_SECONDS):
            raise KeyboardInterrupt


def machine_id() -> str:
    """Return an id of this boot of this machine and of its PID namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        # A unique id: a holder is then never known to have ended before its lease expires.
        return uuid.uuid4().hex


def is_alive(process: Any, started: str = "") -> bool:
    """Return whether a process with this id runs, of whichever user.

    ``started``, in seconds since 1970 (empty in locks of earlier versions), tells it from another
    process that reuses the id: the first one in each container is 1.
    """
    if not (str(process).isdecimal() and psutil.pid_exists(int(process))):
        return False
    if not started:
        return True
    with suppress(psutil.Error, ValueError):
        found: float = psutil.Process(int(process)).create_time()
        return abs(found - float(started)) < _CLOCK_SECONDS
    return False
