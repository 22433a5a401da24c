"""The command ``sql``: one statement, a file of statements, or a prompt."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tidelake.cli.failures import say
from tidelake.cli.options import as_json, place, placed
from tidelake.cli.render import print_json, print_table
from tidelake.delta.tables import Lake
from tidelake.errors import UsageError


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
@placed
def sql(
    query: str | None,
    consistent: bool,
    file: Path | None,
    overwrite: bool,
    json_: bool,
    root: str | None,
    env: str | None,
) -> int:
    """Answer a SELECT on any table by its logical name, without Spark.

    Without a statement: a prompt, or what is piped in, its statements ended by semicolons.
    """
    lake = place(root, env).lake
    if query is None:
        if file is not None:
            raise UsageError("--to goes with a statement; at the prompt write .output FILE.")
        return _converse(lake, consistent=consistent, json_=json_)
    if file is not None:
        _write(lake, query, file, overwrite=overwrite, consistent=consistent)
    else:
        _show(lake, query, consistent=consistent, json_=json_)
    return 0


def _converse(lake: Lake, *, consistent: bool, json_: bool) -> int:
    from tidelake.cli.prompt.catalogue import Catalogue  # noqa: PLC0415
    from tidelake.cli.prompt.conversation import Conversation  # noqa: PLC0415
    from tidelake.cli.prompt.terminal import (  # noqa: PLC0415
        answer_all,
        show_plainly,
        talk,
        width_of_terminal,
    )

    if sys.stdin.isatty() and not json_:
        talk(lake, consistent=consistent)
        return 0
    conversation = Conversation(
        Catalogue(lake),
        show_plainly,
        say,
        width_of_terminal,
        consistent=consistent,
        format="json" if json_ else "table",
    )
    return answer_all(conversation, sys.stdin.read())


def _show(lake: Lake, query: str, *, consistent: bool, json_: bool) -> None:
    from tidelake.ops.query import ask_at_epoch, ask_for_user  # noqa: PLC0415

    if consistent:
        answer, epoch = ask_at_epoch(lake, query)
        if epoch:
            say(f"Read in {epoch}")
    else:
        answer = ask_for_user(lake, query)
    if json_:
        print_json(answer.as_dicts())
    else:
        print_table(answer.columns, answer.rows)
        say("1 row" if len(answer.rows) == 1 else f"{len(answer.rows):,} rows")


def _write(lake: Lake, query: str, file: Path, *, overwrite: bool, consistent: bool) -> None:
    from tidelake.ops.query import AnswerFile, write_at_epoch, write_for_user  # noqa: PLC0415

    target = AnswerFile(file, overwrite)
    if consistent:
        rows, epoch = write_at_epoch(lake, query, target)
        if epoch:
            say(f"Read in {epoch}")
    else:
        rows = write_for_user(lake, query, target)
    say(f"1 row in {file}" if rows == 1 else f"{rows:,} rows in {file}")
