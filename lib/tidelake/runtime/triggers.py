"""When micro-batches start, and how much they take at most so that they fit into the interval.

A batch of ``n`` takes ``fixed + n * each`` seconds. Smaller batches are quicker and cost more a
row, since each pays the fixed part. So a limit is lowered only as far as the hop still takes more
than arrives, and raised where it does not: a backlog that grows is worse than a long batch.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    """When micro-batches start: Spark's options, and how long a batch may take, None for any time.

    ``ends``: whether the run ends when its source is exhausted.
    """

    ends: bool
    options: dict[str, Any]
    seconds: float | None = None


def parse_trigger(text: str) -> Trigger:
    """Read ``available-now``, ``continuous`` or an interval such as ``10 seconds``."""
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


# So many batches in a row have to say the same: one slow batch is a compaction or a neighbour.
PATIENCE = 3
# Older batches tell of another time of day.
_RECENT = 12
# Of the last three limits.
_EARLIER = 3 * PATIENCE
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
    """A closed batch: what it took, and what waited when it ended, in the unit of the limit.

    ``ended`` is in seconds of any clock that only goes forward.
    """

    size: int
    seconds: float
    waiting: int
    ended: float


@dataclass
class Pace:
    """How much a hop takes in a batch, over the queries that follow each other in one run.

    A batch may take ``target`` seconds, and ``most`` is the configured limit, None for none, in a
    unit that is for people.
    """

    target: float
    most: int | None
    unit: str
    limit: int | None = field(init=False)
    _recent: deque[Load] = field(default_factory=lambda: deque(maxlen=_RECENT), init=False)
    _earlier: deque[Load] = field(default_factory=lambda: deque(maxlen=_EARLIER), init=False)
    _is_warm: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Begin with what is configured."""
        self.limit = self.most

    def begin(self) -> None:
        """Start another query. Its first batch is not counted: it warms up, or is a repetition."""
        self._earlier.extend(list(self._recent)[-PATIENCE:])
        self._recent.clear()
        self._is_warm = False

    def closed(self, load: Load) -> str:
        """Take in a closed batch; return what changed, in words, empty for nothing."""
        if not self._is_warm:
            self._is_warm = True
            return ""
        self._recent.append(load)
        before = self.limit
        self.limit = next_limit(
            tuple(self._recent),
            earlier=tuple(self._earlier),
            limit=before,
            most=self.most,
            target=self.target,
        )
        if self.limit == before or self.limit is None:
            return ""
        was = "no limit" if before is None else f"{before:,}"
        seconds = sum(load.seconds for load in list(self._recent)[-PATIENCE:]) / PATIENCE
        return (
            f"limit {was} -> {self.limit:,} {self.unit} a batch: the last {PATIENCE} took "
            f"{seconds:.1f} s each, {self.target:g} s is the interval, {load.waiting:,} wait"
        )


def next_limit(
    batches: Sequence[Load],
    *,
    earlier: Sequence[Load] = (),
    limit: int | None,
    most: int | None,
    target: float,
) -> int | None:
    """Choose the limit of the batches to come; the present one where a change is not worth it.

    Args:
        batches: Those that were closed lately under the present limit, oldest first.
        earlier: Some from under other limits. Without them batches of one size would hide again
            what they cost beside their rows.
        limit: The present one; None for no limit.
        most: The configured one, never passed; None for no limit.
        target: Seconds that a batch may take.
    """
    recent = batches[-PATIENCE:]
    size = max((batch.size for batch in recent), default=0)
    if len(recent) < PATIENCE or not size:
        return limit
    fixed, each = _costs([*earlier, *batches])
    # What arrives in a second: what was taken, and by how much the backlog grew.
    first, last = batches[0], batches[-1]
    arrived = last.waiting - first.waiting + sum(batch.size for batch in batches[1:])
    rate = max(arrived, 0) / (last.ended - first.ended)

    def least_for(share: float, wanted: float) -> float:
        """Give the smallest batch that takes so much a second, rows a share of its time."""
        left = 1 - wanted * each
        keeping_up = wanted * fixed / left if left > 0 else math.inf
        return max(keeping_up, share / (1 - share) * fixed / each)

    fitting = (_AIM * target - fixed) / each
    if all(batch.seconds > target for batch in recent):
        lower = max(fitting, least_for(1 / 2, _LOWERED * rate), size / _STEP, 1)
        # A limit above what waits would not change the next batch.
        if lower * _WORTH < min(size, limit or size, last.waiting):
            return int(lower)
    # Whether the limit is what ended these batches; Kafka's is met but for a few records.
    if limit is None or not (last.waiting > 0 and all(10 * b.size >= 9 * limit for b in recent)):
        return limit
    has_room = all(batch.seconds < _ROOM * target for batch in recent)
    wanted = max(fitting if has_room else 0, least_for(1 / 3, _RAISED * rate))
    higher = min(wanted, _STEP * limit, most or math.inf)
    return int(higher) if higher > _WORTH * limit or limit < higher == most else limit


def _costs(batches: Sequence[Load]) -> tuple[float, float]:
    """Fit fixed and unit costs by least squares; from sizes that hardly differ, no fixed part.

    Assumed too small, the fixed part lets a limit be lowered once too often, and the batches under
    that limit then tell it.
    """
    sizes = [batch.size for batch in batches]
    mean = sum(sizes) / len(sizes)
    middle = sum(batch.seconds for batch in batches) / len(batches)
    if max(sizes) < _SPREAD * max(min(sizes), 1):
        return 0.0, middle / mean
    spread = sum((size - mean) ** 2 for size in sizes)
    together = sum((batch.size - mean) * (batch.seconds - middle) for batch in batches)
    # A row costs something, and no more than its part of the whole.
    each = min(max(together / spread, _LEAST * middle / mean), middle / mean)
    return middle - each * mean, each
