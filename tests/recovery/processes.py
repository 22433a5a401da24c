"""The command line in processes of their own: started, killed, raced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_POLL_SECONDS = 0.05
# A JVM whose Python is gone ends by itself.
_JVM_ENDS_SECONDS = 60


@dataclass(frozen=True)
class Started:
    """A process, in a group of its own with its JVM.

    Attributes:
        process: Python's.
        said: Takes what it says.
        reached: Exists once it came to its fail point.
    """

    process: subprocess.Popen[bytes]
    said: Path
    reached: Path

    @property
    def words(self) -> str:
        """What it said."""
        return self.said.read_text(encoding="utf-8")

    def ends_within(self, seconds: float) -> bool:
        """Wait until it ends, reaches its fail point or the time is over; tell if it ended."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not self.reached.exists():
            if self.process.poll() is not None:
                return True
            time.sleep(_POLL_SECONDS)
        return self.process.poll() is not None

    def kill(self) -> None:
        """Kill the group, or JVM would go on committing; wait until nothing is left of it."""
        self._signal(signal.SIGKILL)
        self.process.wait()
        ends = time.monotonic() + _JVM_ENDS_SECONDS
        while self._signal(0):
            assert time.monotonic() < ends, "the process group does not end"
            time.sleep(_POLL_SECONDS)

    def _signal(self, number: int) -> bool:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True


@contextmanager
def started(
    folder: Path, arguments: Sequence[str], *, name: str, fail: str = ""
) -> Iterator[Started]:
    """Start the command line; what is left of its group at the end is killed.

    Args:
        folder: Its working directory, whose ``conf`` comes before the project's own.
        arguments: Its own.
        name: Tells its files in the folder from those of others.
        fail: The fail point at which it stops, as ``point:nth:mode``; empty for none.
    """
    said, reached = folder / f"{name}.log", folder / f"{name}.reached"
    reached.unlink(missing_ok=True)
    module = "tests.recovery.failpoints" if fail else "tidelake.cli"
    project = Path(__file__).parents[2]
    path = os.pathsep.join(filter(None, [str(project), os.environ.get("PYTHONPATH")]))
    told = {"TIDELAKE_FAIL": fail, "TIDELAKE_FAIL_TOLD": str(reached), "PYTHONPATH": path}
    with said.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=folder,
            env={**os.environ, **told},
            start_new_session=True,
            stdout=log,
            stderr=log,
        )
    running = Started(process, said, reached)
    try:
        yield running
    finally:
        running.kill()


@contextmanager
def racing(
    folder: Path, arguments: Sequence[str], *, delay: float = 0, fail: str = ""
) -> Iterator[tuple[Started, Started]]:
    """Start the same command twice, and wait until one of the two has ended.

    Args:
        folder: As for :func:`started`.
        arguments: Their own.
        delay: Seconds between the two.
        fail: The fail point at which the one that goes on stops.

    Yields:
        The one that goes on, and the one that has ended.
    """
    with started(folder, arguments, name="first", fail=fail) as one:
        time.sleep(delay)
        with started(folder, arguments, name="second", fail=fail) as other:
            while one.process.poll() is None and other.process.poll() is None:
                time.sleep(_POLL_SECONDS)
            yield (one, other) if one.process.poll() is None else (other, one)
