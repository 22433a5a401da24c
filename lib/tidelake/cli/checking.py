"""The commands ``check`` (definition against tables) and ``verify`` (table contents)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelake.cli.exits import say
from tidelake.cli.flow import started
from tidelake.cli.options import MOMENT, Place, as_json, located, moment, of_pipeline
from tidelake.cli.render import print_json, print_line, print_table
from tidelake.config import Pipeline
from tidelake.errors import RefusedError, SourceError, UnequalError, UsageError
from tidelake.typed import Typed

if TYPE_CHECKING:
    from tidelake.ops.gate import GateReport
    from tidelake.replay.compare import RowDifference
    from tidelake.replay.compatibility import FieldDrift, TableVerdict
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
@of_pipeline
@click.option("--tables", is_flag=True, help="Also run the expectation suite on silver and gold.")
@as_json
@located
def check(pipeline: str, tables: bool, json_: bool, where: Place) -> None:
    """Check a definition against its tables; exit 3 if refused."""
    definition = where.pipeline(pipeline)
    if tables and definition.suite is None:
        raise UsageError(
            f"{definition.file} names no suite. Add quality: {{suite: expectations/{pipeline}.yml}}"
        )
    report: GateReport | None = None
    with started(where, definition) as run:
        from tidelake.ops.gate import judge_tables as judge_by_suite  # noqa: PLC0415
        from tidelake.replay.compatibility import judge_tables, payload_drift  # noqa: PLC0415
        from tidelake.runtime.runner import refusals  # noqa: PLC0415

        verdicts = judge_tables(run)
        refused = refusals(run)
        drift = payload_drift(where.lake, definition)
        registry = registry_of(definition)
        if tables and definition.suite is not None:
            # Data Docs are opened in a browser, so they must be on a local disk.
            disk = where.lake.root if isinstance(where.lake.root, Path) else Path.cwd()
            report = judge_by_suite(
                run.spark,
                where.lake,
                definition.name,
                definition.suite,
                docs=disk / "data_docs" / definition.name,
                now=datetime.now(UTC),
            )
    may_continue = all(verdict.may_continue for verdict in verdicts)
    if json_:
        report_json = {
            "pipeline": definition.name,
            "may_continue": may_continue and not refused,
            "tables": {
                v.table: [asdict(difference) for difference in v.differences]
                for v in verdicts
                if v.standing in ("continues", "redefined")
            },
            "standing": {v.table: v.standing for v in verdicts},
            "changed": {v.table: list(v.changed) for v in verdicts if v.changed},
            "payload": [asdict(field) for field in drift],
        }
        report_json |= {} if report is None else {"gate": report.to_json()}
        report_json |= {"registry": registry} if registry else {}
        print_json(report_json | {"checkpoints": refused})
    else:
        _show_check(definition.name, verdicts, drift)
        if registry:
            say(registry)
        if report is not None:
            _show_gate(report)
    if not may_continue:
        remedy = _check_remedy(definition, verdicts, replace(where.typed, called=pipeline))
        raise RefusedError(
            f"the current definition of {definition.name} is not compatible with its stored "
            f"tables. Restore the previous definition, or {remedy}"
        )
    if refused:
        raise RefusedError("\n".join(refused.values()))
    if report is not None and not report.passed:
        raise RefusedError(f"the gate of {definition.name} is closed. Details: {report.docs}")


def registry_of(definition: Pipeline) -> str:
    """Describe the state of the schema registry; empty if none is configured.

    A run with stored schemas does not need the registry, so an error is returned, not raised.
    """
    from tidelake.kafka.registry import versions_of  # noqa: PLC0415

    if definition.registry is None:
        return ""
    try:
        count = len(versions_of(definition.registry))
    except SourceError as error:
        return str(error)
    versions = f"{count} version{'' if count == 1 else 's'}"
    return f"schema registry reachable: {definition.registry.subject} has {versions}"


def _check_remedy(definition: Pipeline, verdicts: list[TableVerdict], typed: Typed) -> str:
    # Silver can only be recomputed from bronze.
    refused = {verdict.table for verdict in verdicts if not verdict.may_continue}
    if refused <= set(definition.gold_names):
        command = typed("tidelake repair", definition.name, "--hop gold")
        return f"recompute gold from silver with: {command}"
    run = typed("tidelake backfill run", definition.name)
    promote = typed("tidelake backfill promote", definition.name)
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


def _rows(verdict: TableVerdict) -> list[list[str | None]]:
    change_text = _APPLIES if verdict.may_continue else _INCOMPATIBLE
    changed: list[list[str | None]] = [
        [
            verdict.table,
            difference.column,
            difference.stored,
            difference.defined,
            _VERDICT_TEXTS[difference.verdict],
        ]
        for difference in verdict.differences
    ]
    changed += [[verdict.table, part, None, None, change_text] for part in verdict.changed]
    if changed and verdict.standing == "continues":
        return changed
    return [[verdict.table, None, None, None, _STANDING_TEXTS[verdict.standing]], *changed]


def _show_gate(report: GateReport) -> None:
    failed = [result for result in report.results if not result.passed]
    print_table(
        ["", "table", "expectation", "observed"],
        [
            [
                "!!" if result.severity == "critical" else "!",
                result.table,
                result.text,
                result.observed,
            ]
            for result in failed
        ]
        or [["ok", "all", f"all {len(report.results)} expectations met", ""]],
        title=f"Gate: {'open' if report.passed else 'CLOSED'}; !! critical, ! warning",
    )
    say(f"Data Docs: {report.docs}")


# Maximum characters of a value in a message.
_MAX_VALUE_LENGTH = 40


@click.command()
@of_pipeline
@click.option(
    "--since",
    metavar=MOMENT,
    callback=moment,
    help="Only rows that arrived at or after this time (UTC).",
)
@click.option(
    "--certificate",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the result here, or compare with an earlier one.",
)
@as_json
@located
def verify(
    pipeline: str, since: datetime | None, certificate: Path | None, json_: bool, where: Place
) -> None:
    """Recompute tables and compare all rows; exit 3 if unequal."""
    definition = where.pipeline(pipeline)
    with started(where, definition) as run:
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
    if json_:
        print_json(verdict.to_json())
    else:
        _show_verdict(verdict)
    if not verdict.equal:
        wrong = [entry.table.name for entry in verdict.tables if not entry.comparison.equal]
        raise UnequalError(
            f"{', '.join(wrong)}: not equal to the recomputation from bronze. "
            f"{_verify_remedy(verdict.pipeline, wrong, replace(where.typed, called=pipeline))}"
        )


def _verify_remedy(pipeline: str, wrong: Sequence[str], typed: Typed) -> str:
    if f"bronze.{pipeline}" in wrong:
        return "Bronze was changed after it was written: restore the version before the change."
    start = "silver" if all(name.startswith(("gold.", "dim.")) for name in wrong) else "bronze"
    return (
        f"Recompute them with: {typed('tidelake backfill run', pipeline, f'--from {start}')}, "
        f"then: {typed('tidelake backfill promote', pipeline)}"
    )


def _show_verdict(verdict: Verification) -> None:
    print_table(
        ["", "table", "rows", "differing", "as of version"],
        [
            [
                "ok" if entry.comparison.equal else "!!",
                entry.table.name,
                entry.comparison.rows,
                entry.comparison.differing,
                entry.version,
            ]
            for entry in verdict.tables
        ],
        title=f"{verdict.pipeline}: {'equal' if verdict.equal else 'NOT EQUAL'}",
    )
    for entry in verdict.tables:
        for difference in entry.comparison.differences:
            print_line(f"  !! {entry.table.name}: {_difference_text(difference)}")
        more = entry.comparison.differing - len(entry.comparison.differences)
        if more > 0:
            print_line(f"  !! {entry.table.name}: … and {more:,} more")


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
