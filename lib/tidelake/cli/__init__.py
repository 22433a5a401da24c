"""The command line: parse, call, print. Messages go to stderr, results to stdout.

Slow imports are inside the commands that need them, so that ``--help`` is fast.
"""

from __future__ import annotations

import sys

import click

from tidelake import __version__
from tidelake.cli.checking import check, verify
from tidelake.cli.creating import new
from tidelake.cli.defining import fmt, list_pipelines, schema, validate
from tidelake.cli.exits import run_command
from tidelake.cli.flow import fast, run
from tidelake.cli.init import init as init_command
from tidelake.cli.operating import alerts, doctor, maintain, serve, ui
from tidelake.cli.reading import dictionary, sql
from tidelake.cli.rebuilding import backfill, erase, repair, reset
from tidelake.cli.render import escape_on_stdout
from tidelake.cli.reports import fate, late, ledger, quarantine, status
from tidelake.cli.trying import demo, generate, kafka
from tidelake.without_pandas import hide_pandas, show_pandas

# Commands by task, as ``--help`` lists them.
_SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Try": (demo, generate, kafka),
    "Define": (new, init_command, list_pipelines, validate, check, fmt, schema),
    "Run": (run, fast),
    "Watch": (status, alerts, doctor, ui),
    "Prove": (ledger, verify, fate),
    "Query": (sql, serve, dictionary),
    "Requeue": (late, quarantine),
    "Rebuild": (repair, reset, backfill),
    "Clean up": (maintain, erase),
}


class _BySection(click.Group):
    """Lists its commands by section."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.commands))
        for title, commands in _SECTIONS.items():
            rows = []
            for command in commands:
                name = (command.name or "").ljust(width)
                rows.append((name, command.get_short_help_str(formatter.width - width - 6)))
            with formatter.section(title):
                formatter.write_dl(rows)


@click.group(
    cls=_BySection,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="tidelake")
def app() -> None:
    """Streaming medallion pipelines on Delta Lake that can prove they lost nothing."""


for _commands in _SECTIONS.values():
    for _command in _commands:
        app.add_command(_command)


def main(*command: str) -> None:
    """Run ``tidelake`` with the arguments of the process; exit with its code unless that is 0.

    Args:
        command: Words before the arguments.
    """
    escape_on_stdout()
    hide_pandas()
    try:
        code = run_command(app, [*command, *sys.argv[1:]])
    finally:
        show_pandas()
    # Return on success: Databricks treats any SystemExit of a wheel's task as a failure.
    if code:
        sys.exit(code)
