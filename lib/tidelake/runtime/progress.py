"""Tell a person, a line a batch on stderr, how far the run has come; and those who measure it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from tidelake.delta.tables import Hop
from tidelake.errors import TidelakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]


class InputGrewError(TidelakeError):
    """The table that a query follows got columns while it ran; a new query goes on with them."""


class LimitChangedError(TidelakeError):
    """A closed batch taught that the next ones should be of another size; a new query has it."""


class Observer(Protocol):
    """Hears what a run does. None of it may raise, or take long: it is called from the batches."""

    def attach(self, session: SparkSession) -> None:
        """A session starts streaming queries."""

    def starts(self, hop: Hop, generation: str, limit: int | None) -> None:
        """A hop's query is to start; again, where its limit changed."""

    def closed(self, hop: Hop, batch: int, rows: int, seconds: float) -> None:
        """A batch was written. Its query has not closed it yet in the checkpoint."""

    def ends(self, hop: Hop) -> None:
        """A hop has come to the end of its source."""

    def failed(self, hop: Hop, error: Exception) -> None:
        """A hop stopped, or did not start."""


class _Nobody(Observer):
    """Hears nothing."""


@dataclass(frozen=True)
class Progress:
    """Prints a line for each batch that a hop closed; an observer hears of more than that."""

    say: Say
    observer: Observer = field(default_factory=_Nobody)

    def closed(
        self,
        hop: Hop,
        batch: int,
        rows: int,
        started: float,
        *,
        watermark: datetime | None = None,
        detail: str = "",
    ) -> None:
        """Report a closed batch; ``started`` is the monotonic time at which it began."""
        seconds = max(time.monotonic() - started, 1e-3)
        self.observer.closed(hop, batch, rows, seconds)
        line = f"{hop:<7} batch {batch:>4} {rows:>9,} rows {rows / seconds:>9,.0f} rows/s"
        if watermark is not None:
            line += f"  watermark {watermark:%Y-%m-%d %H:%M:%SZ}"
        self.say(f"{line}  {detail}".rstrip())

    @contextmanager
    def blaming(self, hop: Hop) -> Iterator[None]:
        """Tell whose failure it is when something stops the run."""
        try:
            yield
        except (InputGrewError, LimitChangedError):
            raise
        except Exception as error:
            self.observer.failed(hop, error)
            raise
