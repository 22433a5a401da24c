"""In which order the runs of one pipeline die, so that every point is reached.

A step is a point; with ``#n`` it is the point's n-th pass at which a run dies, with ``!`` the disk
is full from there on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from tests.running import START, click
from tidelake.delta.tables import Hop

_DAY = 24 * 60
# One table of gold that merges partial sums, and not of every event; one that merges rows.
_MEASURES = {"events": {"count": "*"}, "total": {"sum": "value"}}
TABLES: list[dict[str, Any]] = [
    {
        "name": "by_hours",
        "window": {"kind": "tumbling", "size": "1 hour"},
        "where": "action <> 'bot'",
        "keys": ["user_id"],
        "measures": _MEASURES,
    },
    {
        "name": "visits",
        "window": {"kind": "session", "gap": "30 minutes"},
        "keys": ["user_id"],
        "measures": _MEASURES,
    },
]
# While tables come to be, from the first file.
CREATION: dict[Hop, list[str]] = {
    "bronze": ["bronze/create/before", "bronze/create/after"],
    "silver": ["silver/create/before", "silver/create/after", "silver/create/after#2"],
    "gold": [
        *["gold/create/before!", "gold/create/after"],
        *["books/create/before", "books/create/after"],
        *["epochs/create/before", "epochs/create/after"],
    ],
}
# In a batch with rows of every fate; of the one that follows it, a table of gold takes nothing.
BATCHES: dict[Hop, list[str]] = {
    "bronze": [
        *["bronze/read/before", "bronze/append/before!", "bronze/append/after"],
        *["bronze/batch/after!", "bronze/compact/before", "bronze/compact/after"],
    ],
    "silver": [
        *["silver/parse/before!", "silver/decide/after", "silver/count/after"],
        *["silver/quarantine/before!", "silver/quarantine/after"],
        *["silver/late/before!", "silver/late/after"],
        *["silver/append/before", "silver/append/after", "silver/batch/after"],
        *["silver/compact/before", "silver/compact/after"],
    ],
    "gold": [
        *["gold/read/before", "gold/merge/before!", "gold/merge/after", "gold/merge/after"],
        *["gold/batch/after", "gold/close/before", "gold/close/after"],
        *["books/copy/before#2", "books/append/before!", "books/append/after"],
        *["epochs/close/before", "epochs/append/before!", "epochs/append/after"],
    ],
}


def lines(part: int) -> list[bytes]:
    """Write a file: events, a copy and a broken line; from the second on, late rows."""
    own = [click(n, minute=3 * _DAY + n) for n in range(part * 10, part * 10 + 10)]
    late = [click(-part * 10 - n, minute=n) for n in range(2 * min(part, 1))]
    return [*own, own[0], b"garbage %d" % part, *late]


def of_bots(part: int) -> list[bytes]:
    """Write a file with one event, that of a bot."""
    return [click(part * 10, minute=3 * _DAY, action="bot")]


def clock(seed: int) -> Iterator[datetime]:
    """Give instants that go back and forth by up to an hour."""
    chance = random.Random(seed)
    while True:
        yield START + timedelta(days=4, minutes=chance.uniform(-30, 30))
