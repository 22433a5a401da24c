"""Read-only commands: ``sql``, ``ui``, ``serve`` and ``dictionary``."""

from __future__ import annotations

import sys
import threading
from dataclasses import asdict
from pathlib import Path

import click

from tidelake.cli.exits import say
from tidelake.cli.flow import stop_on_signal
from tidelake.cli.options import Place, as_json, located
from tidelake.cli.render import answer_to, counted, print_json, print_table, write_answer
from tidelake.config.places import pipeline_names
from tidelake.errors import NotBuiltError, UsageError
from tidelake.typed import first_command

# How often ``serve`` registers new tables and new bounds of final rows.
_REFRESH_SECONDS = 10


@click.command()
@click.argument("query", required=False)
@click.option("--consistent", is_flag=True, help="Read all tables as of the last epoch.")
@click.option(
    "--to",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the result to a .csv, .parquet or .json file.",
)
@click.option("--overwrite", is_flag=True, help="Replace the file of --to if it exists.")
@as_json
@located
def sql(
    query: str | None,
    consistent: bool,
    file: Path | None,
    overwrite: bool,
    json_: bool,
    where: Place,
) -> int:
    """Run a SELECT on tables by logical name, without Spark.

    Without a statement it opens a prompt, or runs the statements piped to stdin, each ended by a
    semicolon.
    """
    if query is None:
        if file is not None:
            raise UsageError("--to needs a statement; at the prompt use .output FILE.")
        from tidelake.cli.prompt import answer_piped, run_prompt  # noqa: PLC0415

        if json_ or not sys.stdin.isatty():
            return answer_piped(where.lake, consistent=consistent, json_=json_)
        run_prompt(where.lake, consistent=consistent)
    elif file is not None:
        from tidelake.ledger.query import AnswerFile  # noqa: PLC0415

        write_answer(where.lake, query, AnswerFile(file, overwrite), consistent=consistent, say=say)
    else:
        answer = answer_to(where.lake, query, consistent=consistent, say=say)
        if json_:
            print_json(answer.as_dicts())
        else:
            print_table(answer.columns, answer.rows)
            say(counted(len(answer.rows)))
    return 0


@click.command()
@click.argument("pipelines", nargs=-1, metavar="[PIPELINE]...")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8050,
    show_default=True,
    help="Port to listen on; 0 for any free port.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; no login, and payloads are shown.",
)
@located
def ui(pipelines: tuple[str, ...], port: int, host: str, where: Place) -> None:
    """Serve a page with the state of pipelines and remedies.

    Without a name it shows all pipelines of the conf folder. It is read-only.
    """
    from tidelake.ops.page.desk import Desk  # noqa: PLC0415
    from tidelake.ops.page.rendering import Renderer  # noqa: PLC0415
    from tidelake.ops.page.server import PageServer, is_loopback  # noqa: PLC0415

    if where.lake.catalog is not None:
        raise NotBuiltError(
            "The live page on a catalog",
            "Use tidelake status, tidelake alerts and tidelake ledger instead, "
            "or pass --root DIR to serve tables by path.",
        )
    # A pipeline given by name must load; of all others, broken ones are shown as broken.
    called = {where.pipeline(name).name: name for name in pipelines}
    called = called or {name: name for name in pipeline_names()}
    desk = Desk(where.lake, called, where.pipeline)
    renderer = Renderer(tuple(called), where.lake.root, where.typed)
    with PageServer(host, port, desk, renderer) as server:
        desk.start()
        say(f"The page is at {server.url} (Ctrl-C stops it)")
        if not is_loopback(host):
            say("Anyone who can reach this machine can read it, payloads included: no login.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("Stopped.")
        finally:
            desk.stop()


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=10000, show_default=True)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; no login, all tables are readable.",
)
@located
def serve(port: int, host: str, where: Place) -> None:
    """Serve the tables read-only over JDBC, until Ctrl-C."""
    if where.lake.catalog is None and not where.lake.existing():
        raise UsageError(
            f"there is no table {where.lake.place} yet. "
            f"Fill them with: {where.typed(first_command())}"
        )
    from tidelake.ops.serving import serving  # noqa: PLC0415

    stop = threading.Event()
    say(f"Starting Spark for the tables {where.lake.place} …")
    with serving(where.environment, where.lake, host=host, port=port) as registered:
        # After Spark has started: it installs its own handlers.
        stop_on_signal(stop)
        say(
            f"{len(registered.tables)} tables at jdbc:hive2://{host}:{port}/gold "
            "(read-only, no password). Ctrl-C stops it."
        )
        while not stop.wait(_REFRESH_SECONDS):
            for name in registered.refresh():
                say(f"new table: {name}")
    say("Stopped.")


@click.command()
@click.argument("pipelines", metavar="[PIPELINE]...", nargs=-1)
@as_json
@located
def dictionary(pipelines: tuple[str, ...], json_: bool, where: Place) -> None:
    """Describe the tables and columns of pipelines in Markdown.

    Without a name it describes all pipelines and their shared tables.
    """
    from tidelake.config import meanings  # noqa: PLC0415

    definitions = [where.pipeline(name) for name in pipelines or pipeline_names()]
    if not json_:
        click.echo(meanings.to_markdown(definitions, with_shared=not pipelines), nl=False)
        return
    entries = {
        definition.name: [asdict(entry) for entry in meanings.entries_of(definition)]
        for definition in definitions
    }
    if not pipelines:
        entries[meanings.SHARED] = [asdict(entry) for entry in meanings.shared_entries()]
    print_json(entries)
