"""The commands of ``kafka``: a broker for trials, on this machine alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tidelake.cli.failures import say
from tidelake.cli.options import as_json, place, placed
from tidelake.cli.render import print_json, print_table
from tidelake.errors import UsageError


@click.group()
def kafka() -> None:
    """Run a Kafka broker on this machine, for trials: no container, no network."""


def _in_folder(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--dir",
        "folder",
        type=click.Path(path_type=Path, file_okay=False),
        help="Where it keeps its topics; by default the folder kafka beside the tables.",
    )(placed(command))


def _folder(folder: Path | None, root: str | None, env: str | None) -> Path:
    if folder is not None:
        return folder
    beside = place(root, env).lake.root
    if not isinstance(beside, Path):
        raise UsageError(f"a broker needs a disk, and {beside} is none. Name a folder with --dir.")
    return beside / "kafka"


@kafka.command()
@click.option("--port", default=9092, show_default=True, type=click.IntRange(0, 65535))
@_in_folder
def up(port: int, folder: Path | None, root: str | None, env: str | None) -> None:
    """Start a broker that goes on in the background; port 0 takes a free one."""
    from tidelake.kafka.broker import up as start  # noqa: PLC0415

    broker = start(_folder(folder, root, env), port)
    say(
        f"Kafka answers at {broker.bootstrap}, process {broker.process}. "
        f"Stop it with: tidelake kafka down --dir {broker.folder}"
    )


@kafka.command()
@_in_folder
def down(folder: Path | None, root: str | None, env: str | None) -> None:
    """Stop it; its topics stay."""
    from tidelake.kafka.broker import down as stop  # noqa: PLC0415

    where = _folder(folder, root, env)
    say(f"Stopped. Its topics are in {where}" if stop(where) else f"No broker runs in {where}")


@kafka.command()
@_in_folder
@as_json
def status(folder: Path | None, json_: bool, root: str | None, env: str | None) -> int:
    """Tell whether it runs; exit 3 where it does not."""
    from tidelake.kafka.broker import find  # noqa: PLC0415

    where = _folder(folder, root, env)
    broker = find(where)
    runs = broker is not None and broker.runs and broker.answers
    told = {
        "runs": runs,
        "bootstrap": broker.bootstrap if broker else None,
        "process": broker.process if broker and runs else None,
        "dir": str(where),
    }
    if json_:
        print_json(told)
    else:
        shown = {**told, "runs": "yes" if runs else "no", "process": str(told["process"] or "-")}
        print_table(list(shown), [list(shown.values())])
    if not runs:
        say(f"Start it with: tidelake kafka up --dir {where}")
    return 0 if runs else 3
