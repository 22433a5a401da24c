"""Fetch the jars of Flink's lock, as Tidelake's own are fetched, and put them beside Flink."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tidelake.spark.jars import ensure_jars, read_lock

LOCK = Path(__file__).with_name("flink-jars.lock")


def main(folder: str) -> None:
    """Copy the verified jars into a folder that holds nothing else.

    Args:
        folder: Made anew.
    """
    shutil.rmtree(folder, ignore_errors=True)
    Path(folder).mkdir(parents=True)
    for jar in ensure_jars(read_lock(LOCK)):
        shutil.copy(jar, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
