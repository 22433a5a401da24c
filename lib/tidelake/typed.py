"""Commands in messages, completed with the user's options so that they can be run as shown."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from tidelake.config.places import DEFAULT_PIPELINE, pipeline_names


@dataclass(frozen=True)
class Typed:
    """Completes commands with the options of the current one.

    Attributes:
        root: The value of ``--root``, if given.
        env: The value of ``--env``, if given.
        called: The path that the user gave for the pipeline instead of a name.
        conf: The value of ``--conf``, if given.
    """

    root: str | None = None
    env: str | None = None
    called: str | None = None
    conf: str | None = None

    def __call__(self, command: str, pipeline: str = "", options: str = "") -> str:
        """Return a command that can be run in the current folder.

        ``command`` is ``tidelake …``, complete or up to the pipeline, whose name ``called``
        replaces; ``options`` come after it.
        """
        words = [command, shlex.quote(self.called or pipeline) if pipeline else "", options]
        given = (("--conf", self.conf), ("--root", self.root), ("--env", self.env))
        for option, value in given:
            words += [option, shlex.quote(value)] if value else []
        return " ".join(filter(None, words))


# Adds no root and no environment.
PLAIN = Typed()


def first_command() -> str:
    """Return the command that fills the first tables: the demo, or a known pipeline's run."""
    names = pipeline_names()
    if DEFAULT_PIPELINE in names:
        return "tidelake demo"
    return f"tidelake run {names[0]}" if names else "tidelake init"
