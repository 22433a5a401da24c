"""Keep the JVM's own chatter off the terminal: what it says goes to a log file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Point stdout and stderr at a file while a child process is started.

    The child keeps them so; this process gets its own back. Neither must be used in between.
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
