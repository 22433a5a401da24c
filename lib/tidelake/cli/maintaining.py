"""The command ``maintain``: small files put together, old ones deleted, nobody harmed."""

from __future__ import annotations

from datetime import timedelta

import click

from tidelake.cli.failures import say
from tidelake.cli.flow import started
from tidelake.cli.options import as_json, duration, of_pipeline, place, placed
from tidelake.cli.render import print_json, print_table


@click.command()
@of_pipeline
@click.option(
    "--keep",
    metavar="DURATION",
    callback=duration,
    help="How long files that tables no longer hold stay; by default the recovery horizon.",
)
@click.option("--look", is_flag=True, help="Show who needs what, and change nothing.")
@as_json
@placed
def maintain(
    pipeline: str,
    keep: timedelta | None,
    look: bool,
    json_: bool,
    root: str | None,
    env: str | None,
) -> None:
    """Put small files together and delete old ones that no reader, epoch or rollback needs."""
    from tidelake.ops.maintenance.upkeep import plan_upkeep, upkeep  # noqa: PLC0415

    where = place(root, env)
    definition = where.pipeline(pipeline)
    horizon = where.environment.recovery_horizon
    plans = plan_upkeep(where.lake, definition, horizon=horizon, keep=keep)
    if look:
        rows = [
            [
                plan.table.name,
                round(plan.keep / timedelta(hours=1)),
                f"{plan.needs[0].since:%Y-%m-%d %H:%M}Z" if plan.needs else None,
                plan.needs[0].by if plan.needs else None,
            ]
            for plan in plans
        ]
        columns = ["table", "keeps hours", "needed since", "by"]
        if json_:
            print_json([dict(zip(columns, row, strict=True)) for row in rows])
        else:
            print_table(columns, rows, title=f"Old files of {definition.name}")
        return
    done = []
    with started(where, definition) as run:
        for one in upkeep(run, plans):
            say(f"{one.table.name}: {one.files_before:,} files, now {one.files:,}")
            done.append([one.table.name, one.files_before, one.files, one.deleted])
    columns = ["table", "files before", "files", "deleted"]
    if json_:
        print_json([dict(zip(columns, row, strict=True)) for row in done])
    else:
        print_table(columns, done, title=f"Maintained {definition.name}")
