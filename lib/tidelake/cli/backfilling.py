"""The commands of ``backfill``: rebuild beside the live tables, compare, swap, take it back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from tidelake.cli.failures import say
from tidelake.cli.flow import started
from tidelake.cli.options import MOMENT, as_json, duration, moment, of_pipeline, place, placed
from tidelake.cli.render import print_json, print_table
from tidelake.errors import UsageError

if TYPE_CHECKING:
    from tidelake.replay.backfill import Span, Start
    from tidelake.replay.promotion import Differences


@click.group()
def backfill() -> None:
    """Rebuild a pipeline's tables beside the live ones, compare, swap, take it back."""


def _from(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--from",
        "start",
        type=click.Choice(["bronze", "silver"]),
        default="bronze",
        show_default=True,
        help="The layer to read: from silver, only gold is filled anew.",
    )(command)


@backfill.command()
@of_pipeline
@_from
@as_json
@placed
def plan(pipeline: str, start: Start, json_: bool, root: str | None, env: str | None) -> None:
    """Say what would be read, how many rows and how long; write nothing."""
    from tidelake.replay.backfill import plan as list_steps  # noqa: PLC0415
    from tidelake.replay.backfill import read_state  # noqa: PLC0415

    where = place(root, env)
    definition = where.pipeline(pipeline)
    steps = list_steps(where.lake, definition, start)
    if json_:
        print_json([asdict(step) | {"seconds": step.seconds} for step in steps])
        return
    print_table(
        ["hop", "reads", "version", "rows", "fills", "may take"],
        [
            [s.hop, s.reads, s.version, s.rows, ", ".join(s.fills), _minutes(s.seconds)]
            for s in steps
        ],
        title=f"A backfill of {definition.name} from {start}",
    )
    state = read_state(where.lake, definition)
    if state is not None:
        say(f"The last backfill of {definition.name} is {state.stage}.")
    begin = where.typed("tidelake backfill run", pipeline)
    say(f"Live tables stay as they are. Begin with: {begin}")


@backfill.command()
@of_pipeline
@_from
@click.option(
    "--start",
    "first",
    metavar=MOMENT,
    callback=moment,
    help="From bronze: what arrived from here on. From silver: gold from here on (UTC).",
)
@click.option(
    "--end",
    "last",
    metavar=MOMENT,
    callback=moment,
    help="From silver: gold before this (UTC).",
)
@click.option(
    "--for",
    "length",
    metavar="DURATION",
    callback=duration,
    help="Instead of --end: this long from --start.",
)
@placed
def run(
    pipeline: str,
    start: Start,
    first: datetime | None,
    last: datetime | None,
    length: timedelta | None,
    root: str | None,
    env: str | None,
) -> None:
    """Fill green tables; begun again, it goes on, and takes in what arrived since."""
    where = place(root, env)
    definition = where.pipeline(pipeline)
    since, span = _part(start, first, _end(first, last, length))
    with started(where, definition) as context:
        from tidelake.replay.backfill import build  # noqa: PLC0415

        build(context, start, span, since=since)
    say(f"Built. Compare with: {where.typed('tidelake backfill compare', pipeline)}")


@backfill.command()
@of_pipeline
@as_json
@placed
def compare(pipeline: str, json_: bool, root: str | None, env: str | None) -> None:
    """Show what a swap would change, and why."""
    where = place(root, env)
    definition = where.pipeline(pipeline)
    from tidelake.replay.backfill import need_state  # noqa: PLC0415

    state = need_state(where.lake, definition, "built")
    with started(where, definition) as context:
        from tidelake.replay.promotion import differences  # noqa: PLC0415

        found = differences(context, state)
    if json_:
        print_json(_as_json(definition.name, found))
    else:
        _show(definition.name, found)
        say(f"Swap with: {where.typed('tidelake backfill promote', pipeline)}")


@backfill.command()
@of_pipeline
@placed
def promote(pipeline: str, root: str | None, env: str | None) -> None:
    """Let green tables take the place of the live ones, what arrived since included."""
    where = place(root, env)
    definition = where.pipeline(pipeline)
    with started(where, definition) as context:
        from tidelake.replay.promotion import promote as swap  # noqa: PLC0415

        swap(context)
    say(
        f"Promoted. Go on with: {where.typed('tidelake run', pipeline)}\n"
        f"Take it back with: {where.typed('tidelake backfill rollback', pipeline)}"
    )


@backfill.command()
@of_pipeline
@placed
def rollback(pipeline: str, root: str | None, env: str | None) -> None:
    """Put back what the tables held before the promotion."""
    where = place(root, env)
    definition = where.pipeline(pipeline)
    with started(where, definition) as context:
        from tidelake.replay.promotion import rollback as put_back  # noqa: PLC0415

        put_back(context)
    say(
        "Rolled back. Restore the definition too if the backfill came with another one.\n"
        f"Take in what arrived since with: {where.typed('tidelake run', pipeline)}"
    )


def _end(
    first: datetime | None, last: datetime | None, length: timedelta | None
) -> datetime | None:
    if length is None:
        return last
    if first is None or last is not None:
        raise UsageError("--for stands in the place of --end, beside --start")
    return first + length


def _part(
    start: Start, first: datetime | None, last: datetime | None
) -> tuple[datetime | None, Span | None]:
    """Tell from when on bronze is decided anew, or of which range gold is computed."""
    from tidelake.replay.backfill import Span  # noqa: PLC0415

    if start == "bronze":
        if last:
            raise UsageError(
                "a backfill from bronze has no --end: whether a row is a copy depends on what "
                "arrived before it. Give --start alone, or gold's range with --from silver"
            )
        return first, None
    if (first is None) is not (last is None) or (first and last and first >= last):
        raise UsageError("a range needs --start and a later --end, such as 2026-01-05 2026-01-06")
    if first and last:
        return None, Span(first, last)
    return None, None


def _minutes(seconds: float | None) -> str:
    if seconds is None:
        return "not known"
    return f"{seconds:,.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"


def _as_json(name: str, found: Differences) -> dict[str, Any]:
    return {
        "pipeline": name,
        "equal": found.equal,
        "silver": [asdict(change) for change in found.silver],
        "gold": {
            table: one.to_json() | {"redefined": table in found.redefined}
            for table, one in found.gold.items()
        },
    }


def _show(name: str, found: Differences) -> None:
    if found.silver:
        print_table(
            ["cause", "is in", "becomes", "rows", "for example"],
            [[c.cause, c.was, c.becomes, c.rows, c.example] for c in found.silver],
            title=f"Rows of bronze.{name} that meet another fate",
        )
    print_table(
        ["", "gold table", "rows now", "differing", ""],
        [
            [
                "=" if one.equal else "~",
                table,
                one.rows,
                one.differing,
                "redefined" if table in found.redefined else "",
            ]
            for table, one in found.gold.items()
        ],
        title=f"{name}: {'nothing changes' if found.equal else 'what changes'}",
    )
