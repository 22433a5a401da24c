"""Report a run's progress: one line per batch on stderr, and events for an observer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING

from tidelake.delta.commit_metadata import rows_read
from tidelake.delta.log import CREATION, commits, last_commit
from tidelake.delta.tables import Hop, Table
from tidelake.errors import TidelakeError
from tidelake.instants import from_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]


class InputGrewError(TidelakeError):
    """Columns were added to an input table while a query read it; a new query must read them."""


class LimitChangedError(TidelakeError):
    """The batch limit was adapted; a new query must apply it."""


class Observer:
    """Receives a run's events, and ignores them.

    Methods must neither raise nor block: batches call them.
    """

    def attach(self, session: SparkSession) -> None:
        """Called with each session that starts streaming queries."""

    def starts(self, hop: Hop, generation: str, limit: int | None) -> None:
        """Called before a hop's query starts, also when it restarts with a new limit."""

    def closed(self, hop: Hop, batch: int, rows: int, seconds: float) -> None:
        """Called after a batch was written, before its query commits it to the checkpoint."""

    def pauses(self, hop: Hop, batch: int) -> None:
        """Called after a batch was closed that may wait for other hops, before it does."""

    def gave_way(self, hop: Hop, batch: int, seconds: float) -> None:
        """Called after a closed batch has waited for other hops; Spark counts that as its time."""

    def ends(self, hop: Hop) -> None:
        """Called when a hop has exhausted its source."""

    def failed(self, hop: Hop, error: Exception) -> None:
        """Called when a hop failed, or did not start."""


@dataclass(frozen=True)
class Progress:
    """Prints a line for each closed batch, and passes events on to an observer."""

    say: Say
    observer: Observer = field(default_factory=Observer)
    _said: set[str] = field(default_factory=set, compare=False, repr=False)

    def say_once(self, text: str) -> None:
        """Print a text unless it was printed before: a command may run hops several times."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)

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
        """Report exceptions in the block to the observer as failures of ``hop``."""
        try:
            yield
        except (InputGrewError, LimitChangedError):
            raise
        except Exception as error:
            self.observer.failed(hop, error)
            raise


class Closings:
    """Reports each batch that another process closed, once, from the table's commits."""

    def __init__(self, hop: Hop, table: Table, progress: Progress) -> None:
        """Report batches from now on; the commits of ``table`` close them."""
        self._hop, self._table, self._progress = hop, table, progress
        last = last_commit(table)
        self._reported = CREATION if last is None else last.batch
        self._since = time.monotonic()

    def look(self) -> None:
        """Report the batches closed since the last call."""
        fresh = list(takewhile(lambda commit: commit.batch > self._reported, commits(self._table)))
        for commit in reversed(fresh):
            rows, mark = rows_read(commit), from_json(commit.note.get("watermark"))
            self._progress.closed(self._hop, commit.batch, rows, self._since, watermark=mark)
            self._reported, self._since = commit.batch, time.monotonic()
