"""What an entry point makes of its arguments, up to the point where the command would begin.

And what a text tells people to start: jobs, and their parameters.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import click

from tests.bundle.project import Bundle, read_package
from tidelake.cli import app

# Jobs that somebody starts when something is wrong, in production.
_RECOVERY = ("backfill", "rollback", "repair", "replay", "late", "erase")


def command_of(script: str, arguments: Sequence[str]) -> list[str]:
    """Give the command line of ``tidelake`` that a script of the package runs.

    Raises:
        KeyError: The package has no such script.
    """
    module, name = read_package()["scripts"][script].split(":")
    entry = getattr(importlib.import_module(module), name)
    with (
        mock.patch("tidelake.cli.run_command", return_value=0) as run,
        mock.patch.object(sys, "argv", [script, *arguments]),
    ):
        entry()
    return list(run.call_args.args[1])


def parse(command: Sequence[str]) -> dict[str, Any]:
    """Parse a command line by the commands themselves, and run none.

    Returns:
        The parameters that the command would get.

    Raises:
        click.UsageError: What the person at the terminal would be told.
    """
    found: click.Command = app
    name, rest = "tidelake", list(command)
    while isinstance(found, click.Group):
        name, *rest = rest
        inner = found.get_command(click.Context(found), name)
        if inner is None:
            raise click.UsageError(f"No such command '{name}'")
        found = inner
    return found.make_context(name, rest).params


def runs_in(text: str) -> list[str]:
    """List the jobs that a text starts: what follows ``databricks bundle run``."""
    return re.findall(r"^\$ databricks bundle run (.*?) *(?:#.*)?$", text, re.MULTILINE)


def runs_in_dev(text: str) -> list[str]:
    """List the recoveries in a text that would run in ``dev``, the target by default.

    In production they need ``-t prod``, and the principal, from a variable or an option.
    """
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        has_variable = "$ export BUNDLE_VAR_service_principal=" in block
        for run in runs_in(block):
            has_principal = has_variable or "--var service_principal=" in run
            if run.split()[0] in _RECOVERY and not (" -t prod" in run and has_principal):
                found.append(run)
    return found


def problems_of(run: str, bundle: Bundle) -> Iterator[str]:
    """Say which of a job and its parameters there are not, as a person would type them."""
    name, *options = run.split()
    job = bundle.jobs.get(name)
    if job is None:
        yield f"no job {name}"
        return
    given = options[options.index("--params") + 1].split(",") if "--params" in options else []
    declared = {one["name"] for one in job.get("parameters", [])}
    for key in (one.partition("=")[0] for one in given):
        if key not in declared:
            yield f"{name} takes no {key}"
