"""Choose how much a micro-batch takes at most, so that its time stays under the interval.

A batch of ``n`` takes ``fixed + n * each`` seconds. Smaller batches are quicker and cost more a
row, since each pays the fixed part. So a limit is lowered only as far as the hop still takes more
than arrives, and raised where it does not: a backlog that grows is worse than a long batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# So many batches in a row have to say the same: one slow batch is a compaction or a neighbour.
PATIENCE = 3
# Where in the interval a batch is to end. Spark's own planning comes on top of what is measured.
_AIM = 0.75
# Below this part of the interval there is room for more.
_ROOM = 0.5
# A new limit begins a new query, which costs seconds: less of a change is not worth it.
_WORTH = 1.25
# One change goes no further than this factor: the costs are known only near to what was tried.
_STEP = 4
# Sizes that differ by less do not tell the fixed cost from that of a row.
_SPREAD = 1.2
# Where noise hides what a row costs: this part of a batch's mean cost a row.
_LEAST = 0.01
# How much faster than the arrivals a hop must stay. Lowering wants more than raising restores, or
# an uneven stream would change the limit to and fro.
_LOWERED, _RAISED = 2.0, 1.2


@dataclass(frozen=True)
class Load:
    """A closed batch.

    Attributes:
        size: What it took, in the unit of the limit.
        seconds: How long it took.
        waiting: What waited when it ended, in the same unit.
        ended: When, in seconds of any clock that only goes forward.
    """

    size: int
    seconds: float
    waiting: int
    ended: float


@dataclass(frozen=True)
class _Cost:
    """Seconds of a batch: a fixed part, and one for each unit that it takes."""

    fixed: float
    each: float

    def most_within(self, seconds: float) -> float:
        return (seconds - self.fixed) / self.each

    def least_for(self, rate: float) -> float:
        """Give the smallest batch that takes so much a second; infinite where none does."""
        left = 1 - rate * self.each
        return rate * self.fixed / left if left > 0 else math.inf

    def least_with(self, share: float) -> float:
        """Give the smallest batch of whose time the rows take this share."""
        return share / (1 - share) * self.fixed / self.each


def next_limit(
    batches: Sequence[Load],
    *,
    earlier: Sequence[Load] = (),
    limit: int | None,
    most: int | None,
    target: float,
) -> int | None:
    """Choose the limit of the batches to come.

    Args:
        batches: Those that were closed lately under the present limit, oldest first.
        earlier: Some from under other limits. Without them batches of one size would hide again
            what they cost beside their rows.
        limit: The present one; None for no limit.
        most: The configured one, never passed; None for no limit.
        target: Seconds that a batch may take.

    Returns:
        The limit, the present one where a change would not be worth it.
    """
    recent = batches[-PATIENCE:]
    size = max((batch.size for batch in recent), default=0)
    if len(recent) < PATIENCE or not size:
        return limit
    cost, rate = _cost([*earlier, *batches]), _arriving(batches)
    fitting = cost.most_within(_AIM * target)
    if all(batch.seconds > target for batch in recent):
        least = max(cost.least_for(_LOWERED * rate), cost.least_with(1 / 2))
        lower = max(fitting, least, size / _STEP, 1)
        # A limit above what waits would not change the next batch.
        if lower * _WORTH < min(size, limit or size, recent[-1].waiting):
            return int(lower)
    if limit is None or not _is_full(recent, limit):
        return limit
    least = max(cost.least_for(_RAISED * rate), cost.least_with(1 / 3))
    has_room = all(batch.seconds < _ROOM * target for batch in recent)
    higher = min(max(fitting if has_room else 0, least), _STEP * limit, most or math.inf)
    return int(higher) if higher > _WORTH * limit or limit < higher == most else limit


def _is_full(recent: Sequence[Load], limit: int) -> bool:
    """Tell whether the limit is what ended these batches; Kafka's is met but for a few records."""
    return recent[-1].waiting > 0 and all(10 * batch.size >= 9 * limit for batch in recent)


def _cost(batches: Sequence[Load]) -> _Cost:
    """Fit the costs by least squares; from sizes that hardly differ, with no fixed part.

    Assumed too small, the fixed part lets a limit be lowered once too often, and the batches under
    that limit then tell it.
    """
    sizes = [batch.size for batch in batches]
    mean = sum(sizes) / len(sizes)
    middle = sum(batch.seconds for batch in batches) / len(batches)
    if max(sizes) < _SPREAD * max(min(sizes), 1):
        return _Cost(0.0, middle / mean)
    spread = sum((size - mean) ** 2 for size in sizes)
    together = sum((batch.size - mean) * (batch.seconds - middle) for batch in batches)
    # A row costs something, and no more than its part of the whole.
    each = min(max(together / spread, _LEAST * middle / mean), middle / mean)
    return _Cost(middle - each * mean, each)


def _arriving(batches: Sequence[Load]) -> float:
    """Tell how much arrives in a second: what was taken, and by how much the backlog grew."""
    first, last = batches[0], batches[-1]
    arrived = last.waiting - first.waiting + sum(batch.size for batch in batches[1:])
    return max(arrived, 0) / (last.ended - first.ended)
