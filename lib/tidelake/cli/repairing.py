"""The command ``repair``: a new generation of a hop whose table and checkpoint do not fit."""

from __future__ import annotations

import click

from tidelake.cli.failures import say
from tidelake.cli.flow import started
from tidelake.cli.options import of_pipeline, place, placed
from tidelake.delta.tables import HOPS, Hop


@click.command()
@of_pipeline
@click.option("--hop", type=click.Choice(HOPS), required=True, help="Which arrow to mend.")
@placed
def repair(pipeline: str, hop: Hop, root: str | None, env: str | None) -> None:
    """Begin a new generation of a hop, exactly after what its tables hold.

    Where that cannot be known, because an input was rewritten, the tables disagree or the
    definition changed, silver or gold is computed anew instead.
    """
    where = place(root, env)
    definition = where.pipeline(pipeline)
    with started(where, definition) as run:
        from tidelake.replay.repair import repair as begin  # noqa: PLC0415

        done = begin(run, hop)
    if done.rebuilt:
        say(f"Rebuilt {hop} of {definition.name} as generation {done.generation}: {done.why}.")
    else:
        say(
            f"Hop {hop} of {definition.name} goes on after what its tables hold, "
            f"as generation {done.generation}."
        )
    say(f"Go on with: {where.typed('tidelake run', pipeline)}")
