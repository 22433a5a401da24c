"""Entry points of the scheduled jobs, one each; the schedule's arguments come after their own."""

from __future__ import annotations

import sys

from tidelake.cli.app import app
from tidelake.cli.failures import run_command


def dimensions() -> None:
    """Run the dimensions that a pipeline looks up, each until its source is exhausted."""
    _run("run", "--hop", "dimensions")


def ingest() -> None:
    """Run source to bronze."""
    _run("run", "--hop", "bronze")


def refine() -> None:
    """Run bronze to silver."""
    _run("run", "--hop", "silver")


def publish() -> None:
    """Run silver to gold."""
    _run("run", "--hop", "gold")


def stream() -> None:
    """Run all hops until told to stop."""
    _run("run", "--trigger", "continuous")


def gate() -> None:
    """Judge silver and gold by the suite; exit 3 closes the gate for the tasks behind it."""
    _run("check", "--tables")


def verify() -> None:
    """Compute the tables anew and compare."""
    _run("verify")


def alerts() -> None:
    """Fail, so that somebody is told, while a critical alert of the pipeline's is open."""
    _run("alerts")


def maintain() -> None:
    """Put small files together and delete old ones."""
    _run("maintain")


def backfill() -> None:
    """Do a step of a backfill; a schedule passes its range as ``--start`` and ``--end``."""
    _run("backfill")


def _run(*command: str) -> None:
    """Run a command; done well it returns, since Databricks takes any SystemExit for a failure."""
    code = run_command(app, [*command, *sys.argv[1:]])
    if code:
        sys.exit(code)
