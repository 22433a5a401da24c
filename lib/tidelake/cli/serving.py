"""The command ``serve``: the tables for tools that speak JDBC."""

from __future__ import annotations

import threading

import click

from tidelake.cli.failures import say
from tidelake.cli.flow import stop_when_asked
from tidelake.cli.options import place, placed
from tidelake.errors import UsageError
from tidelake.typed import first_command

# How long a new table, or a new bound of final rows, may be unknown to clients.
_REFRESH_SECONDS = 10


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=10000, show_default=True)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen. Whoever reaches it reads every table: there is no password.",
)
@placed
def serve(port: int, host: str, root: str | None, env: str | None) -> None:
    """Serve the tables over JDBC, for reading, until Ctrl-C."""
    where = place(root, env)
    if where.lake.catalog is None and not where.lake.existing():
        raise UsageError(
            f"there is no table {where.lake.place} yet. "
            f"Fill them with: {where.typed(first_command())}"
        )
    from tidelake.ops.serving.server import serving  # noqa: PLC0415

    asked = threading.Event()
    say(f"Starting Spark for the tables {where.lake.place} …")
    with serving(where.environment, where.lake, host=host, port=port) as registered:
        # Only now: Spark's start sets handlers of its own.
        stop_when_asked(asked)
        say(
            f"{len(registered.tables)} tables at jdbc:hive2://{host}:{port}/gold "
            "(no password; reading only). Ctrl-C ends it."
        )
        while not asked.wait(_REFRESH_SECONDS):
            for name in registered.refresh():
                say(f"{name} is new")
    say("Stopped.")
