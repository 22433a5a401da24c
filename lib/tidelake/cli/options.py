"""The options that go with each command, and what they resolve to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from tidelake.config import (
    Environment,
    Pipeline,
    load_environment,
    load_pipeline,
    parse_duration,
)
from tidelake.config.places import usual_pipeline
from tidelake.delta.tables import Lake, lake_of
from tidelake.folders import refuse_unusable
from tidelake.typed import Typed

MOMENT = "YYYY-MM-DD[THH:MM:SS]"


def moment(_: click.Context, __: click.Parameter, value: str | None) -> datetime | None:
    """Read an instant in ISO 8601, in UTC unless it says another offset.

    A schedule cannot leave a parameter out, only empty: an empty one is none.
    """
    if not value:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError as error:
        raise click.BadParameter(
            f"'{value}' is no instant; write it as 2026-01-05 or 2026-01-05T06:30:00Z"
        ) from error
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def duration(_: click.Context, __: click.Parameter, value: str | None) -> timedelta | None:
    """Read a duration such as ``1 day``; an empty one is none."""
    try:
        return parse_duration(value) if value else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@dataclass(frozen=True)
class Place:
    """Where a command works.

    Attributes:
        environment: What it is told of the place.
        lake: Where the tables are.
        typed: Completes the commands that it names by its own ``--root`` and ``--env``.
    """

    environment: Environment
    lake: Lake
    typed: Typed

    def pipeline(self, name: str, *, source: str | None = None) -> Pipeline:
        """Load a pipeline by name or path."""
        return load_pipeline(name, self.environment, source=source)


def of_pipeline(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the argument PIPELINE, which may be left out where it is clear."""
    return click.argument("pipeline", required=False, callback=_meant)(command)


def _meant(_: click.Context, __: click.Parameter, value: str | None) -> str:
    return usual_pipeline() if value is None else value


def placed(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--root`` and ``--env``."""
    command = click.option("--env", metavar="NAME", help="Environment: local, dev or prod.")(
        command
    )
    return click.option(
        "--root",
        metavar="DIR|s3://…",
        help="Where tables and checkpoints live: a folder, or s3://bucket/prefix.",
    )(command)


def as_json(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--json``."""
    return click.option("--json", "json_", is_flag=True, help="Print JSON for machines.")(command)


def place(root: str | None, env: str | None) -> Place:
    """Resolve ``--root`` and ``--env``.

    Raises:
        UsageError: The root is no folder, or may not be written; there is no such bucket.
        MachineError: The object store does not answer, or does not let us in.
    """
    environment = load_environment(env, root=root)
    if environment.root is not None:
        refuse_unusable(environment.root)
    return Place(environment, lake_of(environment), Typed(root, env))
