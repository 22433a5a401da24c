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
_PREVIEW = ("table", "keeps hours", "needed since", "by")
_DONE = ("table", "files before", "files", "deleted")


@click.command()
@of_pipeline
@click.option("--tell", is_flag=True, help="Send alerts opened or closed since the last time.")
@as_json
@located
def alerts(pipeline: str, tell: bool, json_: bool, where: Place) -> int:
    """Show open alerts; exit 3 if any of them is critical."""
    from tidelake.ops.alert_delivery import AlertReporter, sender_of  # noqa: PLC0415
    from tidelake.ops.alerts import RULES, alerts_of  # noqa: PLC0415

    definition = where.pipeline(pipeline)
    deliver = sender_of(where.environment)
    found = alerts_of(
        where.lake, definition, now=now(), typed=replace(where.typed, called=pipeline)
    )
    if json_:
        print_json([alert.to_json() for alert in found])
    elif not found:
        print_line(f"No alert of {definition.name} is open.")
    else:
        rows = [
            [
                "!!" if alert.severity == "critical" else "!",
                alert.rule,
                alert.hop or "all",
                f"{alert.since:%Y-%m-%d %H:%M:%SZ}" if alert.since else None,
                alert.message,
            ]
            for alert in found
        ]
        title = f"Open alerts of {definition.name}; !! critical, ! warning"
        print_table(["", "rule", "hop", "since", "found"], rows, title=title)
        # Not in the table: cells wrap, and a wrapped command cannot be copied.
        for alert in found:
            print_line(f"  {alert.rule}: {alert.command}")
    if tell:
        AlertReporter(where.lake, definition.name, say, deliver).report(found, rules=RULES)
    return _CRITICAL if any(alert.severity == "critical" for alert in found) else 0


@click.command()
@of_pipeline
@click.option(
    "--keep",
    metavar="DURATION",
    callback=duration,
    help="Retention of removed files; default: recovery horizon.",
)
@click.option("--look", is_flag=True, help="Show what needs old files, and change nothing.")
@as_json
@located
def maintain(pipeline: str, keep: timedelta | None, look: bool, json_: bool, where: Place) -> None:
    """Compact small files and delete unneeded old ones.

    Files that a reader, an epoch or a rollback needs are kept.
    """
    from tidelake.ops.maintenance import plan_upkeep, upkeep  # noqa: PLC0415

    definition = where.pipeline(pipeline)
    horizon = where.environment.recovery_horizon
    plans = plan_upkeep(where.lake, definition, horizon=horizon, keep=keep)
    rows: list[list[object]]
    if look:
        title, columns = f"Old files of {definition.name}", _PREVIEW
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
            for result in upkeep(run, plans):
                say(f"{result.table.name}: {result.files_before:,} files, now {result.files:,}")
                rows.append([result.table.name, result.files_before, result.files, result.deleted])
    if json_:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(columns, rows, title=title)


@click.command()
@of_pipeline
@click.option(
    "--subject",
    "whose",
    required=True,
    metavar="COLUMN=VALUE",
    help="A column of silver, and its value.",
)
@click.option("--source", metavar="PATH", help="Source of `run`, if not the pipeline file's.")
@click.option(
    "--now", "at_once", is_flag=True, help="Delete old files now, even if they are being read."
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

    Repeat the command to continue an interrupted erasure.
    Hops must not run meanwhile: the erasure first processes what waits in each of them.
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
            say("Nothing was erased. Run without --look to erase them and recompute gold.")
            return
        report = replay.erase(run, subject, now=at_once)
    if json_:
        print_json(report.to_json())
    else:
        _show_report(report, where.typed("tidelake ledger", pipeline))


def _show_report(report: Report, ledger: str) -> None:
    title = f"Erased from {report.pipeline}, by {report.column}"
    title = title if report.rows else f"{title}: no rows found"
    print_table(["table", "rows"], report.rows.items(), title=title)
    # One row for all places with the same remains.
    places: dict[tuple[str, datetime | None, str], list[str]] = {}
    for remains in report.remains:
        key = (remains.what, remains.until, remains.remedy)
        places.setdefault(key, []).append(remains.where)
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
        print_table(["what", "where", "until", "remedy"], left, title="Remaining copies")
    if report.sent_again:
        say(
            f"{report.sent_again:,} conflicting rows of other subjects were requeued: "
            "an erased row had been accepted with their event id."
        )
    if report.rollback_given_up:
        say("The backfill's tables were removed: its promotion can no longer be rolled back.")
    say(f"See the ledger with: {ledger}")
