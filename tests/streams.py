"""Draw what arrives: any mixture of rows, in any order, in any split into files and runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count, pairwise
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from tests.running import START, event

MINUTE = timedelta(minutes=1)
# Event time less arrival, in minutes: both sides of the watermark's delay, of the allowed
# lateness and of the future's edge, with several dates among them.
_AHEAD = (0, -0.5, -1, -5, -9.99, -10, -10.01, -30, -61, -600, -1439, -1440, -1449.99, -1450)
_AHEAD += (-1450.01, -1500, -2000, -3000, -5000, 4.99, 5, 5.001)
# Between arrivals: both sides of the TTL, another day, and a clock that goes back.
_GAPS = (0, 1, 30, 59.99, 60, 60.01, 90, 180, 800, 1500, -45, -2000)
_BROKEN = (
    b"",
    b"garbage",
    b"[]",
    b"null",
    b'{"event_id": "cut',
    b'{"event_id": "x"} {}',
    b"\xff\xfe",
    b'{"event_id": "\\ud800", "action": "view"}',
)
_KINDS = (
    *["fresh"] * 8,
    *["copy"] * 3,
    *["conflict", "moved"] * 2,
    *["broken", "no id", "no time", "filtered", "implausible", "inexact", "2099", "1900"],
)


@dataclass(frozen=True)
class Commit:
    """The files that arrive together.

    Attributes:
        at: When.
        files: Their lines.
        ends_run: Whether the run ends with it.
    """

    at: datetime
    files: tuple[tuple[bytes, ...], ...]
    ends_run: bool


@dataclass(frozen=True)
class Stream:
    """What arrives, and how it is run."""

    commits: tuple[Commit, ...]
    small: bool
    merges: bool

    @property
    def lines(self) -> list[bytes]:
        """All lines."""
        return [line for commit in self.commits for file in commit.files for line in file]


def _line(number: int, when: datetime, **changes: Any) -> dict[str, Any]:
    value = number % 5 * 10.25 if number % 5 else None
    return event(number, when, **{"user_id": f"u{number % 4}", "value": value, **changes})


class _Writer:
    """Writes lines, some of them about those that it wrote before."""

    def __init__(self) -> None:
        self._numbers = count()
        self._events: list[dict[str, Any]] = []
        self._lines: list[bytes] = []

    def write(self, kind: str, choice: int, when: datetime) -> bytes:
        line = self._written(kind, choice, when)
        self._lines.append(line)
        return line

    def _written(self, kind: str, choice: int, when: datetime) -> bytes:
        if kind == "broken":
            return _BROKEN[choice % len(_BROKEN)]
        if kind == "copy" and self._lines:
            return self._lines[choice % len(self._lines)]
        earlier = self._events[choice % len(self._events)] if self._events else None
        if kind == "conflict" and earlier is not None:
            changed = earlier | {"product_id": f"other {choice % 3}"}
        elif kind == "moved" and earlier is not None:
            stamp = _line(0, when)["event_time"]
            changed = earlier | {"event_time": stamp}
        else:
            changed = _line(next(self._numbers), when, **_flaw(kind, choice))
        self._events.append(changed)
        return json.dumps(changed).encode()


def _flaw(kind: str, choice: int) -> dict[str, Any]:
    """Give the values that make a line of its kind."""
    flaws: dict[str, list[dict[str, Any]]] = {
        "no id": [{"event_id": None}, {"event_id": ""}],
        "no time": [{"event_time": None}, {"event_time": "10:15"}],
        "filtered": [{"action": None}, {"action": None, "event_id": None, "value": "x"}],
        "implausible": [{"value": -0.01}, {"user_id": ""}, {"user_id": "u" * 65}],
        "inexact": [{"value": "12,50"}, {"value": 0.001}, {"event_time": "2026-02-30T00:00:00Z"}],
        "2099": [{"event_time": "2099-01-01T00:00:00Z"}],
        "1900": [{"event_time": "1900-01-01T00:00:00Z"}],
    }
    found = flaws.get(kind, [{}])
    return found[choice % len(found)]


_ROW = st.tuples(
    st.sampled_from(_KINDS),
    st.integers(0, 200),
    st.sampled_from(_AHEAD),
    st.sampled_from([1] * 12 + [2, 3, 100]),
)


@st.composite
def streams(draw: Callable[..., Any], *, mixed: bool = False) -> Stream:
    """Draw what arrives, when, in which files and runs.

    Args:
        draw: Hypothesis'.
        mixed: Whether some row must not be fresh. In the first stream that Hypothesis draws all
            are, in one file, as in the tests of anything else.
    """
    rows = draw(st.lists(_ROW, min_size=20, max_size=70))
    assume(not mixed or {kind for kind, *_ in rows} != {"fresh"})
    commits = draw(st.integers(1, 4))
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), min_size=commits - 1, max_size=3)))
    bounds = [0, *cuts[: commits - 1], len(rows)]
    files = draw(st.integers(1, 2))
    writer, at, made, copies = _Writer(), START + 20 * 24 * 60 * MINUTE, [], 0
    for first, last in pairwise(bounds):
        lines: list[bytes] = []
        for kind, choice, ahead, times in rows[first:last]:
            # A hundred copies once a stream are enough.
            most = times if times < 100 or not copies else 1
            copies += times == 100
            lines += [writer.write(kind, choice, at + ahead * MINUTE)] * most
        lines = draw(st.permutations(lines)) if draw(st.booleans()) else lines
        middle = draw(st.integers(0, len(lines))) if files > 1 else len(lines)
        parts = [lines[:middle], lines[middle:]][:files]
        made.append(Commit(at, tuple(map(tuple, parts)), draw(st.booleans())))
        at += draw(st.sampled_from(_GAPS)) * MINUTE
    return Stream(tuple(made), draw(st.booleans()), draw(st.booleans()))
