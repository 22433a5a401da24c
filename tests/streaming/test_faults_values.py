"""Values that would not survive: each is refused with its reason, none is changed in silence."""

from __future__ import annotations

import json
import os
import random
from datetime import timedelta
from decimal import ROUND_DOWN, Context, Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.running import START, place_of, read
from tests.worlds import TO_SILVER, World, world
from tidelake.ledger.terms import read_ledger

_FULL = os.environ.get("TIDELAKE_FULL") == "1"
_NUMBERS = 10_000 if _FULL else 200
_NOW = START + timedelta(hours=1)
_TYPED: dict[str, Any] = {
    "name": "typed",
    "source": {"kind": "files", "path": "${root}/landing"},
    "event": {
        "schema": (
            "id STRING, at TIMESTAMP, yes BOOLEAN, tiny TINYINT, small SMALLINT, whole INT, "
            "long BIGINT, price DECIMAL(10,2), single FLOAT, real DOUBLE, day DATE, "
            "clock TIMESTAMP_NTZ, raw BINARY, list ARRAY<INT>, map MAP<STRING, INT>, "
            "part STRUCT<x: INT, y: DATE>, text STRING"
        ),
        "select": {
            **{
                name: name
                for name in (
                    "yes",
                    "tiny",
                    "small",
                    "whole",
                    "long",
                    "price",
                    "single",
                    "real",
                    "day",
                    "clock",
                    "raw",
                    "list",
                    "map",
                    "part",
                )
            },
            "twice": "whole * 2",
            "number": "cast(text AS INT)",
        },
        "id": "id",
        "time": "at",
    },
    "gold": [
        {
            "name": "typed_total",
            "window": {"kind": "global"},
            "keys": ["yes"],
            "measures": {"events": {"count": "*"}},
        }
    ],
}
_GOOD: dict[str, Any] = {
    "at": "2026-01-05T00:30:00Z",
    "yes": True,
    "tiny": 127,
    "small": -32768,
    "whole": 1_000_000_000,
    "long": 9_223_372_036_854_775_807,
    "price": "12345678.90",
    "single": 0.5,
    "real": 1e300,
    "day": "2024-02-29",
    "clock": "2026-01-05T10:15:30",
    "raw": "aGVsbG8=",
    "list": [1, 2],
    "map": {"a": 1},
    "part": {"x": 1, "y": "2024-02-29"},
    "text": "7",
}
_TYPES = {
    "id": "STRING",
    "at": "TIMESTAMP",
    "yes": "BOOLEAN",
    "tiny": "TINYINT",
    "small": "SMALLINT",
    "whole": "INT",
    "long": "BIGINT",
    "price": "DECIMAL(10,2)",
    "single": "FLOAT",
    "real": "DOUBLE",
    "day": "DATE",
    "clock": "TIMESTAMP_NTZ",
    "raw": "BINARY",
    "list": "ARRAY<INT>",
    "map": "MAP<STRING, INT>",
    "part": "STRUCT<x: INT, y: DATE>",
}
# A field, a value that it must not take, and the reason where it is not the field's type.
_BAD: tuple[tuple[str, Any, str | None], ...] = (
    ("id", None, "event_id: missing"),
    ("id", "", "event_id: missing"),
    ("at", None, "event_time: missing"),
    ("at", "10:15", None),
    ("at", "2026-01-05T25:00:00Z", None),
    ("at", "2025-02-29", None),
    ("at", 1767571200, None),
    ("yes", "yes", None),
    ("yes", 1, None),
    ("tiny", 128, None),
    ("small", 32768, None),
    ("whole", 2**31, None),
    ("whole", 1.5, None),
    ("whole", "1,000", None),
    ("long", 2**63, None),
    ("long", "", None),
    ("price", "12,50", None),
    ("price", 12.999, None),
    ("price", 123456789, None),
    ("price", "1e9", None),
    ("price", "NaN", None),
    ("single", 1e39, None),
    ("real", "1e400", None),
    ("real", "Infinity", None),
    ("real", "1e-400", None),
    ("day", "2026-1-5", None),
    ("day", "2026-01-05T00:00:00Z", None),
    ("clock", "10:15", None),
    ("clock", "2026-01-05T10:15:30Z", None),
    ("raw", "not base64!", None),
    ("list", [1, "x"], None),
    ("list", {"a": 1}, None),
    ("map", {"a": "x"}, None),
    ("map", [1], None),
    ("part", {"x": 2**31}, None),
    ("part", {"y": "2026-02-30"}, None),
    ("part", [1], None),
    ("whole", 2**30, "select.twice: cannot be computed"),
    ("text", "seven", "select.number: cannot be computed"),
    ("text", "2147483648", "select.number: cannot be computed"),
)
_WIDE = Context(prec=500)
# Scale, and what lies beyond it; `whole` is doubled by an expression.
_RANGES = {
    "tiny": (0, 2**7),
    "small": (0, 2**15),
    "whole": (0, 2**31),
    "long": (0, 2**63),
    "price": (2, 10**8),
}


def _number(chance: random.Random) -> str:
    """Write a number in one of JSON's many ways, most of them too big or too fine."""
    digits = "".join(chance.choices("0123456789", k=chance.choice([1, 3, 9, 10, 19, 40, 60])))
    digits = digits.lstrip("0") or "0"
    fraction = chance.choice(
        ["", "", "." + "".join(chance.choices("05", k=chance.choice([1, 30])))]
    )
    # With an exponent, more digits than a double holds are refused even where they would fit.
    exponents = ["", "", f"e{chance.choice([-30, -2, -1, 0, 1, 2, 8, 40])}"]
    exponent = chance.choice(exponents) if len(digits + fraction) <= 15 else ""
    return chance.choice(["", "-"]) + digits + fraction + exponent


def _survives(text: str, field: str) -> bool:
    """Tell whether a number is a value of a field's type, digit for digit."""
    scale, bound = _RANGES[field]
    value = Decimal(text)
    kept = value.quantize(Decimal(1).scaleb(-scale), ROUND_DOWN, context=_WIDE)
    return kept == value and (-bound <= value < bound if field != "price" else abs(value) < bound)


def _payload(number: int, **changes: Any) -> bytes:
    return json.dumps({"id": f"e{number}", **_GOOD, **changes}).encode()


@pytest.fixture(scope="module")
def typed(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[World, list[bytes], list[list[str]]]:
    """Let every bad value come once, then many numbers, then sound rows."""
    played = world(spark, tmp_path_factory.mktemp("typed"), base=_TYPED)
    lines, reasons = [_payload(0)], [[]]
    for number, (field, value, reason) in enumerate(_BAD, 1):
        lines.append(_payload(number, **{field: value}))
        told = reason or f"{field}: not exactly {_TYPES[field]}"
        # What cannot be read is missing too, where every event needs it.
        missing = ["event_time: missing"] if field == "at" and value is not None else []
        reasons.append([told, *missing])
    chance = random.Random(17)
    for number in range(_NUMBERS):
        field = chance.choice(list(_RANGES))
        text = _number(chance)
        line = _payload(len(_BAD) + 1 + number, **{field: "HERE"})
        lines.append(line.replace(b'"HERE"', text.encode()))
        if not _survives(text, field):
            reasons.append([f"{field}: not exactly {_TYPES[field]}"])
        elif field == "whole" and not -(2**30) <= Decimal(text) < 2**30:
            reasons.append(["select.twice: cannot be computed"])
        else:
            reasons.append([])
    played.land("a.jsonl", lines)
    played.run(_NOW, hops=TO_SILVER)
    after = [_payload(100_000 + number) for number in range(3)]
    played.land("b.jsonl", after)
    played.run(_NOW, hops=TO_SILVER)
    return played, lines, reasons


_Typed = tuple[World, list[bytes], list[list[str]]]


def test_each_bad_value_is_in_quarantine_verbatim_with_its_reason(typed: _Typed) -> None:
    played, lines, reasons = typed
    rows = read(played.lake, "silver.typed__quarantine", "record_id, payload, stage, reasons")
    found = {
        place_of(record)[1]: (bytes(payload), stage, list(why))
        for record, payload, stage, why in rows
    }
    assert found == {
        number: (line, "contract", why)
        for number, (line, why) in enumerate(zip(lines, reasons, strict=True))
        if why
    }


def test_each_sound_value_is_in_silver_and_the_next_batch_flows(typed: _Typed) -> None:
    played, _, reasons = typed
    sound = [f"e{number}" for number, why in enumerate(reasons) if not why]
    expected = sorted([*sound, *[f"e{100_000 + number}" for number in range(3)]])
    assert sorted(row[0] for row in read(played.lake, "silver.typed", "event_id")) == expected
    told = read_ledger(played.lake, played.pipeline).to_json()
    assert told["problems"] == []
    assert len(sound) > _NUMBERS // 20
