"""Where measures go: each place for itself, none of which can harm a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidelake.ops.metrics.measured import Measured
from tidelake.runtime.progress import Say
from tidelake.visible import kind_of


class Sink(Protocol):
    """A place that takes measures; called from one thread."""

    @property
    def name(self) -> str:
        """What people call it."""

    def put(self, measured: Measured) -> None:
        """Take a batch, or a failure."""

    def tick(self) -> None:
        """Do what is due from time to time."""

    def close(self) -> None:
        """Write what waits and let go."""


class Guarded:
    """Lets a sink fail once, says so, and leaves it alone from then on."""

    def __init__(self, sink: Sink, say: Say) -> None:
        """Keep the sink and who hears of its failure."""
        self._sink = sink
        self._say = say
        self._is_well = True

    def put(self, measured: Measured) -> None:
        """Take a batch, or a failure."""
        self._do(lambda: self._sink.put(measured))

    def tick(self) -> None:
        """Do what is due from time to time."""
        self._do(self._sink.tick)

    def close(self) -> None:
        """Write what waits and let go."""
        self._do(self._sink.close)

    def _do(self, step: Callable[[], None]) -> None:
        if not self._is_well:
            return
        try:
            step()
        except Exception as error:
            # Whatever it is: the run goes on, and its tables are what counts.
            self._is_well = False
            self._say(
                f"metrics: {self._sink.name} takes no more: {first_line(error)}. The run goes on."
            )


def first_line(error: BaseException) -> str:
    """Give an error's kind and, without values of rows, what it is."""
    told, kind = kind_of(error), type(error).__name__
    return (told if told.startswith(kind) else f"{kind}: {told}").rstrip(".")
