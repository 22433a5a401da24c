"""The commands ``backfill`` and ``repair``, which recompute tables."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from tidelake.cli.exits import say
from tidelake.cli.flow import started
from tidelake.cli.options import MOMENT, Place, as_json, duration, located, moment, of_pipeline
from tidelake.cli.render import print_json, print_table
from tidelake.delta.tables import HOPS, Hop
from tidelake.errors import UsageError

if TYPE_CHECKING:
    from tidelake.replay.backfill import Start
    from tidelake.replay.promotion import Differences

_from = click.option(
    "--from",
    "start",
    type=click.Choice(["bronze", "silver"]),
    default="bronze",
    show_default=True,
    help="Layer to read; silver rebuilds gold only.",
)


@click.command()
@of_pipeline
@click.option("--hop", type=click.Choice(HOPS), required=True, help="Hop to repair.")
@located
def repair(pipeline: str, hop: Hop, where: Place) -> None:
    """Start a new generation of a hop where its tables end.

    If that position is unknown, because an input was rewritten, the tables disagree or the
    definition changed, silver or gold is recomputed instead.
    """
    definition = where.pipeline(pipeline)
    with started(where, definition) as run:
        from tidelake.replay.generations import repair as begin  # noqa: PLC0415

        done = begin(run, hop)
    if done.why:
        say(f"Rebuilt {hop} of {definition.name} as generation {done.generation}: {done.why}.")
    else:
        say(
            f"Hop {hop} of {definition.name} continues where its tables end, "
            f"as generation {done.generation}."
        )
    say(f"Continue with: {where.typed('tidelake run', pipeline)}")


@click.group()
def backfill() -> None:
    """Rebuild tables next to the live ones, compare and swap."""


@backfill.command()
@of_pipeline
@_from
@as_json
@located
def plan(pipeline: str, start: Start, json_: bool, where: Place) -> None:
    """Show what a backfill would read and an estimated time."""
    from tidelake.replay import backfill as replay  # noqa: PLC0415

    definition = where.pipeline(pipeline)
    steps = replay.plan(where.lake, definition, start)
    if json_:
        print_json([asdict(step) | {"seconds": step.seconds} for step in steps])
        return
    print_table(
        ["hop", "reads", "version", "rows", "fills", "estimate"],
        [
            [s.hop, s.reads, s.version, s.rows, ", ".join(s.fills), _minutes(s.seconds)]
            for s in steps
        ],
        title=f"Backfill of {definition.name} from {start}",
    )
    state = replay.read_state(where.lake, definition)
    if state is not None:
        say(f"The last backfill of {definition.name} is {state.stage}.")
    begin = where.typed("tidelake backfill run", pipeline)
    say(f"Live tables are not changed. Start with: {begin}")


def _minutes(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return f"{seconds:,.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"


@backfill.command()
@of_pipeline
@_from
@click.option(
    "--start",
    "first",
    metavar=MOMENT,
    callback=moment,
    help="From this arrival (bronze) or event time (silver), UTC.",
)
@click.option(
    "--end",
    "last",
    metavar=MOMENT,
    callback=moment,
    help="Silver only: gold before this event time (UTC).",
)
@click.option(
    "--for",
    "length",
    metavar="DURATION",
    callback=duration,
    help="Range length from --start, instead of --end.",
)
@located
def run(
    pipeline: str,
    start: Start,
    first: datetime | None,
    last: datetime | None,
    length: timedelta | None,
    where: Place,
) -> None:
    """Fill the green tables; run again to add new arrivals."""
    definition = where.pipeline(pipeline)
    if length is not None:
        if first is None or last is not None:
            raise UsageError("--for replaces --end and needs --start: give --start and --for")
        last = first + length
    if start == "bronze" and last:
        raise UsageError(
            "a backfill from bronze has no --end: whether a row is a duplicate depends on all "
            "rows that arrived before it. Give --start alone, or a range of gold with --from silver"
        )
    if start == "silver" and not (first is last is None or (first and last and first < last)):
        raise UsageError(
            "a range needs --start and a later --end, such as --start 2026-01-05 --end 2026-01-06"
        )
    with started(where, definition) as context:
        from tidelake.replay.backfill import Span, build  # noqa: PLC0415

        span = Span(first, last) if first and last else None
        build(context, start, span, since=first if start == "bronze" else None)
    say(f"Built. Compare with: {where.typed('tidelake backfill compare', pipeline)}")


@backfill.command()
@of_pipeline
@as_json
@located
def compare(pipeline: str, json_: bool, where: Place) -> None:
    """Show what a promotion would change, and why."""
    from tidelake.replay.backfill import need_state  # noqa: PLC0415

    definition = where.pipeline(pipeline)
    state = need_state(where.lake, definition, "built")
    with started(where, definition) as context:
        from tidelake.replay.promotion import differences  # noqa: PLC0415

        found = differences(context, state)
    if not json_:
        _show(definition.name, found)
        say(f"Swap with: {where.typed('tidelake backfill promote', pipeline)}")
        return
    print_json(
        {
            "pipeline": definition.name,
            "equal": found.equal,
            "silver": [asdict(change) for change in found.silver],
            "gold": {
                table: comparison.to_json() | {"redefined": table in found.redefined}
                for table, comparison in found.gold.items()
            },
        }
    )


def _show(name: str, found: Differences) -> None:
    if found.silver:
        print_table(
            ["cause", "fate now", "new fate", "rows", "example"],
            [[c.cause, c.was, c.becomes, c.rows, c.example] for c in found.silver],
            title=f"Rows of bronze.{name} whose fate changes",
        )
    rows = [
        [
            "=" if comparison.equal else "~",
            table,
            comparison.rows,
            comparison.differing,
            "redefined" if table in found.redefined else "",
        ]
        for table, comparison in found.gold.items()
    ]
    title = f"{name}: {'no changes' if found.equal else 'changes'}"
    print_table(["", "gold table", "rows now", "differing", ""], rows, title=title)


@backfill.command()
@of_pipeline
@located
def promote(pipeline: str, where: Place) -> None:
    """Replace live tables with green ones, new arrivals included."""
    with started(where, where.pipeline(pipeline)) as context:
        from tidelake.replay import promotion  # noqa: PLC0415

        promotion.promote(context)
    say(
        f"Promoted. Continue with: {where.typed('tidelake run', pipeline)}\n"
        f"Undo with: {where.typed('tidelake backfill rollback', pipeline)}"
    )


@backfill.command()
@of_pipeline
@located
def rollback(pipeline: str, where: Place) -> None:
    """Restore the tables from before the promotion."""
    with started(where, where.pipeline(pipeline)) as context:
        from tidelake.replay import promotion  # noqa: PLC0415

        promotion.rollback(context)
    say(
        "Rolled back. If the backfill used a changed definition, restore the old one too.\n"
        f"Process newer arrivals with: {where.typed('tidelake run', pipeline)}"
    )
