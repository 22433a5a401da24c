"""All that the page shows of a pipeline; each part may be missing while it is read."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from datetime import datetime

from tidelake.config import Pipeline
from tidelake.delta.tables import HOPS, Lake
from tidelake.ops.alerts import Alert
from tidelake.ops.ledger import BooksLine, Ledger, books_by
from tidelake.ops.page.flow import Flow
from tidelake.ops.page.plots import Plot
from tidelake.ops.side import LateDay, ReasonGroup, list_late, list_quarantine


@dataclass(frozen=True)
class Sides:
    """What lies beside silver.

    Attributes:
        quarantine: By stage and reason, the most frequent first.
        late: By event date.
    """

    quarantine: tuple[ReasonGroup, ...]
    late: tuple[LateDay, ...]

    @property
    def waiting(self) -> int:
        """Late rows that were not applied."""
        return sum(day.waiting for day in self.late)


@dataclass(frozen=True)
class Books:
    """The ledger and its lines.

    Attributes:
        ledger: The whole.
        batches: A line a batch, oldest first.
        days: A line a day, oldest first.
    """

    ledger: Ledger
    batches: tuple[BooksLine, ...]
    days: tuple[BooksLine, ...]

    @staticmethod
    def of(ledger: Ledger) -> Books:
        """Roll a ledger's batches up."""
        batches = ledger.batches
        return Books(ledger, tuple(books_by(batches, "batch")), tuple(books_by(batches, "day")))


@dataclass(frozen=True)
class Facts:
    """What is known of a pipeline.

    Attributes:
        name: The pipeline's name.
        pipeline: Its definition; None where it cannot be read.
        broken: Why parts cannot be read, by part; ``definition`` for all of them.
        looked_at: When its tables were last asked whether they changed (UTC); None: not yet.
        has_run: Whether it has tables under the root.
        flow: Its hops.
        alerts: What is open; the books have no part in these.
        sides: Quarantine and late.
        plots: Its gold tables.
        books: Its ledger.
        serial: Grows with each change, so that two states can be told apart.
        called: What it was called by; empty for its name.
    """

    name: str
    pipeline: Pipeline | None = None
    broken: tuple[tuple[str, str], ...] = ()
    looked_at: datetime | None = None
    has_run: bool = False
    flow: Flow | None = None
    alerts: tuple[Alert, ...] | None = None
    sides: Sides | None = None
    plots: tuple[Plot, ...] | None = None
    books: Books | None = None
    serial: int = 0
    called: str = ""

    @property
    def word(self) -> str:
        """What stands for it in a command."""
        return shlex.quote(self.called or self.name)

    @property
    def open(self) -> tuple[Alert, ...]:
        """All alerts, the worst first: those of the tables, and that of the books."""
        found = [*self._unreadable(), *self._unbalanced(), *(self.alerts or ())]
        return tuple(sorted(found, key=lambda alert: alert.severity != "critical"))

    @property
    def whole(self) -> bool:
        """Tell whether all that could speak of a fault was read."""
        return self.pipeline is None or not self.has_run or None not in (self.alerts, self.books)

    def _unreadable(self) -> list[Alert]:
        """Make an alert of each part that could not be read, since its faults stay unseen."""
        return [
            Alert("unreadable", self.name, None, "critical", why, None, f"tidelake {command}")
            for part, why in self.broken
            for command in [f"{'check' if part == 'definition' else 'status'} {self.word}"]
        ]

    def _unbalanced(self) -> list[Alert]:
        problems = self.books.ledger.problems if self.books else ()
        if not problems:
            return []
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        command = f"tidelake ledger {self.word} --by batch"
        message = f"the books do not balance: {problems[0]}{more}"
        # The first problem names the layer that it was found in: "silver, batch 3", "gold.totals".
        layer = re.match(r"[a-z]+", problems[0])
        hop = layer[0] if layer and layer[0] in HOPS else None
        return [Alert("books_unbalanced", self.name, hop, "critical", message, None, command)]


def read_sides(lake: Lake, pipeline: Pipeline) -> Sides:
    """Read what lies in quarantine and late."""
    return Sides(tuple(list_quarantine(lake, pipeline)), tuple(list_late(lake, pipeline)))
