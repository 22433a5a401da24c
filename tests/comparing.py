"""Compare the clickstream's tables with the oracle, row by row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.oracles import clickstream as oracle
from tests.running import read
from tidelake.delta.tables import Lake

_COLUMNS = {
    "user_activity_1m": "user_id, window_start, events, clicks, total_value",
    "action_activity_5m": "action, window_start, events, largest, mean_value",
    "user_sessions": (
        "user_id, session_start, session_end, events, total_value, first_action, last_action"
    ),
    "product_totals": "product_id, events, revenue, cheapest",
}


def assert_gold_equals_oracle(lake: Lake, events: Iterable[dict[str, Any]]) -> None:
    """Compare the gold tables that exist with a recomputation over the accepted events."""
    there = [table for table in oracle.gold(events).items() if lake.gold(table[0]).exists]
    assert there
    for name, expected in there:
        rows = [
            (*(key if isinstance(key, tuple) else (key,)), *values.values())
            for key, values in expected.items()
        ]
        assert read(lake, f"gold.{name}", _COLUMNS[name]) == sorted(rows, key=repr), name


def distinct_events(lines: list[bytes]) -> list[dict[str, Any]]:
    """Give the events that the oracle accepts when nothing is too late."""
    return [
        fate.event
        for fate in oracle.fates(lines)
        if fate.verdict == "accepted" and fate.event is not None
    ]
