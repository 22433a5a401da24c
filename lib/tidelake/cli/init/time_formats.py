"""Recognise the time format of a field by its values, with the SQL that converts it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial

from tidelake.config.types import FieldType
from tidelake.instants import DATE, STAMP

_STRING = FieldType("string")
_NO_ZONE = "without a zone, read as UTC"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Seconds since the epoch: a number outside the years 2000 to 2100 is not taken as a time.
_FIRST, _END = 946_684_800, 4_102_444_800
EPOCH_UNITS = "epoch"
# Units in a second, Spark's expression, description.
_EPOCHS = (
    (1, "timestamp_seconds({0})", "epoch seconds"),
    (1_000, "timestamp_millis({0})", "epoch milliseconds"),
    (1_000_000, "timestamp_micros({0})", "epoch microseconds"),
    (1_000_000_000, "timestamp_micros({0} div 1000)", "epoch nanoseconds, cut to microseconds"),
)
# Spark timestamps have microseconds.
_SECONDS = FieldType("decimal", precision=20, scale=6)
# If a sample fits both day first and month first, day first is chosen, with a note.
_DAY_FIRST, _MONTH_FIRST = "%d/%m/%Y", "%m/%d/%Y"
_DATES = (
    ("%Y/%m/%d", "yyyy/MM/dd", "slashes"),
    ("%d.%m.%Y", "dd.MM.yyyy", "day first"),
    (_DAY_FIRST, "dd/MM/yyyy", "day first"),
    (_MONTH_FIRST, "MM/dd/yyyy", "month first"),
)
# As spreadsheets write them, without seconds or without a time of day.
_TIMES_OF_DAY = ((" %H:%M:%S", " HH:mm:ss"), (" %H:%M", " HH:mm"), ("", ""))
# Python's pattern, Spark's pattern, description.
_PATTERNS = (
    ("%d/%b/%Y:%H:%M:%S %z", "dd/MMM/yyyy:HH:mm:ss Z", "a web server's log"),
    ("%Y-%m-%d %H:%M:%S UTC", "yyyy-MM-dd HH:mm:ss 'UTC'", "UTC in words"),
    ("%Y-%m-%d %H:%M:%S,%f", "yyyy-MM-dd HH:mm:ss,SSS", "a comma before the milliseconds"),
    ("%Y%m%dT%H%M%SZ", "yyyyMMdd'T'HHmmss'Z'", "digits without separators"),
    *(
        (date + of_day, spark + of_day_in_spark, words)
        for date, spark, words in _DATES
        for of_day, of_day_in_spark in _TIMES_OF_DAY
    ),
)
# Digits below a microsecond, as Go and pandas write them; Spark's pattern accepts one to nine.
_NANOS = rf"{DATE}T[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:\.[0-9]{{1,9}})?"
_NANOS_IN_SPARK = "yyyy-MM-dd'T'HH:mm:ss[.SSSSSSSSS]"


TIME_KINDS = {"date", "timestamp", "timestamp_ntz"}


@dataclass(frozen=True)
class Clock:
    """A time format of a field, of the type it has in the schema; ``words`` describes it.

    ``sql`` converts the field, ``{0}``, to a timestamp. ``read`` parses a value, or returns None
    if it has another format. ``has_time`` is False for a date, which has no time of day.
    """

    type: FieldType
    sql: str
    words: str
    read: Callable[[object], datetime | None]
    note: str = ""
    has_time: bool = True

    @property
    def failing_sql(self) -> str:
        """Like ``sql``, but to a DATE if there is no time; fails on a text of another format."""
        sql = self.sql.replace("try_", "")
        if self.has_time:
            return sql
        return "{0}" if self.type.kind in TIME_KINDS else sql.replace("to_timestamp", "to_date")


def clock_of(values: Iterable[object]) -> Clock | None:
    """Return the time format that all non-null values of a field have, or None."""
    present = [value for value in values if value is not None]
    clocks = _clocks(present) if present else ()
    return next((clock for clock in clocks if all(clock.read(v) for v in present)), None)


def _clocks(values: Sequence[object]) -> Iterator[Clock]:
    first = values[0]
    if isinstance(first, str):
        texts = [value for value in values if isinstance(value, str)]
        if all(re.fullmatch(DATE, text) for text in texts):
            date, sql = FieldType("date"), "CAST({0} AS TIMESTAMP)"
            yield Clock(date, sql, "a date", _read_iso, has_time=False)
        zoned = all(re.search(r"(?:Z|[+-][0-9]{2}:?[0-9]{2})$", text) for text in texts)
        timestamp, note = FieldType("timestamp"), "" if zoned else _NO_ZONE
        yield Clock(timestamp, "{0}", "ISO 8601", _read_iso, note)
        zone, zone_in_spark = ("(?:Z|[+-][0-9]{2}:[0-9]{2})", "XXX") if zoned else ("", "")
        spark = _NANOS_IN_SPARK + zone_in_spark
        read_nanos = partial(_read_nanos, _NANOS + zone)
        yield Clock(_STRING, _parsed(spark), "nanoseconds, cut to microseconds", read_nanos, note)
        for python, spark, words in _PATTERNS:
            read, has_time = partial(_read_pattern, python), "%H" in python
            has_zone = python.endswith(("z", "UTC", "Z"))
            found = [_NO_ZONE] if has_time and not has_zone else []
            month_first = python.replace(_DAY_FIRST, _MONTH_FIRST)
            if month_first != python and all(map(partial(_read_pattern, month_first), texts)):
                found.append("ambiguous order of day and month, read as day first")
            note = "; ".join(found)
            yield Clock(_STRING, _parsed(spark), f"{spark} ({words})", read, note, has_time)
        for scale, sql, words in _EPOCHS:
            of_text = sql.format("try_cast({0} AS BIGINT)")
            yield Clock(_STRING, of_text, words, partial(_read_number, scale, _whole_text))
    elif isinstance(first, int | Decimal):
        for scale, sql, words in _EPOCHS:
            yield Clock(FieldType("bigint"), sql, words, partial(_read_number, scale, _whole))
        words = f"{EPOCH_UNITS} seconds with a fraction"
        yield Clock(_SECONDS, _EPOCHS[0][1], words, partial(_read_number, 1, _to_micros))


def _parsed(pattern: str) -> str:
    """Write the SQL that parses a text by Spark's pattern."""
    return "try_to_timestamp({0}, '" + pattern.replace("'", "''") + "')"


def is_iso(text: str) -> bool:
    """Return whether silver reads a text as a time."""
    return re.fullmatch(STAMP, text) is not None


def _read_iso(value: object) -> datetime | None:
    return _read_standard(value) if isinstance(value, str) and is_iso(value) else None


def _read_nanos(pattern: str, value: object) -> datetime | None:
    is_read = isinstance(value, str) and re.fullmatch(pattern, value) is not None
    return _read_standard(str(value)) if is_read else None


def _read_standard(value: str) -> datetime | None:
    # Python too cuts digits below a microsecond.
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _read_pattern(pattern: str, value: object) -> datetime | None:
    try:
        found = datetime.strptime(str(value), pattern)
    except ValueError:
        return None
    # Spark's patterns require every digit, and of a fraction take three; Python's also accept 5 for
    # 05, and six.
    text, whole = str(value), found.strftime(pattern)
    missing = range(3, 6) if pattern.endswith("%f") else range(1)
    if not whole.startswith(text) or len(whole) - len(text) not in missing:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


_Number = int | Decimal | None


def _read_number(scale: int, number: Callable[[object], _Number], value: object) -> datetime | None:
    found = number(value)
    if found is None or not _FIRST * scale <= found < _END * scale:
        return None
    return _EPOCH + timedelta(microseconds=int(found * 1_000_000 // scale))


def _whole(value: object) -> _Number:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _whole_text(value: object) -> _Number:
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{10,19}", value) else None


def _to_micros(value: object) -> _Number:
    """Return a number with at most six decimals."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    exact = Decimal(value)
    return exact if int(exact.as_tuple().exponent) >= -6 else None
