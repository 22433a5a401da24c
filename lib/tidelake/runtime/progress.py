"""Tell a person, a line a batch on stderr, how far the run has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from tidelake.tables import Hop

Say = Callable[[str], None]


@dataclass(frozen=True)
class Progress:
    """Prints one line for each batch that a hop closed.

    Attributes:
        say: Takes a line; prints it to stderr in the command line.
    """

    say: Say

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
        line = f"{hop:<7} batch {batch:>4} {rows:>9,} rows {rows / seconds:>9,.0f} rows/s"
        if watermark is not None:
            line += f"  watermark {watermark:%Y-%m-%d %H:%M:%SZ}"
        self.say(f"{line}  {detail}".rstrip())
