"""Break a line of JSON in the ways that lines get broken."""

from __future__ import annotations

import random
import re
from collections.abc import Callable


def damage(rng: random.Random, line: str) -> bytes:
    """Break a line so that it no longer parses, or no longer keeps the clickstream's contract.

    The result holds no line break, is never empty, and is broken whatever the line was.

    Args:
        rng: Chooses the way, and the place where that has one.
        line: One event as the generator writes it.

    Returns:
        The broken line, without an ending; not always valid UTF-8.
    """
    way = _WAYS[int(rng.random() * len(_WAYS))]
    return way(rng, line)


def _truncated(rng: random.Random, line: str) -> bytes:
    return line[: 10 + int((len(line) - 12) * rng.random())].encode()


def _garbage(rng: random.Random, line: str) -> bytes:
    return (b"<html><h1>502 Bad Gateway</h1></html>", b"-- MARK --", b"\x00\x00\x00\x00")[
        int(rng.random() * 3)
    ]


def _bad_bytes(rng: random.Random, line: str) -> bytes:
    return line.encode().replace(b'"user_id":"u', b'"user_id":"\xff\xfe', 1)


def _not_an_object(rng: random.Random, line: str) -> bytes:
    return f"[{line}]".encode()


def _two_in_one(rng: random.Random, line: str) -> bytes:
    return f"{line}{line}".encode()


def _nan(rng: random.Random, line: str) -> bytes:
    return _with(line, "value", "NaN")


def _with(line: str, field: str, value: str) -> bytes:
    """Replace the value of a field, whichever it has."""
    return re.sub(rf'"{field}":("[^"]*"|[^,}}]*)', lambda _: f'"{field}":{value}', line).encode()


def _setting(field: str, *values: str) -> Callable[[random.Random, str], bytes]:
    """Make a way that gives a field one of some broken values."""
    return lambda rng, line: _with(line, field, values[int(rng.random() * len(values))])


def _without_id(rng: random.Random, line: str) -> bytes:
    return re.sub(r'"event_id":"[^"]*",', "", line).encode()


_WAYS: tuple[Callable[[random.Random, str], bytes], ...] = (
    _truncated,
    _truncated,
    _garbage,
    _bad_bytes,
    _not_an_object,
    _two_in_one,
    _nan,
    _setting("value", '"12,50"', '"1,250.00"', "12.999", "12345678901234567.00", '"free"', "true"),
    _setting("event_time", '"10:15"', '"2026-02-30T10:15:00.000Z"', '"yesterday"', "null"),
    _setting("event_id", "null", '""'),
    _without_id,
)
