"""The group of all commands of ``tidelake``.

What is slow to import waits inside the command that needs it, so that ``--help`` answers at once.
"""

from __future__ import annotations

import click

from tidelake import __version__
from tidelake.cli.backfilling import backfill, repair
from tidelake.cli.checking import check, verify
from tidelake.cli.flow import fast, run
from tidelake.cli.init import init
from tidelake.cli.reading import dictionary, serve, sql, ui
from tidelake.cli.reports import doctor, ledger, status
from tidelake.cli.sides import fate, late, quarantine
from tidelake.cli.trying import demo, generate, kafka
from tidelake.cli.upkeep import alerts, erase, maintain


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tidelake")
def app() -> None:
    """Streaming medallion pipelines on Delta Lake that can prove they lost nothing."""


_QUICK = (demo, generate, kafka, init, run, fast)
_READ = (status, ledger, verify, check, doctor, alerts, fate, sql, ui, serve, dictionary)
_CHANGE = (late, quarantine, repair, backfill, maintain, erase)
for _command in (*_QUICK, *_READ, *_CHANGE):
    app.add_command(_command)
