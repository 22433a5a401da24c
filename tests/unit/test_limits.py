"""How much a batch takes: what makes it more or less, and where that comes to rest."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidelake.runtime.triggers import PATIENCE, Load, Pace, next_limit

_BATCHES = 150


@dataclass
class Hop:
    """A hop whose batches take ``fixed + size * each`` seconds, give or take ``noise``."""

    fixed: float
    each: float
    arriving: float
    backlog: float
    pace: Pace
    noise: float = 0.0
    seed: int = 0
    seconds: list[float] = field(default_factory=list)
    limits: list[int | None] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)

    def play(self, batches: int = _BATCHES) -> None:
        """Close so many batches, each as soon as the interval and the batch before allow."""
        chance = random.Random(self.seed)
        now, waiting = 0.0, self.backlog
        for _ in range(batches):
            size = int(min(waiting, self.pace.limit or waiting))
            took = (self.fixed + size * self.each) * chance.uniform(1 - self.noise, 1 + self.noise)
            waiting += self.arriving * took - size
            now += took
            if self.pace.closed(Load(size, took, int(waiting), now)):
                self.pace.begin()
                # The repetition of the closed batch, which nothing is learned from.
                self.pace.closed(Load(0, 0.1, int(waiting), now))
            self.seconds.append(took)
            self.limits.append(self.pace.limit)
            self.waiting.append(waiting)
            rest = max(self.pace.target - took, 0.0)
            now, waiting = now + rest, waiting + self.arriving * rest

    @property
    def changes(self) -> list[int]:
        """Give the batches after which the limit changed."""
        before = [self.pace.most, *self.limits]
        return [n for n, limit in enumerate(self.limits) if limit != before[n]]


def _loads(*sizes: int, seconds: float, waiting: int = 10_000_000) -> list[Load]:
    """Close batches of a backlog to which nothing is added."""
    left = [waiting - sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [Load(size, seconds, left[n], seconds * n) for n, size in enumerate(sizes)]


def _next(batches: Sequence[Load], limit: int | None, most: int | None = None) -> int | None:
    return next_limit(batches, limit=limit, most=most, target=10)


def test_a_few_batches_that_take_too_long_lower_the_limit() -> None:
    loads = _loads(1000, 1000, 1000, seconds=20)
    assert _next(loads, 1000, 1000) == 375
    assert _next(loads, None) == 375


def test_a_backlog_that_is_taken_already_lowers_nothing() -> None:
    """After a burst the long batches are over; a new query would only cost its start."""
    loads = _loads(1000, 1000, 1000, seconds=20, waiting=3400)
    assert _next(loads, 1000, 1000) == 1000


def test_one_slow_batch_among_others_changes_nothing() -> None:
    loads = [replace(load, seconds=9) for load in _loads(1000, 1000, 1000, seconds=20)]
    assert _next([*loads[:2], replace(loads[2], seconds=60)], 1000, 1000) == 1000


def test_nothing_is_decided_before_enough_batches_ran_under_the_present_limit() -> None:
    loads = _loads(1000, 1000, 1000, seconds=20)
    found = next_limit(loads[1:], earlier=loads[:1], limit=1000, most=1000, target=10)
    assert found == 1000


def test_one_change_goes_no_further_than_to_a_quarter_or_four_times() -> None:
    assert _next(_loads(1000, 1000, 1000, seconds=500), 1000) == 250
    assert _next(_loads(1000, 1000, 1000, seconds=0.1), 1000) == 4000


def test_room_raises_the_limit_up_to_the_configured_one() -> None:
    loads = _loads(1000, 1000, 1000, seconds=2)
    assert _next(loads, 1000) == 3750
    assert _next(loads, 1000, 2000) == 2000
    assert _next(loads, 1000, 1100) == 1100
    assert _next(loads, 1000, 1000) == 1000


def test_room_without_a_backlog_changes_nothing() -> None:
    assert _next(_loads(1000, 1000, 1000, seconds=2, waiting=3000), 1000) == 1000
    assert _next(_loads(300, 200, 300, seconds=2), 1000) == 1000


def test_what_arrives_as_fast_as_it_is_taken_is_not_cut_smaller() -> None:
    """A hop in its steady state takes all that came: less of it would never be caught up."""
    loads = [replace(load, waiting=0) for load in _loads(1000, 1000, 1000, seconds=20)]
    assert _next(loads, None) is None


@pytest.mark.parametrize("fixed", [9.0, 12.0, 30.0])
def test_batches_that_mostly_cost_their_fixed_part_are_not_cut_to_nothing(fixed: float) -> None:
    hop = Hop(fixed, 0.001, 1, 10_000_000, Pace(10, 100_000, "records"))
    hop.play()
    assert all(limit is not None and limit * 0.001 >= 0.3 * fixed for limit in hop.limits[-20:])
    assert len(hop.changes) <= 6


_costs = st.tuples(
    st.floats(0.01, 5.0),
    st.sampled_from([1e-6, 1e-5, 1e-4, 1e-3]),
    # As parts of what the hop could take with batches of any size.
    st.floats(0.0, 0.3),
    st.sampled_from([2.0, 10.0, 60.0]),
    st.one_of(st.none(), st.integers(1000, 50_000_000)),
    st.integers(0, 1000),
)


@settings(max_examples=200, deadline=None)
@given(_costs)
# Noise of batches that never fit moved the limit to and fro.
@example((2.0, 0.001, 0.0, 2.0, 22_098_432, 107))
@example((3.0, 0.001, 0.0, 2.0, 35_981_548, 790))
@example((0.5, 1e-05, 0.2693044150371287, 2.0, 45_879_037, 799))
def test_a_backlog_is_taken_in_batches_under_the_interval_and_the_limit_comes_to_rest(
    drawn: tuple[float, float, float, float, int | None, int],
) -> None:
    fixed, each, share, target, most, seed = drawn
    arriving = share / each
    hop = Hop(fixed, each, arriving, 3e10, Pace(target, most, "records"), noise=0.15, seed=seed)
    # As from a file's end: without a limit the first batch would be the whole backlog.
    hop.pace.limit = hop.pace.limit or int(4 * target / each)
    hop.play()

    assert all(limit and 1 <= limit <= (most or limit) for limit in hop.limits)
    settled = hop.limits[-1] or 0
    # It is at rest: noise may still move it away and back, seldom.
    assert len([n for n in hop.changes if n >= _BATCHES // 2]) <= 3
    assert len(hop.changes) <= 10
    took = fixed + settled * each
    if settled < 0.75 * (most or math.inf):
        # Never so small that it falls behind, or that the fixed part takes most of the time.
        assert settled / max(took, target) > arriving or took > target
        assert settled / took > arriving
        assert settled * each > 0.2 * fixed
    needed = 2 * arriving * fixed / (1 - 2 * arriving * each)
    if fixed + max(needed, fixed / each) * each < 0.6 * target:
        assert took <= target


def test_a_burst_is_caught_up_without_a_limit_that_stays_low() -> None:
    """After a burst the limit may be low; it must not be what keeps the backlog."""
    hop = Hop(1.0, 0.001, 400, 60_000, Pace(2, None, "records"), noise=0.1, seed=4)
    hop.play(300)
    assert max(hop.waiting[-50:]) <= 400 * 4


def test_the_first_batch_of_a_query_teaches_nothing() -> None:
    pace = Pace(10, 1000, "records")
    for number in range(PATIENCE):
        assert pace.closed(Load(1000, 90, 8000 - 1000 * number, 100.0 * number)) == ""
    told = pace.closed(Load(1000, 90, 5000, 300.0))
    assert told == (
        "limit 1,000 -> 250 records a batch: the last 3 took 90.0 s each, "
        "the interval is 10 s, backlog 5,000"
    )
    pace.begin()
    for number in range(PATIENCE):
        assert pace.closed(Load(250, 50, 5000 - 250 * number, 500.0 + 100 * number)) == ""
    assert pace.limit == 250
