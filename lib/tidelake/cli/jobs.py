"""Entry points of the scheduled jobs; a schedule's arguments are appended to the command."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tidelake.cli import app
from tidelake.cli.exits import run_command


def _job(*command: str) -> Callable[[], None]:
    def entry() -> None:
        # Return on success: Databricks treats any SystemExit as a failure.
        code = run_command(app, [*command, *sys.argv[1:]])
        if code:
            sys.exit(code)

    return entry


run = _job("run")
dimensions = _job("run", "--hop", "dimensions")
ingest = _job("run", "--hop", "bronze")
refine = _job("run", "--hop", "silver")
publish = _job("run", "--hop", "gold")
stream = _job("run", "--trigger", "continuous")
# Exit code 3 fails the task, so the tasks that depend on it do not run.
gate = _job("check", "--tables")
verify = _job("verify")
# Fails while a critical alert of the pipeline is open, so that the scheduler notifies somebody.
alerts = _job("alerts")
maintain = _job("maintain")
# A schedule passes its range as ``--start`` and ``--end``.
backfill = _job("backfill")
repair = _job("repair")
quarantine = _job("quarantine")
late = _job("late")
erase = _job("erase")
