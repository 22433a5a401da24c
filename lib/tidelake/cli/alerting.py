"""The command ``alerts``: what is open that somebody should look at."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tidelake.cli.failures import say
from tidelake.cli.options import as_json, of_pipeline, place, placed
from tidelake.cli.render import print_json, print_line, print_table
from tidelake.instants import now

if TYPE_CHECKING:
    from tidelake.ops.alerts import Alert

_CRITICAL = 3


@click.command()
@of_pipeline
@click.option("--tell", is_flag=True, help="Send what opened or closed since the last time.")
@as_json
@placed
def alerts(pipeline: str, tell: bool, json_: bool, root: str | None, env: str | None) -> int:
    """Show what is open that somebody should look at; exit 3 when any of it is critical."""
    from tidelake.ops.alerts import RULES, alerts_of  # noqa: PLC0415
    from tidelake.ops.alerts.telling import Teller, sender_of  # noqa: PLC0415

    where = place(root, env)
    definition = where.pipeline(pipeline)
    deliver = sender_of(where.environment)
    found = alerts_of(
        where.lake, definition, now=now(), typed=replace(where.typed, called=pipeline)
    )
    if json_:
        print_json([one.to_json() for one in found])
    else:
        _show(definition.name, found)
    if tell:
        Teller(where.lake, definition.name, say, deliver).tell(found, rules=RULES)
    return _CRITICAL if any(one.severity == "critical" for one in found) else 0


def _show(pipeline: str, found: tuple[Alert, ...]) -> None:
    if not found:
        print_line(f"No alert of {pipeline} is open.")
        return
    print_table(
        ["", "rule", "hop", "since", "found"],
        [
            [
                "!!" if one.severity == "critical" else "!",
                one.rule,
                one.hop or "all",
                f"{one.since:%Y-%m-%d %H:%M:%SZ}" if one.since else None,
                one.message,
            ]
            for one in found
        ],
        title=f"Open alerts of {pipeline}; !! critical, ! warning",
    )
    # Beside the table: broken over lines, as a cell is, none of them could be typed.
    for one in found:
        print_line(f"  {one.rule}: {one.command}")
