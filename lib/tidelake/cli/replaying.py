"""The commands that compare tables with their definition and source, rebuild or erase them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelake.cli.exits import say
from tidelake.cli.flow import started
from tidelake.cli.options import (
    Place,
    duration_option,
    look_option,
    moment_option,
    on_pipeline,
    reporting,
)
from tidelake.cli.render import print_line, print_table, to_minute
from tidelake.config import Pipeline
from tidelake.delta.tables import HOPS, Hop
from tidelake.errors import RefusedError, SourceError, UnequalError, UsageError
from tidelake.kafka.registry import versions_of
from tidelake.replay.subject import parse_subject

if TYPE_CHECKING:
    from tidelake.ops.gate import GateReport
    from tidelake.replay.backfill import Start
    from tidelake.replay.backfill_promotion import Differences
    from tidelake.replay.compare import RowDifference
    from tidelake.replay.compatibility import FieldDrift, TableVerdict
    from tidelake.replay.erase import Report
    from tidelake.replay.verify import Verification

_STANDING_TEXTS = {
    "continues": "continues",
    "not there yet": "does not exist yet",
    "new": "new, while other tables hold data: needs a new generation",
    "redefined": "filled under another definition: needs a new generation",
    "no longer filled": "not in the definition: kept, but no longer written",
}
_VERDICT_TEXTS = {
    "added": "added; older rows are null",
    "kept": "kept; newer rows are null",
    "widened": "widened; no value changes",
    "refused": "needs a new generation",
}
_APPLIES, _INCOMPATIBLE = "changed; applies to new rows, a backfill applies it to all", "changed"


@click.command()
@click.option("--tables", is_flag=True, help="Also run the expectation suite on silver and gold.")
@reporting
def check(tables: bool, where: Place) -> None:
    """Check a definition against its tables; exit 3 if refused."""
    definition, suite = where.pipeline, where.pipeline.suite
    name = definition.name
    if tables and suite is None:
        raise UsageError(
            f"{definition.file} names no suite. Add quality: {{suite: expectations/{name}.yml}}"
        )
    report: GateReport | None = None
    with started(where) as run:
        from tidelake.ops.gate import judge_tables as judge_by_suite  # noqa: PLC0415
        from tidelake.replay.compatibility import judge_tables, payload_drift  # noqa: PLC0415
        from tidelake.runtime.runner import refusals  # noqa: PLC0415

        verdicts = judge_tables(run)
        refused = refusals(run)
        drift = payload_drift(where.lake, definition)
        registry = registry_of(definition)
        if tables and suite is not None:
            # Data Docs are opened in a browser, so they must be on a local disk.
            disk = where.lake.root if isinstance(where.lake.root, Path) else Path.cwd()
            docs, now = disk / "data_docs" / name, datetime.now(UTC)
            report = judge_by_suite(run.spark, where.lake, name, suite, docs=docs, now=now)
    may_continue = all(verdict.may_continue for verdict in verdicts)
    found = {
        "pipeline": name,
        "may_continue": may_continue and not refused,
        "tables": {
            v.table: v.differences for v in verdicts if v.standing in ("continues", "redefined")
        },
        "standing": {v.table: v.standing for v in verdicts},
        "changed": {v.table: v.changed for v in verdicts if v.changed},
        "payload": drift,
        **({} if report is None else {"gate": report.to_json()}),
        **({"registry": registry} if registry else {}),
        "checkpoints": refused,
    }
    if not where.printed(found):
        _show_check(name, verdicts, drift)
        if registry:
            say(registry)
        if report is not None:
            _show_gate(report)
    if not may_continue:
        raise RefusedError(
            f"the current definition of {name} is not compatible with its stored "
            f"tables. Restore the previous definition, or {_check_remedy(where, verdicts)}"
        )
    if refused:
        raise RefusedError("\n".join(refused.values()))
    if report is not None and not report.passed:
        raise RefusedError(f"the gate of {name} is closed. Details: {report.docs}")


def registry_of(definition: Pipeline) -> str:
    """Describe the state of the schema registry; empty if none is configured.

    A run with stored schemas does not need the registry, so an error is returned, not raised.
    """
    if definition.registry is None:
        return ""
    try:
        count = len(versions_of(definition.registry))
    except SourceError as error:
        return str(error)
    versions = f"{count} version{'' if count == 1 else 's'}"
    return f"schema registry reachable: {definition.registry.subject} has {versions}"


def _check_remedy(where: Place, verdicts: list[TableVerdict]) -> str:
    # Silver can only be recomputed from bronze.
    refused = {verdict.table for verdict in verdicts if not verdict.may_continue}
    if refused <= set(where.pipeline.gold_names):
        return f"recompute gold from silver with: {where.command('repair', '--hop gold')}"
    run, promote = where.command("backfill run"), where.command("backfill promote")
    return f"rebuild the tables with: {run}, then {promote}"


def _show_check(name: str, verdicts: list[TableVerdict], drift: list[FieldDrift]) -> None:
    print_table(
        ["table", "column", "stored", "defined", "verdict"],
        [row for verdict in verdicts for row in _rows(verdict)],
        title=f"Current definition of {name} against its tables",
    )
    if drift:
        print_table(
            ["payload field", "", "in the newest payloads", "consequence"],
            [[d.field, d.kind, f"{d.rows:,} of {d.sampled:,}", d.follows] for d in drift],
            title="Fields of the newest payloads against event.schema",
        )


def _rows(verdict: TableVerdict) -> Iterator[list[str | None]]:
    table, differences, changed = verdict.table, verdict.differences, verdict.changed
    if verdict.standing != "continues" or not (differences or changed):
        yield [table, None, None, None, _STANDING_TEXTS[verdict.standing]]
    for found in differences:
        yield [table, found.column, found.stored, found.defined, _VERDICT_TEXTS[found.verdict]]
    for part in changed:
        yield [table, part, None, None, _APPLIES if verdict.may_continue else _INCOMPATIBLE]


def _show_gate(report: GateReport) -> None:
    failed = [
        ["!!" if result.severity == "critical" else "!", result.table, result.text, result.observed]
        for result in report.results
        if not result.passed
    ]
    print_table(
        ["", "table", "expectation", "observed"],
        failed or [["ok", "all", f"all {len(report.results)} expectations met", ""]],
        title=f"Gate: {'open' if report.passed else 'CLOSED'}; !! critical, ! warning",
    )
    say(f"Data Docs: {report.docs}")


# Maximum characters of a value in a message.
_MAX_VALUE_LENGTH = 40


@click.command()
@moment_option("--since", help="Only rows that arrived at or after this time (UTC).")
@click.option(
    "--certificate",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the result here, or compare with an earlier one.",
)
@reporting
def verify(since: datetime | None, certificate: Path | None, where: Place) -> None:
    """Recompute tables and compare all rows; exit 3 if unequal."""
    definition = where.pipeline
    with started(where) as run:
        from tidelake.replay.verify import certify, read_certificate  # noqa: PLC0415
        from tidelake.replay.verify import verify as judge  # noqa: PLC0415

        earlier = None
        if certificate is not None and certificate.exists():
            earlier = read_certificate(certificate, definition.name)
        verdict = judge(run, since=since, earlier=earlier)
    if certificate is not None and earlier is None:
        certificate.parent.mkdir(parents=True, exist_ok=True)
        certificate.write_text(json.dumps(certify(verdict, definition), indent=1) + "\n")
        say(f"Certificate: {certificate}")
    if not where.printed(verdict.to_json()):
        _show_verdict(verdict)
    if not verdict.equal:
        wrong = [entry.table.name for entry in verdict.tables if not entry.comparison.equal]
        raise UnequalError(
            f"{', '.join(wrong)}: not equal to the recomputation from bronze. "
            f"{_verify_remedy(where, wrong)}"
        )


def _verify_remedy(where: Place, wrong: Sequence[str]) -> str:
    if f"bronze.{where.pipeline.name}" in wrong:
        return "Bronze was changed after it was written: restore the version before the change."
    start = "silver" if all(name.startswith(("gold.", "dim.")) for name in wrong) else "bronze"
    return (
        f"Recompute them with: {where.command('backfill run', f'--from {start}')}, "
        f"then: {where.command('backfill promote')}"
    )


def _show_verdict(verdict: Verification) -> None:
    compared = [(entry.table.name, entry.comparison, entry.version) for entry in verdict.tables]
    print_table(
        ["", "table", "rows", "differing", "as of version"],
        [
            ["ok" if found.equal else "!!", name, found.rows, found.differing, version]
            for name, found, version in compared
        ],
        title=f"{verdict.pipeline}: {'equal' if verdict.equal else 'NOT EQUAL'}",
    )
    for name, found, _ in compared:
        for difference in found.differences:
            print_line(f"  !! {name}: {_difference_text(difference)}")
        more = found.differing - len(found.differences)
        if more > 0:
            print_line(f"  !! {name}: … and {more:,} more")


def _difference_text(difference: RowDifference) -> str:
    where = ", ".join(f"{name} {value}" for name, value in difference.where.items())
    columns = ", ".join(
        name if (e, s) == (None, None) else f"{name} {_shortened(s)}, expected {_shortened(e)}"
        for name, (e, s) in difference.columns.items()
    )
    return f"{difference.kind}: {where}" + (f" ({columns})" if columns else "")


def _shortened(value: object) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}…"


@click.command()
@click.option("--hop", type=click.Choice(HOPS), required=True, help="Hop to repair.")
@on_pipeline
def repair(hop: Hop, where: Place) -> None:
    """Start a new generation of a hop where its tables end.

    If that position is unknown, because an input was rewritten, the tables disagree or the
    definition changed, silver or gold is recomputed instead.
    """
    with started(where) as run:
        from tidelake.replay.generations import repair as begin  # noqa: PLC0415

        done = begin(run, hop)
    name = where.pipeline.name
    if done.why:
        say(f"Rebuilt {hop} of {name} as generation {done.generation}: {done.why}.")
    else:
        say(f"Hop {hop} of {name} continues where its tables end, as generation {done.generation}.")
    say(f"Continue with: {where.command('run')}")


@click.group()
def backfill() -> None:
    """Rebuild tables next to the live ones, compare and swap."""


_from = click.option(
    "--from",
    "start",
    type=click.Choice(["bronze", "silver"]),
    default="bronze",
    show_default=True,
    help="Layer to read; silver rebuilds gold only.",
)


@backfill.command()
@_from
@reporting
def plan(start: Start, where: Place) -> None:
    """Show what a backfill would read and an estimated time."""
    from tidelake.replay import backfill as replay  # noqa: PLC0415

    name = where.pipeline.name
    steps = replay.plan(where.lake, where.pipeline, start)
    if where.printed([asdict(step) | {"seconds": step.seconds} for step in steps]):
        return
    rows = [
        [s.hop, s.reads, s.version, s.rows, ", ".join(s.fills), _minutes(s.seconds)] for s in steps
    ]
    columns = ["hop", "reads", "version", "rows", "fills", "estimate"]
    print_table(columns, rows, title=f"Backfill of {name} from {start}")
    state = replay.read_state(where.lake, where.pipeline)
    if state is not None:
        say(f"The last backfill of {name} is {state.stage}.")
    say(f"Live tables are not changed. Start with: {where.command('backfill run')}")


def _minutes(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return f"{seconds:,.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"


@backfill.command()
@_from
@moment_option("--start", "first", help="From this arrival (bronze) or event time (silver), UTC.")
@moment_option("--end", "last", help="Silver only: gold before this event time (UTC).")
@duration_option("--for", "length", help="Range length from --start, instead of --end.")
@on_pipeline
def run(
    start: Start,
    first: datetime | None,
    last: datetime | None,
    length: timedelta | None,
    where: Place,
) -> None:
    """Fill the green tables; run again to add new arrivals."""
    if length is not None:
        if first is None or last is not None:
            raise UsageError("--for replaces --end and needs --start: give --start and --for")
        last = first + length
    if start == "bronze" and last:
        raise UsageError(
            "a backfill from bronze has no --end: whether a row is a duplicate depends on all "
            "rows that arrived before it. Give --start alone, or a range of gold with --from silver"
        )
    if start == "silver" and not (first is last is None or (first and last and first < last)):
        raise UsageError(
            "a range needs --start and a later --end, such as --start 2026-01-05 --end 2026-01-06"
        )
    with started(where) as context:
        from tidelake.replay.backfill import build  # noqa: PLC0415

        span = (first, last) if first and last else None
        build(context, start, span, since=first if start == "bronze" else None)
    say(f"Built. Compare with: {where.command('backfill compare')}")


@backfill.command()
@reporting
def compare(where: Place) -> None:
    """Show what a promotion would change, and why."""
    from tidelake.replay.backfill import need_state  # noqa: PLC0415

    name = where.pipeline.name
    state = need_state(where.lake, where.pipeline, "built")
    with started(where) as context:
        from tidelake.replay.backfill_promotion import differences  # noqa: PLC0415

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
            title=f"Rows of bronze.{name} whose fate changes",
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
@on_pipeline
def promote(where: Place) -> None:
    """Replace live tables with green ones, new arrivals included."""
    with started(where) as context:
        from tidelake.replay import backfill_promotion  # noqa: PLC0415

        backfill_promotion.promote(context)
    say(
        f"Promoted. Continue with: {where.command('run')}\n"
        f"Undo with: {where.command('backfill rollback')}"
    )


@backfill.command()
@on_pipeline
def rollback(where: Place) -> None:
    """Restore the tables from before the promotion."""
    with started(where) as context:
        from tidelake.replay import backfill_promotion  # noqa: PLC0415

        backfill_promotion.rollback(context)
    say(
        "Rolled back. If the backfill used a changed definition, restore the old one too.\n"
        f"Process newer arrivals with: {where.command('run')}"
    )


@click.command()
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
@look_option(help="Count the subject's rows, and change nothing.")
@reporting
def erase(whose: str, at_once: bool, look: bool, where: Place) -> None:
    """Erase a subject's rows from every table.

    Repeat the command to continue an interrupted erasure.
    Hops must not run meanwhile: the erasure first processes what waits in each of them.
    """
    from tidelake.ledger.history import require_tables  # noqa: PLC0415

    name = where.pipeline.name
    subject = parse_subject(whose, where.pipeline)
    require_tables(where.lake, name)
    with started(where) as run:
        from tidelake.replay import erase as replay  # noqa: PLC0415

        if look:
            rows = replay.look(run, subject)
            if not where.printed({"pipeline": name, "rows": rows}):
                print_table(["table", "rows"], rows.items(), title=f"Rows of the subject in {name}")
                say("Nothing was erased. Run without --look to erase them and recompute gold.")
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
