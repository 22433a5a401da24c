"""The command ``dictionary``: what every table and column means, without Spark or tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from tidelake.cli.failures import say
from tidelake.cli.options import as_json, place, placed
from tidelake.cli.render import print_json
from tidelake.errors import UsageError


@click.command()
@click.argument("pipelines", metavar="[PIPELINE]...", nargs=-1)
@click.option(
    "--to",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a .md or .json file instead; one that is there is replaced.",
)
@as_json
@placed
def dictionary(
    pipelines: tuple[str, ...], file: Path | None, json_: bool, root: str | None, env: str | None
) -> None:
    """Write what every table of some pipelines holds; by default of all in the conf folder.

    Without a name also the tables that all pipelines share.
    """
    from tidelake.config.dictionary import SHARED, entries_of, shared_entries, to_markdown  # noqa: PLC0415  # noqa: PLC0415
    from tidelake.config.places import conf_dir  # noqa: PLC0415

    if file is not None and file.suffix not in (".md", ".json"):
        raise UsageError(f"{file} ends neither in .md nor in .json, which say how to write it.")
    where = place(root, env)
    names = pipelines or sorted(path.stem for path in (conf_dir() / "pipelines").glob("*.yml"))
    definitions = [where.pipeline(name) for name in names]
    as_data = {one.name: [asdict(entry) for entry in entries_of(one)] for one in definitions}
    if not pipelines:
        as_data[SHARED] = [asdict(entry) for entry in shared_entries()]
    if file is None:
        if json_:
            print_json(as_data)
        else:
            click.echo(to_markdown(definitions, with_shared=not pipelines), nl=False)
        return
    as_text = json.dumps(as_data, indent=1) + "\n" if file.suffix == ".json" else None
    file.write_text(
        as_text or to_markdown(definitions, with_shared=not pipelines), encoding="utf-8"
    )
    say(f"{sum(len(entries) for entries in as_data.values())} tables in {file}")
