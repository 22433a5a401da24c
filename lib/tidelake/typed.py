"""What people are told to type next."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from tidelake.config.places import DEFAULT_PIPELINE, pipeline_names


@dataclass(frozen=True)
class Typed:
    """Completes commands by what the command at hand was given itself.

    Attributes:
        root: What ``--root`` was; None where it was not given.
        env: What ``--env`` was.
        called: What the pipeline was called by, where that is not its name: a path.
    """

    root: str | None = None
    env: str | None = None
    called: str | None = None

    def __call__(self, command: str, pipeline: str = "", options: str = "") -> str:
        """Write a command so that it can be typed in the folder in which this one was.

        Args:
            command: ``tidelake …``, whole or up to the pipeline.
            pipeline: The pipeline's name; what it was called by takes its place.
            options: What comes after it.
        """
        name = shlex.quote(self.called or pipeline) if pipeline else ""
        words = [command, name, options]
        words += [
            f"{option} {shlex.quote(value)}"
            for option, value in (("--root", self.root), ("--env", self.env))
            if value
        ]
        return " ".join(word for word in words if word)


# Of what was given neither a root nor an environment.
PLAIN = Typed()


def first_command() -> str:
    """Write the command that fills the first tables: the demo, or a known pipeline's run."""
    names = pipeline_names()
    if DEFAULT_PIPELINE in names:
        return "tidelake demo"
    return f"tidelake run {names[0]}" if names else "tidelake init"
