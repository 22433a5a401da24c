"""Read what the page shows of a pipeline, its facts.

The parts are the flow (each hop's rows, rate, backlog and writer), the alerts, the side tables, a
plot of each gold table, and the ledger; each part may not have been read yet.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import NamedTuple

from tidelake.config import GoldTable, Pipeline
from tidelake.config.queries import ResolvedQuery
from tidelake.config.source import described
from tidelake.delta.commit_metadata import position, rows_read
from tidelake.delta.locks import writer
from tidelake.delta.log import batch_reached, commits, last_commit
from tidelake.delta.positions import added_between, slowest_of
from tidelake.delta.tables import HOPS, Lake
from tidelake.errors import TidelakeError, UsageError
from tidelake.ledger.history import BacklogReader
from tidelake.ledger.query import ask
from tidelake.ledger.side_tables import LateDay, ReasonGroup, list_late, list_quarantine
from tidelake.ledger.terms import Ledger
from tidelake.ops.alerts import Alert
from tidelake.ops.metrics import Measured, newest_measures
from tidelake.ops.status import HopStatus, Status, read_status
from tidelake.runtime.gold_tables import Target, targets_of

# Number of batches in the trend of a hop.
_TREND_BATCHES = 30
# Metrics of older runs are not shown.
_MEASURED_WITHIN = timedelta(days=7)
# The most points and bars in a plot, to fit a phone.
POINTS, BARS = 60, 10
# The longest time axis: a single row of the far past or future would compress all others.
_SPAN = timedelta(days=14)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS = (1, 5, 10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_STEPS = tuple(timedelta(seconds=seconds) for seconds in _SECONDS)
# How the windows of one step are combined; all other aggregates are averaged.
_COMBINED_BY = {"count": "sum", "count_if": "sum", "sum": "sum", "min": "min", "max": "max"}
# Aggregates by which the values of a step add up.
_ADDED = ("sum(", "count(")
# A common step is at most so many times as long as the shortest that fits.
_COARSEST = 5
# What a part is called, and the command that says more of one that cannot be read.
PARTS = {
    "definition": ("the definition", "check"),
    "fingerprint": ("the tables", "status"),
    "flow": ("the flow", "status"),
    "alerts": ("the alerts", "alerts"),
    "sides": ("quarantine and late rows", "quarantine list"),
    "plots": ("the gold tables", "status"),
    "books": ("the ledger", "ledger"),
}
# DuckDB's types of numbers that a Delta table can have.
_NUMERIC = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")
_KINDS = {
    "tumbling": "tumbling windows",
    "hopping": "hopping windows",
    "session": "sessions",
    "global": "totals",
}
# By the kind of a table without windows: the label of a row, and what the rows are.
_UNWINDOWED = {
    "alerts": ("rule", "alerts"),
    "join": ("CASE WHEN _right_time IS NULL THEN 'no match yet' ELSE 'matched' END", "left events"),
    "versions": ("CASE WHEN is_current THEN 'current' ELSE 'past' END", "versions"),
    "dimension": ("'keys'", "current rows"),
}


@dataclass(frozen=True)
class HopFacts:
    """One hop of the flow.

    Attributes:
        sizes: Rows of its newest batches, oldest first.
        lag_seconds: Age of the oldest input that waits, 0 for none; None if unknown.
        process: Process id of its writer on this machine; None if there is none.
        measured: Its newest row in ``ops.progress``; None if no run writes there.
    """

    status: HopStatus
    sizes: tuple[int, ...]
    lag_seconds: float | None
    process: int | None
    measured: Measured | None


@dataclass(frozen=True)
class Flow:
    """The flow of a pipeline from source to gold; ``requeued`` rows wait for silver.

    ``golds`` has the last batch of each table of the gold hop, -1 for none, None without a table.
    """

    source: str
    status: Status
    hops: tuple[HopFacts, ...]
    golds: Mapping[str, int | None]
    requeued: int

    @property
    def runs(self) -> bool:
        """Whether a process on this machine writes any hop."""
        return any(hop.process is not None for hop in self.hops)


class Bar(NamedTuple):
    """A value of a plot, None if unknown, with its key or the start of its step (UTC)."""

    label: str
    value: float | None
    at: datetime | None = None


@dataclass(frozen=True)
class Plot:
    """A plot of a gold table: a line over time, or bars with the largest first.

    Attributes:
        table: Its logical name.
        kind: What the table contains, as shown to the user.
        title: What is plotted, as shown to the user.
        step: For a line, the time between two values; None for bars.
        missing: Why nothing is shown; otherwise empty.
        is_damaged: Whether that is because the table cannot be read.
    """

    table: str
    kind: str
    rows: int = 0
    title: str = ""
    bars: tuple[Bar, ...] = ()
    step: timedelta | None = None
    missing: str = ""
    is_damaged: bool = False


class Sides(NamedTuple):
    """Quarantine by stage and reason, the most frequent first; late rows by event date."""

    quarantine: tuple[ReasonGroup, ...]
    late: tuple[LateDay, ...]


@dataclass(frozen=True)
class Facts:
    """The facts of a pipeline; a part is None before it is read.

    Attributes:
        pipeline: The definition; None if it is invalid.
        broken: Parts that cannot be read and why; ``definition`` means all of them.
        looked_at: When the tables were last checked for changes (UTC).
        alerts: Without the one of the ledger.
        serial: Increases with each change.
        called: The pipeline's argument in commands; empty if that is its name.
    """

    name: str
    pipeline: Pipeline | None = None
    broken: tuple[tuple[str, str], ...] = ()
    looked_at: datetime | None = None
    has_run: bool = False
    flow: Flow | None = None
    alerts: tuple[Alert, ...] | None = None
    sides: Sides | None = None
    plots: tuple[Plot, ...] | None = None
    books: Ledger | None = None
    serial: int = 0
    called: str = ""

    @property
    def argument(self) -> str:
        """The pipeline's argument in a command, quoted for a shell."""
        return shlex.quote(self.called or self.name)

    @property
    def whole(self) -> bool:
        """Whether all parts that could show a fault were read."""
        return self.pipeline is None or not self.has_run or None not in (self.alerts, self.books)

    @property
    def open(self) -> tuple[Alert, ...]:
        """All alerts, critical first, including those of the ledger and of unreadable parts."""
        found: list[Alert] = []
        # A part that cannot be read may hide other faults.
        for part, why in self.broken:
            command = f"tidelake {PARTS[part][1]} {self.argument}"
            found.append(Alert("unreadable", self.name, None, "critical", why, None, command))
        for table, why in ((one.table, one.missing) for one in self.plots or () if one.is_damaged):
            command = f'tidelake sql "SELECT count(*) FROM {table}"'
            found.append(Alert("unreadable", self.name, "gold", "critical", why, None, command))
        if self.books and (problem := self.books.first_problem):
            command = f"tidelake ledger {self.argument} --by batch"
            why = f"the ledger does not balance: {problem}"
            # The problem starts with its layer: "silver, batch 3", "gold.totals".
            hop = next((one for one in HOPS if re.match(rf"{one}\b", problem)), None)
            found.append(Alert("books_unbalanced", self.name, hop, "critical", why, None, command))
        found += self.alerts or ()
        return tuple(sorted(found, key=lambda alert: alert.severity != "critical"))


def read_sides(lake: Lake, pipeline: Pipeline) -> Sides:
    """Read quarantine and late rows."""
    return Sides(tuple(list_quarantine(lake, pipeline)), tuple(list_late(lake, pipeline)))


def read_flow(
    lake: Lake, pipeline: Pipeline, *, now: datetime, backlogs: BacklogReader | None = None
) -> Flow:
    """Read the flow from the tables' logs; a UsageError if the pipeline has not run."""
    status = read_status(lake, pipeline, now=now)
    name = pipeline.name
    measured = newest_measures(lake, name, now - _MEASURED_WITHIN)
    backlogs, hops = backlogs or BacklogReader(lake, pipeline), []
    for one in status.hops:
        table = slowest_of(lake.closing_tables(pipeline, one.hop))
        newest = list(islice(commits(table), _TREND_BATCHES)) if table else []
        sizes = tuple(rows_read(commit) for commit in reversed(newest) if commit.batch >= 0)
        process, last = writer(lake, name, one.hop), measured.get(one.hop)
        backlog = backlogs.backlog(one.hop, table, now=now, lately=timedelta(0))
        lag = backlog.seconds(now) if backlog else None
        hops.append(HopFacts(one, sizes, lag, process, last))
    requeue = lake.requeue(name)
    reached = position(last_commit(lake.silver(name)), "requeue")
    return Flow(
        source=described(pipeline.source),
        status=status,
        hops=tuple(hops),
        golds={
            gold.name: batch_reached(gold) if gold.exists else None
            for gold in lake.closing_tables(pipeline, "gold")
        },
        requeued=added_between(requeue, reached).rows if requeue.exists else 0,
    )


def read_plots(lake: Lake, pipeline: Pipeline) -> tuple[Plot, ...]:
    """Read a plot of each gold table; the plot of an unreadable table contains the reason."""
    return tuple(_plot(lake, target) for target in targets_of(lake, pipeline))


def _plot(lake: Lake, target: Target) -> Plot:
    name, definition = target.table.name, target.kind.definition
    gold = definition if isinstance(definition, GoldTable) else None
    if gold is not None:
        kind = _KINDS[gold.window.kind]
    elif name.startswith("dim."):
        kind = "versions" if name.endswith("__history") else "dimension"
    elif isinstance(definition, ResolvedQuery):
        kind = "query"
    else:
        kind = "alerts" if "rule" in target.kind.identity else "join"
    blank = Plot(name, kind)
    if not target.table.exists:
        return replace(blank, missing="does not exist yet")
    try:
        rows = int(ask(lake, f"SELECT count(*) FROM {name}").rows[0][0])
        if not rows:
            filled = replace(blank, missing="no rows yet")
        elif kind == "query":
            filled = _line(lake, blank, "rows", f'"{target.kind.moment}"', "count(*)", timedelta(0))
        else:
            filled = _filled(lake, blank, gold)
        return replace(filled, rows=rows)
    except TidelakeError as error:
        # An edited definition does not fit the table before its backfill.
        is_damaged = not isinstance(error, UsageError)
        return replace(blank, missing=str(error).splitlines()[0], is_damaged=is_damaged)


def _filled(lake: Lake, blank: Plot, gold: GoldTable | None) -> Plot:
    if gold is None:
        label, noun = _UNWINDOWED[blank.kind]
        return _bars(lake, blank, label, "count(*)", noun)
    window = gold.window
    if window.kind == "session":
        return _line(lake, blank, "sessions started", "session_start", "count(*)", timedelta(0))
    # A minimum, or a first or last value, may be a text or an instant.
    types = {column: str(kind) for column, kind, *_ in ask(lake, f"DESCRIBE {blank.table}").rows}
    numeric = [one for one in gold.measures if types.get(one.name, "").startswith(_NUMERIC)]
    # Prefer a count, then a sum.
    found = {one.aggregate: one for one in reversed(numeric)}
    preferred = (found[name] for name in ("count", "sum", "count_if") if name in found)
    measure = next(preferred, numeric[0] if numeric else None)
    title, greatest, value = "rows", "count(*)", "count(*)"
    if measure is not None:
        # The loader allows only letters, digits and underscores in names.
        title, column = measure.name, f'"{measure.name}"'
        greatest = f"max({column})"
        value = f"{_COMBINED_BY.get(measure.aggregate, 'avg')}({column})"
    if window.kind == "global":
        keys = [f'"{one}"' for one in gold.keys]
        # concat_ws skips nulls: keys that differ would have the same label.
        shown = [f"coalesce(CAST({key} AS VARCHAR), 'null')" for key in keys]
        label, group = f"concat_ws(' · ', {', '.join(shown)})", ", ".join(keys)
        return _bars(lake, blank, label, greatest, title, group=group)
    kept = "true"
    if window.kind == "hopping" and window.size % window.slide:
        # No windows are adjacent: draw all, so that a step without one had no events.
        if value.startswith(_ADDED):
            title = f"{title} per window"
        return _line(lake, blank, title, "window_start", value, window.slide, overlapping=True)
    if window.kind == "hopping":
        # Overlapping windows would count an event several times: read only adjacent ones.
        size, offset = (one // timedelta(microseconds=1) for one in (window.size, window.offset))
        kept = f"(epoch_us(window_start) - {offset}) % {size} = 0"
    return _line(lake, blank, title, "window_start", value, window.size, kept=kept)


def _bars(lake: Lake, blank: Plot, label: str, value: str, noun: str, *, group: str = "1") -> Plot:
    """Read the largest values; without a ``group``, rows with the same label are one bar."""
    found = ask(
        lake,
        f"SELECT CAST({label} AS VARCHAR), CAST({value} AS DOUBLE) FROM {blank.table} "
        f"GROUP BY {group} ORDER BY 2 DESC NULLS LAST, 1 LIMIT {BARS}",
    ).rows
    bars = tuple(Bar(str(key), _number(amount)) for key, amount in found)
    top = f"the {BARS} largest" if len(bars) == BARS else "all"
    return replace(blank, title=f"{noun}, {top}", bars=bars)


def _line(
    lake: Lake,
    blank: Plot,
    title: str,
    column: str,
    value: str,
    least: timedelta,
    *,
    kept: str = "true",
    overlapping: bool = False,
) -> Plot:
    """Read the values of a line, one per time step.

    The rows that are ``kept`` count. Of windows that are ``overlapping``, one of which begins every
    ``least``, a sum is divided by the number of windows in its step.
    """
    ends = f"SELECT min({column}), max({column}) FROM {blank.table} WHERE {kept}"
    first, last = ask(lake, ends).rows[0]
    if last is None:
        return replace(blank, missing="no rows yet")
    oldest, first = first, max(first, last - _SPAN)
    step = _step(last - first, least)
    micros = step // timedelta(microseconds=1)
    begin = _EPOCH + (first - _EPOCH) // step * step
    # Steps count from the beginning: DuckDB rounds a negative quotient up.
    begin_micros = (begin - _EPOCH) // timedelta(microseconds=1)
    found = ask(
        lake,
        f"SELECT (epoch_us({column}) - {begin_micros}) // {micros}, CAST({value} AS DOUBLE) "
        f"FROM {blank.table} WHERE {column} >= TIMESTAMPTZ '{begin.isoformat()}' AND {kept} "
        f"GROUP BY 1",
    ).rows
    values = {begin + int(number) * step: _number(amount) for number, amount in found}
    is_added = value.startswith(_ADDED)
    if overlapping and is_added:
        for at, amount in values.items():
            # Counted back from the last one: the first and the last step may not be full.
            newest = max(0, (last - at - step) // least + 1)
            count = (last - max(at, oldest)) // least + 1 - newest
            values[at] = None if amount is None else amount / max(1, count)
    # A count or sum of no rows is 0; a minimum or mean is unknown.
    nothing = 0.0 if is_added else None
    steps = (begin + number * step for number in range((last - begin) // step + 1))
    bars = tuple(Bar("", values.get(at, nothing), at) for at in steps)
    return replace(blank, title=title, bars=bars, step=step)


def _step(span: timedelta, least: timedelta) -> timedelta:
    """Choose a common time step that gives at most ``POINTS`` points, and not far fewer."""
    unit = least or _STEPS[-1]
    shortest = max(1, math.ceil(span / (unit * (POINTS - 1)))) * unit
    for step in _STEPS:
        # A multiple of the least step, which also rules out shorter ones.
        if (not least or not step % least) and span < step * (POINTS - 1):
            return step if step <= _COARSEST * shortest else shortest
    return shortest


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
