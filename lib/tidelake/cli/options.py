"""The options that go with each command, and what they resolve to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from tidelake.config import Environment, Pipeline, load_environment, load_pipeline
from tidelake.errors import NotBuiltError, UsageError
from tidelake.store.access import refuse_unreachable
from tidelake.store.folders import SCHEME, Folder, is_remote
from tidelake.tables import Lake

# How an instant may be written; always in UTC.
MOMENTS = ("%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S")


@dataclass(frozen=True)
class Place:
    """Where a command works."""

    environment: Environment
    lake: Lake

    def pipeline(self, name: str, *, source: str | None = None) -> Pipeline:
        """Load a pipeline by name or path."""
        return load_pipeline(name, self.environment, source=source)


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
        NotBuiltError: The environment is a catalog.
    """
    environment = load_environment(env, root=root)
    if environment.root is None:
        raise NotBuiltError(
            f"Running on the catalog {environment.catalog}", "Give --root DIR to run on paths."
        )
    _refuse_unusable(environment.root)
    return Place(environment, Lake(environment.root))


def _refuse_unusable(root: Folder) -> None:
    """Find out now, not from Spark, that the root cannot be used; nothing is created."""
    if is_remote(root):
        bucket, _, prefix = str(root).removeprefix(SCHEME).partition("/")
        refuse_unreachable(bucket, f"{prefix}/", what=f"the root {root}")
        return
    for folder in (root, *root.parents):
        try:
            if folder.is_dir():
                next(folder.iterdir(), None)
                return
            found = folder.exists()
        except OSError as error:
            raise UsageError(f"the root {root} cannot be read: {error.strerror}") from error
        if found:
            raise UsageError(f"the root {root} cannot be used: {folder} is a file, not a folder.")
