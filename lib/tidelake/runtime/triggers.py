"""Say when micro-batches start."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tidelake.errors import UsageError

AVAILABLE_NOW = "available-now"
CONTINUOUS = "continuous"

_INTERVAL = re.compile(r"[0-9]+ (milliseconds?|seconds?|minutes?|hours?)")


@dataclass(frozen=True)
class Trigger:
    """When micro-batches start."""

    ends: bool
    options: dict[str, Any]


def parse_trigger(text: str) -> Trigger:
    """Read ``available-now``, ``continuous`` or an interval such as ``10 seconds``.

    Raises:
        UsageError: It is none of them.
    """
    if text == AVAILABLE_NOW:
        return Trigger(ends=True, options={"availableNow": True})
    if text == CONTINUOUS:
        return Trigger(ends=False, options={"processingTime": "0 seconds"})
    if _INTERVAL.fullmatch(text):
        return Trigger(ends=False, options={"processingTime": text})
    raise UsageError(
        f"{text!r} is no trigger: write available-now, continuous or an interval like '10 seconds'."
    )
