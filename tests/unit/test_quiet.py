"""What a child process says goes to a file, and not among a command's results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidelake.spark.quiet import output_to


def test_a_child_that_was_started_quietly_writes_neither_to_stdout_nor_to_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    said = "import sys; print('out'); print('err', file=sys.stderr)"
    with output_to(log):
        subprocess.run([sys.executable, "-c", said], check=True)
    print("mine")
    print("mine", file=sys.stderr)

    assert capfd.readouterr() == ("mine\n", "mine\n")
    assert sorted(log.read_text().split()) == ["err", "out"]
