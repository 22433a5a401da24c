"""Keep the JVM's own chatter off the terminal: what it says goes to a log file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Point file descriptor 2 at a file while a child process is started.

    The child keeps the descriptor; this process gets its own back. ``sys.stderr`` must not be
    used in between.
    """
    sys.stderr.flush()
    saved = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
