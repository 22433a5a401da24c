"""Write values the way people read them on the page, all in UTC."""

from __future__ import annotations

from datetime import date, datetime, timedelta

# Of a payload or an error: what lies beyond it is in the table.
_LONGEST, _GLANCE = 4000, 160
_BIG = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))


def number(value: float | None) -> str:
    """Write a number with its thousands apart; of large fractions no more than can be read."""
    if value is None:
        return "-"
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def brief(value: float | None) -> str:
    """Write a number in five characters or so."""
    for size, unit in _BIG:
        if value is not None and abs(value) >= size:
            return f"{value / (size if size != 1e4 else 1e3):.3g}{unit}"
    return number(value if value is None or abs(value) < 100 else round(value))


def per(step: timedelta) -> str:
    """Write how far two values of a plot lie apart: ``minute``, ``15 minutes``."""
    seconds = round(step.total_seconds())
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        if seconds >= length and not seconds % length:
            return unit if seconds == length else f"{seconds // length} {unit}s"
    return f"{step.total_seconds():g} seconds"


def instant(value: datetime | date) -> str:
    """Write an instant, to the second."""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}Z"
    return f"{value:%Y-%m-%d}"


def plain(payload: bytes | str) -> str:
    """Write a payload as text, whatever bytes it is of; a long one is cut and says so."""
    text = payload if isinstance(payload, str) else payload.decode(errors="backslashreplace")
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… ({len(text):,} characters)"


def glance(payload: bytes | str) -> str:
    """Write as much of a payload as fits a line or two."""
    text = " ".join(plain(payload).split())
    return text if len(text) <= _GLANCE else f"{text[:_GLANCE]}…"


def some(count: int, thing: str) -> str:
    """Write how many of a thing there are."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
