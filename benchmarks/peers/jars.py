"""Fetch the jars of Flink's lock file, and copy them into a folder."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tidelake.spark.java import ensure_jars, read_lock

LOCK = Path(__file__).with_name("flink-jars.lock")


def main(folder: str) -> None:
    """Copy the verified jars into an empty folder.

    Args:
        folder: Deleted and created again.
    """
    shutil.rmtree(folder, ignore_errors=True)
    Path(folder).mkdir(parents=True)
    for jar in ensure_jars(read_lock(LOCK)):
        shutil.copy(jar, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
