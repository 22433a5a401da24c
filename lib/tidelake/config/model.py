"""The base class of configuration models, and the types of their values.

Durations (:func:`parse_duration`), sizes in bytes (:data:`ByteSize`), texts and patterns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from tidelake.names import ColumnName

UNITS = ("millisecond", "second", "minute", "hour", "day", "week")
_DURATION = re.compile(rf"\s*(\d+)\s+({'|'.join(UNITS)})s?\s*", re.IGNORECASE)
_OF_CALENDAR = re.compile(r"\s*\d+\s+(month|quarter|year)s?\s*", re.IGNORECASE)
# Event times are in the years 1000 to 9999. With bounded durations, the sum of an event time and a
# few durations is still a valid instant in Spark, in Python and in a SQL literal.
LONGEST = timedelta(days=36_525)
_HOW = "write '<number> <unit>' with a unit of milliseconds, seconds, minutes, hours, days or weeks"
_SIZE = r"([1-9][0-9]{0,18})([bkmgtBKMGT]?)"
_NO_SIZE = "must be a number of bytes such as 256m"
_SHIFTS = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
# Delta stores longer comments, but no tool displays them.
_LONGEST_TEXT = 1000


class Problems(ValueError):
    """Several problems of one value, each of which is reported as a separate violation."""

    def __init__(self, problems: Iterable[str]) -> None:
        """Join the problems for the message."""
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean X?`` for the nearest known word (case-insensitive), or ""."""
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return a message on an unknown name with the nearest known name, or else with all."""
    known = tuple(known)
    hint = suggestion(name, known) or f" (known: {', '.join(known)})"
    return f"unknown {what} {name}{hint}"


def url_of(text: str) -> SplitResult:
    """Split a URL; all parts are empty if it is malformed, as with an unbalanced bracket."""
    try:
        return urlsplit(text)
    except ValueError:
        return urlsplit("")


def parse_duration(text: str) -> timedelta:
    """Parse ``<number> <unit>``, such as ``1 day`` or ``90 seconds``.

    Raises:
        ValueError: The text is not a duration, or is longer than a timedelta can hold.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        if calendar := _OF_CALENDAR.fullmatch(text):
            unit = calendar[1].lower()
            raise ValueError(
                f"'{text}' is not a duration, since {unit}s differ in length; write days, or for a "
                f"gold table a query with date_trunc('{unit}', window_start)"
            )
        raise ValueError(f"'{text}' is not a duration; {_HOW}")
    number, unit = match.groups()
    try:
        return timedelta(**{f"{unit.lower()}s": int(number)})
    except (OverflowError, ValueError) as error:
        raise ValueError(f"'{text[:40]}' is too long for a duration") from error


def written(length: timedelta) -> str:
    """Format a duration as in a pipeline file, such as ``10 minutes``."""
    milliseconds = length // timedelta(milliseconds=1)
    units = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000))
    for unit, size in (*units, ("millisecond", 1)):
        if milliseconds >= size and milliseconds % size == 0:
            number = milliseconds // size
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return "0 seconds"


def _from_yaml(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        return parse_duration(value)
    raise ValueError(f"{value!r} is not a duration; {_HOW}")


def _bounded(value: timedelta) -> timedelta:
    if value > LONGEST:
        raise ValueError(f"must not be longer than {LONGEST.days} days (100 years)")
    return value


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("must be longer than 0")
    return value


def bytes_of(text: str) -> int:
    """Parse a number of bytes, such as ``100``, ``512k`` or ``256m`` (units of 1024).

    Raises:
        ValueError: The text is not a number of bytes, or Spark cannot hold it.
    """
    match = re.fullmatch(_SIZE, text)
    if match is None:
        raise ValueError(_NO_SIZE)
    size = int(match[1]) << _SHIFTS[match[2].lower()]
    if size >= 2**63:
        raise ValueError("must be less than 2^63 bytes, which are 8388608t")
    return size


def _description(text: str) -> str:
    description = " ".join(text.split())
    if not description:
        raise ValueError("is empty; write a description, or remove the key")
    if len(description) > _LONGEST_TEXT:
        raise ValueError(
            f"is {len(description):,} characters long; at most {_LONGEST_TEXT:,} are shown"
        )
    return description


def parsed_by(parse: Callable[[str], object]) -> AfterValidator:
    """Return a validator of texts that ``parse`` can read: it raises a ValueError otherwise."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


def free_of(find: Callable[[Any], Iterable[str]]) -> AfterValidator:
    """Return a validator that reports each problem ``find`` yields as a separate violation."""

    def check(value: Any) -> Any:
        if problems := [*find(value)]:
            raise Problems(problems)
        return value

    return AfterValidator(check)


def matching(pattern: str, message: str) -> AfterValidator:
    """Return a validator that matches the whole text; ``{0}`` in the message is the text."""
    return AfterValidator(partial(match_whole, pattern, message))


def match_whole(pattern: str, message: str, text: str) -> str:
    """Return a text that matches a pattern as a whole; else raise a ValueError."""
    if not re.fullmatch(pattern, text):
        raise ValueError(message.format(text))
    return text


# Spark reads such settings as its INT.
PositiveInt = Annotated[int, Field(strict=True, gt=0, le=2**31 - 1)]
Duration = Annotated[timedelta, BeforeValidator(_from_yaml), AfterValidator(_bounded)]
PositiveDuration = Annotated[Duration, AfterValidator(_positive)]
Text = Annotated[str, matching(r"[\s\S]*\S[\s\S]*", "must not be empty")]
ByteSize = Annotated[str, matching(_SIZE, _NO_SIZE), parsed_by(bytes_of)]
Words = Annotated[str, AfterValidator(_description)]


class Model(BaseModel):
    """A frozen section of the configuration; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Documented(Model):
    """A section of a pipeline file that defines a table.

    Both keys are excluded from dumps, because a changed text does not redefine a stored table.

    Attributes:
        description: What a row of the table is.
        comments: The meaning of columns, by name.
    """

    description: Words | None = Field(default=None, exclude=True)
    comments: dict[ColumnName, Words] = Field(default_factory=dict, exclude=True)
