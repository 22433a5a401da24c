"""The commands ``alerts``, ``maintain`` and ``erase``."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from tidelake.cli.exits import say
from tidelake.cli.flow import started
from tidelake.cli.options import Place, as_json, duration, located, of_pipeline
from tidelake.cli.render import print_json, print_line, print_table
from tidelake.instants import now

if TYPE_CHECKING:
    from tidelake.replay.erase import Report

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
        # Not in the table: a cell is wrapped, and a wrapped command cannot be copied.
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
    """Compact small files, and delete old ones that nobody needs.

    Files that a reader, an epoch or a rollback needs are kept.
    """
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


@click.command()
@of_pipeline
@click.option(
    "--subject", "whose", required=True, metavar="COLUMN=VALUE", help="A column of silver, a value."
)
@click.option("--source", metavar="PATH", help="Where `run` reads, if not the file's source.")
@click.option(
    "--now", "at_once", is_flag=True, help="Delete old files at once, even if they are being read."
)
@click.option("--look", is_flag=True, help="Count the subject's rows, and change nothing.")
@as_json
@located
def erase(
    pipeline: str,
    whose: str,
    source: str | None,
    at_once: bool,
    look: bool,
    json_: bool,
    where: Place,
) -> None:
    """Erase a subject's rows from every table.

    Repeating the command continues an erasure that was interrupted.
    Hops must not run meanwhile: each first takes in what waits, then continues without the rows.
    """
    from tidelake.ledger.history import require_tables  # noqa: PLC0415
    from tidelake.replay.subject import parse_subject  # noqa: PLC0415

    definition = where.pipeline(pipeline, source=source)
    subject = parse_subject(whose, definition)
    require_tables(where.lake, definition.name)
    with started(where, definition) as run:
        from tidelake.replay import erase as replay  # noqa: PLC0415

        if look:
            rows = replay.look(run, subject)
            if json_:
                print_json({"pipeline": definition.name, "rows": rows})
                return
            title = f"Rows of the subject in {definition.name}"
            print_table(["table", "rows"], rows.items(), title=title)
            say("Nothing was erased. Without --look they are; gold is computed anew then.")
            return
        report = replay.erase(run, subject, now=at_once)
    if json_:
        print_json(report.to_json())
    else:
        _show_report(report, where.typed("tidelake ledger", pipeline))


def _show_report(report: Report, ledger: str) -> None:
    title = f"Erased from {report.pipeline}, by {report.column}"
    title = title if report.rows else f"{title}: no row was there"
    print_table(["table", "rows"], report.rows.items(), title=title)
    # One row for all places that hold the same remains.
    places: dict[tuple[str, datetime | None, str], list[str]] = {}
    for one in report.remains:
        places.setdefault((one.what, one.until, one.remedy), []).append(one.where)
    left = [
        [
            what,
            where[0] if len(where) == 1 else f"{where[0]} and {len(where) - 1} more (--json)",
            f"{until:%Y-%m-%d %H:%M}Z" if until else None,
            remedy,
        ]
        for (what, until, remedy), where in places.items()
    ]
    if left:
        print_table(["left", "where", "until", "what to do"], left, title="What is left")
    if report.sent_again:
        say(
            f"{report.sent_again:,} conflicting rows of others were decided anew: "
            "an erased row had taken their event."
        )
    if report.rollback_given_up:
        say("The backfill's tables were removed: its promotion cannot be rolled back any more.")
    say(f"The books say it too: {ledger}")
