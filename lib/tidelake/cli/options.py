"""Options shared by commands, the parsers of their values, and the place they resolve to."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from tidelake.cli.render import print_json
from tidelake.config import Environment, Pipeline, load_environment, load_pipeline, parse_duration
from tidelake.config.environment import stand_in
from tidelake.config.locations import given_conf, known_pipelines, only_pipeline
from tidelake.delta.tables import Lake, lake_of, refuse_unusable
from tidelake.errors import ConfigError, NotBuiltError, RefusedError, UsageError
from tidelake.instants import Range
from tidelake.typed import Typed, completing

Command = Callable[..., Any]


@dataclass(frozen=True)
class Place:
    """The lake of a command, and the pipeline that it names.

    ``typed`` repeats that name, ``--conf``, ``--root`` and ``--env`` in suggested commands;
    ``source`` replaces the pipeline file's source; ``json`` is ``--json``. ``is_broken``: the file
    of the environment is invalid, and this one stands in for it; see :func:`placed`.
    """

    environment: Environment
    typed: Typed
    source: str | None = None
    json: bool = False
    is_broken: bool = False

    @functools.cached_property
    def lake(self) -> Lake:
        """The tables and checkpoints; raises a UsageError if the root cannot be used."""
        if self.environment.root is not None:
            refuse_unusable(self.environment.root)
        return lake_of(self.environment)

    @functools.cached_property
    def pipeline(self) -> Pipeline:
        """The definition of the pipeline that the command names."""
        return self.load(self.called)

    @property
    def called(self) -> str:
        """The pipeline's name or path on the command line."""
        return self.typed.called or ""

    def load(self, name: str) -> Pipeline:
        """Load a pipeline by name or path."""
        found = load_pipeline(name, self.environment, source=self.source)
        if name != found.name:
            # Neither it nor its dimensions need be found by name.
            for one in (*found.dimensions.values(), found):
                self.typed.paths[one.name] = name if one is found else one.file
        return found

    def command(self, words: str, options: str = "") -> str:
        """Return another command on the same pipeline, as the user can run it."""
        return self.typed(f"tidelake {words}", self.called, options)

    def printed(self, data: object) -> bool:
        """Print data if JSON is asked for; return whether it is."""
        if self.json:
            print_json(data)
        return self.json


def moment(_: click.Context, __: click.Parameter, value: str | None) -> datetime | None:
    """Parse an ISO 8601 timestamp, in UTC unless it has another offset.

    Empty is None: a schedule cannot omit a parameter.
    """
    if not value:
        return None
    try:
        found = datetime.fromisoformat(value)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"'{value}' is not a timestamp of the years 1 to 9999 (UTC); write it as 2026-01-05 or "
            "2026-01-05T06:30:00Z"
        ) from error


def duration(_: click.Context, __: click.Parameter, value: str | None) -> timedelta | None:
    """Parse a duration such as ``1 day``; empty is None."""
    try:
        return parse_duration(value) if value else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


# Options by the kind of their value: pass their help, and names where they have none.
host_option = functools.partial(click.option, "--host", default="127.0.0.1", show_default=True)
path_option = functools.partial(click.option, type=click.Path(path_type=Path))
port_option = functools.partial(click.option, "--port", show_default=True)
moment_option = functools.partial(click.option, metavar="YYYY-MM-DD[THH:MM:SS]", callback=moment)
duration_option = functools.partial(click.option, metavar="DURATION", callback=duration)
source_option = functools.partial(
    click.option, "--source", help="Read from here, not from the pipeline file's source."
)


def ranged(what: str) -> Callable[[Command], Command]:
    """Return a decorator that adds ``--start`` and ``--end`` as the argument ``within``.

    ``what`` completes the help text "Only … at or after this time (UTC)".
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def bounded(start: datetime | None, end: datetime | None, **options: Any) -> Any:
            if start is not None and end is not None and start >= end:
                raise UsageError("--end must be later than --start")
            return command(within=Range(start, end), **options)

        first = moment_option("--start", help=f"Only {what} at or after this time (UTC).")
        last = moment_option("--end", help=f"Only {what} before this time (UTC).")
        return first(last(bounded))

    return decorate


yes_option = click.option("--yes", is_flag=True, help="Skip the confirmation.")
as_json = click.option("--json", "json_", is_flag=True, help="Print JSON.")
_dry_run = click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
# For commands that write files or records, but change no table.
unwritten = click.option(
    "--dry-run", is_flag=True, help="List what would be written; write nothing."
)


def _name_to_change(_: click.Context, __: click.Parameter, name: str | None) -> str:
    if name is None:
        raise UsageError(f"name the pipeline that this command changes ({known_pipelines()})")
    return name


# Optional if there is only one pipeline.
_of_pipeline = click.argument(
    "pipeline",
    required=False,
    callback=lambda _, __, name: only_pipeline() if name is None else name,
)
# Never guessed, even if there is only one. Not required for click, whose error names no pipelines.
_changed_pipeline = click.argument(
    "pipeline", metavar="PIPELINE", required=False, callback=_name_to_change
)
_root = click.option(
    "--root", metavar="DIR|s3://…", help="Root of tables and checkpoints: folder or s3:// prefix."
)
_env = click.option("--env", metavar="NAME", help="Environment: local, dev or prod.")


def _use_conf(context: click.Context, _: click.Parameter, folder: str | None) -> str | None:
    context.with_resource(given_conf(folder))
    return folder


# By a callback: without PIPELINE the name is looked up in this folder while options are parsed.
_conf = click.option(
    "--conf",
    metavar="DIR",
    callback=_use_conf,
    help="Project, or its folder with pipelines.",
)


def placed(command: Command, *, tolerates_broken: bool = False) -> Command:
    """Add ``--conf``, ``--root``, ``--env``; pass them as ``where``, with pipeline, source, JSON.

    A root that cannot be used is refused only where the command opens the lake. With
    ``tolerates_broken`` an invalid environment does not stop the command, which validates files.
    """

    @functools.wraps(command)
    def resolved(
        root: str | None,
        env: str | None,
        conf: str | None,
        pipeline: str | None = None,
        source: str | None = None,
        json_: bool = False,
        **options: Any,
    ) -> Any:
        is_broken = False
        try:
            environment = load_environment(env, root=root)
        except (ConfigError, NotBuiltError):
            if not tolerates_broken:
                raise
            environment, is_broken = stand_in(env, root), True
        typed = Typed(root, env, pipeline, conf)
        where = Place(environment, typed, source, json_, is_broken)
        # Below the command line, a message may be about any pipeline.
        with completing(replace(typed, called=None)):
            return command(where=where, **options)

    return _conf(_root(_env(resolved)))


# For commands on the files alone: they report a broken environment as they do any other file.
on_files = functools.partial(placed, tolerates_broken=True)


def located(command: Command) -> Command:
    """As :func:`placed`, but refuse a root that cannot be used at once."""

    @functools.wraps(command)
    def opened(where: Place, **options: Any) -> Any:
        _ = where.lake
        return command(where=where, **options)

    return placed(opened)


def changing(command: Command) -> Command:
    """Add ``PIPELINE``, ``--dry-run`` and ``--json`` to :func:`located`.

    For commands that change more than new batches.
    """
    return _changed_pipeline(_dry_run(as_json(located(command))))


class StoredText(click.types.StringParamType):
    """Text that is compared with rows or stored in them: it must be UTF-8."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse an argument with bytes that are not UTF-8, as other terminals send them."""
        text = str(super().convert(value, param, ctx))
        try:
            text.encode()
        except UnicodeEncodeError as error:
            self.fail(f"character {error.start + 1} is a byte that is not UTF-8", param, ctx)
        return text


def confirm(what: str, *, yes: bool) -> None:
    """Ask before a change that cannot be undone.

    Args:
        what: The change, as the subject of a sentence.
        yes: Whether the user has answered in advance.

    Raises:
        UsageError: Nobody can answer: stdin is no terminal.
        RefusedError: The answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            f"{what} cannot be undone, and there is no terminal to ask at. See what would change "
            "with --dry-run, then add --yes"
        )
    try:
        answer = click.confirm(f"{what} cannot be undone. Continue?", err=True)
    except click.Abort:
        answer = False
    if not answer:
        raise RefusedError("Nothing was changed.")


def reporting(command: Command) -> Command:
    """Add ``PIPELINE`` and ``--json`` to :func:`located`."""
    return _of_pipeline(as_json(located(command)))
