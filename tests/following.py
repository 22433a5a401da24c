"""Gold tables of every kind, and what they must hold after any batch."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from tests.oracles.gold import Recomputation, Row, columns_of, consumed, stored
from tests.worlds import World

# Of the mean of a decimal with two digits.
_MEAN_SCALE = -6
_COUNTED = {"events": {"count": "*"}, "total": {"sum": "value"}}
_ORDERED = {
    "events": {"count": "*"},
    "bought": {"count_if": "action = 'purchase'"},
    "cheapest": {"min": "value"},
    "dearest": {"max": "value"},
    "usual": {"avg": "value"},
    "opened_by": {"first": "product_id"},
    "closed_by": {"last": "value"},
    "products": {"approx_count_distinct": "product_id"},
}
GOLD: list[dict[str, Any]] = [
    {
        "name": "by_minutes",
        "window": {"kind": "tumbling", "size": "7 minutes", "offset": "3 minutes"},
        "keys": ["user_id", "action"],
        "measures": _ORDERED,
    },
    {
        "name": "by_hours",
        "window": {
            "kind": "hopping",
            "size": "1 hour",
            "slide": "20 minutes",
            "offset": "5 minutes",
        },
        "where": "action <> 'bot'",
        "keys": ["user_id"],
        "measures": _COUNTED,
        "derive": {"each": "CAST(total AS DOUBLE) / events"},
    },
    {
        "name": "visits",
        "window": {"kind": "session", "gap": "30 minutes"},
        "keys": ["user_id"],
        "measures": _ORDERED,
    },
    {
        "name": "ever",
        "window": {"kind": "global"},
        "keys": ["user_id", "product_id"],
        "measures": _ORDERED,
    },
]
_CLICKED = {
    "left": {
        "where": "action = 'click'",
        "columns": {"clicked_at": "event_time", "user_id": "user_id", "click": "event_id"},
    },
    "right": {
        "pipeline": "clickstream",
        "where": "action = 'purchase'",
        "columns": {"bought_at": "event_time", "purchase": "event_id", "value": "value"},
    },
    "within": "30 minutes",
}
JOINS: list[dict[str, Any]] = [
    {"name": "click_to_purchase", "on": ["user_id"], **_CLICKED},
    {"name": "bought_again", "on": ["user_id", "product_id"], **_CLICKED, "type": "inner"},
]


def assert_gold_follows(
    played: World,
    tables: Sequence[dict[str, Any]] = (*GOLD, *JOINS),
    events: Recomputation | None = None,
) -> None:
    """Hold gold tables against DuckDB on given events, or on the silver that gold has consumed."""
    root, name = played.lake.root, played.pipeline.name
    for table in tables:
        place = root / "gold" / table["name"]
        silver = events or Recomputation(root, name, consumed(place))
        expected = silver.join(name, table) if "left" in table else silver.aggregate(name, table)
        found, wanted = _in_order(stored(place, columns_of(table))), _in_order(expected)
        assert found == wanted, (table["name"], _differing(found, wanted))


def _differing(found: list[Row], wanted: list[Row]) -> tuple[list[Row], list[Row]]:
    """Give the rows that only one of the two has."""
    return (
        [row for row in found if row not in wanted],
        [row for row in wanted if row not in found],
    )


def _in_order(rows: list[Row]) -> list[Row]:
    """Sort rows; a mean is a decimal in one and a float in the other."""
    return sorted((tuple(map(_plain, row)) for row in rows), key=repr)


def _plain(value: Any) -> Any:
    is_mean = isinstance(value, float) or (
        isinstance(value, Decimal) and value.as_tuple().exponent == _MEAN_SCALE
    )
    return round(float(value), 4) if is_mean else value
