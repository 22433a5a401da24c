"""Entry points of the scheduled jobs: one a hop, and the steps of a backfill."""

from __future__ import annotations

import sys

from tidelake.cli.app import app
from tidelake.cli.failures import run_command
from tidelake.tables import Hop


def ingest() -> None:
    """Run source to bronze."""
    _run("bronze")


def refine() -> None:
    """Run bronze to silver."""
    _run("silver")


def publish() -> None:
    """Run silver to gold."""
    _run("gold")


def backfill() -> None:
    """Do a step of a backfill; a schedule passes its range as ``--start`` and ``--end``."""
    sys.exit(run_command(app, ["backfill", *sys.argv[1:]]))


def _run(hop: Hop) -> None:
    sys.exit(run_command(app, ["run", "--hop", hop, *sys.argv[1:]]))
