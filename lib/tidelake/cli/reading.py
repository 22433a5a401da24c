"""The commands ``sql`` and ``dictionary``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelake.cli.exits import say
from tidelake.cli.options import Place, as_json, located, path_option
from tidelake.cli.render import counted, print_json, print_table
from tidelake.config import descriptions
from tidelake.config.locations import pipeline_names
from tidelake.delta.tables import Lake
from tidelake.errors import UsageError

if TYPE_CHECKING:
    # Imports Spark.
    from tidelake.ledger.query import Answer, AnswerFile


@click.command()
@click.argument("query", required=False)
@click.option("--consistent", is_flag=True, help="Read all tables as of the last epoch.")
@path_option(
    "--to", "file", metavar="FILE", help="Write the result to a .csv, .parquet or .json file."
)
@click.option("--overwrite", is_flag=True, help="Replace the file of --to if it exists.")
@as_json
@located
def sql(
    query: str | None, consistent: bool, file: Path | None, overwrite: bool, where: Place
) -> int:
    """Run a SELECT on tables by logical name, without Spark.

    Without a statement it opens a prompt, or runs the statements piped to stdin, each ended by a
    semicolon.
    """
    if query is None:
        if file is not None:
            raise UsageError("--to needs a statement; at the prompt use .output FILE.")
        from tidelake.cli.prompt import answer_piped, run_prompt  # noqa: PLC0415

        if where.json or not sys.stdin.isatty():
            return answer_piped(where.lake, consistent=consistent, json_=where.json)
        run_prompt(where.lake, consistent=consistent)
    elif file is not None:
        from tidelake.ledger.query import AnswerFile  # noqa: PLC0415

        write_answer(where.lake, query, AnswerFile(file, overwrite), consistent=consistent, say=say)
    else:
        answer = answer_to(where.lake, query, consistent=consistent, say=say)
        if where.json:
            print_json(answer.as_dicts())
        else:
            print_table(answer.columns, answer.rows)
            say(counted(len(answer.rows)))
    return 0


def answer_to(lake: Lake, query: str, *, consistent: bool, say: Callable[[str], None]) -> Answer:
    """Run a statement; ``consistent`` reads as of the last epoch and reports it."""
    from tidelake.ledger.query import ask_at_epoch, ask_for_user  # noqa: PLC0415

    answer, epoch = ask_at_epoch(lake, query) if consistent else (ask_for_user(lake, query), None)
    if epoch:
        say(f"Read in {epoch}")
    return answer


def write_answer(
    lake: Lake, query: str, target: AnswerFile, *, consistent: bool, say: Callable[[str], None]
) -> None:
    """Write a statement's result to a file."""
    from tidelake.ledger.query import at_epoch, write_for_user  # noqa: PLC0415

    write = partial(write_for_user, lake, query, target)
    rows, epoch = at_epoch(lake, query, write) if consistent else (write(), None)
    if epoch:
        say(f"Read in {epoch}")
    say(f"{counted(rows)} in {target.file}")


@click.command()
@click.argument("pipelines", metavar="[PIPELINE]...", nargs=-1)
@as_json
@located
def dictionary(pipelines: tuple[str, ...], where: Place) -> None:
    """Describe the tables and columns of pipelines in Markdown.

    Without a name it describes all pipelines and their shared tables.
    """
    from tidelake.ledger.statements import dialect_of  # noqa: PLC0415

    dialect = dialect_of(where.environment.catalog)
    definitions = [where.load(name) for name in pipelines or pipeline_names()]
    if not where.json:
        page = descriptions.to_markdown(definitions, dialect, with_shared=not pipelines)
        click.echo(page, nl=False)
        return
    entries = {one.name: descriptions.entries_of(one, dialect) for one in definitions}
    if not pipelines:
        entries[descriptions.SHARED] = list(descriptions.shared_entries())
    print_json(entries)
