"""The clickstream's fates and gold tables, recomputed one row at a time."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

Event = dict[str, Any]
Table = dict[Any, dict[str, Any]]

STRINGS = ("event_id", "user_id", "action", "product_id")
SESSION_GAP = timedelta(minutes=30)
NO_LATER_THAN = 2090
LONGEST_USER = 64
# The documented limit of an integer in a payload: its digits.
LONGEST_INTEGER = 4_300
SCALE, INTEGER_DIGITS = 2, 16
_MICRO = Decimal("0.000001")

_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_STAMP = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?"
    r"(?:Z|([+-])([0-9]{2}):([0-9]{2}))?)?"
)
_FURTHEST_ZONE = timedelta(hours=18)
_BROKEN = object()


class _Token(str):
    """A JSON number by its very characters."""


@dataclass(frozen=True)
class Fate:
    """What becomes of one line.

    Attributes:
        position: Its place in order of arrival, from 0.
        verdict: ``malformed``, ``filtered``, ``contract``, ``expectation``, ``future``,
            ``duplicate``, ``conflicting``, ``late`` (too late for silver) or ``accepted``.
        event: The selected columns and ``event_id``; None where broken or filtered.
    """

    position: int
    verdict: str
    event: Event | None


def fates(lines: Sequence[bytes], *, too_late: Collection[int] = ()) -> list[Fate]:
    """Decide the fate of each line; the first that applies is the only one.

    Args:
        lines: In order of arrival, without their line feed (a carriage return may stay).
        too_late: Positions that lie beyond the allowed lateness, as watermarks are not known here.
            Such a line is a duplicate before it is late, and later copies of it are duplicates.

    Returns:
        One fate a line, in the same order.
    """
    late = frozenset(too_late)
    first: dict[str, int] = {}
    found = []
    for position, line in enumerate(lines):
        verdict, event = _judge(line)
        if verdict == "accepted" and event is not None:
            origin = first.setdefault(event["event_id"], position)
            if origin != position:
                verdict = "duplicate" if lines[origin] == line else "conflicting"
            elif position in late:
                verdict = "late"
        found.append(Fate(position, verdict, event))
    return found


def _judge(line: bytes) -> tuple[str, Event | None]:
    """Judge a line by itself."""
    record = _parse(line)
    if record is None:
        return "malformed", None
    event: Event = {name: _text(record.get(name)) for name in STRINGS}
    event["event_time"] = _convert(record.get("event_time"), _timestamp)
    event["value"] = _convert(record.get("value"), _money)
    if event["action"] is None:
        return "filtered", None
    if not event["event_id"] or event["event_time"] in (None, _BROKEN) or event["value"] is _BROKEN:
        return "contract", None
    event["action"] = event["action"].lower()
    has_user = event["user_id"] is None or 1 <= len(event["user_id"]) <= LONGEST_USER
    if (event["value"] or 0) < 0 or not has_user:
        return "expectation", event
    return ("future" if event["event_time"].year > NO_LATER_THAN else "accepted"), event


def _parse(line: bytes) -> dict[str, Any] | None:
    """Read one JSON object with nothing around it; None if it is anything else."""
    try:
        record = json.loads(
            line.decode("utf-8"),
            parse_int=_integer,
            parse_float=_Token,
            parse_constant=_refuse,
        )
        # A lone surrogate passes the parser, but is no character and has no bytes.
        _written(record).encode("utf-8")
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _integer(text: str) -> _Token:
    if len(text.lstrip("-")) > LONGEST_INTEGER:
        raise ValueError("an integer has too many digits")
    return _Token(text)


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _written(value: Any) -> str:
    """Write a value as JSON without spaces, numbers by their very characters."""
    if isinstance(value, _Token):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_written(k)}:{_written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _text(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and not isinstance(value, _Token)):
        return value
    return _written(value)


def _convert(value: Any, read: Callable[[str], Any]) -> Any:
    text = _text(value)
    return None if text is None else read(text)


def _money(text: str) -> Any:
    """Read a DECIMAL(18,2) whose value survives exactly; whole numbers only, so no rounding."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return _BROKEN
    sign, whole, fraction, exponent = match.groups(default="")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return Decimal("0.00")
    significant = digits.rstrip("0")
    # The value is significant * 10**power.
    power = int(exponent or 0) - len(fraction) + len(digits) - len(significant)
    if power < -SCALE or len(significant) + power > INTEGER_DIGITS:
        return _BROKEN
    cents = int(significant) * 10 ** (power + SCALE)
    return Decimal(f"{sign}{cents // 100}.{cents % 100:02d}")


def _timestamp(text: str) -> Any:
    """Read a date with or without a time; without a zone it is UTC."""
    match = _STAMP.fullmatch(text)
    if match is None:
        return _BROKEN
    year, month, day, hour, minute, second, fraction, sign, ahead, past = match.groups()
    try:
        offset = timedelta(hours=int(ahead or 0), minutes=int(past or 0))
        if offset > _FURTHEST_ZONE or int(past or 0) >= 60:
            return _BROKEN
        zone = timezone(-offset if sign == "-" else offset)
        micros = int((fraction or "").ljust(6, "0"))
        clock = (int(hour or 0), int(minute or 0), int(second or 0), micros)
        return datetime(int(year), int(month), int(day), *clock, tzinfo=zone).astimezone(UTC)
    except (ValueError, OverflowError):
        return _BROKEN


def gold(events: Iterable[Event]) -> dict[str, Table]:
    """Compute the four gold tables from accepted events, in whatever order they come.

    Args:
        events: As in ``Fate.event``.

    Returns:
        By table name the rows by key: ``user_activity_1m`` (user_id, window_start),
        ``action_activity_5m`` (action, window_start), ``user_sessions`` (user_id, session_start,
        session_end), ``product_totals`` product_id. Starts and ends are UTC.
    """
    ordered = sorted(events, key=lambda event: (event["event_time"], event["event_id"]))
    by_minute: dict[Any, list[Event]] = defaultdict(list)
    by_action: dict[Any, list[Event]] = defaultdict(list)
    by_user: dict[Any, list[Event]] = defaultdict(list)
    by_product: dict[Any, list[Event]] = defaultdict(list)
    for event in ordered:
        minute = event["event_time"].replace(second=0, microsecond=0)
        if event["action"] != "bot":
            by_minute[event["user_id"], minute].append(event)
        for back in range(5):
            by_action[event["action"], minute - timedelta(minutes=back)].append(event)
        by_user[event["user_id"]].append(event)
        by_product[event["product_id"]].append(event)
    return {
        "user_activity_1m": {key: _activity(rows) for key, rows in by_minute.items()},
        "action_activity_5m": {key: _values(rows) for key, rows in by_action.items()},
        "user_sessions": _sessions(by_user),
        "product_totals": {key: _product(rows) for key, rows in by_product.items()},
    }


def _known(rows: Iterable[Event]) -> list[Decimal]:
    return [row["value"] for row in rows if row["value"] is not None]


def _sum(rows: Iterable[Event]) -> Decimal | None:
    values = _known(rows)
    return sum(values, Decimal("0.00")) if values else None


def _activity(rows: list[Event]) -> dict[str, Any]:
    clicks = sum(row["action"] == "click" for row in rows)
    return {"events": len(rows), "clicks": clicks, "total_value": _sum(rows)}


def _values(rows: list[Event]) -> dict[str, Any]:
    values = _known(rows)
    # Spark's avg of DECIMAL(18,2) has six decimals.
    total = _sum(rows)
    mean = None if total is None else (total / len(values)).quantize(_MICRO, ROUND_HALF_UP)
    return {"events": len(rows), "largest": max(values, default=None), "mean_value": mean}


def _product(rows: list[Event]) -> dict[str, Any]:
    return {
        "events": len(rows),
        "revenue": _sum(row for row in rows if row["action"] == "purchase"),
        "cheapest": min(_known(rows), default=None),
    }


def _sessions(by_user: dict[Any, list[Event]]) -> Table:
    table: Table = {}
    for user, rows in by_user.items():
        session: list[Event] = []
        for row in [*rows, None]:
            if row is not None and (
                not session or row["event_time"] - session[-1]["event_time"] <= SESSION_GAP
            ):
                session.append(row)
                continue
            table[user, session[0]["event_time"], session[-1]["event_time"]] = {
                "events": len(session),
                "total_value": _sum(session),
                "first_action": session[0]["action"],
                "last_action": session[-1]["action"],
            }
            session = [] if row is None else [row]
    return table
