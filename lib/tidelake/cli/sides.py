"""The commands ``late``, ``quarantine`` and ``fate``: what became of single records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from tidelake.cli.exits import say
from tidelake.cli.flow import started
from tidelake.cli.options import Place, as_json, located, of_pipeline
from tidelake.cli.render import print_json, print_line, print_table
from tidelake.errors import UsageError
from tidelake.typed import Typed

if TYPE_CHECKING:
    from tidelake.replay.fate import Fate, GoldCount

_BARS = "▁▂▃▄▅▆▇█"
_EXAMPLE = 92
_STAGES = ("parse", "contract", "expectation", "future_event_time", "conflicting_duplicate")


@click.group()
def late() -> None:
    """List or requeue events that were too late."""


@late.command("list")
@of_pipeline
@as_json
@located
def late_list(pipeline: str, json_: bool, where: Place) -> None:
    """List late rows by event date."""
    from tidelake.ledger.side_tables import list_late  # noqa: PLC0415

    days = list_late(where.lake, where.pipeline(pipeline))
    if json_:
        print_json([asdict(day) for day in days])
        return
    print_table(
        ["event date", "rows", "waiting", "late by", "median", "at most", "watermark"],
        [
            [
                str(day.event_date),
                day.rows,
                day.waiting,
                *(
                    f"{seconds / 3600:,.1f} h"
                    for seconds in (day.least_seconds, day.median_seconds, day.most_seconds)
                ),
                f"{day.watermark:%Y-%m-%d %H:%M:%SZ}",
            ]
            for day in days
        ],
        title=f"Late rows of {pipeline}",
    )
    if any(day.waiting for day in days):
        say(f"Count them after all with: {where.typed('tidelake late apply', pipeline)}")


@late.command("apply")
@of_pipeline
@click.option(
    "--event-date", type=click.DateTime(["%Y-%m-%d"]), help="Only the rows of this event date."
)
@located
def late_apply(pipeline: str, event_date: datetime | None, where: Place) -> None:
    """Requeue late rows past the lateness test, for the next run."""
    with started(where, where.pipeline(pipeline)) as run:
        from tidelake.replay.requeue import apply_late  # noqa: PLC0415

        rows = apply_late(run, event_date=event_date.date() if event_date else None)
    _told_requeued(rows, where, pipeline)


@click.group()
def quarantine() -> None:
    """List, replay or discard quarantined rows."""


def _chosen(command: Callable[..., Any]) -> Callable[..., Any]:
    stage = click.option("--stage", type=click.Choice(_STAGES), help="Rows that failed there.")
    rule = click.option("--rule", metavar="TEXT", help="Rows with a reason that holds this text.")
    return stage(rule(command))


@quarantine.command("list")
@of_pipeline
@_chosen
@as_json
@located
def quarantine_list(
    pipeline: str,
    stage: str | None,
    rule: str | None,
    json_: bool,
    where: Place,
) -> None:
    """List quarantined rows by reason, with example and trend."""
    from tidelake.ledger.side_tables import list_quarantine  # noqa: PLC0415

    groups = list_quarantine(where.lake, where.pipeline(pipeline), stage=stage, rule=rule)
    if json_:
        print_json([asdict(group) for group in groups])
        return
    print_table(
        ["stage", "reason", "rows", "trend", "last"],
        [
            [
                group.stage,
                group.reason,
                f"{group.rows:,}"
                + (f" ({group.discarded:,} discarded)" if group.discarded else ""),
                _bars(group.trend),
                f"{group.last:%Y-%m-%d %H:%MZ}",
            ]
            for group in groups
        ],
        title=f"Quarantine of {pipeline}; a row with several reasons is in several lines",
    )
    for group in groups:
        print_line(f"  {group.reason}")
        print_line(f"    {_text(group.example, _EXAMPLE)}")
    if groups:
        look = where.typed("tidelake quarantine replay", pipeline, "--look")
        say(f"After a fix, see what it would release: {look}")


@quarantine.command("replay")
@of_pipeline
@_chosen
@click.option("--look", is_flag=True, help="Show what would be released, and send nothing.")
@as_json
@located
def quarantine_replay(
    pipeline: str,
    stage: str | None,
    rule: str | None,
    look: bool,
    json_: bool,
    where: Place,
) -> None:
    """Requeue rows that would pass today, for the next run."""
    with started(where, where.pipeline(pipeline)) as run:
        from tidelake.replay.requeue import Choice, replay_quarantine  # noqa: PLC0415

        replay = replay_quarantine(run, Choice(stage, rule), look_only=look)
    if json_:
        print_json(asdict(replay) | {"released": replay.released})
        return
    print_table(
        ["failed at", "today", "rows"],
        [
            [one.stage, f"{one.fate} ({one.now})" if one.now else one.fate, one.rows]
            for one in replay.outcomes
        ],
        title=f"Quarantine of {pipeline}, judged by today's definition",
    )
    if look:
        say(f"{replay.released:,} rows would be released. Nothing was sent.")
    else:
        _told_requeued(replay.requeued, where, pipeline)


@quarantine.command("discard")
@of_pipeline
@_chosen
@click.option("--reason", required=True, metavar="TEXT", help="Why; written down with each row.")
@located
def quarantine_discard(
    pipeline: str,
    stage: str | None,
    rule: str | None,
    reason: str,
    where: Place,
) -> None:
    """Discard rows; they stay in the table and in the ledger."""
    if not reason.strip():
        raise click.BadParameter("say why", param_hint="--reason")
    with started(where, where.pipeline(pipeline)) as run:
        from tidelake.replay.requeue import Choice, discard_quarantine  # noqa: PLC0415

        rows = discard_quarantine(run, Choice(stage, rule), why=reason)
    listed = where.typed("tidelake quarantine list", pipeline)
    say(f"{rows:,} rows discarded. See them with: {listed}")


def _told_requeued(rows: int, where: Place, pipeline: str) -> None:
    if rows:
        take = where.typed("tidelake run", pipeline)
        say(f"{rows:,} rows requeued. Take them in with: {take}")
    else:
        say("Nothing to send: no row is waiting that would be taken.")


def _bars(trend: Sequence[int]) -> str:
    most = max(trend, default=0)
    if not most:
        return "." * len(trend)
    return "".join(_BARS[-(-n * (len(_BARS) - 1) // most)] if n else "." for n in trend)


def _text(payload: bytes, most: int) -> str:
    text = payload[:most].decode("utf-8", errors="backslashreplace")
    return text + ("…" if len(payload) > most else "")


# --json has whole payloads, and all windows of a hopping table.
_SHOWN_PAYLOAD, _SHOWN_ROWS = 400, 3
_WORDS = {
    "silver": "accepted",
    "duplicate": "a duplicate",
    "quarantined": "in quarantine",
    "discarded": "in quarantine, and given up",
    "late": "too late",
    "filtered": "filtered",
    "requeued": "sent again, waiting for the next run",
    "pending": "waiting for the next run",
}
_VERDICTS = {
    "outside": "outside the table's where",
    "waiting": "gold has not taken its batch yet",
    "no row": "it has no row of its own there",
    "unknown": "the table's where is SQL that only Spark understands",
}


@click.command()
@of_pipeline
@click.option("--event-id", metavar="ID", help="Every record of this event.")
@click.option("--record-id", metavar="ID", help="The record of this id.")
@as_json
@located
def fate(
    pipeline: str,
    event_id: str | None,
    record_id: str | None,
    json_: bool,
    where: Place,
) -> None:
    """Show the fate of an event, and the gold rows that count it."""
    from tidelake.replay.fate import fates_of  # noqa: PLC0415

    if (event_id is None) is (record_id is None):
        raise UsageError("give one of --event-id and --record-id.")
    definition = where.pipeline(pipeline)
    fates = fates_of(where.lake, definition, event_id=event_id, record_id=record_id)
    if json_:
        print_json([asdict(one) for one in fates])
        return
    for one in fates:
        _show_fate(one, pipeline, where.typed)


def _show_fate(one: Fate, pipeline: str, typed: Typed) -> None:
    stage = f", {one.stage}" if one.stage else ""
    told = [
        ("arrived", f"{one.ingested_at:%Y-%m-%d %H:%M:%SZ} from {one.source}"),
        ("event", one.event_id or "no id that could be read"),
        ("happened", f"{one.event_time:%Y-%m-%d %H:%M:%SZ}" if one.event_time else None),
        ("payload", _text(one.payload, _SHOWN_PAYLOAD)),
        *[("because", reason) for reason in one.reasons],
        ("sent again", f"{one.requeued_at:%Y-%m-%d %H:%M:%SZ}" if one.requeued_at else None),
    ]
    rows = [(name, value) for name, value in told if value]
    print_table(["", ""], rows, title=f"{one.record_id}: {_WORDS[one.state]}{stage}")
    for counted in one.counted:
        _show_gold(counted)
    if one.state == "late":
        say(f"Count it after all with: {typed('tidelake late apply', pipeline)}")
    elif one.state == "quarantined":
        say(f"Would it pass today? {typed('tidelake quarantine replay', pipeline, '--look')}")
    elif one.state in ("requeued", "pending"):
        say(f"Take it in with: {typed('tidelake run', pipeline)}")


def _show_gold(one: GoldCount) -> None:
    if not one.rows:
        print_line(f"  {one.table}: {_VERDICTS[one.verdict]}")
        print()
        return
    shown = [
        {name: value for name, value in row.items() if name != "session_id"}
        for row in one.rows[:_SHOWN_ROWS]
    ]
    print_table(list(shown[0]), [list(row.values()) for row in shown], title=f"  {one.table}")
    if len(one.rows) > len(shown):
        print_line(f"  and {len(one.rows) - len(shown)} rows more, with --json")
        print()
