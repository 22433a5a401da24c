"""The commands ``alerts`` and ``maintain``: what needs a look, and how tables are kept small."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import click

from tidelake.cli.exits import say
from tidelake.cli.flow import started
from tidelake.cli.options import Place, as_json, duration, located, of_pipeline
from tidelake.cli.render import print_json, print_line, print_table
from tidelake.instants import now

_CRITICAL = 3
_LOOKED = ("table", "keeps hours", "needed since", "by")
_DONE = ("table", "files before", "files", "deleted")


@click.command()
@of_pipeline
@click.option("--tell", is_flag=True, help="Send what opened or closed since the last time.")
@as_json
@located
def alerts(pipeline: str, tell: bool, json_: bool, where: Place) -> int:
    """Show what is open that somebody should look at; exit 3 when any of it is critical."""
    from tidelake.ops.alert_delivery import AlertReporter, sender_of  # noqa: PLC0415
    from tidelake.ops.alerts import RULES, alerts_of  # noqa: PLC0415

    definition = where.pipeline(pipeline)
    deliver = sender_of(where.environment)
    found = alerts_of(
        where.lake, definition, now=now(), typed=replace(where.typed, called=pipeline)
    )
    if json_:
        print_json([one.to_json() for one in found])
    elif not found:
        print_line(f"No alert of {definition.name} is open.")
    else:
        rows = [
            [
                "!!" if one.severity == "critical" else "!",
                one.rule,
                one.hop or "all",
                f"{one.since:%Y-%m-%d %H:%M:%SZ}" if one.since else None,
                one.message,
            ]
            for one in found
        ]
        title = f"Open alerts of {definition.name}; !! critical, ! warning"
        print_table(["", "rule", "hop", "since", "found"], rows, title=title)
        # Beside the table: broken over lines, as a cell is, none of them could be typed.
        for one in found:
            print_line(f"  {one.rule}: {one.command}")
    if tell:
        AlertReporter(where.lake, definition.name, say, deliver).report(found, rules=RULES)
    return _CRITICAL if any(one.severity == "critical" for one in found) else 0


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
@located
def maintain(
    pipeline: str,
    keep: timedelta | None,
    look: bool,
    json_: bool,
    where: Place,
) -> None:
    """Put small files together and delete old ones that no reader, epoch or rollback needs."""
    from tidelake.ops.maintenance import plan_upkeep, upkeep  # noqa: PLC0415

    definition = where.pipeline(pipeline)
    horizon = where.environment.recovery_horizon
    plans = plan_upkeep(where.lake, definition, horizon=horizon, keep=keep)
    rows: list[list[object]]
    if look:
        title, columns = f"Old files of {definition.name}", _LOOKED
        rows = [
            [
                plan.table.name,
                round(plan.keep / timedelta(hours=1)),
                f"{plan.needs[0].since:%Y-%m-%d %H:%M}Z" if plan.needs else None,
                plan.needs[0].by if plan.needs else None,
            ]
            for plan in plans
        ]
    else:
        title, columns, rows = f"Maintained {definition.name}", _DONE, []
        with started(where, definition) as run:
            for one in upkeep(run, plans):
                say(f"{one.table.name}: {one.files_before:,} files, now {one.files:,}")
                rows.append([one.table.name, one.files_before, one.files, one.deleted])
    if json_:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(columns, rows, title=title)
