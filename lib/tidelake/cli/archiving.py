"""Run a small demo in a process whose JVM archives the classes that it loads.

Called as ``python -m tidelake.cli.archiving FOLDER`` by :func:`tidelake.spark.java.make_archive`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tidelake.cli import app
from tidelake.cli.exits import run_command

# Enough for one micro-batch per hop.
_EVENTS = "300"


def main() -> None:
    """Run the demo in a folder, and wait until the JVM has written the archive."""
    root = Path(sys.argv[1]) / "lake"
    code = run_command(app, ["demo", "--events", _EVENTS, "--root", str(root), "--env", "local"])
    from tidelake.spark.internals import end_jvm  # noqa: PLC0415  Spark is loaded by the demo

    # The JVM writes the archive on exit.
    end_jvm()
    sys.exit(code)


if __name__ == "__main__":
    main()
