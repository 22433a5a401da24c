"""Errors after which a hop restarts its query, because the columns of its input have changed."""

from __future__ import annotations

import pytest

from tidelake.runtime.hop import has_grown


@pytest.mark.parametrize(
    "told",
    [
        "[DELTA_SCHEMA_CHANGED_WITH_STARTING_OPTIONS] Detected schema change in version 3",
        "[STREAM_FAILED] Query [id = d4] terminated with exception: assertion failed: "
        "Invalid batch: event_id#5916,_batch#5926L != event_id#5961,product_id#5971",
    ],
)
def test_columns_that_came_while_a_query_ran_or_started_are_told_from_failures(told: str) -> None:
    assert has_grown(told)
    assert not has_grown("[STREAM_FAILED] terminated with exception: No space left on device")
