"""What an entry point makes of its arguments, up to the point where the command would begin."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any
from unittest import mock

import click

from tests.bundle.project import read_package
from tidelake.cli import app


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
