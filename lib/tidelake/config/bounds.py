"""The bounds of an expectation: numbers, dates, moments, and moments counted from now."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from tidelake.config.durations import parse_duration

Bound = float | date | datetime

PARAMETER = "$PARAMETER"
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_MOMENT = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}:\d{2})?", re.ASCII
)
_FROM_NOW = re.compile(r"\s*now\s*(?:([+-])\s*(.+))?")
_HOW = "write a number, a date '2026-01-31' or a time '2026-01-31T09:30:00Z'"


def as_bound(value: object) -> Bound:
    """Read a bound as Great Expectations does: every number as a float, text by its look.

    Args:
        value: A number or a text. A time without a zone is UTC.

    Returns:
        A float, a date or an aware datetime.

    Raises:
        ValueError: It is none of these.
    """
    if isinstance(value, date):
        raise ValueError("YAML reads an unquoted date as something else than text; quote it")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(value)
    if isinstance(value, str):
        if _NUMBER.fullmatch(value):
            return _finite(value)
        if _DATE.fullmatch(value):
            return date.fromisoformat(value)
        if _MOMENT.fullmatch(value):
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    raise ValueError(_HOW)


def _finite(value: float | str) -> float:
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError("is too large a number") from error
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def is_parameter(value: object) -> bool:
    """Tell whether a value is to be filled in when the gate judges."""
    return isinstance(value, Mapping) and PARAMETER in value


def from_now(value: Mapping[str, Any], now: datetime) -> datetime:
    """Compute ``{"$PARAMETER": "now - 1 day"}``.

    Raises:
        ValueError: It is not ``now``, with or without a duration added or taken off.
    """
    written = value[PARAMETER]
    match = _FROM_NOW.fullmatch(written) if isinstance(written, str) else None
    if match is None or len(value) > 1:
        raise ValueError(f"{PARAMETER} must be now or now - <duration>, such as 'now - 1 day'")
    shift = parse_duration(match[2]) if match[2] else timedelta(0)
    try:
        return now - shift if match[1] == "-" else now + shift
    except OverflowError as error:
        raise ValueError(f"'{written}' is no time that a calendar holds") from error
