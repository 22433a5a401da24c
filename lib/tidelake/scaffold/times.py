"""How a field tells time: text that is exact already, text in another order, epoch numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from tidelake.config.types import FieldType
from tidelake.instants import DATE, LOCAL, TO_THE_MINUTE, ZONED

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# What lies outside these years is a number and no time.
_FIRST, _END = 946_684_800, 4_102_444_800
TIMESTAMP, DATE_TYPE = FieldType("timestamp"), FieldType("date")
_BIGINT, _STRING = FieldType("bigint"), FieldType("string")
# Spark keeps microseconds.
_SECONDS = FieldType("decimal", precision=20, scale=6)


@dataclass(frozen=True)
class Clock:
    """How a field tells time.

    Attributes:
        type: The field's type in the payload's schema.
        sql: What makes a timestamp of it, with ``{0}`` for the field; ``{0}`` alone where it is
            one already.
        words: For people.
        has_time: Whether it knows more than the date.
        note: What the sample leaves open; empty where nothing.
        read: Gives the instant of a value; None where it tells none.
    """

    type: FieldType
    sql: str
    words: str
    has_time: bool
    note: str
    read: Callable[[object], datetime | None]


def clock_of(values: Iterable[object]) -> Clock | None:
    """Find the one way in which all values of a field tell time.

    Args:
        values: As JSON has them; nulls do not count.

    Returns:
        None where there is none, or no value.
    """
    held = [value for value in values if value is not None]
    if not held:
        return None
    return next((one for one in _clocks(held) if all(one.read(v) for v in held)), None)


def _clocks(held: Sequence[object]) -> Iterator[Clock]:
    first = held[0]
    if isinstance(first, bool):
        return
    if isinstance(first, str):
        yield _iso(held)
        yield from _patterns(held)
        yield from _epochs("try_cast({0} AS BIGINT)", _STRING, _whole_text)
    elif isinstance(first, int | Decimal):
        yield from _epochs("{0}", _BIGINT, _whole)
        yield Clock(
            _SECONDS, "timestamp_seconds({0})", "epoch seconds with a fraction", True, "", _seconds
        )


def _iso(held: Sequence[object]) -> Clock:
    texts = [value for value in held if isinstance(value, str)]
    if all(re.fullmatch(DATE, text) for text in texts):
        return Clock(DATE_TYPE, "CAST({0} AS TIMESTAMP)", "a date", False, "", _read_iso)
    zoned = all(re.search(r"(?:Z|[+-][0-9]{2}:?[0-9]{2})$", text) for text in texts)
    note = "" if zoned else "without a zone, read as UTC"
    return Clock(TIMESTAMP, "{0}", "ISO 8601", True, note, _read_iso)


def _read_iso(value: object) -> datetime | None:
    if not isinstance(value, str) or not any(
        re.match(one, value) for one in (ZONED, LOCAL, TO_THE_MINUTE)
    ):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


# Python's pattern, Spark's, and what to call it. Day before month, as most of the world writes it,
# comes first; where the sample leaves that open, the note says so.
_PATTERNS = (
    ("%d/%b/%Y:%H:%M:%S %z", "dd/MMM/yyyy:HH:mm:ss Z", "a web server's log"),
    ("%Y-%m-%d %H:%M:%S UTC", "yyyy-MM-dd HH:mm:ss 'UTC'", "UTC in words"),
    ("%Y-%m-%d %H:%M:%S,%f", "yyyy-MM-dd HH:mm:ss,SSS", "a comma before the milliseconds"),
    ("%Y/%m/%d %H:%M:%S", "yyyy/MM/dd HH:mm:ss", "slashes"),
    ("%Y%m%dT%H%M%SZ", "yyyyMMdd'T'HHmmss'Z'", "digits without separators"),
    ("%d.%m.%Y %H:%M:%S", "dd.MM.yyyy HH:mm:ss", "day first"),
    ("%d/%m/%Y %H:%M:%S", "dd/MM/yyyy HH:mm:ss", "day first"),
    ("%m/%d/%Y %H:%M:%S", "MM/dd/yyyy HH:mm:ss", "month first"),
)
_DAY_FIRST, _MONTH_FIRST = _PATTERNS[6][0], _PATTERNS[7][0]


def _patterns(held: Sequence[object]) -> Iterator[Clock]:
    for python, spark, words in _PATTERNS:
        read = _reader(python)
        open_note = "" if python.endswith(("z", "UTC", "Z")) else "without a zone, read as UTC"
        other = {_DAY_FIRST: _MONTH_FIRST}.get(python)
        if other and all(_reader(other)(value) for value in held):
            open_note += "; day or month first? taken as day first"
        yield Clock(
            _STRING,
            f"try_to_timestamp({{0}}, '{spark.replace(chr(39), chr(39) * 2)}')",
            f"{spark} ({words})",
            True,
            open_note,
            read,
        )


def _reader(pattern: str) -> Callable[[object], datetime | None]:
    def read(value: object) -> datetime | None:
        try:
            found = datetime.strptime(str(value), pattern)
        except ValueError:
            return None
        # Spark's patterns want every digit, Python's take 5 for 05.
        if not found.strftime(pattern).startswith(str(value)):
            return None
        return found if found.tzinfo else found.replace(tzinfo=UTC)

    return read


_UNITS = (
    (1, "timestamp_seconds", "epoch seconds"),
    (1_000, "timestamp_millis", "epoch milliseconds"),
    (1_000_000, "timestamp_micros", "epoch microseconds"),
)


def _epochs(field: str, kind: FieldType, number: Callable[[object], int | None]) -> Iterator[Clock]:
    for scale, function, words in _UNITS:
        yield Clock(kind, f"{function}({field})", words, True, "", _epoch(number, scale))
    yield Clock(
        kind,
        f"timestamp_micros({field} div 1000)",
        "epoch nanoseconds",
        True,
        "",
        _epoch(number, 1_000_000_000),
    )


def _epoch(
    number: Callable[[object], int | None], scale: int
) -> Callable[[object], datetime | None]:
    def read(value: object) -> datetime | None:
        whole = number(value)
        if whole is None or not _FIRST * scale <= whole < _END * scale:
            return None
        return _EPOCH + timedelta(microseconds=whole * 1_000_000 // scale)

    return read


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _whole_text(value: object) -> int | None:
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{10,19}", value) else None


def _seconds(value: object) -> datetime | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    exact = Decimal(value)
    exponent = exact.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -6 or not _FIRST <= exact < _END:
        return None
    return _EPOCH + timedelta(microseconds=int(exact * 1_000_000))
