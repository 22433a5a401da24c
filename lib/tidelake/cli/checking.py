"""The commands ``check`` and ``verify``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelake.cli.exits import say
from tidelake.cli.flow import started
from tidelake.cli.options import Place, moment_option, reporting
from tidelake.cli.render import print_line, print_table
from tidelake.config import Pipeline
from tidelake.delta.locks import unfinished
from tidelake.errors import RefusedError, SourceError, UnequalError, UsageError
from tidelake.kafka.client import versions_of
from tidelake.names import logical_name
from tidelake.visible import shortened

if TYPE_CHECKING:
    from tidelake.ops.gate import GateReport
    from tidelake.replay.compare import RowDifference
    from tidelake.replay.compatibility import FieldDrift, TableVerdict
    from tidelake.replay.verify import Verification

_STANDING_TEXTS = {
    "continues": "continues",
    "not there yet": "does not exist yet",
    "new": "not filled yet: the next run fills it from silver",
    "new input": "reads a new input of gold: needs a new generation",
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
    definition = where.pipeline
    name = definition.name
    report: GateReport | None = None
    not_judged = _why_not_judged(where) if tables else None
    with started(where) as run:
        from tidelake.ops.gate import judge_by_suites  # noqa: PLC0415
        from tidelake.replay.compatibility import judge_tables, payload_drift  # noqa: PLC0415
        from tidelake.runtime.runner import refusals  # noqa: PLC0415

        verdicts = judge_tables(run)
        refused = refusals(run)
        drift = payload_drift(run)
        registry = registry_of(definition)
        if tables and not_judged is None:
            docs, now = where.lake.data_docs(name), datetime.now(UTC)
            report = judge_by_suites(run.spark, where.lake, definition, docs=docs, now=now)
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
        **({"gate": report and report.to_json()} if tables else {}),
        **({"not_judged": not_judged} if not_judged else {}),
        **({"registry": registry} if registry else {}),
        "checkpoints": refused,
    }
    if not_judged:
        say(f"The gate has nothing to judge: {not_judged}.")
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


def _why_not_judged(where: Place) -> str | None:
    """Say why the gate has nothing to judge, which is no failure of a scheduled job."""
    definition = where.pipeline
    if definition.suite is None and not definition.inline_rules:
        suite = f"quality: {{suite: expectations/{definition.name}.yml}}"
        return f"{definition.file} has neither a suite nor rules; add {suite} for one"
    return no_tables(where) or None


def no_tables(where: Place) -> str:
    """Say that a pipeline has no tables yet; empty if it has some."""
    from tidelake.ledger.history import has_no_tables  # noqa: PLC0415

    name, run = where.pipeline.name, where.command("run")
    if not has_no_tables(where.lake, where.pipeline):
        return ""
    return f"{name} has no tables {where.lake.place} yet; {run} fills them"


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
        remedy = f"recompute gold from silver with: {where.command('repair', '--hop gold')}"
        redefined = [verdict.table for verdict in verdicts if verdict.standing == "redefined"]
        if redefined != list(refused):
            return remedy
        run = where.command("backfill run", f"--table {redefined[0]}")
        return (
            f"{remedy}; or that table alone with: {run}, then {where.command('backfill promote')}"
        )
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
        text = _VERDICT_TEXTS[found.verdict]
        if found.verdict == "kept" and table.startswith("silver.") and found.stored == "string":
            text += ", except from an unknown field of its name"
        yield [table, found.column, found.stored, found.defined, text]
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
@moment_option("--start", "since", help="Only rows that arrived at or after this time (UTC).")
@click.option(
    "--certificate",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the result here, or compare with an earlier one.",
)
@reporting
def verify(since: datetime | None, certificate: Path | None, where: Place) -> None:
    """Recompute tables and compare all rows; exit 3 if unequal."""
    definition = where.pipeline
    # Rows of an earlier certificate must still exist.
    if not (certificate and certificate.exists()) and (why := no_tables(where)):
        say(f"Nothing to verify: {why}.")
        where.printed({"pipeline": definition.name, "equal": None, "tables": {}, "why": why})
        return
    if certificate is not None:
        _ensure_folder(certificate)
    with started(where) as run:
        from tidelake.replay.certificates import certify, read_certificate  # noqa: PLC0415
        from tidelake.replay.verify import verify as judge  # noqa: PLC0415

        earlier = None
        if certificate is not None and certificate.exists():
            earlier = read_certificate(certificate, definition.name)
        verdict = judge(run, since=since, earlier=earlier)
        others = "" if verdict.equal else _other_rules(where)
    if certificate is not None and earlier is None:
        if verdict.equal:
            certificate.write_text(json.dumps(certify(verdict, definition), indent=1) + "\n")
            say(f"Certificate: {certificate}")
        else:
            say(f"{certificate} is not written: a certificate is of equal tables.")
    if not where.printed(verdict.to_json()):
        _show_verdict(verdict)
    if not verdict.equal:
        wrong = [entry.table.name for entry in verdict.tables if not entry.comparison.equal]
        raise UnequalError(
            f"{', '.join(wrong)}: not equal to the recomputation from bronze"
            f"{_verify_remedy(where, wrong, others)}"
        )


def _ensure_folder(certificate: Path) -> None:
    """Create a certificate's folder before the tables are verified."""
    folder = certificate.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        why = "" if os.access(folder, os.W_OK) else "the folder is not writable"
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise UsageError(f"{certificate} cannot be written: {why}. Name another with --certificate")


def _other_rules(where: Place) -> str:
    """Describe the batches of silver that were decided under another definition; empty if none."""
    from tidelake.replay.compatibility import other_definitions  # noqa: PLC0415

    found = other_definitions(where.lake, where.pipeline)
    if not found:
        return ""
    parts = dict.fromkeys(part for changed in found.values() for part in changed)
    first, last = min(found), max(found)
    batches = (
        f"Batch {last} of silver was"
        if first == last
        else f"Batches {first} to {last} of silver were"
    )
    return (
        f"{batches} decided under another definition ({', '.join(parts)}): their rows may differ "
        "for that reason, and need not be damaged. "
    )


def _verify_remedy(where: Place, wrong: Sequence[str], others: str) -> str:
    """Return how a message about unequal tables goes on: with the cause, if known, and a remedy."""
    for what in unfinished(where.lake, where.pipeline.name).values():
        return f": {what}"
    if logical_name("bronze", where.pipeline.name) in wrong:
        return ". Bronze was changed after it was written: restore the version before the change."
    if not any(where.lake.table(name).exists for name in wrong):
        return f", and gone. Fill them from silver with: {where.command('run')}"
    start = "silver" if all(name.startswith(("gold.", "dim.")) for name in wrong) else "bronze"
    run = where.command("backfill run", f"--from {start}")
    promote = where.command("backfill promote")
    if others and start == "bronze":
        compare = where.command("backfill compare")
        return f". {others}Recompute them with: {run}, see what changes: {compare}, then: {promote}"
    return f". Recompute them with: {run}, then: {promote}"


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
    for hop, rows in verdict.waiting.items():
        if rows:
            print_line(f"  {rows:,} rows that {hop} has not read yet are not compared")
    count, first = verdict.repeated
    if count:
        rest = ", …" if count > len(first) else ""
        print_line(
            f"  {count:,} event ids were accepted more than once, since a copy arrived after "
            f"dedup.ttl; each copy counts as an event: {', '.join(map(_shortened, first))}{rest}"
        )


def _difference_text(difference: RowDifference) -> str:
    where = ", ".join(f"{name} {value}" for name, value in difference.where.items())
    columns = ", ".join(
        name if (e, s) == (None, None) else f"{name} {_shortened(s)}, expected {_shortened(e)}"
        for name, (e, s) in difference.columns.items()
    )
    return f"{difference.kind}: {where}" + (f" ({columns})" if columns else "")


def _shortened(value: object) -> str:
    return "null" if value is None else shortened(str(value), _MAX_VALUE_LENGTH)
