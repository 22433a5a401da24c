"""Options shared by commands, and the parsers of their values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from tidelake.config import Environment, Pipeline, load_environment, load_pipeline, parse_duration
from tidelake.config.places import usual_pipeline
from tidelake.delta.tables import Lake, lake_of
from tidelake.folders import refuse_unusable
from tidelake.typed import Typed

MOMENT = "YYYY-MM-DD[THH:MM:SS]"
Command = Callable[..., Any]


def moment(_: click.Context, __: click.Parameter, value: str | None) -> datetime | None:
    """Parse an ISO 8601 timestamp, in UTC unless it has another offset.

    Empty is None: a schedule cannot omit a parameter.
    """
    if not value:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError as error:
        raise click.BadParameter(
            f"'{value}' is not a timestamp; write it as 2026-01-05 or 2026-01-05T06:30:00Z"
        ) from error
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def duration(_: click.Context, __: click.Parameter, value: str | None) -> timedelta | None:
    """Parse a duration such as ``1 day``; empty is None."""
    try:
        return parse_duration(value) if value else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@dataclass(frozen=True)
class Place:
    """The lake of a command; ``typed`` repeats ``--root`` and ``--env`` in suggested commands."""

    environment: Environment
    lake: Lake
    typed: Typed

    def pipeline(self, name: str, *, source: str | None = None) -> Pipeline:
        """Load a pipeline by name or path."""
        return load_pipeline(name, self.environment, source=source)


as_json = click.option("--json", "json_", is_flag=True, help="Print JSON.")
# Optional if there is only one pipeline.
of_pipeline = click.argument(
    "pipeline",
    required=False,
    callback=lambda _, __, name: usual_pipeline() if name is None else name,
)
_root = click.option(
    "--root", metavar="DIR|s3://…", help="Root of tables and checkpoints: folder or s3:// prefix."
)
_env = click.option("--env", metavar="NAME", help="Environment: local, dev or prod.")


def placed(command: Command) -> Command:
    """Add ``--root`` and ``--env``."""
    return _root(_env(command))


def located(command: Command) -> Command:
    """Add ``--root`` and ``--env``, and pass the resolved ``Place`` as ``where``."""

    @functools.wraps(command)
    def resolved(root: str | None, env: str | None, **options: Any) -> Any:
        return command(where=place(root, env), **options)

    return placed(resolved)


def place(root: str | None, env: str | None) -> Place:
    """Resolve ``--root`` and ``--env``; raise if the root cannot be used."""
    environment = load_environment(env, root=root)
    if environment.root is not None:
        refuse_unusable(environment.root)
    return Place(environment, lake_of(environment), Typed(root, env))
