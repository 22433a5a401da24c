"""What a run says about itself while it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidelake.delta.tables import Hop
from tidelake.ops.metrics.listener import Trigger


@dataclass(frozen=True)
class Started:
    """A hop's query is to start; ``limit`` is what its batches take at most."""

    hop: Hop
    generation: str
    limit: int | None


@dataclass(frozen=True)
class Closed:
    """The tables hold a batch, which took so many seconds to write."""

    hop: Hop
    batch: int
    rows: int
    seconds: float
    at: datetime


@dataclass(frozen=True)
class Failed:
    """A hop stopped: the kind of the error, and what it says."""

    hop: Hop
    kind: str
    told: str
    at: datetime


Message = Started | Closed | Failed | Trigger
