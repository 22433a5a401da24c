"""The command ``fate``: where a record is, why, and in which rows of gold it counts."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tidelake.cli.exits import say
from tidelake.cli.options import Place, as_json, located, of_pipeline
from tidelake.cli.render import print_json, print_line, print_table
from tidelake.errors import UsageError
from tidelake.typed import Typed

if TYPE_CHECKING:
    from tidelake.replay.fate import Fate, GoldCount

# The rest of a payload, and the other windows of a hopping table, are in --json.
_SHOWN_PAYLOAD, _SHOWN_ROWS = 400, 3
# Names a session for machines; its key and its start do for people.
_HASH = "session_id"
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
    """Tell where an event is, why, and in which rows of gold it counts; without Spark."""
    from tidelake.replay.fate import fates_of_event, fates_of_record  # noqa: PLC0415

    definition = where.pipeline(pipeline)
    if event_id is not None and record_id is None:
        fates = fates_of_event(where.lake, definition, event_id)
    elif record_id is not None and event_id is None:
        fates = fates_of_record(where.lake, definition, record_id)
    else:
        raise UsageError("give one of --event-id and --record-id.")
    if json_:
        print_json([asdict(one) for one in fates])
        return
    for one in fates:
        _show(one, pipeline, where.typed)


def _show(one: Fate, pipeline: str, typed: Typed) -> None:
    stage = f", {one.stage}" if one.stage else ""
    payload = one.payload[:_SHOWN_PAYLOAD].decode("utf-8", errors="backslashreplace")
    told = [
        ("arrived", f"{one.ingested_at:%Y-%m-%d %H:%M:%SZ} from {one.source}"),
        ("event", one.event_id or "no id that could be read"),
        ("happened", f"{one.event_time:%Y-%m-%d %H:%M:%SZ}" if one.event_time else None),
        ("payload", payload + ("…" if len(one.payload) > _SHOWN_PAYLOAD else "")),
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
        {name: value for name, value in row.items() if name != _HASH}
        for row in one.rows[:_SHOWN_ROWS]
    ]
    print_table(list(shown[0]), [list(row.values()) for row in shown], title=f"  {one.table}")
    if len(one.rows) > len(shown):
        print_line(f"  and {len(one.rows) - len(shown)} rows more, with --json")
        print()
