"""The commands ``status``, ``ledger``, ``late``, ``quarantine`` and ``fate``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import click

from tidelake.cli.exits import say
from tidelake.cli.flow import started
from tidelake.cli.options import (
    Place,
    StoredText,
    changing,
    confirm,
    ranged,
    reporting,
    yes_option,
)
from tidelake.cli.render import print_json, print_line, print_table, to_minute, to_second
from tidelake.config import Pipeline
from tidelake.config.pipeline import selected_columns
from tidelake.delta.locks import unfinished
from tidelake.delta.tables import Lake
from tidelake.errors import UnbalancedError, UsageError
from tidelake.instants import Range
from tidelake.names import logical_name

if TYPE_CHECKING:
    # These modules import Spark, which not every command needs.
    from tidelake.ledger.query import Answer
    from tidelake.ledger.terms import Ledger
    from tidelake.ops.status import SourceLag, Status
    from tidelake.replay.fate import Fate

_TOP = 3
_WATCH_SECONDS = 5
# Partitions shown; --json lists all.
_PARTITIONS = 20
_Rows = Sequence[Sequence[object]]


@click.command()
@click.option("--watch", is_flag=True, help="Refresh every few seconds, until Ctrl-C.")
@reporting
def status(watch: bool, where: Place) -> None:
    """Show the progress and lag of each hop."""
    from tidelake.ops.status import read_status  # noqa: PLC0415

    if watch and where.json:
        raise UsageError("--watch is for a terminal: leave out --json")
    found = read_status(where.lake, where.pipeline)
    begun = [*unfinished(where.lake, where.pipeline.name).values()]
    if not where.printed(found.to_json() | {"unfinished": begun}):
        _show_status(found, begun)
    with suppress(KeyboardInterrupt):
        while watch:
            time.sleep(_WATCH_SECONDS)
            found = read_status(where.lake, where.pipeline)
            click.clear()
            _show_status(found, [*unfinished(where.lake, where.pipeline.name).values()])


def _show_status(status: Status, begun: Sequence[str]) -> None:
    bronze_unit = "files" if status.source is None else "records"
    hops = []
    for hop in status.hops:
        unit = bronze_unit if hop.hop == "bronze" else "rows"
        waiting = None if hop.waiting is None else f"{hop.waiting:,} {unit}"
        committed = to_second(hop.last_commit)
        speed = hop.rows_per_second
        rate = None if speed is None else f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"
        hops.append([hop.hop, hop.generation, hop.batch, hop.rows, rate, waiting, committed])
    title = f"{status.pipeline}: watermark {to_second(status.watermark) or 'none yet'}"
    columns = ["hop", "generation", "batch", "rows", "rows/s", "waiting", "last commit"]
    print_table(columns, hops, title=title)
    dedup = status.dedup
    if status.held_back_by is not None:
        idle = f"; idle: {', '.join(status.idle)}" if status.idle else ""
        print_line(f"  the watermark waits for source partition {status.held_back_by}{idle}")
    print_line(
        f"  the last batch searched {dedup.searched:,} ids for duplicates in {dedup.seconds:.1f} s"
    )
    if dedup.prefiltered is not None:
        print_line(f"  its prefilter held back {dedup.prefiltered:,} rows")
    for dimension in status.dimensions:
        at = f"at version {dimension.version}" if dimension.version >= 0 else "does not exist yet"
        print_line(f"  {dimension.table} {at}; {dimension.unmatched:,} rows of silver had no match")
    for rule, rows in status.warnings.items():
        print_line(f"  warning: {rows:,} rows of silver fail {rule}")
    for table, rows in status.failed.items():
        print_line(f"  {table}: an expression failed on {rows:,} events or rows and gave null")
    for table in status.to_fill:
        print_line(f"  {table} is not filled yet: the next run of hop gold fills it from silver")
    for topic in status.topics:
        place = f"  {topic.table} is published to topic {topic.topic}"
        if topic.version is None:
            print_line(f"{place} by the next run")
        else:
            waiting = "an unknown number of" if topic.waiting is None else f"{topic.waiting:,}"
            print_line(f"{place} up to version {topic.version}; {waiting} versions wait")
    for what in begun:
        print_line(f"  {what}")
    if status.source is not None:
        _show_lag(status.source)


def _show_lag(source: SourceLag) -> None:
    shown = source.partitions[:_PARTITIONS]
    print_table(
        ["partition", "read up to", "end offset", "lag", ""],
        [[f"{p.topic}:{p.partition}", p.taken, p.end, p.lag, p.trend] for p in shown],
        title=f"Kafka at {to_second(source.checked_at)}: {source.lag:,} records wait",
    )
    if len(source.partitions) > len(shown):
        print_line(f"  and {len(source.partitions) - len(shown)} partitions more, with --json")
    if source.not_asked:
        note = f"as of the last batch; the broker was not asked: {source.not_asked}"
        print(fill(note, width=100, initial_indent="  ", subsequent_indent="  "))
    if source.rows_per_second is not None and source.arriving_per_second is not None:
        seconds = source.catch_up_seconds
        print(
            f"  bronze reads {source.rows_per_second:,.0f} rows/s while a batch runs, "
            f"{source.arriving_per_second:,.0f} rows/s arrive: "
            + ("never caught up" if seconds is None else f"caught up in {seconds:,.0f} s")
        )
    print_line(f"  {source.advice.text}")


@click.command()
@click.option(
    "--by", type=click.Choice(["batch", "day"]), help="Show one line per batch or per day."
)
@ranged("batches that silver closed")
@reporting
def ledger(by: Literal["batch", "day"] | None, within: Range, where: Place) -> None:
    """Print the ledger; exit 3 if it does not balance.

    With a range, print what silver took and the fates it gave in its batches; all of the ledger is
    checked nevertheless.
    """
    from tidelake.ledger.terms import ledger_by, read_ledger  # noqa: PLC0415

    found, shown = read_ledger(where.lake, where.pipeline), by or ("range" if any(within) else None)
    lines = ledger_by(found.batches, shown, within) if shown else []
    more = {f"by_{shown}": [line.to_json() for line in lines]} if shown else {}
    if where.json:
        print_json(found.to_json() | more)
    elif shown:
        columns = ["", "taken", "silver", "dup", "quarant.", "late", "filtered"]
        fates = ("silver", "duplicate", "quarantined", "late", "filtered")
        rows = []
        for line in lines:
            counts = [line.fates[fate] for fate in fates]
            end = to_second(line.closed_at)
            rows.append([line.name, line.taken, *counts, line.returned, end])
        _print_ledger(found, [*columns, "requeued", "until"], rows)
    else:
        show_ledger(found, where)
    refuse_unbalanced(found.problems, where)


def show_ledger(ledger: Ledger, where: Place) -> None:
    """Print the ledger: source, bronze, the fates of its rows, gold, and problems."""
    terms = ledger.to_json()
    stages = ", ".join(f"{stage} {rows:,}" for stage, rows in ledger.stages.items())
    discarded = f"; {ledger.discarded:,} of them discarded" if ledger.discarded else ""
    source = "records in the source"
    if ledger.topics:
        offsets = terms["source_offsets"]
        source += f", at {offsets['offered']:,} offsets ({offsets['without_record']:,} without one)"
    skipped = ", or without a row, such as tombstones" if where.pipeline.envelope else ""
    rows = [
        ["source", terms["source"], source],
        ["erased", terms["erased"], "records removed by an erasure"],
        ["bronze", terms["bronze"], "rows, each payload verbatim"],
        ["  silver", terms["silver"], "accepted events"],
        ["  duplicates", terms["duplicates"], "copies of an accepted event"],
        ["  quarantined", terms["quarantined"], (stages or "none") + discarded],
        ["  late", terms["late"], f"too late: {where.command('late list')}"],
        ["  filtered", terms["filtered"], f"excluded by the pipeline's where{skipped}"],
        ["  pending", terms["pending"], "not yet read by silver"],
        ["  requeued", terms["requeued"], "requeued, not yet read by silver"],
    ]
    gold = [[name, term.expected, term.counted] for name, term in ledger.gold.items()]
    _print_ledger(ledger, ["term", "rows", ""], rows, gold)
    for folder in ledger.source.unlisted:
        print_line(f"  {folder} cannot be listed: what waits there is not counted")


def _print_ledger(ledger: Ledger, columns: Sequence[str], rows: _Rows, gold: _Rows = ()) -> None:
    verdict = "balanced" if ledger.balanced else "NOT BALANCED"
    print_table(columns, rows, title=f"Ledger of {ledger.pipeline}: {verdict}")
    if gold:
        print_table(["gold table", "expected", "counted"], gold)
    for problem in ledger.problems:
        print_line(f"  !! {problem}")


def refuse_unbalanced(problems: Sequence[str], where: Place) -> None:
    """Raise an UnbalancedError if the ledger has problems."""
    if problems:
        raise UnbalancedError(
            f"the ledger of {where.called} does not balance. {problems[0]}. "
            f"See the batches with: {where.command('ledger', '--by batch')}"
        )


def tops_of(lake: Lake, pipeline: Pipeline) -> dict[str, Answer]:
    """Read the first rows of each gold table, ordered by its first measure or by time."""
    from tidelake.ledger.query import ask  # noqa: PLC0415

    tops: dict[str, tuple[Sequence[str], str]] = {}
    for gold in pipeline.gold:
        columns = [name for name in gold.columns if name != "session_id"]
        tops[gold.name] = columns, f'"{gold.measures[0].name}" DESC NULLS LAST'
    for join in pipeline.joins:
        tops[join.name] = join.columns, "_right_time IS NULL"
    for detection in pipeline.detections:
        columns = ["rule", "event_time", *detection.keys, "evidence"]
        tops[detection.name] = columns, "event_time DESC"
    for item in pipeline.queries:
        tops[item.name] = item.columns, f'"{item.parts.window.name}" DESC'
    tops = {logical_name("gold", name): top for name, top in tops.items()}
    if pipeline.dimension is not None:
        key, columns = pipeline.dimension.key, list(selected_columns(pipeline.event))
        for name in pipeline.gold_names:
            tops[name] = columns, ", ".join(f'"{column}"' for column in key)
    found: dict[str, Answer] = {}
    for name, (wanted, first) in tops.items():
        if lake.table(name).exists:
            shown = ", ".join(f'"{column}"' for column in wanted)
            query = f"SELECT {shown} FROM {name} ORDER BY {first}, {shown} LIMIT {_TOP}"
            found[name] = ask(lake, query)
    return found


@click.group()
def late() -> None:
    """List or requeue events that were too late."""


@late.command("list")
@ranged("rows with an event time")
@reporting
def late_list(within: Range, where: Place) -> None:
    """List late rows by event date."""
    from tidelake.ledger.side_tables import list_late  # noqa: PLC0415

    days = list_late(where.lake, where.pipeline, within)
    if where.printed(days):
        return
    rows = []
    for day in days:
        seconds = (day.least_seconds, day.median_seconds, day.most_seconds)
        hours = [f"{number / 3600:,.1f} h" for number in seconds]
        rows.append([day.event_date, day.rows, day.waiting, *hours, to_second(day.watermark)])
    columns = ["event date", "rows", "waiting", "least late", "median", "most late", "watermark"]
    print_table(columns, rows, title=f"Late rows of {where.called}")
    if any(day.waiting for day in days):
        say(f"Requeue them with: {where.command('late apply')}")


@late.command("apply")
@ranged("rows with an event time")
@changing
def late_apply(within: Range, dry_run: bool, where: Place) -> None:
    """Requeue late rows; the next run skips their lateness test."""
    with started(where) as run:
        from tidelake.replay.requeue import apply_late  # noqa: PLC0415

        rows = apply_late(run, within, dry_run=dry_run)
    if where.printed({"pipeline": where.pipeline.name, "rows": rows, "dry_run": dry_run}):
        return
    if dry_run:
        say(f"{rows:,} rows would be requeued. Nothing was changed.")
    else:
        _say_requeued(rows, where)


@click.group()
def quarantine() -> None:
    """List, replay or discard quarantined rows."""


_STAGES = ("parse", "contract", "expectation", "future_event_time", "conflicting_duplicate")
_EXAMPLE = 92
_BARS = "▁▂▃▄▅▆▇█"


def _chosen(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--stage``, ``--rule`` and a range of arrival, which a command passes on together."""
    stage = click.option(
        "--stage", type=click.Choice(_STAGES), help="Only rows that failed at this stage."
    )
    rule = click.option(
        "--rule",
        type=StoredText(),
        metavar="TEXT",
        help="Only rows with a reason that contains this text.",
    )
    return stage(rule(ranged("rows that arrived")(command)))


@quarantine.command("list")
@_chosen
@reporting
def quarantine_list(where: Place, **chosen: Any) -> None:
    """List quarantined rows by reason, with example and trend."""
    from tidelake.ledger.side_tables import list_quarantine  # noqa: PLC0415

    groups = list_quarantine(where.lake, where.pipeline, **chosen)
    if where.printed(groups):
        return
    rows = []
    for group in groups:
        discarded = f" ({group.discarded:,} discarded)" if group.discarded else ""
        count, trend = f"{group.rows:,}{discarded}", _bars(group.trend)
        rows.append([group.stage, group.reason, count, trend, to_minute(group.last)])
    name = where.called
    title = f"Quarantine of {name}; a row with several reasons is on several lines"
    print_table(["stage", "reason", "rows", "trend", "last"], rows, title=title)
    for group in groups:
        print_line(f"  {group.reason}")
        print_line(f"    {_text(group.example, _EXAMPLE)}")
    if groups:
        preview = where.command("quarantine replay", "--dry-run")
        say(f"After a fix, preview what would be released: {preview}")


@quarantine.command("replay")
@_chosen
@changing
def quarantine_replay(dry_run: bool, where: Place, **chosen: Any) -> None:
    """Requeue rows that the current definition would accept."""
    with started(where) as run:
        from tidelake.replay.requeue import Choice, replay_quarantine  # noqa: PLC0415

        replay = replay_quarantine(run, Choice(**chosen), dry_run=dry_run)
    found = {"pipeline": where.pipeline.name, "dry_run": dry_run, **asdict(replay)}
    if where.printed(found | {"released": replay.released}):
        return
    rows = [[o.stage, f"{o.fate} ({o.now})" if o.now else o.fate, o.rows] for o in replay.outcomes]
    title = f"Quarantine of {where.called}, judged by the current definition"
    print_table(["failed at", "fate now", "rows"], rows, title=title)
    if dry_run:
        say(f"{replay.released:,} rows would be released. Nothing was requeued.")
    else:
        _say_requeued(replay.requeued, where)


@quarantine.command("discard")
@_chosen
@click.option(
    "--reason",
    required=True,
    type=StoredText(),
    metavar="TEXT",
    help="Reason, stored with each row.",
)
@yes_option
@changing
def quarantine_discard(reason: str, yes: bool, dry_run: bool, where: Place, **chosen: Any) -> None:
    """Discard rows; they stay in the table and the ledger.

    It asks first, because no command restores discarded rows.
    """
    from tidelake.ledger.history import require_tables  # noqa: PLC0415

    if not reason.strip():
        raise click.BadParameter("must not be blank", param_hint="--reason")
    name = where.pipeline.name
    require_tables(where.lake, name)
    if not dry_run:
        confirm(f"Discarding quarantined rows of {name}", yes=yes)
    with started(where) as run:
        from tidelake.replay.requeue import Choice, discard_quarantine  # noqa: PLC0415

        rows = discard_quarantine(run, Choice(**chosen), why=reason, dry_run=dry_run)
    if where.printed({"pipeline": name, "rows": rows, "dry_run": dry_run}):
        return
    if dry_run:
        say(f"{rows:,} rows would be discarded. Nothing was changed.")
    else:
        say(f"{rows:,} rows discarded. See them with: {where.command('quarantine list')}")


def _say_requeued(rows: int, where: Place) -> None:
    if rows:
        say(f"{rows:,} rows requeued. Process them with: {where.command('run')}")
    else:
        say("Nothing to requeue: no row is waiting that would be accepted.")


def _bars(trend: Sequence[int]) -> str:
    most = max(trend, default=0) or 1
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
    "no row": "no row for this event: excluded, without a match, or replaced by another",
    "unknown": "unknown: only Spark can evaluate the SQL of this table",
}


@click.command()
@click.option("--event-id", metavar="ID", help="All records of this event.")
@click.option("--record-id", metavar="ID", help="The record with this id.")
@reporting
def fate(event_id: str | None, record_id: str | None, where: Place) -> None:
    """Show the fate of an event and the gold rows counting it."""
    from tidelake.replay.fate import fates_of  # noqa: PLC0415

    if (event_id is None) is (record_id is None):
        raise UsageError("give exactly one of --event-id and --record-id.")
    fates = fates_of(where.lake, where.pipeline, event_id=event_id, record_id=record_id)
    if not where.printed(fates):
        for found in fates:
            _show_fate(found, where)


def _show_fate(found: Fate, where: Place) -> None:
    stage = f", {found.stage}" if found.stage else ""
    facts = [
        ("arrived", f"{to_second(found.ingested_at)} from {found.source}"),
        ("event id", found.event_id or "could not be parsed"),
        ("event time", to_second(found.event_time)),
        ("payload", _text(found.payload, _SHOWN_PAYLOAD)),
        *[("reason", reason) for reason in found.reasons],
        ("requeued", to_second(found.requeued_at)),
    ]
    rows = [(name, value) for name, value in facts if value]
    print_table(["", ""], rows, title=f"{found.record_id}: {_STATE_TEXTS[found.state]}{stage}")
    for count in found.counted:
        if not count.rows:
            print_line(f"  {count.table}: {_VERDICT_TEXTS[count.verdict]}")
            print()
            continue
        columns = [name for name in count.rows[0] if name != "session_id"]
        shown = [[row[name] for name in columns] for row in count.rows[:_SHOWN_ROWS]]
        print_table(columns, shown, title=f"  {count.table}")
        if len(count.rows) > len(shown):
            print_line(f"  and {len(count.rows) - len(shown)} more rows, with --json")
            print()
    if found.state == "late":
        say(f"Requeue it with: {where.command('late apply')}")
    elif found.state == "quarantined":
        preview = where.command("quarantine replay", "--dry-run")
        say(f"Check whether it would pass now: {preview}")
    elif found.state in ("requeued", "pending"):
        say(f"Process it with: {where.command('run')}")
