"""Parse triggers, and adapt the batch limit so that batches fit into the trigger's interval.

A batch of ``n`` rows takes ``fixed + n * each`` seconds. Smaller batches are faster but cost more
per row, since each pays the fixed part. A growing backlog is worse than a long batch: a limit is
lowered only while the hop still processes more than arrives, and raised if batches reach it and a
backlog remains.
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

# The longest batch without an interval: watermark, epochs and the next hop wait for its end.
_LONGEST_SECONDS = 60.0
_INTERVAL = re.compile(INTERVAL)


@dataclass(frozen=True)
class Trigger:
    """When micro-batches start, as ``options`` of Spark's ``trigger``.

    With one that ``ends``, a run ends when its source is exhausted. ``seconds`` limits the time of
    a batch; None for no limit. Without ``has_interval`` the next batch starts at once.
    """

    ends: bool
    options: dict[str, Any]
    seconds: float | None = None
    has_interval: bool = False


def parse_trigger(text: str) -> Trigger:
    """Parse ``available-now``, ``continuous`` or an interval such as ``10 seconds``."""
    if text == AVAILABLE_NOW:
        return Trigger(ends=True, options={"availableNow": True})
    interval = "0 seconds" if text == CONTINUOUS else text
    if not _INTERVAL.fullmatch(interval):
        raise UsageError(
            f"{text!r} is not a trigger: write available-now, continuous or an interval like "
            "'10 seconds'."
        )
    try:
        seconds = parse_duration(interval).total_seconds()
    except ValueError as error:
        raise UsageError(f"{text!r} is not a trigger: {error}") from None
    return Trigger(
        ends=False,
        options={"processingTime": interval},
        seconds=seconds or _LONGEST_SECONDS,
        has_interval=bool(seconds),
    )


# A batch that takes longer is mostly work on rows; a shorter one is mostly planning and commits.
_LIGHT_SECONDS = 3.0
# Consecutive batches that must agree before the limit changes: a single slow batch may be due to a
# compaction or other load on the machine.
PATIENCE = 3
# Batches that count for the cost estimate; older ones reflect another time of day.
_RECENT = 12
# Batches kept from the last six limits: near a limit, sizes differ too little to tell the costs.
_EARLIER = 6 * PATIENCE
# Target duration of a batch, as a fraction of the interval; Spark's planning is not measured and
# comes on top.
_AIM = 0.75
# Batches below this fraction of the interval leave room for a higher limit.
_ROOM = 0.5
# Minimum factor of a change: a new limit needs a new query, which costs seconds.
_WORTH = 1.25
# Maximum factor of one change: the cost model is reliable only near the sizes that were tried.
_STEP = 4
# Minimum factor between batch sizes to separate the fixed cost from the cost per row.
_SPREAD = 1.2
# Below this many seconds, the noise of a batch's time is no longer proportional to it.
_SHORTEST = 0.1
# Minimum cost per row if noise hides it, as a fraction of the mean cost per row.
_LEAST = 0.01
# Required ratio of throughput to arrivals. Lowering requires a higher ratio than raising restores,
# or an uneven stream would make the limit oscillate.
_LOWERED, _RAISED = 2.0, 1.2


@dataclass(frozen=True)
class Load:
    """A closed batch: its size and the backlog at its end, in the unit of the limit.

    ``ended`` is in seconds of a monotonic clock.
    """

    size: int
    seconds: float
    waiting: int
    ended: float

    @property
    def is_light(self) -> bool:
        """Whether the hop keeps up, and its time does not depend on the rows of a batch."""
        return self.waiting <= self.size and self.seconds <= _LIGHT_SECONDS


@dataclass
class Pace:
    """The adaptive batch limit of a hop, kept across the successive queries of one run.

    A batch may take ``target`` seconds. ``most`` is the configured limit, None for none.
    """

    target: float
    most: int | None
    unit: str
    limit: int | None = field(init=False)
    _recent: deque[Load] = field(default_factory=lambda: deque(maxlen=_RECENT), init=False)
    _earlier: deque[Load] = field(default_factory=lambda: deque(maxlen=_EARLIER), init=False)
    _is_warm: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Start with the configured limit."""
        self.limit = self.most

    def begin(self) -> None:
        """Prepare for a new query, whose first batch is ignored: it is a warm-up or a retry."""
        self._earlier.extend(list(self._recent)[-PATIENCE:])
        self._recent.clear()
        self._is_warm = False

    def closed(self, load: Load) -> str:
        """Record a closed batch and adapt the limit; return a message, empty for no change."""
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
            f"{seconds:.1f} s each, the interval is {self.target:g} s, backlog {load.waiting:,}"
        )


def next_limit(
    batches: Sequence[Load],
    *,
    earlier: Sequence[Load] = (),
    limit: int | None,
    most: int | None,
    target: float,
) -> int | None:
    """Return the limit for the next batches; the current one if a change is not worthwhile.

    ``batches`` are recent ones under the current limit, oldest first, of which three are needed;
    ``earlier`` are some under previous limits, since batches of one size cannot separate the fixed
    cost. A limit of None means no limit; ``most``, in the unit of the batches' sizes, is never
    exceeded, and a batch may take ``target`` seconds.
    """
    recent = batches[-PATIENCE:]
    size = max((batch.size for batch in recent), default=0)
    if len(recent) < PATIENCE or not size:
        return limit
    fixed, each = _costs([*earlier, *batches])
    # Arrivals per second: what was processed plus the growth of the backlog.
    first, last = batches[0], batches[-1]
    arrived = last.waiting - first.waiting + sum(batch.size for batch in batches[1:])
    rate = max(arrived, 0) / (last.ended - first.ended)

    def least_for(share: float, wanted: float) -> float:
        """Return the smallest batch with ``wanted`` rows/s and ``share`` of its time for rows."""
        left = 1 - wanted * each
        keeping_up = wanted * fixed / left if left > 0 else math.inf
        return max(keeping_up, share / (1 - share) * fixed / each)

    fitting = (_AIM * target - fixed) / each
    if all(batch.seconds > target for batch in recent):
        lower = max(fitting, least_for(1 / 2, _LOWERED * rate), size / _STEP, 1)
        # A limit above the backlog would not change the next batch.
        if lower * _WORTH < min(size, limit or size, last.waiting):
            return int(lower)
    # Raise only a limit that these batches reached; Kafka's may be missed by a few records.
    if limit is None or not (last.waiting > 0 and all(10 * b.size >= 9 * limit for b in recent)):
        return limit
    has_room = all(batch.seconds < _ROOM * target for batch in recent)
    wanted = max(fitting if has_room else 0, least_for(1 / 3, _RAISED * rate))
    higher = min(wanted, _STEP * limit, most or math.inf)
    return int(higher) if higher > _WORTH * limit or limit < higher == most else limit


def _costs(batches: Sequence[Load]) -> tuple[float, float]:
    """Fit the fixed cost and the cost per unit by least squares; fixed 0 if sizes hardly differ.

    The noise of a batch's time is proportional to it, so the relative errors are minimized.
    If the fixed cost is underestimated, the limit is lowered once too often, and the batches under
    that limit then correct the estimate.
    """
    sizes = [batch.size for batch in batches]
    if max(sizes) < _SPREAD * max(min(sizes), 1):
        return 0.0, sum(batch.seconds for batch in batches) / sum(sizes)
    weighted = [(1 / max(batch.seconds, _SHORTEST) ** 2, batch) for batch in batches]
    total = sum(weight for weight, _ in weighted)
    mean = sum(weight * batch.size for weight, batch in weighted) / total
    middle = sum(weight * batch.seconds for weight, batch in weighted) / total
    spread = sum(weight * (batch.size - mean) ** 2 for weight, batch in weighted)
    together = sum(w * (batch.size - mean) * (batch.seconds - middle) for w, batch in weighted)
    # The cost per row is positive, and at most the mean cost per row.
    each = min(max(together / spread, _LEAST * middle / mean), middle / mean)
    return middle - each * mean, each
