"""Read what a plot of each gold table shows: a line over time, or bars."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from tidelake.config import (
    GlobalWindow,
    GoldTable,
    HoppingWindow,
    Measure,
    Pipeline,
    SessionWindow,
)
from tidelake.delta.tables import Lake
from tidelake.errors import TidelakeError
from tidelake.ops.query import ask
from tidelake.runtime.targets import Target, targets_of

# A plot has no more points than a phone has room for.
POINTS, BARS = 60, 10
# One row of a far past or future would press all others into one point.
_SPAN = timedelta(days=14)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STEPS = tuple(
    timedelta(seconds=seconds)
    for seconds in (
        *(1, 5, 10, 30, 60, 300, 600, 900, 1800),
        *(3600, 7200, 10800, 21600, 43200, 86400),
    )
)
# How parts of a bucket become one value; the other aggregates have no such way.
_ROLLED = {"count": "sum", "count_if": "sum", "sum": "sum", "min": "min", "max": "max"}


@dataclass(frozen=True)
class Bar:
    """One value of a plot.

    Attributes:
        label: Its key; of a line, left empty.
        value: How much; None where nothing is known.
        at: Of a line, when its step begins (UTC).
    """

    label: str
    value: float | None
    at: datetime | None = None


@dataclass(frozen=True)
class Plot:
    """What a plot of a gold table shows.

    Attributes:
        table: The table's logical name.
        kind: What it holds, in words.
        rows: How many rows it has.
        title: What is shown, in words.
        bars: The values: of a line in the order of time, else the largest first.
        step: Of a line, the time from one value to the next; None for bars.
        missing: Why nothing is shown; empty where something is.
    """

    table: str
    kind: str
    rows: int = 0
    title: str = ""
    bars: tuple[Bar, ...] = ()
    step: timedelta | None = None
    missing: str = ""


def read_plots(lake: Lake, pipeline: Pipeline) -> tuple[Plot, ...]:
    """Read the plots of all tables that a pipeline's gold hop fills, in the definition's order.

    A table that cannot be read says so in its plot and takes nothing from the others.
    """
    windows = {lake.gold(gold.name): gold for gold in pipeline.aggregates}
    return tuple(
        _plot(lake, target, windows.get(target.table)) for target in targets_of(lake, pipeline)
    )


def _plot(lake: Lake, target: Target, gold: GoldTable | None) -> Plot:
    name = target.table.name
    blank = Plot(name, _kind(target, gold))
    if not target.table.exists:
        return replace(blank, missing="not there yet")
    try:
        rows = int(ask(lake, f"SELECT count(*) FROM {name}").rows[0][0])
        if not rows:
            return replace(blank, missing="no rows yet")
        return replace(_shown(lake, blank, target, gold), rows=rows)
    except TidelakeError as error:
        return replace(blank, missing=str(error).splitlines()[0])


def _kind(target: Target, gold: GoldTable | None) -> str:
    if gold is not None:
        return {
            "tumbling": "tumbling windows",
            "hopping": "hopping windows",
            "session": "sessions",
            "global": "totals",
        }[gold.window.kind]
    if target.table.name.startswith("dim."):
        return "versions" if target.table.name.endswith("__history") else "dimension"
    return "alerts" if "rule" in target.identity else "join"


def _shown(lake: Lake, blank: Plot, target: Target, gold: GoldTable | None) -> Plot:
    if gold is None:
        return _other(lake, blank, target)
    window = gold.window
    if isinstance(window, SessionWindow):
        return _line(lake, blank, "session_start", "count(*)", "sessions begun", timedelta(0))
    measure = _telling(gold)
    if isinstance(window, GlobalWindow):
        column = _quoted(measure.name)
        key = ", ".join(_quoted(one) for one in gold.keys) or "'all'"
        return _bars(lake, blank, f"concat_ws(' · ', {key})", f"max({column})", measure.name)
    told = f"{_ROLLED.get(measure.aggregate, 'avg')}({_quoted(measure.name)})"
    kept = "true"
    if isinstance(window, HoppingWindow):
        # Windows that overlap would count an event several times: those side by side are enough.
        size, offset = (one // timedelta(microseconds=1) for one in (window.size, window.offset))
        kept = f"(epoch_us(window_start) - {offset}) % {size} = 0"
    return _line(lake, blank, "window_start", told, measure.name, window.size, kept=kept)


def _other(lake: Lake, blank: Plot, target: Target) -> Plot:
    if blank.kind == "alerts":
        return _bars(lake, blank, "rule", "count(*)", "alerts")
    if blank.kind == "join":
        matched = "CASE WHEN _right_time IS NULL THEN 'no match yet' ELSE 'matched' END"
        return _bars(lake, blank, matched, "count(*)", "left events")
    if blank.kind == "versions":
        state = "CASE WHEN is_current THEN 'current' ELSE 'past' END"
        return _bars(lake, blank, state, "count(*)", "versions")
    return _bars(lake, blank, "'keys'", "count(*)", "current rows")


def _telling(gold: GoldTable) -> Measure:
    """Choose the measure that tells most: a count, then a sum, then whatever comes first."""
    for wanted in ("count", "sum", "count_if"):
        for measure in gold.measures:
            if measure.aggregate == wanted:
                return measure
    return gold.measures[0]


def _bars(lake: Lake, blank: Plot, label: str, value: str, told: str) -> Plot:
    found = ask(
        lake,
        f"SELECT CAST({label} AS VARCHAR), CAST({value} AS DOUBLE) FROM {blank.table} "
        f"GROUP BY 1 ORDER BY 2 DESC NULLS LAST, 1 LIMIT {BARS}",
    ).rows
    bars = tuple(Bar(str(name), _number(much)) for name, much in found)
    top = f"the {BARS} largest" if len(bars) == BARS else "all"
    return replace(blank, title=f"{told}, {top}", bars=bars)


def _line(
    lake: Lake,
    blank: Plot,
    column: str,
    value: str,
    told: str,
    least: timedelta,
    *,
    kept: str = "true",
) -> Plot:
    """Read one value a step of time.

    Args:
        lake: Where the tables are.
        blank: The plot so far.
        column: The instant of a row.
        value: SQL that makes one value of a step's rows.
        told: What the value is.
        least: The shortest step: a window's size.
        kept: SQL condition on the rows.
    """
    ends = f"SELECT min({column}), max({column}) FROM {blank.table} WHERE {kept}"
    first, last = ask(lake, ends).rows[0]
    if last is None:
        return replace(blank, missing="no rows yet")
    first = max(first, last - _SPAN)
    step = _step(last - first, least)
    micros = step // timedelta(microseconds=1)
    begin = _EPOCH + (first - _EPOCH) // step * step
    found = ask(
        lake,
        f"SELECT epoch_us({column}) // {micros}, CAST({value} AS DOUBLE) FROM {blank.table} "
        f"WHERE {column} >= TIMESTAMPTZ '{begin.isoformat()}' AND {kept} GROUP BY 1",
    ).rows
    values = {_EPOCH + int(number) * step: _number(much) for number, much in found}
    # Nothing came in a step without a row; a least or a mean of nothing is not zero.
    nothing = 0.0 if value.startswith(("sum(", "count(")) else None
    bars = tuple(Bar("", values.get(at, nothing), at) for at in _steps(begin, last, step))
    return replace(blank, title=told, bars=bars, step=step)


def _step(span: timedelta, least: timedelta) -> timedelta:
    """Choose a step that people count in, and that leaves no more points than a plot has."""
    for step in _STEPS:
        is_whole = not least or (step >= least and not step % least)
        if is_whole and span < step * (POINTS - 1):
            return step
    least = least or _STEPS[-1]
    return max(1, math.ceil(span / (least * (POINTS - 1)))) * least


def _steps(begin: datetime, last: datetime, step: timedelta) -> Iterator[datetime]:
    at = begin
    while at <= last:
        yield at
        at += step


def _quoted(name: str) -> str:
    """Quote a column for DuckDB; the loader lets only letters, digits and underscores through."""
    return f'"{name}"'


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
