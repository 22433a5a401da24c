"""Draw rows from the edges of every type, and define a pipeline whose expressions fail on them."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.running import START

_LONGS = (0, 1, -1, 2**31 - 1, 2**63 - 1, -(2**63), 9_000_000_000_000_000_000)
_EDGES: dict[str, tuple[object, ...]] = {
    "at": (
        "0001-01-01T00:00:00Z",
        "0999-12-31T23:59:59.999999Z",
        "1000-01-01T00:00:00Z",
        "1582-10-10T12:00:00Z",
        "1883-11-18T12:00:00Z",
        "1969-12-31T23:59:59.999999Z",
        "2038-01-19T03:14:08Z",
        "2999-12-31T23:59:59Z",
        "9999-12-31T23:59:59.999999Z",
        "10000-01-01T00:00:00Z",
    ),
    "who": ("", "0", "a", "A", "null", "é", "\U0001f30a", "a" * 3000, "'; DROP TABLE x; --", None),
    "n": (*_LONGS, 2**63, None),
    "i": (0, 1, -1, 7, 2**31 - 1, -(2**31), 2**31, None),
    "tiny": (0, 127, -128, 128, None),
    "wide": (0, 1, 10**28 - 1, 10**28, 10**38 - 1, -(10**38 - 1), 10**38, None),
    "money": (
        "0.00",
        "0.01",
        "-0.01",
        "9999999999999999.99",
        "-9999999999999999.99",
        "1.005",
        None,
    ),
    "x": (0.0, -0.0, 5e-324, 1.7976931348623157e308, -1.7976931348623157e308, 0.1, None),
    "f": (0.0, 3.4028234663852886e38, 1.401298464324817e-45, None),
    "t": (
        "",
        "7",
        "-1",
        "x",
        "1e309",
        "2147483648",
        " 7 ",
        "a" * 20_000,
        "ab" * 9_000,
        "\x1b[2J",
        None,
    ),
    "day": ("0001-01-01", "1582-10-15", "1970-01-01", "2024-02-29", "9999-12-31", None),
    "b": (True, False, None),
    "lat": (0.0, 90.0, -90.0, 1e308, 52.5, None),
    "lon": (0.0, 180.0, -180.0, 13.4, None),
}
_DDL = (
    "id STRING, at TIMESTAMP, who STRING, n BIGINT, i INT, tiny TINYINT, wide DECIMAL(38,0), "
    "money DECIMAL(18,2), x DOUBLE, f FLOAT, t STRING, day DATE, b BOOLEAN, lat DOUBLE, lon DOUBLE"
)
_COUNTED: dict[str, Any] = {"events": {"count": "*"}}
_SUMS: dict[str, Any] = {
    "total": {"sum": "n"},
    "mean": {"avg": "n"},
    "wide": {"sum": "wide"},
    "wide_mean": {"avg": "wide + wide"},
    # Sums of 38 digits, 18 of them after the point.
    "fine": {"sum": "CAST(money AS DECIMAL(38,18)) / 3"},
    "fine_mean": {"avg": "CAST(money AS DECIMAL(38,18))"},
    "heat": {"sum": "x"},
}


# Rows of one key that no drawn row has, and what the tables must make of them.
KNOWN = "known"
_NINE = 9_000_000_000_000_000_000
_KNOWN_ROWS: tuple[dict[str, object], ...] = (
    {"n": _NINE, "i": 0, "t": "12", "at": "2026-01-05T00:00:00Z"},
    {"n": _NINE, "i": 4, "t": "x", "at": "2026-01-05T00:00:01Z"},
    {"n": 1, "i": 2, "t": "aab" * 10_000, "at": "1000-01-01T00:00:00Z"},
    {"n": 5, "i": 2, "t": None, "at": "0001-01-01T00:00:00Z"},
)
# The tables in which an expression fails on one of them.
FAILING = ("by_minute", "by_century", "overall", "pairs", "alarms")
KNOWN_MINUTES = [
    (datetime(1000, 1, 1, tzinfo=UTC), 1, 1, 1.0, 50.0),
    (datetime(2026, 1, 5, tzinfo=UTC), 2, 2 * _NINE, float(_NINE), 25.0),
]


def known_rows(part: int) -> list[bytes]:
    """Give every other one of the rows whose outcome is known."""
    rows = [
        {"id": f"known-{n}", "who": KNOWN, "b": True} | row for n, row in enumerate(_KNOWN_ROWS)
    ]
    return [json.dumps(row).encode() for row in rows[part::2]]


def edges_pipeline() -> dict[str, Any]:
    """Give a definition with every kind of gold, whose expressions fail on some rows."""
    columns = [part.strip().split()[0] for part in _DDL.replace("(38,0)", "").split(",")]
    columns = [name for name in columns if name not in ("id", "at") and not name.endswith(")")]
    return {
        "name": "edges",
        "source": {"kind": "files", "path": "${root}/landing"},
        "event": {
            "schema": _DDL,
            "select": {name: name for name in columns},
            "id": "id",
            "time": "at",
        },
        "watermark": {"allowed_lateness": "36525 days", "max_future_skew": "36525 days"},
        "gold": [
            {
                "name": "by_minute",
                "window": {"kind": "tumbling", "size": "1 minute"},
                "keys": ["who", "b"],
                "measures": {**_COUNTED, **_SUMS, "ratio": {"sum": "100 / i"}},
                "derive": {"share": "100 / (total + 5)", "named": "concat(who, mean)"},
            },
            {
                "name": "by_century",
                "window": {"kind": "hopping", "size": "36525 days", "slide": "18262 days"},
                "where": "CAST(t AS INT) IS NULL OR 1 / i > 0",
                "measures": {
                    **_COUNTED,
                    "spelled": {"sum": "t"},
                    "typical": {"approx_percentile": {"expression": "t", "p": 0.5}},
                    "distinct": {"approx_count_distinct": "n * n"},
                },
            },
            {
                "name": "in_sessions",
                "window": {"kind": "session", "gap": "30 minutes"},
                "keys": ["who"],
                "measures": {
                    **_COUNTED,
                    **_SUMS,
                    "earliest": {"first": "-n"},
                    "latest": {"last": "tiny * tiny * tiny * tiny * tiny"},
                },
            },
            {
                "name": "overall",
                "window": {"kind": "global"},
                "where": "1 / i > -2",
                "keys": ["day", "x"],
                "measures": {
                    **_COUNTED,
                    "heat": {"sum": "f"},
                    "number": {"max": "CAST(t AS INT)"},
                    "patterned": {"count_if": "t RLIKE '^(a|b)*$'"},
                },
            },
        ],
        "joins": [
            {
                "name": "pairs",
                "left": {"where": "1 / i > 0", "columns": {"next": "n + 1", "who": "who"}},
                "right": {
                    "pipeline": "edges",
                    "where": "CAST(t AS INT) > 0 OR t IS NULL",
                    "columns": {"square": "n * n", "found": "money"},
                },
                "on": ["who"],
                "within": "36525 days",
            }
        ],
        "queries": [
            {
                "name": "by_hour",
                "sql": """
                    SELECT date_trunc('hour', window_start) AS hour, who, sum(events) AS events,
                           max(share) AS most, 100 / sum(total) AS inverse
                    FROM gold.by_minute GROUP BY hour, who
                """,
            }
        ],
        "detections": [
            {
                "name": "alarms",
                "features": "hours",
                "keys": ["who"],
                "columns": {"ratio": "n / i"},
                "unusual_amount": {"value": "n", "at_least": 1, "history": "36525 days"},
                "burst": {"events": 2, "within": "36525 days"},
                "impossible_travel": {"latitude": "lat / i", "longitude": "lon", "kmh": 0.1},
            },
        ],
    }


def edge_rows(seed: int, count: int) -> list[bytes]:
    """Draw rows; each edge of each field is in one at the least, most fields are ordinary."""
    draw = random.Random(seed)
    needed = [(name, value) for name, values in _EDGES.items() for value in values]
    draw.shuffle(needed)
    rows = []
    for number in range(max(count, len(needed))):
        row: dict[str, object] = {
            "id": f"{seed}-{number}",
            "at": (START + timedelta(minutes=draw.choice((0, 0, 1, 31, 5000)))).isoformat(),
            "who": draw.choice(("a", "b")),
            "b": True,
            "i": draw.choice((1, 2)),
        }
        row |= {name: draw.choice(values) for name, values in _EDGES.items() if draw.random() < 0.1}
        if number < len(needed):
            row |= [needed[number]]
        rows.append(json.dumps(row, ensure_ascii=draw.random() < 0.5).encode())
    draw.shuffle(rows)
    return rows
