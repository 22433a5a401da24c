"""Alerts: conditions of a pipeline that need attention, evaluated from its tables.

Each rule reads the tables, their logs and the batch metrics, and yields its open alerts. No rule
needs Spark or takes a lock, so all of them are safe during a run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import islice, takewhile
from typing import Any, Literal, NamedTuple

from tidelake.config import Pipeline
from tidelake.delta.commit_metadata import (
    FRESH,
    FateCount,
    SilverNote,
    last_epochs,
    position,
    recent_epochs,
)
from tidelake.delta.locks import resuming, writer
from tidelake.delta.log import REBUILT, Commit, commits, last_commit
from tidelake.delta.positions import slowest_of, waiting_since
from tidelake.delta.tables import HOPS, Hop, Lake, Table, hops_in
from tidelake.errors import GenerationError, RefusedError, RewrittenError, TidelakeError
from tidelake.instants import lasting, to_json
from tidelake.ledger.history import (
    Backlog,
    BacklogReader,
    bronze_version_in,
    first_arrival,
    has_no_tables,
    history,
    newest_batches,
    require_tables,
)
from tidelake.ledger.terms import read_ledger
from tidelake.ops.metrics import FAILED_WITHIN, Measured, measures_since
from tidelake.ops.refused_hops import refusal_of
from tidelake.ops.status import LAG_SECONDS, SourceLag, source_lag
from tidelake.runtime.checkpoints import newest_logged
from tidelake.silver.watermark import held_back_by
from tidelake.typed import PLAIN, Typed
from tidelake.visible import first_line, some, visible

# Critical: a table is wrong or gets no more rows. Warning: look at it today.
Severity = Literal["critical", "warning"]
_Rated = Literal["quarantined", "late"]
_LOOK_BACK = timedelta(hours=1)  # of batches, in addition to the period of a rule
# A rate over fewer rows is not significant, and two slow batches may be chance.
_MIN_ROWS, _MIN_BATCHES = 100, 3
# The rules that compare tables with each other and with checkpoints.
_COMPARING = ("books_unbalanced", "hop_refused")


@dataclass(frozen=True)
class Alert:
    """An open alert of a hop; of the whole pipeline if the hop is None.

    ``since`` (UTC) is when it began, if the tables show it; ``command`` is the next command to run.
    """

    rule: str
    pipeline: str
    hop: str | None
    severity: Severity
    message: str
    since: datetime | None
    command: str

    @property
    def key(self) -> str:
        """The alert's identity: a later finding with the same key is the same alert."""
        return "/".join((self.pipeline, self.hop or "-", self.rule))

    def __str__(self) -> str:
        """Format the alert as one line, the command last."""
        place = f"{self.pipeline}, hop {self.hop}" if self.hop else self.pipeline
        line = f"{self.severity} {self.rule}: {place}: {self.message}. See: {self.command}"
        return visible(line)

    def to_json(self) -> dict[str, Any]:
        """Return the alert with its instant as ISO 8601."""
        return asdict(self) | {"message": visible(self.message), "since": to_json(self.since)}


@dataclass(frozen=True)
class AlertContext:
    """The input of the rules for one pipeline; each part is read once.

    ``now`` is in UTC; ``measured`` are the metrics of recent batches, oldest first, None for those
    in ``ops.progress``; ``typed`` completes the commands of the alerts; ``publishes`` is the
    environment's setting.
    """

    lake: Lake
    pipeline: Pipeline
    now: datetime
    measured: Sequence[Measured] | None
    backlogs: BacklogReader
    typed: Typed
    publishes: bool = True

    @cached_property
    def measures(self) -> Sequence[Measured]:
        """The metrics of recent batches, oldest first; a TidelakeError if they cannot be read."""
        if self.measured is not None:
            return self.measured
        period = self.pipeline.alerts.batch_over_interval or timedelta(0)
        since, failed_since = self.now - _LOOK_BACK - period, self.now - FAILED_WITHIN
        return measures_since(self.lake, self.pipeline.name, since, failed_since=failed_since)

    @cached_property
    def closing(self) -> Mapping[Hop, list[Table]]:
        """The existing tables that each hop commits to."""
        hops, tables_of = hops_in(self.pipeline), self.lake.closing_tables
        return {hop: [t for t in tables_of(self.pipeline, hop) if t.exists] for hop in hops}

    @cached_property
    def slowest(self) -> Mapping[Hop, Table | None]:
        """The table of each hop whose last committed batch is the oldest; None before the first."""
        return {hop: slowest_of(tables) for hop, tables in self.closing.items()}

    @cached_property
    def fresh(self) -> tuple[list[FateCount], datetime | None]:
        """Row counts by fate of bronze rows in silver's recent batches, and their first commit."""
        batches = newest_batches(self.lake.silver(self.pipeline.name))
        counts = [count for commit in batches for count in SilverNote.of(commit).counts]
        since = batches[-1].written_at if batches else None
        return [count for count in counts if count.origin == FRESH], since

    @cached_property
    def waiting(self) -> tuple[Backlog, ...]:
        """The backlog of each hop; bronze's only for files, see :attr:`lag`."""
        lately = timedelta(seconds=self.pipeline.alerts.lag_seconds or LAG_SECONDS)
        # Also for a hop without a table: it has read nothing of its input yet.
        count = partial(self.backlogs.backlog, now=self.now, lately=lately)
        found = (count(hop, table) for hop, table in self.slowest.items())
        return tuple(one for one in found if one is not None)

    @cached_property
    def lag(self) -> SourceLag | None:
        """Bronze's lag behind its topics; None if it was not filled from Kafka."""
        bronze = history(self.lake, self.lake.bronze(self.pipeline.name))
        return source_lag(self.pipeline, bronze, now=self.now)


class Found(NamedTuple):
    """A finding of a rule; severity and command default to those of the rule.

    ``hop`` is None for the whole pipeline; ``since`` is in UTC. ``command`` is without ``tidelake``
    and without the pipeline, which ``options`` follow.
    """

    message: str
    hop: str | None = None
    since: datetime | None = None
    severity: Severity | None = None
    command: str = ""
    options: str = ""


class AlertRule(NamedTuple):
    """A rule: its check, its severity, and the next command to run.

    ``limit`` is the key of the pipeline's ``alerts`` whose value ``find`` gets; if that value is
    None, the rule is off.
    """

    find: Callable[[AlertContext, Any], Iterator[Found]]
    severity: Severity
    command: str
    limit: str = ""


def alerts_of(
    lake: Lake,
    pipeline: Pipeline,
    *,
    now: datetime,
    measures: Sequence[Measured] | None = None,
    backlogs: BacklogReader | None = None,
    counts: bool = True,
    typed: Typed = PLAIN,
    publishes: bool = True,
) -> tuple[Alert, ...]:
    """Evaluate all rules for a pipeline at an instant (UTC); a UsageError if it has not run.

    The measures default to those in ``ops.progress``, the reader to a new one. Without ``counts``
    the ledger, which counts rows, is not checked. ``publishes`` is the environment's setting.
    """
    backlogs = backlogs or BacklogReader(lake, pipeline)
    context = AlertContext(lake, pipeline, now, measures, backlogs, typed, publishes)
    if has_no_tables(lake, pipeline) and (failed := judge(context, MEASURED)):
        return failed
    # A deleted bronze table is a finding of `hop_refused`.
    with suppress(RefusedError):
        require_tables(lake, pipeline.name)
    return judge(context, [rule for rule in RULES if counts or rule != "books_unbalanced"])


def judge(context: AlertContext, rules: Collection[str]) -> tuple[Alert, ...]:
    """Evaluate some rules and return their open alerts, in the order of ``RULES``."""
    opened, pipeline = [], context.pipeline
    for name, rule in RULES.items():
        limit = getattr(pipeline.alerts, rule.limit) if rule.limit else None
        is_off = name not in rules or (rule.limit and limit is None)
        if is_off or (name in _COMPARING and erases_or_swaps(context.lake, pipeline.name)):
            continue
        for one in _found(rule, context, limit):
            command, how = one.command or rule.command, one.severity or rule.severity
            typed = context.typed(f"tidelake {command}", pipeline.name, one.options)
            opened.append(Alert(name, pipeline.name, one.hop, how, one.message, one.since, typed))
    return tuple(opened)


def erases_or_swaps(lake: Lake, pipeline: str) -> bool:
    """Return whether an erasure, or a swap of tables, is running on this machine.

    Until it ends, the tables disagree. While its file exists, no other process keeps silver's lock.
    """
    return bool(resuming(lake, pipeline)) and writer(lake, pipeline, "silver") is not None


def _found(rule: AlertRule, context: AlertContext, limit: Any) -> Iterator[Found]:
    """Yield a rule's findings, or a critical one if it cannot be evaluated."""
    try:
        yield from rule.find(context, limit)
    except (TidelakeError, OSError, ValueError) as error:
        yield Found(f"cannot be evaluated: {first_line(error)}", severity="critical")


def _unbalanced(context: AlertContext, _: None) -> Iterator[Found]:
    """Find a ledger that does not balance."""
    if problem := read_ledger(context.lake, context.pipeline).first_problem:
        yield Found(problem)


def _hop_refused(context: AlertContext, _: None) -> Iterator[Found]:
    """Find hops whose next run would be refused."""
    lake, name = context.lake, context.pipeline.name
    begun = resuming(lake, name)
    for work, (command, options) in begun.items():
        what = f"an erasure of {name}" if work == "erasure" else f"a swap of {name}'s tables"
        yield Found(f"{what} has started and not finished", command=command, options=options)
    # Of a hop that must wait for that, no other remedy can be followed yet.
    hops = HOPS[:1] if "swap" in begun else hops_in(context.pipeline)
    for hop in () if "erasure" in begun else hops:
        # Also missing tables: a checkpoint with batches shows that they were deleted.
        error = refusal_of(context, hop, lake.closing_tables(context.pipeline, hop))
        if isinstance(error, RewrittenError) and error.is_own:
            yield Found(error.what, hop, command="verify")
        elif isinstance(error, GenerationError) and not isinstance(error, RewrittenError):
            yield Found(error.what, hop, command="repair", options=f"--hop {hop}")
        elif error is not None:
            yield Found(" ".join(str(error).split()), hop)


def _hop_failed(context: AlertContext, _: None) -> Iterator[Found]:
    """Find hops whose last run failed and that have committed no batch since."""
    for hop, table in context.slowest.items():
        last = next((one for one in reversed(context.measures) if one.hop == hop), None)
        closed = last_commit(table) if table else None
        if last is None or last.error_class is None:
            continue
        # A later run without metrics may have continued.
        if closed is not None and closed.written_at > last.ended_at:
            continue
        ago, why = lasting(context.now - last.ended_at), f"{last.error_class}: {last.error}"
        yield Found(f"stopped {ago} ago, {why.rstrip('.')}", hop, last.ended_at)


def _checkpoint_failing(context: AlertContext, limit: timedelta) -> Iterator[Found]:
    """Find batches that are committed to the tables but not to the checkpoint."""
    for hop, tables in context.closing.items():
        closed = [one for t in tables if (one := last_commit(t)) is not None and one.batch >= 0]
        if not closed or len(closed) < len(tables):
            continue
        batch = min(one.batch for one in closed)
        committed_at = max(one.written_at for one in closed)
        checkpoint = context.lake.checkpoints(context.pipeline.name, hop) / closed[0].generation
        # `hop_refused` reports a missing checkpoint, with another remedy.
        if not checkpoint.exists() or newest_logged(checkpoint / "commits") >= batch:
            continue
        waited = context.now - committed_at
        # A hop that runs may wait for the next batch to fill; a run that cannot write ends.
        if waited > limit and writer(context.lake, context.pipeline.name, hop) is None:
            text = f"batch {batch} was committed to the tables {lasting(waited)} ago but not to the"
            why = "the run was killed in between, or could not write the checkpoint"
            yield Found(f"{text} checkpoint: {why}", hop, committed_at)


def _latency_over_sla(context: AlertContext, limit: float) -> Iterator[Found]:
    """Check whether records take longer from bronze to the last hop than the agreed latency."""
    lake, hop, name = context.lake, hops_in(context.pipeline)[-1], context.pipeline.name
    read, silver, table = lake.bronze(name), lake.silver(name), context.slowest[hop]
    if table is None and last_commit(silver) is None:
        return
    closed = (one for one in (commits(table) if table else ()) if one.batch >= 0)
    last, earlier = [*islice(closed, 2), None, None][:2]
    # The versions of bronze that the last batch includes, and that the one before it did.
    included, before = (
        bronze_version_in(one, commits(silver)) if hop == "gold" else position(one, "bronze")[0]
        for one in (last, earlier)
    )
    if last is not None and last.note.get(REBUILT):
        # It replaced all rows, and made none of them wait.
        before = included
    elif last is None:
        # Rows of an epoch had reached the last hop: the first gold table is new in the definition.
        epoch = last_epochs(recent_epochs(lake)).get(name, {"versions": {}})
        included = epoch["versions"].get(read.name, -1) + 1
    bronze = list(takewhile(lambda one: one.version >= min(before, included), commits(read)))
    oldest_missing = first_arrival(bronze, included, None)
    oldest_included = first_arrival(bronze, before, included)
    agreed = timedelta(seconds=limit)
    # A commit without a row for the next hop may never reach it. Requeued rows are no rows of it.
    is_open = any(one.own for one in context.waiting)
    if is_open and oldest_missing is not None and context.now - oldest_missing > agreed:
        arrived, until, since = oldest_missing, context.now, oldest_missing
        what = f"are not in {hop} yet after"
    elif last and oldest_included is not None and last.written_at - oldest_included > agreed:
        arrived, until, since = oldest_included, last.written_at, last.written_at
        what = f"reached {hop} in"
    else:
        return
    text = f"rows that bronze read at {arrived:%Y-%m-%d %H:%M:%SZ} {what}"
    limits = f"{lasting(until - arrived)}; the limit is {lasting(agreed)}"
    yield Found(f"{text} {limits}", hop, since)


def _stale(context: AlertContext, limit: timedelta) -> Iterator[Found]:
    """Check for a long time without a committed batch: nothing runs, or nothing arrives."""
    closed: dict[str, datetime] = {
        hop: max(one.written_at for one in found)
        for hop, tables in context.closing.items()
        if (found := [last for table in tables if (last := last_commit(table))])
    }
    resting = {hop: at for hop, at in closed.items() if context.now - at > limit}
    if len(resting) < len(closed) or not closed:
        # A hop may be a job of its own, which alone is dead.
        for one in context.waiting if resting else ():
            at, waited = resting.get(one.hop), one.seconds(context.now)
            if at is not None and waited > limit.total_seconds():
                idle = f"no batch was committed for {lasting(context.now - at)}"
                text = f"{some(one.waiting, one.unit, 'waiting')}, the oldest for {lasting(waited)}"
                yield Found(f"{idle}, and {text}", one.hop, at, options=f"--hop {one.hop}")
        return
    newest = max(closed.values())
    waits = [f"{some(b.waiting, b.unit)} for {b.hop}" for b in context.waiting if b.waiting]
    is_known, lag = any(one.hop == "bronze" for one in context.waiting), context.lag
    if lag is not None:
        waits += [f"{some(lag.lag, 'records')} for bronze"] if lag.lag else []
        is_known = is_known or not lag.not_asked
    idle = f"no batch was committed for {lasting(context.now - newest)}, and"
    if waits:
        yield Found(f"{idle} input is waiting: {', '.join(waits)}", since=newest)
    elif not is_known:
        yield Found(f"{idle} whether input waits for bronze is unknown", since=newest)
    else:
        text = f"{idle} no input is waiting: check the producers"
        yield Found(text, since=newest, severity="warning", command="status")


def _lag_growing(context: AlertContext, limit: float) -> Iterator[Found]:
    """Find hops whose input waits too long and that read no faster than input arrives."""
    for one in context.waiting:
        waited = one.seconds(context.now)
        if waited > limit and one.taken <= one.arrived:
            text = f"{some(one.waiting, one.unit, 'waiting')}, the oldest for {lasting(waited)}"
            lately = f"{one.arrived:,} arrived and {one.taken:,} were read"
            yield Found(f"{text}; in the last {lasting(limit)} {lately}", one.hop, one.oldest)
    lag = context.lag
    if lag is None or not lag.lag or lag.advice.verdict in ("none", "unknown", "falls"):
        return
    seconds = lag.catch_up_seconds
    if lag.advice.verdict == "rests" or seconds is None or seconds > limit:
        catch_up = "never at these rates" if seconds is None else f"in {lasting(seconds)}"
        text = f"{some(lag.lag, 'records', 'waiting')}, catch-up {catch_up}; {lag.advice.text}"
        yield Found(text, "bronze", lag.checked_at)


def _slow_batches(context: AlertContext, limit: timedelta) -> Iterator[Found]:
    """Find hops whose recent batches all took longer than the trigger interval."""
    for hop in HOPS:
        batches = (m for m in reversed(context.measures) if m.hop == hop and not m.error_class)
        slow = list(takewhile(lambda m: m.seconds > (m.interval_seconds or math.inf), batches))
        if len(slow) < _MIN_BATCHES or context.now - slow[0].ended_at > limit:
            continue
        if slow[0].ended_at - slow[-1].started_at > limit:
            mean = sum(one.seconds for one in slow) / len(slow)
            text = f"the last {len(slow):,} batches took {mean:.1f} seconds each"
            interval = f"the interval is {slow[0].interval_seconds:g} seconds"
            yield Found(f"{text}, {interval}", hop, slow[-1].started_at)


def _watermark_stuck(context: AlertContext, limit: timedelta) -> Iterator[Found]:
    """Check for a watermark that has not advanced although batches accept rows."""
    batches: list[tuple[Commit, SilverNote]] = []
    for commit in commits(context.lake.silver(context.pipeline.name)):
        note = SilverNote.of(commit)
        if commit.batch < 0 or (batches and note.watermark != batches[0][1].watermark):
            break
        batches.append((commit, note))
    # Without the oldest, which set it. Inside of one commit of bronze it stays as it is.
    accepted = sum(note.total()["silver"] for _, note in batches[:-1])
    ends = [note.until.get("bronze", (-1,))[0] for _, note in batches]
    if not accepted or ends[0] == ends[-1] >= 0:
        return
    (newest, note), (oldest, _) = batches[0], batches[-1]
    if (lasted := newest.written_at - oldest.written_at) <= limit:
        return
    slow, _ = held_back_by(note.partitions, idle_after=context.pipeline.watermark.idle_after)
    mark = f"{note.watermark:%Y-%m-%d %H:%M:%SZ}" if note.watermark else "none"
    # With a single partition its name adds nothing.
    waits = f"; it waits for {slow}" if slow and len(note.partitions) > 1 else ""
    text = f"{accepted:,} events were accepted in {lasting(lasted)} and the watermark stays at"
    yield Found(f"{text} {mark}{waits}", "silver", oldest.written_at)


def _rate(context: AlertContext, limit: float, *, fate: _Rated = "quarantined") -> Iterator[Found]:
    """Check the share of recent rows that were quarantined, or late."""
    fresh, since = context.fresh
    rows = sum(one.rows for one in fresh)
    stages: Counter[str] = Counter()
    for one in fresh:
        if one.fate == fate:
            stages[one.stage or ""] += one.rows
    if rows < _MIN_ROWS or stages.total() / rows <= limit:
        return
    by_stage = [f"{stage} {n:,}" for stage, n in stages.most_common() if stage and n]
    what = "were late" if fate == "late" else f"were quarantined ({', '.join(by_stage)})"
    text = f"{stages.total() / rows:.1%} of the last {rows:,} rows {what}"
    yield Found(f"{text}; the limit is {limit:.1%}", "silver", since)


def _expression_failed(context: AlertContext, _: None) -> Iterator[Found]:
    """Find expressions of gold tables that failed in the last hour of batches."""
    failed: Counter[str] = Counter()
    since: list[datetime] = []
    for table in context.closing.get("gold", ()):
        for commit in newest_batches(table):
            if commit.note.get("failed"):
                failed[table.name] += int(commit.note["failed"])
                since.append(commit.written_at)
    if failed:
        shown = ", ".join(f"{name} {rows:,}" for name, rows in failed.items())
        text = f"expressions failed on events or rows and gave null: {shown}"
        yield Found(text, "gold", min(since))


def _unpublished(context: AlertContext, limit: float) -> Iterator[Found]:
    """Find topics that have lacked changes of their tables for longer than the limit.

    Only of tables that were published once; none where the environment publishes nothing.
    """
    told: list[str] = []
    oldest: list[datetime] = []
    for name, to in context.pipeline.published.items() if context.publishes else ():
        try:
            waiting, since = waiting_since(context.lake.table(name))
        except RefusedError as error:
            told.append(str(error))
            continue
        if since is not None and context.now - since > timedelta(seconds=limit):
            text = f"versions of {name} wait for topic {to.topic}: {waiting:,}, the oldest for"
            told.append(f"{text} {lasting(context.now - since)}")
            oldest.append(since)
    if told:
        # An alert is of a hop, not of a table.
        yield Found("; ".join(told), "gold", min(oldest, default=None))


# Rules that may be critical first: alerts are listed in this order.
RULES = {
    "books_unbalanced": AlertRule(_unbalanced, "critical", "ledger"),
    "hop_refused": AlertRule(_hop_refused, "critical", "check"),
    "hop_failed": AlertRule(_hop_failed, "critical", "run"),
    "checkpoint_failing": AlertRule(_checkpoint_failing, "critical", "run", "checkpoint_failing"),
    "latency_over_sla": AlertRule(_latency_over_sla, "critical", "status", "latency_seconds"),
    "stale": AlertRule(_stale, "critical", "run", "stale"),
    "lag_growing": AlertRule(_lag_growing, "warning", "status", "lag_seconds"),
    "batch_over_interval": AlertRule(_slow_batches, "warning", "status", "batch_over_interval"),
    "watermark_stuck": AlertRule(_watermark_stuck, "warning", "status", "watermark_stuck"),
    "quarantine_rate": AlertRule(_rate, "warning", "quarantine list", "quarantine_rate"),
    "late_rate": AlertRule(partial(_rate, fate="late"), "warning", "late list", "late_rate"),
    "expression_failed": AlertRule(_expression_failed, "warning", "status"),
    "unpublished": AlertRule(_unpublished, "warning", "status", "lag_seconds"),
}
# The rules on the metrics of batches, which need no table: a run has those of its own hops.
MEASURED = ("hop_failed", "batch_over_interval")
# The rules that a run evaluates: the others count tables, or repeat the run's own checks.
RUNNING = tuple(rule for rule in RULES if rule not in _COMPARING)
