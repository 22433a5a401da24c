"""The command ``verify``: whether the tables are right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelake.cli.exits import say
from tidelake.cli.flow import started
from tidelake.cli.options import MOMENT, Place, as_json, located, moment, of_pipeline
from tidelake.cli.render import print_json, print_line, print_table
from tidelake.errors import UnequalError
from tidelake.typed import Typed

if TYPE_CHECKING:
    from tidelake.replay.compare import RowDifference
    from tidelake.replay.verify import Verification

# A value longer than that says no more.
_LONGEST = 40


@click.command()
@of_pipeline
@click.option(
    "--since",
    metavar=MOMENT,
    callback=moment,
    help="Judge only what arrived from this instant on (UTC).",
)
@click.option(
    "--certificate",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the verdict there; where the file exists, hold the tables against it too.",
)
@as_json
@located
def verify(
    pipeline: str,
    since: datetime | None,
    certificate: Path | None,
    json_: bool,
    where: Place,
) -> None:
    """Compute silver and gold anew and compare row by row; exit 3 on any difference."""
    definition = where.pipeline(pipeline)
    with started(where, definition) as run:
        from tidelake.replay.verify import (  # noqa: PLC0415
            certify,
            changed_since,
            read_certificate,
        )
        from tidelake.replay.verify import verify as judge  # noqa: PLC0415

        earlier = None
        if certificate is not None and certificate.exists():
            earlier = read_certificate(certificate, definition.name)
        verdict = judge(run, since=since)
        if earlier is not None:
            verdict = verdict.with_changes(changed_since(run, earlier))
    if certificate is not None and earlier is None:
        certificate.parent.mkdir(parents=True, exist_ok=True)
        certificate.write_text(json.dumps(certify(verdict, definition), indent=1) + "\n")
        say(f"Certificate: {certificate}")
    if json_:
        print_json(verdict.to_json())
    else:
        _show(verdict)
    if not verdict.equal:
        wrong = [one.table.name for one in verdict.tables if not one.comparison.equal]
        raise UnequalError(
            f"{', '.join(wrong)}: not what follows from bronze. "
            f"{_remedy(verdict.pipeline, wrong, replace(where.typed, called=pipeline))}"
        )


def _remedy(pipeline: str, wrong: Sequence[str], typed: Typed) -> str:
    """Say what leads back to equal tables."""
    if f"bronze.{pipeline}" in wrong:
        return "Bronze itself is not what was written: restore the version before it was changed."
    start = "silver" if all(name.startswith(("gold.", "dim.")) for name in wrong) else "bronze"
    return (
        f"Compute them anew with: {typed('tidelake backfill run', pipeline, f'--from {start}')}, "
        f"then: {typed('tidelake backfill promote', pipeline)}"
    )


def _show(verdict: Verification) -> None:
    print_table(
        ["", "table", "rows", "differing", "as of version"],
        [
            [
                "ok" if one.comparison.equal else "!!",
                one.table.name,
                one.comparison.rows,
                one.comparison.differing,
                one.version,
            ]
            for one in verdict.tables
        ],
        title=f"{verdict.pipeline}: {'equal' if verdict.equal else 'NOT EQUAL'}",
    )
    for one in verdict.tables:
        for difference in one.comparison.differences:
            print_line(f"  !! {one.table.name}: {_told(difference)}")
        more = one.comparison.differing - len(one.comparison.differences)
        if more > 0:
            print_line(f"  !! {one.table.name}: … and {more:,} more")


def _told(difference: RowDifference) -> str:
    where = ", ".join(f"{name} {value}" for name, value in difference.where.items())
    columns = ", ".join(
        name if (e, s) == (None, None) else f"{name} {_cut(s)}, expected {_cut(e)}"
        for name, (e, s) in difference.columns.items()
    )
    return f"{difference.kind}: {where}" + (f" ({columns})" if columns else "")


def _cut(value: object) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
