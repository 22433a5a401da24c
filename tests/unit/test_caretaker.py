"""Nothing of a broker stays behind the process that ran it, however that process ends."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

_PROJECT = Path(__file__).parents[2]
_SECONDS = 60
_RUN = """
import os, signal, sys
from pathlib import Path
from tests.brokers import a_broker

with a_broker(Path(sys.argv[1])) as kafka:
    if sys.argv[2] == "paused and killed":
        os.kill(kafka.broker.process, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGKILL)
    kafka.restart()
    raise AssertionError(kafka.broker.process)
"""


@pytest.mark.parametrize(
    "end", [pytest.param("a test fails", marks=pytest.mark.long), "paused and killed"]
)
def test_no_broker_and_no_folder_outlive_a_session(tmp_path: Path, end: str) -> None:
    folder = tmp_path / "kafka"
    ended = subprocess.run(
        [sys.executable, "-c", _RUN, str(folder), end],
        cwd=_PROJECT,
        capture_output=True,
        check=False,
        text=True,
        timeout=_SECONDS,
    )
    assert ended.returncode == (1 if end == "a test fails" else -9), ended.stderr
    until = time.monotonic() + _SECONDS
    # The folder's name begins so.
    while found := [*_left(folder), *map(str, tmp_path.iterdir())]:
        assert time.monotonic() < until, found
        time.sleep(0.1)


def _left(folder: Path) -> list[str]:
    """List the processes that name a folder, and the folder if it is there."""
    found = [str(folder)] if folder.exists() else []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            found.append(words.replace("\0", " "))
    return found
