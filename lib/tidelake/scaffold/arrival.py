"""How far out of order a sample is, and the delay and lateness that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

_STEPS = tuple(
    timedelta(**{unit: number})
    for unit, numbers in (
        ("minutes", (1, 2, 5, 10, 15, 30)), ("hours", (1, 2, 6, 12)), ("days", (1, 2, 7, 14, 30))
    )
    for number in numbers
)  # fmt: skip
_MOST_ON_TIME = 0.99
DEFAULT_DELAY, DAY = timedelta(minutes=10), timedelta(days=1)
_FEW = 20


@dataclass(frozen=True)
class Lateness:
    """How long to wait for events.

    Attributes:
        delay: How far the watermark trails the largest event time.
        allowed: How far behind the watermark an event still changes gold.
        why: For people.
    """

    delay: timedelta
    allowed: timedelta
    why: str


def lateness_of(times: Sequence[datetime | None], partitions: Sequence[str]) -> Lateness:
    """Measure by how much events come after later ones.

    Args:
        times: Event times in the order of arrival.
        partitions: The source's partition of each; order means something within one only.
    """
    newest: dict[str, datetime] = {}
    behind = []
    for instant, partition in zip(times, partitions, strict=True):
        if instant is None:
            continue
        latest = newest.setdefault(partition, instant)
        behind.append(max(latest - instant, timedelta(0)))
        newest[partition] = max(latest, instant)
    if len(behind) < _FEW:
        return Lateness(DEFAULT_DELAY, DAY, "too few times in the sample to tell; the default")
    behind.sort()
    usual, most = behind[int(len(behind) * _MOST_ON_TIME) - 1], behind[-1]
    delay = step_above(usual)
    allowed = max(DAY, step_above(max(most - delay, timedelta(0))))
    if not most:
        return Lateness(delay, allowed, "the sample is in order")
    return Lateness(
        delay,
        allowed,
        f"99 of 100 records come at most {spoken(usual)} after a later one, all at most "
        f"{spoken(most)}",
    )


def step_above(length: timedelta) -> timedelta:
    """Round up to a length that people would write."""
    return next((step for step in _STEPS if step >= length), timedelta(days=length.days + 1))


def written(length: timedelta) -> str:
    """Write a duration as a pipeline file has it: ``10 minutes``."""
    seconds = int(length.total_seconds())
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        if seconds % size == 0 and seconds >= size:
            number = seconds // size
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return "0 seconds"


def spoken(length: timedelta) -> str:
    """Say a length roughly."""
    seconds = length.total_seconds()
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
