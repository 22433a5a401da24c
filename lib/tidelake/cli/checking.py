"""The command ``check``: whether today's definition may go on, and whether the tables are good."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelake.cli.exits import say
from tidelake.cli.flow import started
from tidelake.cli.options import Place, as_json, located, of_pipeline
from tidelake.cli.render import print_json, print_table
from tidelake.config import Pipeline
from tidelake.errors import RefusedError, SourceError, UsageError
from tidelake.typed import Typed

if TYPE_CHECKING:
    from tidelake.ops.gate import GateReport
    from tidelake.replay.compatibility import FieldDrift, TableVerdict

_STANDS = {
    "continues": "continues",
    "not there yet": "not there yet",
    "new": "new beside filled tables: needs a new generation",
    "redefined": "filled under another definition: needs a new generation",
    "no longer filled": "not in the definition: stays as it is, no run fills it",
}
_SAYS = {
    "added": "added; older rows are null",
    "kept": "kept; newer rows are null",
    "widened": "widened; no value changes",
    "refused": "needs a new generation",
}
_HOLDS, _UNFIT = "changed; holds from now on, a backfill applies it to all", "changed"


@click.command()
@of_pipeline
@click.option("--tables", is_flag=True, help="Judge silver and gold by the expectation suite too.")
@as_json
@located
def check(pipeline: str, tables: bool, json_: bool, where: Place) -> None:
    """Judge whether the definition may continue on the stored tables; exit 3 when it may not."""
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
            # Pages for a browser lie on a disk, wherever the tables do.
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
        told = {
            "pipeline": definition.name,
            "may_continue": may_continue and not refused,
            "tables": {
                v.table: [asdict(one) for one in v.differences]
                for v in verdicts
                if v.standing in ("continues", "redefined")
            },
            "standing": {v.table: v.standing for v in verdicts},
            "changed": {v.table: list(v.changed) for v in verdicts if v.changed},
            "payload": [asdict(field) for field in drift],
        }
        told |= {} if report is None else {"gate": report.to_json()}
        told |= {"registry": registry} if registry else {}
        print_json(told | {"checkpoints": refused})
    else:
        _show(definition.name, verdicts, drift)
        if registry:
            say(registry)
        if report is not None:
            _show_gate(report)
    if not may_continue:
        raise RefusedError(
            f"today's definition of {definition.name} may not continue on the stored tables. "
            f"Restore it, or {_remedy(definition, verdicts, replace(where.typed, called=pipeline))}"
        )
    if refused:
        raise RefusedError("\n".join(refused.values()))
    if report is not None and not report.passed:
        raise RefusedError(f"the gate of {definition.name} is closed. Details: {report.docs}")


def registry_of(definition: Pipeline) -> str:
    """Return whether the registry answers, or "" where the pipeline has none.

    A run whose schemas are all known does without it, so this alone stops nothing.
    """
    from tidelake.kafka.registry import versions_of  # noqa: PLC0415

    if definition.registry is None:
        return ""
    try:
        count = len(versions_of(definition.registry))
    except SourceError as error:
        return str(error)
    told = f"{count} version{'' if count == 1 else 's'}"
    return f"the registry answers: {definition.registry.subject} has {told}"


def _remedy(definition: Pipeline, verdicts: list[TableVerdict], typed: Typed) -> str:
    # Silver's own columns follow from bronze alone.
    refused = {verdict.table for verdict in verdicts if not verdict.may_continue}
    if refused <= set(definition.gold_names):
        command = typed("tidelake repair", definition.name, "--hop gold")
        return f"compute gold anew from silver with: {command}"
    run = typed("tidelake backfill run", definition.name)
    promote = typed("tidelake backfill promote", definition.name)
    return f"let the tables follow with: {run}, then {promote}"


def _show(name: str, verdicts: list[TableVerdict], drift: list[FieldDrift]) -> None:
    print_table(
        ["table", "column", "stored", "defined", "verdict"],
        [row for verdict in verdicts for row in _rows(verdict)],
        title=f"Today's definition of {name} against its tables",
    )
    if drift:
        print_table(
            ["payload field", "", "in the newest payloads", "what follows"],
            [[d.field, d.kind, f"{d.rows:,} of {d.sampled:,}", d.follows] for d in drift],
            title="Fields of the newest arrivals against event.schema",
        )


def _rows(verdict: TableVerdict) -> list[list[str | None]]:
    said = _HOLDS if verdict.may_continue else _UNFIT
    changed: list[list[str | None]] = [
        [verdict.table, one.column, one.stored, one.defined, _SAYS[one.verdict]]
        for one in verdict.differences
    ]
    changed += [[verdict.table, part, None, None, said] for part in verdict.changed]
    if changed and verdict.standing == "continues":
        return changed
    return [[verdict.table, None, None, None, _STANDS[verdict.standing]], *changed]


def _show_gate(report: GateReport) -> None:
    failed = [one for one in report.results if not one.passed]
    print_table(
        ["", "table", "expectation", "observed"],
        [
            ["!!" if one.severity == "critical" else "!", one.table, one.text, one.observed]
            for one in failed
        ]
        or [["ok", "all", f"{len(report.results)} expectations hold", ""]],
        title=f"Gate: {'open' if report.passed else 'CLOSED'}; !! critical, ! warning",
    )
    say(f"Data Docs: {report.docs}")
