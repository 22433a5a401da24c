"""The command ``ui``: a live page of how pipelines stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from tidelake.cli.failures import say
from tidelake.cli.options import Place, place, placed
from tidelake.config import pipeline_names
from tidelake.errors import NotBuiltError


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
@placed
def ui(pipelines: tuple[str, ...], port: int, host: str, root: str | None, env: str | None) -> None:
    """Show on one page how pipelines stand, what is wrong, and which command mends it.

    Without a name it shows all pipelines of the conf folder. It reads tables and changes none.
    """
    from tidelake.ops.page.desk import Desk  # noqa: PLC0415
    from tidelake.ops.page.rendering import Renderer  # noqa: PLC0415
    from tidelake.ops.page.server import PageServer, is_loopback  # noqa: PLC0415
    from tidelake.typed import Typed  # noqa: PLC0415

    where = place(root, env)
    if where.lake.catalog is not None:
        raise NotBuiltError(
            "The live page on a catalog",
            "Ask with: tidelake status, tidelake alerts and tidelake ledger; "
            "or give --root DIR to look at paths.",
        )
    called = _called(where, pipelines)
    desk = Desk(where.lake, called, where.pipeline)
    renderer = Renderer(tuple(called), where.lake.root, Typed(root, env))
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


def _called(where: Place, pipelines: Sequence[str]) -> Mapping[str, str]:
    """Give the pipelines' names, and what each is called by.

    Those that were asked for by name must be sound; of the others a broken one shows as such.

    Raises:
        UsageError: One that was asked for does not exist, or its file is broken.
    """
    if not pipelines:
        return {name: name for name in pipeline_names()}
    return {where.pipeline(called).name: called for called in pipelines}
