"""The command line: parse, call, print. Messages go to stderr, results to stdout.

Slow imports are inside the commands that need them, so that ``--help`` is fast.
"""

from __future__ import annotations

import sys

import click

from tidelake import __version__
from tidelake.cli.defining import list_pipelines, validate
from tidelake.cli.exits import run_command
from tidelake.cli.flow import fast, run
from tidelake.cli.init import init as init_command
from tidelake.cli.operating import alerts, doctor, maintain, serve, ui
from tidelake.cli.reading import dictionary, sql
from tidelake.cli.replaying import backfill, check, erase, repair, verify
from tidelake.cli.reports import fate, late, ledger, quarantine, status
from tidelake.cli.trying import demo, generate, kafka


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tidelake")
def app() -> None:
    """Streaming medallion pipelines on Delta Lake that can prove they lost nothing."""


for _command in (
    *(demo, generate, kafka, init_command, run, fast, list_pipelines, validate),
    *(status, ledger, verify, check, doctor, alerts, fate, sql, ui, serve, dictionary),
    *(late, quarantine, repair, backfill, maintain, erase),
):
    app.add_command(_command)


def main() -> None:
    """Run ``tidelake`` and exit with its documented exit code."""
    sys.exit(run_command(app, sys.argv[1:]))
