"""Commands that let people and tools read: ``sql``, ``ui``, ``serve`` and ``dictionary``."""

from __future__ import annotations

import sys
import threading
from dataclasses import asdict
from pathlib import Path

import click

from tidelake.cli.exits import say
from tidelake.cli.flow import stop_when_asked
from tidelake.cli.options import Place, as_json, located
from tidelake.cli.render import answer_to, counted, print_json, print_table, write_answer
from tidelake.config.places import pipeline_names
from tidelake.errors import NotBuiltError, UsageError
from tidelake.typed import first_command

# How long a new table, or a new bound of final rows, may be unknown to clients of ``serve``.
_REFRESH_SECONDS = 10


@click.command()
@click.argument("query", required=False)
@click.option("--consistent", is_flag=True, help="See all tables as the last epoch had them.")
@click.option(
    "--to",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the answer to a .csv, .parquet or .json file.",
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
    """Answer a SELECT on tables by logical name, without Spark.

    Without a statement: a prompt, or what is piped in, its statements ended by semicolons.
    """
    if query is None:
        if file is not None:
            raise UsageError("--to goes with a statement; at the prompt write .output FILE.")
        from tidelake.cli.prompt import answer_piped, talk  # noqa: PLC0415

        if json_ or not sys.stdin.isatty():
            return answer_piped(where.lake, consistent=consistent, json_=json_)
        talk(where.lake, consistent=consistent)
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
    help="Where to listen; 0 for any port that is free.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; others than this machine's own show payloads to a network.",
)
@located
def ui(pipelines: tuple[str, ...], port: int, host: str, where: Place) -> None:
    """Serve a page with the state of pipelines, and remedies.

    Without a name it shows all pipelines of the conf folder. It only reads.
    """
    from tidelake.ops.page.desk import Desk  # noqa: PLC0415
    from tidelake.ops.page.rendering import Renderer  # noqa: PLC0415
    from tidelake.ops.page.server import PageServer, is_loopback  # noqa: PLC0415

    if where.lake.catalog is not None:
        raise NotBuiltError(
            "The live page on a catalog",
            "Ask with: tidelake status, tidelake alerts and tidelake ledger; "
            "or give --root DIR to look at paths.",
        )
    # One that was asked for by name must be sound; of the others a broken one shows as such.
    called = {where.pipeline(name).name: name for name in pipelines}
    called = called or {name: name for name in pipeline_names()}
    desk = Desk(where.lake, called, where.pipeline)
    renderer = Renderer(tuple(called), where.lake.root, where.typed)
    with PageServer(host, port, desk, renderer) as server:
        desk.start()
        say(f"The page is at {server.url} (Ctrl-C ends it)")
        if not is_loopback(host):
            say("Whoever reaches this machine can read it, payloads included: it asks for no name.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("Ended.")
        finally:
            desk.stop()


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=10000, show_default=True)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen. Whoever reaches it reads every table: there is no password.",
)
@located
def serve(port: int, host: str, where: Place) -> None:
    """Serve the tables over JDBC, for reading, until Ctrl-C."""
    if where.lake.catalog is None and not where.lake.existing():
        raise UsageError(
            f"there is no table {where.lake.place} yet. "
            f"Fill them with: {where.typed(first_command())}"
        )
    from tidelake.ops.serving import serving  # noqa: PLC0415

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


@click.command()
@click.argument("pipelines", metavar="[PIPELINE]...", nargs=-1)
@as_json
@located
def dictionary(pipelines: tuple[str, ...], json_: bool, where: Place) -> None:
    """Describe the tables and columns of pipelines in Markdown.

    Without a name it describes all pipelines, and the tables that they share.
    """
    from tidelake.config import meanings  # noqa: PLC0415

    definitions = [where.pipeline(name) for name in pipelines or pipeline_names()]
    if not json_:
        click.echo(meanings.to_markdown(definitions, with_shared=not pipelines), nl=False)
        return
    told = {one.name: [asdict(entry) for entry in meanings.entries_of(one)] for one in definitions}
    if not pipelines:
        told[meanings.SHARED] = [asdict(entry) for entry in meanings.shared_entries()]
    print_json(told)
