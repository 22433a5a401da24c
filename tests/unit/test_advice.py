"""What a backlog calls for: each verdict once, at its edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tidelake.ops.status import Advice, advise, trend_of

# Two slots of 100 rows/s: what waits within 300 s is 60,000 rows.
_TAKING: dict[str, Any] = {"rows_per_slot": 100, "slots": 2, "tasks": 8}
_GROWN = [(10_000, 15_000)] * 8


def advice_for(lags: Sequence[tuple[int | None, int]], **changes: Any) -> Advice:
    return advise(lags, **(_TAKING | changes))


@pytest.mark.parametrize(
    ("earlier", "latest", "trend"),
    [
        (100, 120, "growing"),
        (100, 119, "steady"),
        (120, 100, "falling"),
        (119, 100, "steady"),
        (0, 1, "growing"),
        (1, 0, "falling"),
        (0, 0, "steady"),
    ],
)
def test_a_lag_moves_when_it_changed_by_a_fifth(earlier: int, latest: int, trend: str) -> None:
    assert trend_of(earlier, latest) == trend


def test_more_slots_are_suggested_up_to_what_waits_in_time() -> None:
    advice = advice_for(_GROWN)
    assert (advice.verdict, advice.slots) == ("slots", 4)
    assert advice.text == ("more slots would help: 4 instead of 2 read the backlog within 300 s")
    assert advice_for(_GROWN, seconds=600).verdict == "enough"


def test_more_slots_than_partitions_are_never_suggested() -> None:
    advice = advice_for(_GROWN, tasks=3)
    assert (advice.verdict, advice.slots) == ("slots", 3)
    advice = advice_for(_GROWN, tasks=2)
    assert (advice.verdict, advice.slots) == ("partitions", 2)
    assert advice.text.startswith("more slots would not help: 2 tasks read in parallel.")


def test_a_lag_that_grew_in_half_of_the_partitions_calls_for_nothing() -> None:
    half = [*_GROWN[:4], *[(15_000, 15_000)] * 4]
    assert advice_for(half).verdict == "enough"
    assert advice_for([*half, (1_000, 9_000)]).verdict == "slots"


def test_a_lag_that_falls_calls_for_nothing_though_some_partitions_grow() -> None:
    mixed = [*_GROWN[:5], *[(50_000, 10_000)] * 3]
    assert advice_for(mixed).verdict == "falls"


def test_a_limit_that_holds_back_is_named_before_slots() -> None:
    held = {"limit": 5_000, "is_held_back": True}
    advice = advice_for(_GROWN, **held)
    assert advice.verdict == "limit"
    assert "the limit of 5,000 records a batch holds it back" in advice.text
    assert advice_for([(9, 9)], **held).verdict == "limit"
    assert advice_for([(9, 8)], **held).verdict == "falls"


def test_a_pipeline_that_does_not_run_needs_a_run_and_no_slots() -> None:
    assert advice_for(_GROWN, rests=True).verdict == "rests"


def test_nothing_is_said_where_nothing_waits_or_nothing_is_known() -> None:
    assert advice_for([(5, 0), (None, 0)]).verdict == "none"
    assert advice_for([(None, 5)]).verdict == "unknown"
    assert advice_for(_GROWN, rows_per_slot=None).verdict == "unknown"
