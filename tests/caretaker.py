"""Clear up after a broker once the process that ran it is gone, however that ended.

``python -m tests.caretaker FOLDER`` waits for the end of its standard input: a process that ends or
is killed closes its pipe.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidelake.kafka.broker import find, kill

_PROJECT = Path(__file__).parents[1]


@contextmanager
def clearing_up(folder: Path) -> Iterator[None]:
    """See to it that no broker of a folder, and no folder, outlives this process."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.caretaker", str(folder.absolute())],
        cwd=_PROJECT,
        stdin=subprocess.PIPE,
        # Whoever ends our group, by Ctrl-C or a kill, leaves it alive.
        start_new_session=True,
    ):
        # Leaving closes its input, and waits for it.
        yield


def main() -> None:
    """Wait, then kill the broker, paused or not, and delete its folder."""
    folder = Path(sys.argv[1])
    sys.stdin.buffer.read()
    broker = find(folder)
    if broker is not None:
        kill(broker)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
