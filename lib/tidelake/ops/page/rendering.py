"""Render the page as HTML; every value is escaped.

Drawings are SVG, 1000 wide and 100 high, scaled by the page. Times are in UTC.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from tidelake.folders import Folder
from tidelake.ledger.terms import ledger_by
from tidelake.ops.alerts import Alert, lasting
from tidelake.ops.page.facts import Facts
from tidelake.typed import Typed, first_command
from tidelake.visible import visible

_STATIC = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
# Maximum characters of a payload or an error, and of an excerpt.
_LONGEST, _EXCERPT = 4000, 160
_BIG = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
WIDTH, HEIGHT = 1000.0, 100.0
# Minimum size of a value that is not zero, so that it is visible.
_LEAST = 2.0
# The gap between two columns, relative to a column's width.
_GAP = 0.2
# Fewer values are drawn at the right edge: two full-width columns would look like a lot.
_SLOTS = 12
State = Literal["well", "warning", "critical", "unknown", "new"]


@dataclass(frozen=True)
class PageDocument:
    """A response body, its media type, and its entity tag, a hash of the body."""

    body: bytes
    kind: str
    tag: str

    @staticmethod
    def of(text: str, kind: str = "text/html; charset=utf-8") -> PageDocument:
        """Create a document from a text, encoded as UTF-8."""
        body = text.encode("utf-8", errors="replace")
        return PageDocument(body, kind, f'"{hashlib.sha256(body).hexdigest()[:24]}"')


class Verdict(NamedTuple):
    """The headline of the page: its state, a sentence, and the alerts, critical ones first."""

    state: State
    text: str
    alerts: tuple[Alert, ...]


class Box(NamedTuple):
    """A rectangle; ``y`` grows downwards."""

    x: float
    y: float
    width: float
    height: float


class Line(NamedTuple):
    """The paths of a line and of the area under it, and the values at the bottom and the top."""

    stroke: str
    area: str
    bottom: float
    top: float


@functools.cache
def static() -> Mapping[str, PageDocument]:
    """Return the static files of the page, by name."""
    folder = files("tidelake.ops.page") / "static"
    return {
        name: PageDocument.of((folder / name).read_text(encoding="utf-8"), kind)
        for name, kind in _STATIC.items()
    }


class Renderer:
    """Renders pages from templates."""

    def __init__(self, names: Sequence[str], root: Folder, typed: Typed) -> None:
        """Load the templates; ``names`` is for the navigation, ``typed`` completes commands."""
        self._environment = Environment(
            loader=PackageLoader("tidelake.ops.page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_shown,
        )
        texts = (number, brief, lasting, instant, per, plain, excerpt, some)
        drawings = (columns, shares, lengths, line)
        self._environment.filters |= {one.__name__: one for one in (*texts, *drawings)}
        functions = {one.__name__: one for one in (verdict_of, ledger_by, first_command)}
        self._environment.globals |= {"typed": typed, "names": names, "root": str(root)} | functions
        # Compile now, so that the first request is not delayed.
        for template in self._environment.list_templates():
            self._environment.get_template(template)

    def pipeline(self, facts: Facts) -> PageDocument:
        """Render the page of a pipeline."""
        return self._render("pipeline.html", facts=facts, verdict=verdict_of([facts]))

    def overview(self, all_facts: Sequence[Facts]) -> PageDocument:
        """Render the page of all pipelines."""
        return self._render("overview.html", all_facts=all_facts, verdict=verdict_of(all_facts))

    def unknown(self) -> PageDocument:
        """Render the page for an unknown address."""
        return self._render("unknown.html")

    def _render(self, template: str, **values: Any) -> PageDocument:
        return PageDocument.of(self._environment.get_template(template).render(**values))


def _shown(value: Any) -> Any:
    """Escape control characters in strings; the page's own markup has another type."""
    return visible(value, lines=True) if type(value) is str else value


def verdict_of(all_facts: Sequence[Facts]) -> Verdict:
    """Return the combined verdict on some pipelines."""
    found = [alert for facts in all_facts for alert in facts.open]
    alerts = tuple(sorted(found, key=lambda alert: alert.severity != "critical"))
    critical = sum(alert.severity == "critical" for alert in alerts)
    warnings = len(alerts) - critical
    if critical:
        more = f", and {warnings} to look at today" if warnings else ""
        verb = "is" if critical == 1 else "are"
        return Verdict("critical", f"{some(critical, 'thing')} {verb} wrong{more}", alerts)
    if warnings:
        return Verdict("warning", f"{some(warnings, 'thing')} to look at today", alerts)
    if any(facts.looked_at is None for facts in all_facts):
        return Verdict("unknown", "The tables are being read", alerts)
    if not any(facts.has_run for facts in all_facts):
        return Verdict("new", "Nothing has run here yet", alerts)
    if not all(facts.whole for facts in all_facts):
        return Verdict("unknown", "No problem found so far; some tables are not read yet", alerts)
    return Verdict("well", "All is well", alerts)


def number(value: float | None) -> str:
    """Format a number with thousands separators and at most two decimals."""
    if value is None:
        return "-"
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def brief(value: float | None) -> str:
    """Format a number in about five characters."""
    for size, unit in _BIG:
        if value is not None and abs(value) >= size:
            return f"{value / (size if size != 1e4 else 1e3):.3g}{unit}"
    return number(value if value is None or abs(value) < 100 else round(value))


def per(step: timedelta) -> str:
    """Format the step of a plot: ``minute``, ``15 minutes``."""
    seconds = round(step.total_seconds())
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        if seconds >= length and not seconds % length:
            return unit if seconds == length else f"{seconds // length} {unit}s"
    return f"{step.total_seconds():g} seconds"


def instant(value: datetime | date) -> str:
    """Format an instant to the second."""
    return f"{value:%Y-%m-%d %H:%M:%S}Z" if isinstance(value, datetime) else f"{value:%Y-%m-%d}"


def plain(payload: bytes | str) -> str:
    """Decode a payload, escaping invalid bytes; truncate a long one and append its length."""
    text = payload if isinstance(payload, str) else payload.decode(errors="backslashreplace")
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… ({len(text):,} characters)"


def excerpt(payload: bytes | str) -> str:
    """Return the beginning of a payload, about two lines."""
    text = " ".join(plain(payload).split())
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}…"


def some(count: int, thing: str) -> str:
    """Format a count with its noun."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def columns(values: Sequence[float], *, top: float | None = None) -> tuple[Box, ...]:
    """Draw a column per value, the last at the right edge; negative values have none.

    The largest value, or ``top``, has the height of the drawing.
    """
    slots = max(len(values), _SLOTS)
    room, top = WIDTH / slots, max([*values, 0.0]) if top is None else top
    boxes = []
    for number, value in enumerate(values, start=slots - len(values)):
        height = max(HEIGHT * value / top, _LEAST) if value > 0 else 0.0
        x, y = room * (number + _GAP / 2), HEIGHT - height
        boxes.append(Box(*(round(one, 1) for one in (x, y, room * (1 - _GAP), height))))
    return tuple(boxes)


def shares(values: Sequence[float]) -> tuple[Box, ...]:
    """Draw a stacked bar of the values; every value above zero is visible."""
    total = sum(values)
    widths = [max(WIDTH * value / total, 2 * _LEAST) if value > 0 else 0.0 for value in values]
    scale = WIDTH / sum(widths) if any(widths) else 0.0
    ends = list(itertools.accumulate((width * scale for width in widths), initial=0.0))
    return tuple(
        Box(round(x, 1), 0.0, round(end - x, 1), HEIGHT) for x, end in itertools.pairwise(ends)
    )


def lengths(values: Sequence[float | None]) -> tuple[float, ...]:
    """Return the length of a bar for each value, the longest as wide as the drawing."""
    top = max((abs(value) for value in values if value is not None), default=0.0)
    return tuple(
        round(max(WIDTH * abs(value) / top, 2 * _LEAST), 1) if value and top else 0.0
        for value in values
    )


def line(values: Sequence[float | None]) -> Line:
    """Draw a line through equidistant values; None interrupts it, and zero is always in range."""
    known = [0.0, *(value for value in values if value is not None)]
    top, bottom = max(known), min(known)
    scale = (HEIGHT - _LEAST) / (top - bottom) if top > bottom else 0.0
    step = WIDTH / max(len(values) - 1, 1)
    zero = round(HEIGHT + bottom * scale, 1)
    runs: list[list[tuple[float, float]]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            y = HEIGHT - (value - bottom) * scale
            runs[-1].append((round(number * step, 1), round(y, 1)))
    strokes, areas = [], []
    for run in filter(None, runs):
        if len(run) == 1:
            # A line of a single point would be invisible.
            run.append((run[0][0] + 4, run[0][1]))
        strokes.append("M" + " L".join(f"{x:g} {y:g}" for x, y in run))
        areas.append(f"{strokes[-1]} L{run[-1][0]:g} {zero:g} L{run[0][0]:g} {zero:g} Z")
    return Line(" ".join(strokes), " ".join(areas), bottom, top)
