"""The commands ``late``, ``quarantine`` and ``fate``: side tables and fates of single events."""

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
        ["event date", "rows", "waiting", "least late", "median", "most late", "watermark"],
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
        say(f"Requeue them with: {where.typed('tidelake late apply', pipeline)}")


@late.command("apply")
@of_pipeline
@click.option(
    "--event-date", type=click.DateTime(["%Y-%m-%d"]), help="Only rows of this event date."
)
@located
def late_apply(pipeline: str, event_date: datetime | None, where: Place) -> None:
    """Requeue late rows; the next run skips their lateness test."""
    with started(where, where.pipeline(pipeline)) as run:
        from tidelake.replay.requeue import apply_late  # noqa: PLC0415

        rows = apply_late(run, event_date=event_date.date() if event_date else None)
    _say_requeued(rows, where, pipeline)


@click.group()
def quarantine() -> None:
    """List, replay or discard quarantined rows."""


def _chosen(command: Callable[..., Any]) -> Callable[..., Any]:
    stage = click.option(
        "--stage", type=click.Choice(_STAGES), help="Only rows that failed at this stage."
    )
    rule = click.option(
        "--rule", metavar="TEXT", help="Only rows with a reason that contains this text."
    )
    return stage(rule(command))


@quarantine.command("list")
@of_pipeline
@_chosen
@as_json
@located
def quarantine_list(
    pipeline: str, stage: str | None, rule: str | None, json_: bool, where: Place
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
        title=f"Quarantine of {pipeline}; a row with several reasons is on several lines",
    )
    for group in groups:
        print_line(f"  {group.reason}")
        print_line(f"    {_text(group.example, _EXAMPLE)}")
    if groups:
        look = where.typed("tidelake quarantine replay", pipeline, "--look")
        say(f"After a fix, preview what would be released: {look}")


@quarantine.command("replay")
@of_pipeline
@_chosen
@click.option("--look", is_flag=True, help="Show what would be released; requeue nothing.")
@as_json
@located
def quarantine_replay(
    pipeline: str, stage: str | None, rule: str | None, look: bool, json_: bool, where: Place
) -> None:
    """Requeue rows that the current definition would accept."""
    with started(where, where.pipeline(pipeline)) as run:
        from tidelake.replay.requeue import Choice, replay_quarantine  # noqa: PLC0415

        replay = replay_quarantine(run, Choice(stage, rule), look_only=look)
    if json_:
        print_json(asdict(replay) | {"released": replay.released})
        return
    print_table(
        ["failed at", "fate now", "rows"],
        [
            [
                outcome.stage,
                f"{outcome.fate} ({outcome.now})" if outcome.now else outcome.fate,
                outcome.rows,
            ]
            for outcome in replay.outcomes
        ],
        title=f"Quarantine of {pipeline}, judged by the current definition",
    )
    if look:
        say(f"{replay.released:,} rows would be released. Nothing was requeued.")
    else:
        _say_requeued(replay.requeued, where, pipeline)


@quarantine.command("discard")
@of_pipeline
@_chosen
@click.option("--reason", required=True, metavar="TEXT", help="Reason, stored with each row.")
@located
def quarantine_discard(
    pipeline: str, stage: str | None, rule: str | None, reason: str, where: Place
) -> None:
    """Discard rows; they stay in the table and the ledger."""
    if not reason.strip():
        raise click.BadParameter("must not be blank", param_hint="--reason")
    with started(where, where.pipeline(pipeline)) as run:
        from tidelake.replay.requeue import Choice, discard_quarantine  # noqa: PLC0415

        rows = discard_quarantine(run, Choice(stage, rule), why=reason)
    listed = where.typed("tidelake quarantine list", pipeline)
    say(f"{rows:,} rows discarded. See them with: {listed}")


def _say_requeued(rows: int, where: Place, pipeline: str) -> None:
    if rows:
        command = where.typed("tidelake run", pipeline)
        say(f"{rows:,} rows requeued. Process them with: {command}")
    else:
        say("Nothing to requeue: no waiting row would be accepted.")


def _bars(trend: Sequence[int]) -> str:
    most = max(trend, default=0)
    if not most:
        return "." * len(trend)
    return "".join(_BARS[-(-n * (len(_BARS) - 1) // most)] if n else "." for n in trend)


def _text(payload: bytes, limit: int) -> str:
    text = payload[:limit].decode("utf-8", errors="backslashreplace")
    return text + ("…" if len(payload) > limit else "")


# Limits of the text output; --json has whole payloads and all gold rows.
_SHOWN_PAYLOAD, _SHOWN_ROWS = 400, 3
_STATE_TEXTS = {
    "silver": "accepted",
    "duplicate": "a duplicate",
    "quarantined": "in quarantine",
    "discarded": "in quarantine, discarded",
    "late": "too late",
    "filtered": "filtered",
    "requeued": "requeued, waiting for the next run",
    "pending": "waiting for the next run",
}
_VERDICT_TEXTS = {
    "outside": "excluded by the table's where",
    "waiting": "gold has not read its batch yet",
    "no row": "no row for this event",
    "unknown": "unknown: the table's where can only be evaluated by Spark",
}


@click.command()
@of_pipeline
@click.option("--event-id", metavar="ID", help="All records of this event.")
@click.option("--record-id", metavar="ID", help="The record with this id.")
@as_json
@located
def fate(
    pipeline: str, event_id: str | None, record_id: str | None, json_: bool, where: Place
) -> None:
    """Show the fate of an event and the gold rows counting it."""
    from tidelake.replay.fate import fates_of  # noqa: PLC0415

    if (event_id is None) is (record_id is None):
        raise UsageError("give exactly one of --event-id and --record-id.")
    definition = where.pipeline(pipeline)
    fates = fates_of(where.lake, definition, event_id=event_id, record_id=record_id)
    if json_:
        print_json([asdict(found) for found in fates])
        return
    for found in fates:
        _show_fate(found, pipeline, where.typed)


def _show_fate(found: Fate, pipeline: str, typed: Typed) -> None:
    stage = f", {found.stage}" if found.stage else ""
    facts = [
        ("arrived", f"{found.ingested_at:%Y-%m-%d %H:%M:%SZ} from {found.source}"),
        ("event id", found.event_id or "could not be parsed"),
        ("event time", f"{found.event_time:%Y-%m-%d %H:%M:%SZ}" if found.event_time else None),
        ("payload", _text(found.payload, _SHOWN_PAYLOAD)),
        *[("reason", reason) for reason in found.reasons],
        ("requeued", f"{found.requeued_at:%Y-%m-%d %H:%M:%SZ}" if found.requeued_at else None),
    ]
    rows = [(name, value) for name, value in facts if value]
    print_table(["", ""], rows, title=f"{found.record_id}: {_STATE_TEXTS[found.state]}{stage}")
    for count in found.counted:
        _show_gold(count)
    if found.state == "late":
        say(f"Requeue it with: {typed('tidelake late apply', pipeline)}")
    elif found.state == "quarantined":
        preview = typed("tidelake quarantine replay", pipeline, "--look")
        say(f"Check whether it would pass now: {preview}")
    elif found.state in ("requeued", "pending"):
        say(f"Process it with: {typed('tidelake run', pipeline)}")


def _show_gold(count: GoldCount) -> None:
    if not count.rows:
        print_line(f"  {count.table}: {_VERDICT_TEXTS[count.verdict]}")
        print()
        return
    shown = [
        {name: value for name, value in row.items() if name != "session_id"}
        for row in count.rows[:_SHOWN_ROWS]
    ]
    print_table(list(shown[0]), [list(row.values()) for row in shown], title=f"  {count.table}")
    if len(count.rows) > len(shown):
        print_line(f"  and {len(count.rows) - len(shown)} more rows, with --json")
        print()
