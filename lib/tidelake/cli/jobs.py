"""Entry points of the scheduled jobs; a schedule's arguments are appended to the command."""

from __future__ import annotations

from functools import partial

from tidelake.cli import main

run = partial(main, "run")
dimensions = partial(main, "run", "--hop", "dimensions")
ingest = partial(main, "run", "--hop", "bronze")
refine = partial(main, "run", "--hop", "silver")
publish = partial(main, "run", "--hop", "gold")
stream = partial(main, "run", "--trigger", "continuous")
# Exit code 3 fails the task, so the tasks that depend on it do not run.
gate = partial(main, "check", "--tables")
verify = partial(main, "verify")
# Fails while a critical alert of the pipeline is open, so that the scheduler notifies somebody.
alerts = partial(main, "alerts")
maintain = partial(main, "maintain")
# A schedule passes its range as ``--start`` and ``--end``.
backfill = partial(main, "backfill")
repair = partial(main, "repair")
quarantine = partial(main, "quarantine")
late = partial(main, "late")
erase = partial(main, "erase")
# What the identity of the jobs lacks in the catalog and on its volume.
doctor = partial(main, "doctor")
