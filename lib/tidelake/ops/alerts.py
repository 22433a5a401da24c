"""Alerts: open conditions of a pipeline that somebody should look at, judged by its tables.

Each rule reads the tables, their logs and the measures, and yields its open alerts. No rule needs
Spark or takes a lock, so all of them are safe beside a run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

from tidelake.config import FilesSource, Pipeline
from tidelake.delta.locks import is_put_back
from tidelake.delta.log import Commit, commits, last_commit
from tidelake.delta.notes import FRESH, FateCount, SilverNote
from tidelake.delta.tables import HOPS, Hop, Lake, Table
from tidelake.errors import GenerationError, RefusedError, SourceError
from tidelake.instants import to_json
from tidelake.ledger.history import (
    Backlog,
    BacklogReader,
    bronze_version_in,
    first_arrival,
    history,
    newest_batches,
    require_tables,
)
from tidelake.ledger.terms import read_ledger
from tidelake.ops.sinks import Measured, kept_since
from tidelake.ops.status import batch_reached, source_lag
from tidelake.runtime.checkpoints import CheckpointGuard, open_generation
from tidelake.runtime.landing import check_landing
from tidelake.silver.watermark import held_back_by
from tidelake.typed import PLAIN, Typed
from tidelake.visible import visible

# Critical: a table is wrong or gets no more rows. Warning: look at it today.
Severity = Literal["critical", "warning"]
# How far back batches are read, beyond the time that the rule on them asks for; and how long a hop
# that failed and closed no batch since is reported.
_REACH, _FAILED = timedelta(hours=1), timedelta(days=7)
# A rate of fewer rows means nothing.
_ENOUGH = 100
# Two batches may each have been unlucky.
_BATCHES = 3
# While a run commits, table and checkpoint disagree for a moment.
_LOOKS, _LOOK_SECONDS = 3, 0.3


@dataclass(frozen=True)
class Alert:
    """An open alert of a hop; of the whole pipeline where the hop is None.

    ``since`` (UTC) is when it began, as far as the tables tell; ``command`` is what to type next.
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
        """The alert's identity: later findings with the same key continue it."""
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
    """What the rules read of a pipeline; each part is read once.

    ``now`` is in UTC, ``measures`` are the batches of the last minutes, oldest first, or empty
    where no run keeps them; ``typed`` completes the commands that alerts name.
    """

    lake: Lake
    pipeline: Pipeline
    now: datetime
    measures: Sequence[Measured]
    backlogs: BacklogReader
    typed: Typed

    @cached_property
    def closing(self) -> Mapping[Hop, list[Table]]:
        """The existing tables whose commits close a batch, by hop; hops without one left out."""
        tables: dict[Hop, list[Table]] = {
            "bronze": [self.lake.bronze(self.pipeline.name)],
            "silver": [self.lake.silver(self.pipeline.name)],
            "gold": [self.lake.table(one) for one in self.pipeline.gold_names],
        }
        found = {hop: [table for table in tables[hop] if table.exists] for hop in HOPS}
        return {hop: existing for hop, existing in found.items() if existing}

    @cached_property
    def slowest(self) -> Mapping[Hop, Table]:
        """The table of each hop that is furthest behind."""
        return {hop: min(tables, key=batch_reached) for hop, tables in self.closing.items()}

    @cached_property
    def fresh(self) -> tuple[list[FateCount], datetime | None]:
        """The fates of rows from bronze in silver's recent batches, and when those began."""
        batches = newest_batches(self.lake.silver(self.pipeline.name))
        counts = [count for commit in batches for count in SilverNote.of(commit).counts]
        since = batches[-1].written_at if batches else None
        return [count for count in counts if count.origin == FRESH], since

    @cached_property
    def waiting(self) -> tuple[Backlog, ...]:
        """The backlog of each hop; a topic's records are judged by ``lag_growing`` itself."""
        lately = timedelta(seconds=self.pipeline.alerts.lag_seconds or 300.0)
        # A hop that has no table yet has read nothing of its input.
        found = (
            self.backlogs.backlog(hop, self.slowest.get(hop), now=self.now, lately=lately)
            for hop in HOPS
        )
        return tuple(one for one in found if one is not None)


def lasting(length: timedelta | float) -> str:
    """Format a length of time, or seconds: in its largest unit, to the tenth where it is small."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds" if seconds >= 10 else f"{seconds:.1f} seconds"


class Found(NamedTuple):
    """What a rule found; without a severity or a command of its own, it has the rule's.

    ``since`` is in UTC; the options come after the pipeline in the command.
    """

    message: str
    hop: str | None = None
    since: datetime | None = None
    severity: Severity | None = None
    command: str = ""
    options: str = ""


class AlertRule(NamedTuple):
    """How to find what is open, how bad it is, and the command to type next.

    ``limit`` is the key of the pipeline's ``alerts`` that ``find`` gets the value of; where that
    is None, the rule is off.
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
    counts: bool = True,
    typed: Typed = PLAIN,
) -> tuple[Alert, ...]:
    """Judge a pipeline by all rules at a moment (UTC); a UsageError where it has not run.

    The measures are by default those that ``ops.progress`` keeps. Without ``counts`` the ledger
    is left out, which has to count the tables' rows.
    """
    require_tables(lake, pipeline.name)
    if measures is None:
        since = now - _REACH - (pipeline.alerts.batch_over_interval or timedelta(0))
        measures = kept_since(lake, pipeline.name, since, failed_since=now - _FAILED)
    context = AlertContext(lake, pipeline, now, measures, BacklogReader(lake, pipeline), typed)
    return judge(context, [rule for rule in RULES if counts or rule != "books_unbalanced"])


def judge(context: AlertContext, rules: Collection[str]) -> tuple[Alert, ...]:
    """Return the open alerts of some rules, those that may be critical first."""
    opened = []
    for name, rule in RULES.items():
        limit = getattr(context.pipeline.alerts, rule.limit) if rule.limit else None
        if name not in rules or (rule.limit and limit is None):
            continue
        for one in rule.find(context, limit):
            command = f"tidelake {one.command or rule.command}"
            typed = context.typed(command, context.pipeline.name, one.options)
            severity = one.severity or rule.severity
            opened.append(
                Alert(name, context.pipeline.name, one.hop, severity, one.message, one.since, typed)
            )
    return tuple(opened)


def _unbalanced(context: AlertContext, _: None) -> Iterator[Found]:
    """The ledger does not balance."""
    problem = read_ledger(context.lake, context.pipeline).first_problem
    if problem:
        yield Found(problem)


def _hop_refused(context: AlertContext, _: None) -> Iterator[Found]:
    """The next run of a hop would be refused."""
    lake, name = context.lake, context.pipeline.name
    if lake.erasure(name).exists():
        what = f"an erasure of {name} has begun and not ended"
        yield Found(what, command="erase", options="--subject COLUMN=VALUE")
    if lake.swap(name).exists():
        back = is_put_back(lake, name)
        what = f"a swap of {name}'s tables has begun and not ended"
        yield Found(what, command=f"backfill {'rollback' if back else 'promote'}")
    for hop, tables in context.closing.items():
        error = _refusal(context, hop, tables)
        if isinstance(error, GenerationError):
            yield Found(error.what, hop, command="repair", options=f"--hop {hop}")
        elif error is not None:
            yield Found(" ".join(str(error).split()), hop)


def _refusal(context: AlertContext, hop: Hop, tables: list[Table]) -> Exception | None:
    """Return the error that the hop's next run would stop with; None where it would go on.

    A refusal counts if it repeats in several looks: a run may be writing the table while the
    checkpoint is read.
    """
    found: Exception | None = None
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_SECONDS)
        try:
            _refuse_mismatch(context, hop, tables)
            return None
        except (RefusedError, OSError, ValueError, KeyError) as error:
            found = error
    return found


def _refuse_mismatch(context: AlertContext, hop: Hop, tables: list[Table]) -> None:
    """Compare table and checkpoint, as a run does first; a RefusedError where they disagree."""
    lake, name, source = context.lake, context.pipeline.name, context.pipeline.source
    folder = lake.checkpoints(name, hop)
    fence = open_generation(name, hop, tables, folder)
    inputs: Mapping[str, Table] = {}
    if hop == "silver":
        inputs = lake.silver_inputs(name)
    if hop == "gold":
        from tidelake.runtime.gold_tables import inputs_of  # noqa: PLC0415  Spark is slow to load

        inputs = inputs_of(lake, context.pipeline)
    guard = CheckpointGuard(fence, folder / fence.generation, tuple(tables), inputs)
    guard.refuse_rewritten()
    guard.refuse_mismatch(guard.offset_mismatch)
    if hop == "bronze" and isinstance(source, FilesSource):
        try:
            check_landing(source.path, context.backlogs.taken_files())
        except SourceError:
            return  # The folder cannot be listed: no file that was taken is refused.


def _hop_failed(context: AlertContext, _: None) -> Iterator[Found]:
    """The last run of a hop failed, and the hop has closed no batch since."""
    for hop in HOPS:
        last = next((one for one in reversed(context.measures) if one.hop == hop), None)
        if last is None or last.error_class is None:
            continue
        # A later run without metrics may have continued.
        closed = last_commit(context.slowest[hop]) if hop in context.slowest else None
        if closed is not None and closed.written_at > last.ended_at:
            continue
        ago = lasting(context.now - last.ended_at)
        yield Found(
            f"stopped {ago} ago, {last.error_class}: {last.error}".rstrip("."),
            hop=hop,
            since=last.ended_at,
        )


def _checkpoint_failing(context: AlertContext, limit: timedelta) -> Iterator[Found]:
    """A batch is in the tables, and its checkpoint has not committed it."""
    for hop, tables in context.closing.items():
        lasts = [last_commit(table) for table in tables]
        closed = [one for one in lasts if one is not None and one.batch >= 0]
        if len(closed) < len(tables):
            continue
        batch = min(one.batch for one in closed)
        held_since = max(one.written_at for one in closed)
        checkpoint = context.lake.checkpoints(context.pipeline.name, hop) / closed[0].generation
        files = [file.name for file in (checkpoint / "commits").glob("[0-9]*")]
        committed = max((int(name) for name in files if name.isdigit()), default=-1)
        # A checkpoint that is gone is reported by `hop_refused`, with another remedy.
        if not checkpoint.exists() or committed >= batch:
            continue
        waited = context.now - held_since
        if waited > limit:
            yield Found(
                f"batch {batch} is in the tables for {lasting(waited)} and its checkpoint does "
                "not say so: the run was killed then, or cannot write there",
                hop=hop,
                since=held_since,
            )


def _latency_over_sla(context: AlertContext, limit: float) -> Iterator[Found]:
    """Records take longer from bronze into gold than agreed."""
    gold = context.slowest.get("gold")
    if gold is None:
        return
    last, earlier = [*(one for one in commits(gold) if one.batch >= 0), None, None][:2]
    bronze = list(commits(context.lake.bronze(context.pipeline.name)))
    silver = list(commits(context.lake.silver(context.pipeline.name)))
    # As far as the last batch of gold holds bronze, and the batch before.
    held, before = bronze_version_in(last, silver), bronze_version_in(earlier, silver)
    waits, came = first_arrival(bronze, held, None), first_arrival(bronze, before, held)
    agreed = timedelta(seconds=limit)
    # A commit without a row for gold may never reach it.
    is_open = any(one.waiting for one in context.waiting if one.hop != "bronze")
    if is_open and waits is not None and context.now - waits > agreed:
        arrived, since, took = waits, waits, context.now - waits
        what = "is not in gold yet after"
    elif last is not None and came is not None and last.written_at - came > agreed:
        arrived, since, took = came, last.written_at, last.written_at - came
        what = "came into gold in"
    else:
        return
    yield Found(
        f"what bronze took at {arrived:%Y-%m-%d %H:%M:%SZ} {what} {lasting(took)}; "
        f"agreed are {lasting(agreed)}",
        hop="gold",
        since=since,
    )


def _stale(context: AlertContext, limit: timedelta) -> Iterator[Found]:
    """No batch was closed for long: nothing runs, or nothing arrives."""
    lasts = [last_commit(table) for tables in context.closing.values() for table in tables]
    newest = max((one.written_at for one in lasts if one is not None), default=None)
    if newest is None or context.now - newest <= limit:
        return
    waits = ", ".join(
        f"{one.waiting:,} {one.unit} for {one.hop}" for one in context.waiting if one.waiting
    )
    rested = f"no batch was closed for {lasting(context.now - newest)}, and"
    if waits:
        yield Found(f"{rested} what waits: {waits}", since=newest)
    else:
        text = f"{rested} nothing waits: ask the senders"
        yield Found(text, since=newest, severity="warning", command="status")


def _lag_growing(context: AlertContext, limit: float) -> Iterator[Found]:
    """Input waits for too long, and no more is taken than arrives."""
    for one in context.waiting:
        waited = one.seconds(context.now)
        if waited > limit and one.taken <= one.came:
            yield Found(
                f"{one.waiting:,} {one.unit} wait, the oldest for {lasting(waited)}; in the last "
                f"{lasting(limit)} came {one.came:,} and {one.taken:,} were taken",
                hop=one.hop,
                since=one.oldest,
            )
    bronze = history(context.lake, context.lake.bronze(context.pipeline.name))
    lag = source_lag(context.pipeline, bronze, now=context.now)
    if lag is None or not lag.lag or lag.advice.verdict in ("none", "unknown", "falls"):
        return
    lasts = lag.catch_up_seconds
    if lag.advice.verdict == "rests" or lasts is None or lasts > limit:
        more = "never at these rates" if lasts is None else f"in {lasting(lasts)}"
        yield Found(
            f"{lag.lag:,} records wait, taken {more}; {lag.advice.text}",
            hop="bronze",
            since=lag.checked_at,
        )


def _slow_batches(context: AlertContext, limit: timedelta) -> Iterator[Found]:
    """The last batches all took longer than the interval of their trigger."""
    for hop in HOPS:
        slow: list[Measured] = []
        for one in reversed([m for m in context.measures if m.hop == hop and not m.error_class]):
            if one.interval_seconds is None or one.seconds <= one.interval_seconds:
                break
            slow.append(one)
        if len(slow) < _BATCHES or context.now - slow[0].ended_at > limit:
            continue
        if slow[0].ended_at - slow[-1].started_at > limit:
            mean = sum(one.seconds for one in slow) / len(slow)
            yield Found(
                f"the last {len(slow):,} batches took {mean:.1f} seconds each, the interval is "
                f"{slow[0].interval_seconds:g} seconds",
                hop=hop,
                since=slow[-1].started_at,
            )


def _watermark_stuck(context: AlertContext, limit: timedelta) -> Iterator[Found]:
    """Batches accept rows, and the watermark has not moved for long."""
    batches: list[tuple[Commit, SilverNote]] = []
    for commit in commits(context.lake.silver(context.pipeline.name)):
        note = SilverNote.of(commit)
        if commit.batch < 0 or (batches and note.watermark != batches[0][1].watermark):
            break
        batches.append((commit, note))
    accepted = sum(note.total()["silver"] for _, note in batches)
    if not accepted:
        return
    (newest, note), (oldest, _) = batches[0], batches[-1]
    lasted = newest.written_at - oldest.written_at
    if lasted <= limit:
        return
    slow, _ = held_back_by(note.partitions, idle_after=context.pipeline.watermark.idle_after)
    mark = f"{note.watermark:%Y-%m-%d %H:%M:%SZ}" if note.watermark else "none"
    # With one partition the name says nothing.
    waits = f"; it waits for {slow}" if slow and len(note.partitions) > 1 else ""
    yield Found(
        f"{accepted:,} events were accepted in {lasting(lasted)} and the watermark stays at "
        f"{mark}{waits}",
        hop="silver",
        since=oldest.written_at,
    )


def _rate(
    context: AlertContext, limit: float, *, fate: Literal["quarantined", "late"]
) -> Iterator[Found]:
    """Too many of the recent rows were quarantined, or too late."""
    fresh, since = context.fresh
    rows = sum(one.rows for one in fresh)
    stages: Counter[str] = Counter()
    for one in fresh:
        if one.fate == fate:
            stages[one.stage or ""] += one.rows
    if rows < _ENOUGH or stages.total() / rows <= limit:
        return
    by_stage = [f"{stage} {n:,}" for stage, n in stages.most_common() if stage and n]
    is_late = fate == "late"
    what = "came too late" if is_late else f"were quarantined ({', '.join(by_stage)})"
    yield Found(
        f"{stages.total() / rows:.1%} of the last {rows:,} rows {what}; the limit is {limit:.1%}",
        hop="silver",
        since=since,
    )


def _expression_failed(context: AlertContext, _: None) -> Iterator[Found]:
    """An expression of a gold table failed on events of the last hour of batches."""
    failed: Counter[str] = Counter()
    since: list[datetime] = []
    for name in context.pipeline.gold_names:
        table = context.lake.table(name)
        for commit in newest_batches(table) if table.exists else ():
            if commit.note.get("failed"):
                failed[name] += int(commit.note["failed"])
                since.append(commit.written_at)
    if failed:
        shown = ", ".join(f"{name} {rows:,}" for name, rows in failed.items())
        yield Found(
            f"expressions failed on events, which count as null there: {shown}",
            hop="gold",
            since=min(since),
        )


# Those that may be critical first, as people read them.
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
    "quarantine_rate": AlertRule(
        partial(_rate, fate="quarantined"), "warning", "quarantine list", "quarantine_rate"
    ),
    "late_rate": AlertRule(partial(_rate, fate="late"), "warning", "late list", "late_rate"),
    "expression_failed": AlertRule(_expression_failed, "warning", "status"),
}
# The rules that a run judges itself: the others count tables, or repeat the run's own checks.
RUNNING = tuple(rule for rule in RULES if rule not in ("books_unbalanced", "hop_refused"))
