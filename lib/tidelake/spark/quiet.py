"""Redirect the output of a child process, such as the JVM, into a log file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Point stdout and stderr at a file while a child process is started.

    The child keeps the file; this process gets its own streams back. Nothing else in this process
    may write to them meanwhile.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    saved = {number: os.dup(number) for number in (1, 2)}
    with path.open("ab") as log:
        for number in saved:
            os.dup2(log.fileno(), number)
    try:
        yield
    finally:
        for number, own in saved.items():
            os.dup2(own, number)
            os.close(own)
