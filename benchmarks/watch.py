"""An observer for benchmarks that time the hops of a run."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field

from tidelake.delta.tables import Hop
from tidelake.runtime.progress import Observer


@dataclass
class Watch(Observer):
    """An observer that records when hops end, and counts their batches.

    Attributes:
        ended: When each hop reached the end of its source, in milliseconds since the epoch.
        batches: Batches of each hop.
    """

    ended: dict[Hop, int] = field(default_factory=dict)
    batches: dict[Hop, int] = field(default_factory=lambda: defaultdict(int))

    def closed(self, hop: Hop, batch: int, rows: int, seconds: float) -> None:
        """Count a batch."""
        self.batches[hop] += 1

    def ends(self, hop: Hop) -> None:
        """Record the end of a hop."""
        self.ended[hop] = round(time.time() * 1_000)
