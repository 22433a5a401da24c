"""Runs on a small disk of their own: full at any moment, named, and whole once it is larger.

``unshare -rm python -m tests.recovery.disk FOLDER lake|spill KIB SEED PARTS`` mounts the disk where
nobody else sees it, under the tables and checkpoints or under what Spark spills. It runs the
clickstream on FOLDER's landing files until it is stopped or done, makes room, runs on, and holds
the tables against the oracle. It prints what the first run said and its exit code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.recovery.deliveries import arguments, assert_as_delivered
from tests.recovery.reporting import Report

_ROOM = "1g"


def _mount(disk: Path, options: str) -> None:
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)


def _run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidelake.cli", *arguments(folder)],
        env={**os.environ, "SPARK_LOCAL_DIRS": str(folder / "spill")},
        capture_output=True,
        text=True,
        check=False,
    )


def main() -> None:
    """Play one level of fullness."""
    folder, disk = Path(sys.argv[1]), Path(sys.argv[1]) / sys.argv[2]
    kibibytes, seed, parts = map(int, sys.argv[3:])
    (folder / "spill").mkdir()
    _mount(disk, f"size={kibibytes}k")
    first = _run(folder)
    _mount(disk, f"remount,size={_ROOM}")
    last = _run(folder)
    assert last.returncode == 0, last.stderr
    told = Report("")
    assert_as_delivered(folder, range(parts), seed, told)
    print(json.dumps({"code": first.returncode, "said": first.stderr}))


if __name__ == "__main__":
    main()
