"""The commands ``repair``, ``reset``, ``backfill`` and ``erase``."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from types import FrameType
from typing import TYPE_CHECKING, Literal

import click

from tidelake.cli.exits import say
from tidelake.cli.flow import started
from tidelake.cli.options import (
    Place,
    StoredText,
    changing,
    confirm,
    duration_option,
    moment_option,
    reporting,
    yes_option,
)
from tidelake.cli.render import print_table, to_minute
from tidelake.delta.tables import HOPS, Hop, delta_readers
from tidelake.errors import UsageError
from tidelake.instants import lasting
from tidelake.names import logical_name
from tidelake.replay.subject import parse_subject

if TYPE_CHECKING:
    from tidelake.replay.backfill import Step
    from tidelake.replay.backfill_state import Start
    from tidelake.replay.differences import Differences
    from tidelake.replay.erase import Report


def _warn_of_readers(where: Place, start: Start, table: str | None = None) -> None:
    """Name the pipelines that end once tables which are filled from a layer are replaced."""
    from tidelake.replay.backfill_state import green_lake  # noqa: PLC0415

    lake, name = where.lake, where.pipeline.name
    own = map(lake.table, sorted(green_lake(lake, where.pipeline, start, table).own))
    for reader, read in delta_readers([*own], where.environment, own=name):
        say(
            f"warning: {read.name} is read by {reader.name} as its source; once its rows are "
            f"replaced, the next run of hop bronze of {reader.name} is refused, and nothing helps "
            "but to fill that pipeline under another --root or catalog"
        )


@click.command()
@click.option("--hop", type=click.Choice(HOPS), required=True, help="Hop to repair.")
@yes_option
@changing
def repair(hop: Hop, yes: bool, dry_run: bool, where: Place) -> None:
    """Resume a hop after the last batch in its tables.

    If that position is unknown, because an input was rewritten, the tables disagree or the
    definition changed, silver or gold is recomputed instead. It asks before that, because it
    replaces the rows.
    """
    name = where.pipeline.name
    start: Start = "bronze" if hop == "silver" else "silver"

    def agreed(why: str) -> None:
        _warn_of_readers(where, start)
        with _ended_by_signals():
            confirm(f"Rebuilding {hop} of {name} ({why})", yes=yes)

    with started(where) as run:
        from tidelake.replay.repairing import repair as begin  # noqa: PLC0415
        from tidelake.replay.repairing import why_rebuilt  # noqa: PLC0415

        repaired = (None, why_rebuilt(run, hop)) if dry_run else begin(run, hop, agreed=agreed)
    generation, why = repaired
    if dry_run and why:
        _warn_of_readers(where, start)
    found = {"pipeline": name, "hop": hop, "generation": generation, "rebuilt": why or None}
    if where.printed(found | {"dry_run": dry_run}):
        return
    if dry_run:
        resume = f"resume {hop} of {name} after the last batch in its tables"
        would = f"rebuild {hop} of {name}: {why}" if why else resume
        say(f"A repair would {would}. Nothing was changed.")
        return
    if why:
        say(f"Rebuilt {hop} of {name} as generation {generation}: {why}.")
    else:
        say(
            f"Hop {hop} of {name} resumes after the last batch in its tables, as generation "
            f"{generation}."
        )
    say(f"Continue with: {where.command('run')}")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a question: within :func:`started` they only set an event."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(number: int, frame: FrameType | None) -> None:
        noted = before[signal.Signals(number)]
        if callable(noted):
            noted(number, frame)
        raise KeyboardInterrupt

    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command()
@click.option(
    "--hop", type=click.Choice(["silver", "gold"]), required=True, help="First hop to recompute."
)
@yes_option
@changing
def reset(hop: Literal["silver", "gold"], yes: bool, dry_run: bool, where: Place) -> None:
    """Recompute silver and gold, or gold alone; bronze is kept.

    It replaces the tables at once, and asks first; a backfill compares them before, and can be
    rolled back.
    """
    from tidelake.replay.repairing import refuse_unresettable  # noqa: PLC0415

    name = where.pipeline.name
    refuse_unresettable(where.lake, where.pipeline, hop)
    start: Start = "bronze" if hop == "silver" else "silver"
    _warn_of_readers(where, start)
    if dry_run:
        steps = _steps(start, where)
        planned = [step.to_json() for step in steps]
        if not where.printed({"pipeline": name, "steps": planned, "dry_run": True}):
            _print_steps(steps, f"Reset of {name} from {hop} on")
            say("The rows of these tables would be replaced at once. Nothing was changed.")
        return
    confirm(f"Replacing the rows of {name} from {hop} on", yes=yes)
    with started(where) as run:
        from tidelake.replay.repairing import reset as recompute  # noqa: PLC0415

        made = recompute(run, hop)
    if not where.printed({"pipeline": name, "generations": made, "dry_run": False}):
        hops = " and ".join(f"{one} as generation {new}" for one, new in made.items())
        say(f"Recomputed {hops}. Continue with: {where.command('run')}")


@click.group()
def backfill() -> None:
    """Rebuild tables next to the live ones, compare and swap."""


_from = click.option(
    "--from",
    "start",
    type=click.Choice(["bronze", "silver"]),
    show_default="bronze; with --table silver",
    help="Layer to read; silver rebuilds gold only.",
)
_table = click.option("--table", metavar="NAME", help="Only this gold table, from silver.")


def _scope(start: Start | None, table: str | None, where: Place) -> tuple[Start, str | None]:
    """Return the layer that a backfill reads, and the logical name of its only table, if any."""
    from tidelake.replay.repairing import gold_table, need_gold  # noqa: PLC0415

    if table is None:
        return start or "bronze", None
    if start == "bronze" and table:
        raise UsageError("--table recomputes a gold table from silver: leave out --from bronze")
    need_gold(where.pipeline)
    return start or "silver", gold_table(where.lake, where.pipeline, table).target.table.name


@backfill.command()
@_from
@_table
@reporting
def plan(start: Start | None, table: str | None, where: Place) -> None:
    """Show what a backfill would read and an estimated time."""
    start, table = _scope(start, table, where)
    _show_plan(start, where, table)


def _steps(start: Start, where: Place, table: str | None = None) -> list[Step]:
    from tidelake.replay.backfill import plan as replay_plan  # noqa: PLC0415

    return replay_plan(where.lake, where.pipeline, start, table)


def _print_steps(steps: Sequence[Step], title: str) -> None:
    rows = []
    for step in steps:
        estimate = "unknown" if step.seconds is None else lasting(step.seconds)
        fills = ", ".join(step.fills)
        rows.append([step.hop, step.reads, step.version, step.rows, fills, estimate])
    print_table(["hop", "reads", "version", "rows", "fills", "estimate"], rows, title=title)


def _show_plan(
    start: Start,
    where: Place,
    table: str | None,
    first: datetime | None = None,
    last: datetime | None = None,
) -> None:
    from tidelake.replay.backfill_state import read_state, run_options  # noqa: PLC0415

    name, steps = where.pipeline.name, _steps(start, where, table)
    if where.printed([step.to_json() for step in steps]):
        return
    _print_steps(steps, f"Backfill of {name} from {start}")
    state = read_state(where.lake, where.pipeline)
    if state is not None:
        gives_up = "; a new one gives up its rollback" if state.is_promoted else ""
        say(f"The last backfill of {name} is {state.stage}{gives_up}.")
    begin, end = (one.isoformat() if one else None for one in (first, last))
    options = run_options(start, table, begin, end)
    command = where.command("backfill run", options)
    say(f"Live tables are not changed. Start with: {command}")


@backfill.command()
@_from
@_table
@moment_option("--start", "first", help="From this arrival (bronze) or event time (silver), UTC.")
@moment_option("--end", "last", help="With --from silver: rows before this event time (UTC).")
@duration_option("--for", "length", help="Range length from --start, instead of --end.")
@yes_option
@changing
def run(
    start: Start | None,
    table: str | None,
    first: datetime | None,
    last: datetime | None,
    length: timedelta | None,
    yes: bool,
    dry_run: bool,
    where: Place,
) -> None:
    """Fill new tables; run again to add new arrivals.

    After a promotion it asks, because it gives up the rollback.
    """
    start, table = _scope(start, table, where)
    if table and (first or last or length):
        raise UsageError("--table recomputes all of a table: leave out --start, --end and --for")
    if length is not None:
        if first is None or last is not None:
            raise UsageError("--for replaces --end and needs --start: give --start and --for")
        try:
            last = first + length
        except OverflowError as error:
            raise UsageError("--start and --for end after the year 9999: shorten --for") from error
    if start == "bronze" and last:
        raise UsageError(
            "a backfill from bronze has no --end: whether a row is a duplicate depends on all "
            "rows that arrived before it. Give --start alone, or a range of gold with --from silver"
        )
    if start == "silver" and not (first is last is None or (first and last and first < last)):
        raise UsageError(
            "a range needs --start and a later --end, such as --start 2026-01-05 --end 2026-01-06"
        )
    if dry_run:
        if first:
            say("The rows and the estimate are those of whole tables, not of the range.")
        _show_plan(start, where, table, first, last)
        return
    from tidelake.replay.backfill import build  # noqa: PLC0415
    from tidelake.replay.backfill_state import read_state  # noqa: PLC0415

    before = read_state(where.lake, where.pipeline)
    gives_up = before is not None and before.is_promoted
    if gives_up:
        confirm(f"Giving up the rollback of {where.pipeline.name}'s promoted backfill", yes=yes)
    with started(where) as context:
        span = (first, last) if first and last else None
        since = first if start == "bronze" else None
        # It may be promoted while Spark starts.
        agreed = gives_up or yes
        state = build(context, start, span, since=since, table=table, gives_up=agreed)
    if not where.printed({"pipeline": where.pipeline.name} | asdict(state)):
        say(f"Built. Compare with: {where.command('backfill compare')}")


@backfill.command()
@reporting
def compare(where: Place) -> None:
    """Show what a promotion would change, and why."""
    from tidelake.replay.backfill_promotion import need_promotable  # noqa: PLC0415

    name = where.pipeline.name
    state = need_promotable(where.lake, where.pipeline, ["built"])
    with started(where) as context:
        from tidelake.replay.differences import differences  # noqa: PLC0415

        found = differences(context, state)
    gold = {
        table: comparison.to_json() | {"redefined": table in found.redefined}
        for table, comparison in found.gold.items()
    }
    document = {"pipeline": name, "equal": found.equal, "silver": found.silver, "gold": gold}
    if not where.printed(document):
        _show_differences(name, found)
        say(f"Swap with: {where.command('backfill promote')}")


def _show_differences(name: str, found: Differences) -> None:
    if found.silver:
        print_table(
            ["cause", "fate now", "new fate", "rows", "example"],
            [[c.cause, c.was, c.becomes, c.rows, c.example] for c in found.silver],
            title=f"Rows of {logical_name('bronze', name)} whose fate changes",
        )
    rows = []
    for table, comparison in found.gold.items():
        mark, note = "=" if comparison.equal else "~", table in found.redefined
        rows.append(
            [mark, table, comparison.rows, comparison.differing, "redefined" if note else ""]
        )
    title = f"{name}: {'no changes' if found.equal else 'changes'}"
    print_table(["", "gold table", "rows now", "differing", ""], rows, title=title)


@backfill.command()
@changing
def promote(dry_run: bool, where: Place) -> None:
    """Replace live tables with the new ones, arrivals included."""
    from tidelake.replay import backfill_promotion as replay  # noqa: PLC0415

    _warn_of_swapped(where)
    if dry_run:
        state = replay.need_promotable(where.lake, where.pipeline)
        before = replay.replaced_versions(where.lake, where.pipeline, state)
        _show_swap(before, "version replaced", "Nothing was replaced.", where)
        return
    with started(where) as context:
        state = replay.promote(context)
    if not where.printed({"pipeline": where.pipeline.name} | asdict(state)):
        say(
            f"Promoted. Continue with: {where.command('run')}\n"
            f"Undo with: {where.command('backfill rollback')}"
        )


@backfill.command()
@changing
def rollback(dry_run: bool, where: Place) -> None:
    """Restore the tables from before the promotion."""
    from tidelake.replay import backfill_promotion as replay  # noqa: PLC0415
    from tidelake.replay.backfill import plan_rollback  # noqa: PLC0415
    from tidelake.replay.backfill_state import begun_swap, need_state, what_next  # noqa: PLC0415

    _warn_of_swapped(where)
    if dry_run:
        versions, emptied = dict[str, int | None](), list[str]()
        if begun_swap(where.lake, where.pipeline) is None:
            state = need_state(where.lake, where.pipeline, *replay.CAN_ROLL_BACK)
            versions, emptied = plan_rollback(where.lake, where.pipeline, state)
        _show_swap(versions, "version restored", "Nothing was restored.", where, emptied=emptied)
        return
    with started(where) as context:
        state = replay.rollback(context)
    if where.printed({"pipeline": where.pipeline.name} | asdict(state)):
        return
    if state.stage == "built":
        say(f"No table had been swapped, and none has changed: {what_next(where.pipeline, state)}.")
    else:
        say(
            "Rolled back. If the backfill used a changed definition, restore the old one too.\n"
            f"Process newer arrivals with: {where.command('run')}"
        )


def _warn_of_swapped(where: Place) -> None:
    from tidelake.replay.backfill_state import read_state  # noqa: PLC0415

    if (state := read_state(where.lake, where.pipeline)) is not None:
        _warn_of_readers(where, state.start, state.table)


def _show_swap(
    versions: Mapping[str, int | None],
    what: str,
    note: str,
    where: Place,
    *,
    emptied: Sequence[str] = (),
) -> None:
    """Print the version of each table, None for one that is recomputed, and the emptied tables."""
    name = where.pipeline.name
    found = {"pipeline": name, "dry_run": True, "tables": dict(versions), "emptied": emptied}
    if not where.printed(found):
        rows = [
            [table, "none: recomputed from silver" if version is None else version]
            for table, version in versions.items()
        ]
        rows += [[table, "none: emptied"] for table in emptied]
        print_table(["table", what], rows, title=f"Tables of {name}")
        say(note)


@click.command()
@click.option(
    "--subject",
    "whose",
    required=True,
    type=StoredText(),
    metavar="COLUMN=VALUE",
    help="A column of silver, and its value.",
)
@click.option("--source", metavar="PATH", help="Source that run reads, if not the pipeline file's.")
@click.option(
    "--now", "at_once", is_flag=True, help="Delete old files now, even if they are being read."
)
@yes_option
@changing
def erase(whose: str, at_once: bool, yes: bool, dry_run: bool, where: Place) -> None:
    """Erase a subject's rows from every table.

    It asks first, because an erasure cannot be undone. Repeat the command to continue an
    interrupted erasure. Hops and maintenance must not run meanwhile: the erasure first processes
    what waits in each hop.
    """
    from tidelake.ledger.history import require_tables  # noqa: PLC0415

    name = where.pipeline.name
    subject = parse_subject(whose, where.pipeline)
    require_tables(where.lake, name)
    if not dry_run:
        confirm(f"Erasing a subject from {name}", yes=yes)
    with started(where) as run:
        from tidelake.replay import erase as replay  # noqa: PLC0415

        if dry_run:
            rows = replay.look(run, subject)
            if not where.printed({"pipeline": name, "rows": rows, "dry_run": True}):
                print_table(["table", "rows"], rows.items(), title=f"Rows of the subject in {name}")
                say("Nothing was erased. Without --dry-run they are erased and gold is recomputed.")
            return
        report = replay.erase(run, subject, now=at_once)
    if not where.printed(report.to_json()):
        _show_report(report)
        say(f"See the ledger with: {where.command('ledger')}")


def _show_report(report: Report) -> None:
    title = f"Erased from {report.pipeline}, by {report.column}"
    title = title if report.rows else f"{title}: no rows found"
    print_table(["table", "rows"], report.rows.items(), title=title)
    # One row for all places with the same remains.
    places: dict[tuple[str, datetime | None, str], list[str]] = {}
    for remains in report.remains:
        key = (remains.what, remains.until, remains.remedy)
        places.setdefault(key, []).append(remains.where)
    left = []
    for (what, until, remedy), where in places.items():
        more = f" and {len(where) - 1} more (--json)" if len(where) > 1 else ""
        left.append([what, f"{where[0]}{more}", to_minute(until), remedy])
    if left:
        print_table(["what", "where", "until", "remedy"], left, title="Remaining copies")
    if report.sent_again:
        say(
            f"{report.sent_again:,} conflicting rows of other subjects were requeued: "
            "an erased row had been accepted with their event id."
        )
    if report.rollback_given_up:
        say("The backfill's tables were removed: its promotion can no longer be rolled back.")
