"""Say when micro-batches start."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tidelake.config import parse_duration
from tidelake.config.environment import INTERVAL
from tidelake.errors import UsageError

AVAILABLE_NOW = "available-now"
CONTINUOUS = "continuous"

# Without an interval: watermark, epochs and the next hop wait for the end of a batch.
_LONGEST_SECONDS = 60.0
_INTERVAL = re.compile(INTERVAL)


@dataclass(frozen=True)
class Trigger:
    """When micro-batches start.

    Attributes:
        ends: Whether the run ends when its source is exhausted.
        options: What Spark is told.
        seconds: How long a batch may take; None where nobody waits for the next one.
    """

    ends: bool
    options: dict[str, Any]
    seconds: float | None = None


def parse_trigger(text: str) -> Trigger:
    """Read ``available-now``, ``continuous`` or an interval such as ``10 seconds``.

    Raises:
        UsageError: It is none of them.
    """
    if text == AVAILABLE_NOW:
        return Trigger(ends=True, options={"availableNow": True})
    if text == CONTINUOUS:
        options = {"processingTime": "0 seconds"}
        return Trigger(ends=False, options=options, seconds=_LONGEST_SECONDS)
    if _INTERVAL.fullmatch(text):
        seconds = parse_duration(text).total_seconds()
        # An interval of 0 is none.
        options = {"processingTime": text}
        return Trigger(ends=False, options=options, seconds=seconds or _LONGEST_SECONDS)
    raise UsageError(
        f"{text!r} is no trigger: write available-now, continuous or an interval like '10 seconds'."
    )
