"""Carry instants between Spark, JSON and Python without a local time zone in between.

Collected timestamps are naive and local to the driver; microseconds since the epoch are neither.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

# Formats of times in payloads: a date alone, or with a time, which may have a zone.
DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
STAMP = (
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6})0*)?)?"
    r"(Z|([+-])([0-9]{2}):?([0-9]{2}))?)?"
)

# Accepted event times lie from the year 1000 to 9999 (UTC, seconds since the epoch).
EARLIEST_SECOND, LATEST_SECOND = -30_610_224_000, 253_402_300_799
BEGINNING = datetime.min.replace(tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Range(NamedTuple):
    """A range of instants (UTC): inclusive start, exclusive end; None for no bound."""

    start: datetime | None = None
    end: datetime | None = None

    def holds(self, column: str) -> str:
        """Return the SQL condition, for Spark and DuckDB, that a column is in the range."""
        bounds = ((">=", self.start), ("<", self.end))
        found = [f"{column} {sign} TIMESTAMP '{one.isoformat(' ')}'" for sign, one in bounds if one]
        return " AND ".join(found) or "TRUE"

    def includes(self, instant: datetime) -> bool:
        """Return whether an instant is in the range."""
        return (self.start is None or self.start <= instant) and (
            self.end is None or instant < self.end
        )


# The range of all instants.
ALWAYS = Range()


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def now_after(before: str | None) -> datetime:
    """Return the current time in UTC, but at least 1 µs after an earlier one: clocks may go back.

    The earlier one is from :func:`to_json`, None if there is none.
    """
    earlier = from_json(before)
    return now() if earlier is None else max(now(), earlier + timedelta(microseconds=1))


def back(instant: datetime, length: timedelta) -> datetime:
    """Subtract a duration from a UTC instant, but not beyond :data:`BEGINNING`."""
    return instant - min(length, instant - BEGINNING)


def ahead(instant: datetime, length: timedelta) -> datetime:
    """Add a duration to a UTC instant, but not beyond the last instant of year 9999."""
    return instant + min(length, datetime.max.replace(tzinfo=UTC) - instant)


def lasting(length: timedelta | float) -> str:
    """Format a duration, or seconds, in its largest unit; under 10 seconds with one decimal."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds" if seconds >= 10 else f"{seconds:.1f} seconds"


def from_micros(micros: int | None) -> datetime | None:
    """Convert microseconds since the epoch to a UTC instant."""
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)


def to_micros(instant: datetime) -> int:
    """Convert a UTC instant to microseconds since the epoch."""
    return (instant - _EPOCH) // timedelta(microseconds=1)


def to_json(instant: datetime | None) -> str | None:
    """Write an instant as ISO 8601."""
    return None if instant is None else instant.isoformat()


def from_json(text: str | None) -> datetime | None:
    """Read an instant that :func:`to_json` wrote."""
    return None if text is None else datetime.fromisoformat(text)
