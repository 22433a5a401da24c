"""Commands in messages, completed with the user's options so that they can be run as shown.

A command of the command line sets what completes them with :func:`completing`. Messages of other
packages name commands with :func:`runnable` and ignore options.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tidelake.config.locations import DEFAULT_PIPELINE, pipeline_names


@dataclass(frozen=True)
class Typed:
    """Completes commands with the options of the current one.

    Attributes:
        root: The value of ``--root``, if given.
        env: The value of ``--env``, if given.
        called: The path that the user gave for the pipeline instead of a name.
        conf: The value of ``--conf``, if given.
        paths: Paths of pipelines by name, where they were called by path; filled as they load.
    """

    root: str | None = None
    env: str | None = None
    called: str | None = None
    conf: str | None = None
    paths: dict[str, str] = field(default_factory=dict, compare=False)

    def __call__(self, command: str, pipeline: str = "", options: str = "") -> str:
        """Return a command that can be run in the current folder.

        ``command`` is ``tidelake …``, complete or up to the pipeline, whose name ``called`` or its
        path replaces; ``options`` come after it.
        """
        called = self.called or self.paths.get(pipeline, pipeline)
        words = [command, shlex.quote(called) if pipeline else "", options]
        given = (("--conf", self.conf), ("--root", self.root), ("--env", self.env))
        for option, value in given:
            words += [option, shlex.quote(value)] if value else []
        return " ".join(filter(None, words))


# Adds no root and no environment.
PLAIN = Typed()


_current = PLAIN


@contextmanager
def completing(typed: Typed) -> Iterator[None]:
    """Complete the commands of :func:`runnable` with a command's options, within the block."""
    before = _current
    complete_with(typed)
    try:
        yield
    finally:
        complete_with(before)


def complete_with(typed: Typed) -> None:
    """Complete the commands of :func:`runnable` with these options from now on."""
    global _current  # noqa: PLW0603  threads of the command need it too, so it is no ContextVar
    _current = typed


def current() -> Typed:
    """Return what completes the commands of :func:`runnable`, to send it to another process."""
    return _current


def runnable(command: str, pipeline: str = "", options: str = "") -> str:
    """Return a command for a message, as the user of the current command can run it.

    The arguments are those of :class:`Typed`. Call it where the message is made: afterwards the
    options may be those of another command.
    """
    return _current(command, pipeline, options)


def first_command() -> str:
    """Return the command that fills the first tables: the demo, or a known pipeline's run."""
    names = pipeline_names()
    if DEFAULT_PIPELINE in names:
        return "tidelake demo"
    return f"tidelake run {names[0]}" if names else "tidelake init"
