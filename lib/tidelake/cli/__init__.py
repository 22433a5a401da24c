"""The command line: parse, call, print. Messages go to stderr, results to stdout.

Slow imports are inside the commands that need them, so that ``--help`` is fast.
"""

from __future__ import annotations

import sys

import click

from tidelake import __version__
from tidelake.cli.backfilling import backfill, repair
from tidelake.cli.checking import check, verify
from tidelake.cli.exits import run_command
from tidelake.cli.flow import fast, run
from tidelake.cli.init import init as init_command
from tidelake.cli.reading import dictionary, serve, sql, ui
from tidelake.cli.reports import doctor, ledger, status
from tidelake.cli.sides import fate, late, quarantine
from tidelake.cli.trying import demo, generate, kafka
from tidelake.cli.upkeep import alerts, erase, maintain


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tidelake")
def app() -> None:
    """Streaming medallion pipelines on Delta Lake that can prove they lost nothing."""


for _command in (
    *(demo, generate, kafka, init_command, run, fast),
    *(status, ledger, verify, check, doctor, alerts, fate, sql, ui, serve, dictionary),
    *(late, quarantine, repair, backfill, maintain, erase),
):
    app.add_command(_command)


def main() -> None:
    """Run ``tidelake`` and exit with its documented exit code."""
    sys.exit(run_command(app, sys.argv[1:]))
