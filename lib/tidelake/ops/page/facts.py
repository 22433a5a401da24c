"""Read all that the page shows of a pipeline, part by part, the quick ones first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from tidelake.config import Environment, Pipeline
from tidelake.ops.ledger import Ledger, read_ledger
from tidelake.ops.listing import Group, LateDay, list_late, list_quarantine
from tidelake.ops.page.flow import Flow, read_flow
from tidelake.ops.page.plots import Plot, read_plots
from tidelake.tables import Lake


@dataclass(frozen=True)
class Sides:
    """What lies beside silver.

    Attributes:
        quarantine: By stage and reason, the most frequent first.
        late: By event date.
    """

    quarantine: tuple[Group, ...]
    late: tuple[LateDay, ...]

    @property
    def quarantined(self) -> int:
        """Rows in quarantine that nobody gave up, by their reasons: one with two counts twice."""
        return sum(group.rows - group.discarded for group in self.quarantine)

    @property
    def waiting(self) -> int:
        """Late rows that were not applied."""
        return sum(day.waiting for day in self.late)


@dataclass(frozen=True)
class Facts:
    """All that is known of a pipeline; what was not read yet is None.

    Attributes:
        name: The pipeline's name.
        pipeline: Its definition; None where that cannot be read.
        broken: Why the definition, or a part of the facts, cannot be read.
        read_at: When the newest part was read (UTC).
        has_run: Whether it has tables under the root.
        flow: Its hops.
        sides: Quarantine and late.
        plots: Its gold tables.
        books: Its ledger.
        serial: Grows with each part that is read, so that two states can be told apart.
    """

    name: str
    pipeline: Pipeline | None = None
    broken: tuple[str, ...] = ()
    read_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    has_run: bool = False
    flow: Flow | None = None
    sides: Sides | None = None
    plots: tuple[Plot, ...] | None = None
    books: Ledger | None = None
    serial: int = 0
