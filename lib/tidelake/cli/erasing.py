"""The command ``erase``: a subject's rows out of every table, and what is left until when."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from tidelake.cli.exits import say
from tidelake.cli.flow import started
from tidelake.cli.options import Place, as_json, located, of_pipeline
from tidelake.cli.render import print_json, print_table

if TYPE_CHECKING:
    from tidelake.replay.erase import Report


@click.command()
@of_pipeline
@click.option(
    "--subject", "whose", required=True, metavar="COLUMN=VALUE", help="A column of silver, a value."
)
@click.option("--source", metavar="PATH", help="Where `run` reads, if not the file's source.")
@click.option("--now", is_flag=True, help="Delete old files at once, whoever may still read them.")
@click.option("--look", is_flag=True, help="Count the subject's rows, and change nothing.")
@as_json
@located
def erase(
    pipeline: str,
    whose: str,
    source: str | None,
    now: bool,
    look: bool,
    json_: bool,
    where: Place,
) -> None:
    """Take a subject's rows out of every table; begun again with the same subject, it goes on.

    Hops must not run meanwhile: each is brought to its head first, and goes on without the rows.
    """
    from tidelake.ops.history import require_tables  # noqa: PLC0415
    from tidelake.replay.subject import parse_subject  # noqa: PLC0415

    definition = where.pipeline(pipeline, source=source)
    subject = parse_subject(whose, definition)
    require_tables(where.lake, definition.name)
    with started(where, definition) as run:
        from tidelake.replay import erase as replay  # noqa: PLC0415

        if look:
            _show_rows(definition.name, replay.look(run, subject), json_=json_)
            return
        report = replay.erase(run, subject, now=now)
    if json_:
        print_json(report.to_json())
    else:
        _show(report, where.typed("tidelake ledger", pipeline))


def _show_rows(name: str, rows: dict[str, int], *, json_: bool) -> None:
    if json_:
        print_json({"pipeline": name, "rows": rows})
        return
    print_table(["table", "rows"], rows.items(), title=f"Rows of the subject in {name}")
    say("Nothing was erased. Without --look they are; gold is computed anew then.")


def _show(report: Report, ledger: str) -> None:
    title = f"Erased from {report.pipeline}, by {report.column}"
    title = title if report.rows else f"{title}: no row was there"
    print_table(["table", "rows"], report.rows.items(), title=title)
    # A row for what is left, one for all places in which the same is.
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
