"""Keep what the batches of a hop cost, over the queries that follow each other in one run."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tidelake.runtime.limits import PATIENCE, Load, next_limit

# Older batches tell of another time of day.
_RECENT = 12
# Of the last three limits.
_EARLIER = 3 * PATIENCE


@dataclass
class Pace:
    """How much a hop takes in a batch, while a run goes on.

    Attributes:
        target: Seconds that a batch may take.
        most: The configured limit; None for no limit.
        unit: What is limited, for people.
        limit: What holds now.
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
        """Take in a closed batch.

        Returns:
            What changed, in words; empty where the query goes on as it is.
        """
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
