"""Durations as people write them: ``10 minutes``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

_DURATION = re.compile(r"\s*(\d+)\s+(millisecond|second|minute|hour|day|week)s?\s*", re.IGNORECASE)
# Event times lie in the years 1000 to 9999. With each duration bounded, whatever a few of them are
# added to or taken from is still an instant for Spark, for Python and for a literal in SQL.
LONGEST = timedelta(days=36_525)
_HOW = "write '<number> <unit>' with a unit of milliseconds, seconds, minutes, hours, days or weeks"


def parse_duration(text: str) -> timedelta:
    """Read ``<number> <unit>``.

    Args:
        text: A whole number and a unit, singular or plural: ``1 day``, ``90 seconds``.

    Returns:
        The duration, never negative.

    Raises:
        ValueError: The text is no duration, or longer than a timedelta can hold.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is no duration; {_HOW}")
    number, unit = match.groups()
    try:
        return timedelta(**{f"{unit.lower()}s": int(number)})
    except (OverflowError, ValueError) as error:
        raise ValueError(f"'{text[:40]}' is too long a duration") from error


def _from_yaml(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        return parse_duration(value)
    raise ValueError(f"{value!r} is no duration; {_HOW}")


def _bounded(value: timedelta) -> timedelta:
    if value > LONGEST:
        raise ValueError(f"must not be longer than {LONGEST.days} days (100 years)")
    return value


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("must be longer than 0")
    return value


Duration = Annotated[timedelta, BeforeValidator(_from_yaml), AfterValidator(_bounded)]
PositiveDuration = Annotated[Duration, AfterValidator(_positive)]
