"""The alert rules: each reads a pipeline's tables, logs and measures, and yields its open alerts.

No rule needs Spark or takes a lock, so all are safe beside a run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, NamedTuple

from tidelake.config import FilesSource, Pipeline
from tidelake.delta.locks import is_put_back
from tidelake.delta.log import Commit, commits, last_commit
from tidelake.delta.notes import SilverNote, position
from tidelake.delta.tables import HOPS, Hop, Lake, Table
from tidelake.errors import GenerationError, RefusedError, SourceError
from tidelake.instants import from_json
from tidelake.ops.alerts.alert import Alert, AlertContext, Severity, lasting, recent
from tidelake.ops.backlogs import TakenFiles
from tidelake.ops.history import history, require_tables
from tidelake.ops.ledger import read_ledger
from tidelake.ops.metrics.table import Measured, kept_since
from tidelake.ops.status import source_lag
from tidelake.runtime.checkpoints import CheckpointGuard, open_generation
from tidelake.runtime.landing import check_landing
from tidelake.silver.watermark import held_back_by
from tidelake.typed import PLAIN, Typed

# How far back batches are read, beyond the time that the rule on them asks for; and how long a hop
# that failed and closed no batch since is reported.
_REACH, _FAILED = timedelta(hours=1), timedelta(days=7)
# Of fewer rows a rate says nothing.
_ENOUGH = 100
# Two batches may each have been unlucky.
_BATCHES = 3
# A run that commits just now lets table and checkpoint look apart.
_LOOKS, _LOOK_SECONDS = 3, 0.3


class Found(NamedTuple):
    """What a rule found; its severity and command are the rule's where it has none of its own.

    ``since`` is in UTC; the options come after the pipeline in the command.
    """

    message: str
    hop: str | None = None
    since: datetime | None = None
    severity: Severity | None = None
    command: str = ""
    options: str = ""


class AlertRule(NamedTuple):
    """How to find what is open, how bad it is, and the command to type next."""

    find: Callable[[AlertContext], Iterator[Found]]
    severity: Severity
    command: str


def alerts_of(
    lake: Lake,
    pipeline: Pipeline,
    *,
    now: datetime,
    measures: Sequence[Measured] | None = None,
    counts: bool = True,
    typed: Typed = PLAIN,
) -> tuple[Alert, ...]:
    """Judge a pipeline by all rules, at a moment in UTC.

    The measures are by default those that ``ops.progress`` keeps. Without ``counts`` the books
    are left out: to count the tables for them takes as long as the ledger.

    Raises:
        UsageError: The pipeline has not run under this root.
    """
    require_tables(lake, pipeline.name)
    if measures is None:
        since = now - _REACH - (pipeline.alerts.batch_over_interval or timedelta(0))
        measures = kept_since(lake, pipeline.name, since, failed_since=now - _FAILED)
    context = AlertContext(lake, pipeline, now, measures, TakenFiles(lake, pipeline), typed)
    return judge(context, [rule for rule in RULES if counts or rule != "books_unbalanced"])


def judge(context: AlertContext, rules: Collection[str]) -> tuple[Alert, ...]:
    """Give the alerts of some rules that are open, those that may be critical first."""
    opened = []
    for name, rule in RULES.items():
        for one in rule.find(context) if name in rules else ():
            command = f"tidelake {one.command or rule.command}"
            opened.append(
                Alert(
                    rule=name,
                    pipeline=context.name,
                    hop=one.hop,
                    severity=one.severity or rule.severity,
                    message=one.message,
                    since=one.since,
                    command=context.typed(command, context.name, one.options),
                )
            )
    return tuple(opened)


def _unbalanced(context: AlertContext) -> Iterator[Found]:
    """The books do not add up."""
    problem = read_ledger(context.lake, context.pipeline).first_problem
    if problem:
        yield Found(problem)


def _hop_refused(context: AlertContext) -> Iterator[Found]:
    """A hop would refuse to go on."""
    lake, name = context.lake, context.name
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
    """Give what a hop would stop with; None where it would go on.

    A refusal counts where it stands through several looks: table and checkpoint are two places,
    and a run may be writing the one while the other is read.
    """
    found: Exception | None = None
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_SECONDS)
        try:
            _refuse_mismatch(context, hop, tables)
        except (RefusedError, OSError, ValueError, KeyError) as error:
            found = error
        else:
            return None
    return found


def _refuse_mismatch(context: AlertContext, hop: Hop, tables: list[Table]) -> None:
    """Compare table and checkpoint, as a run does first.

    Raises:
        RefusedError: They do not fit, or what was read already has changed.
    """
    lake, name, source = context.lake, context.name, context.pipeline.source
    folder = lake.checkpoints(name, hop)
    fence = open_generation(name, hop, tables, folder)
    guard = CheckpointGuard(fence, folder / fence.generation, tuple(tables), _inputs(context, hop))
    guard.refuse_rewritten()
    guard.refuse_mismatch(guard.offset_mismatch)
    if hop == "bronze" and isinstance(source, FilesSource):
        try:
            check_landing(source.path, context.taken.by_path())
        except SourceError:
            # Nothing lands, which is no refusal of what was taken.
            return


def _inputs(context: AlertContext, hop: Hop) -> Mapping[str, Table]:
    from tidelake.runtime.gold_tables import inputs_of  # noqa: PLC0415

    if hop == "silver":
        return context.lake.silver_inputs(context.name)
    return inputs_of(context.lake, context.pipeline) if hop == "gold" else {}


def _hop_failed(context: AlertContext) -> Iterator[Found]:
    """The last run of a hop stopped with an error, and it has closed no batch since."""
    for hop in HOPS:
        last = next((one for one in reversed(context.measures) if one.hop == hop), None)
        if last is None or last.error_class is None:
            continue
        # A run that measured nothing may have gone on after the failure.
        closed = last_commit(context.slowest[hop]) if hop in context.slowest else None
        if closed is not None and closed.written_at > last.ended_at:
            continue
        ago = lasting(context.now - last.ended_at)
        yield Found(
            f"stopped {ago} ago, {last.error_class}: {last.error}".rstrip("."),
            hop=hop,
            since=last.ended_at,
        )


def _checkpoint_failing(context: AlertContext) -> Iterator[Found]:
    """A batch is in the tables and its checkpoint does not close it."""
    limit = context.limits.checkpoint_failing
    if limit is None:
        return
    for hop, tables in context.closing.items():
        lasts = [last_commit(table) for table in tables]
        closed = [one for one in lasts if one is not None and one.batch >= 0]
        if len(closed) < len(tables):
            continue
        batch = min(one.batch for one in closed)
        held_since = max(one.written_at for one in closed)
        checkpoint = context.lake.checkpoints(context.name, hop) / closed[0].generation
        files = [file.name for file in (checkpoint / "commits").glob("[0-9]*")]
        committed = max((int(name) for name in files if name.isdigit()), default=-1)
        # Of one that is gone, the hop's own refusal tells, with another remedy.
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


def _latency_over_sla(context: AlertContext) -> Iterator[Found]:
    """Records take longer into gold than agreed, or are still not there."""
    limit = context.limits.latency_seconds
    gold = context.slowest.get("gold")
    if limit is None or gold is None:
        return
    newest = [one for one in commits(gold) if one.batch >= 0][:2]
    bronze = list(commits(context.lake.bronze(context.name)))
    silver = list(commits(context.lake.silver(context.name)))
    # Versions of bronze that the last batch of gold holds, and the one before it.
    held = _reached(newest[0] if newest else None, silver)
    before = _reached(newest[1] if len(newest) > 1 else None, silver)
    waits = _arrival(bronze, held, None)
    came = _arrival(bronze, before, held) if newest else None
    agreed = timedelta(seconds=limit)
    # A commit without a row for gold may never reach it.
    is_open = any(one.waiting for one in context.waiting if one.hop != "bronze")
    if is_open and waits is not None and context.now - waits > agreed:
        arrived, since, took = waits, waits, context.now - waits
        what = "is not in gold yet after"
    elif came is not None and newest[0].written_at - came > agreed:
        arrived, since, took = came, newest[0].written_at, newest[0].written_at - came
        what = "came into gold in"
    else:
        return
    yield Found(
        f"what bronze took at {arrived:%Y-%m-%d %H:%M:%SZ} {what} {lasting(took)}; "
        f"agreed are {lasting(agreed)}",
        hop="gold",
        since=since,
    )


def _reached(gold: Commit | None, silver: list[Commit]) -> int:
    """Find the first version of bronze that a batch of gold does not hold, by silver's notes."""
    if gold is None:
        return 0
    until = position(gold, "silver")
    held = next((one for one in silver if one.version < until[0]), None)
    return position(held, "bronze")[0]


def _arrival(bronze: list[Commit], since: int, until: int | None) -> datetime | None:
    """Find when the first rows arrived that lie between two versions of bronze."""
    for one in reversed(bronze):
        if one.version >= since and (until is None or one.version < until) and one.brought:
            return from_json(one.note.get("ingested_at")) or one.written_at
    return None


def _stale(context: AlertContext) -> Iterator[Found]:
    """No batch was closed for long: no run, or nothing that comes."""
    limit = context.limits.stale
    lasts = [last_commit(table) for tables in context.closing.values() for table in tables]
    newest = max((one.written_at for one in lasts if one is not None), default=None)
    if limit is None or newest is None or context.now - newest <= limit:
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


def _lag_growing(context: AlertContext) -> Iterator[Found]:
    """Something waits for too long, and no more is taken than comes."""
    limit = context.limits.lag_seconds
    if limit is None:
        return
    for one in context.waiting:
        waited = one.seconds(context.now)
        if waited > limit and not one.falls:
            yield Found(
                f"{one.waiting:,} {one.unit} wait, the oldest for {lasting(waited)}; in the last "
                f"{lasting(limit)} came {one.came:,} and {one.taken:,} were taken",
                hop=one.hop,
                since=one.oldest,
            )
    bronze = history(context.lake, context.lake.bronze(context.name))
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


def _batch_over_interval(context: AlertContext) -> Iterator[Found]:
    """Every batch of the last minutes took longer than its interval."""
    limit = context.limits.batch_over_interval
    if limit is None:
        return
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


def _watermark_stuck(context: AlertContext) -> Iterator[Found]:
    """Batches accept rows for long and the watermark does not move."""
    limit = context.limits.watermark_stuck
    if limit is None:
        return
    batches: list[tuple[Commit, SilverNote]] = []
    for commit in commits(context.lake.silver(context.name)):
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
    # Of one partition there is nothing to tell apart.
    waits = f"; it waits for {slow}" if slow and len(note.partitions) > 1 else ""
    yield Found(
        f"{accepted:,} events were accepted in {lasting(lasted)} and the watermark stays at "
        f"{mark}{waits}",
        hop="silver",
        since=oldest.written_at,
    )


def _rate(context: AlertContext, fate: Literal["quarantined", "late"]) -> Iterator[Found]:
    """Too many of the rows that lately came were quarantined, or came too late."""
    limits = context.limits
    limit, what = {
        "quarantined": (limits.quarantine_rate, "were quarantined"),
        "late": (limits.late_rate, "came too late"),
    }[fate]
    if limit is None:
        return
    fresh, since = context.fresh
    rows = sum(one.rows for one in fresh)
    stages: Counter[str] = Counter()
    for one in fresh:
        if one.fate == fate:
            stages[one.stage or ""] += one.rows
    if rows < _ENOUGH or stages.total() / rows <= limit:
        return
    by_stage = [f"{stage} {n:,}" for stage, n in stages.most_common() if stage and n]
    detail = f" ({', '.join(by_stage)})" if fate == "quarantined" else ""
    yield Found(
        f"{stages.total() / rows:.1%} of the last {rows:,} rows {what}{detail}; "
        f"the limit is {limit:.1%}",
        hop="silver",
        since=since,
    )


def _expression_failed(context: AlertContext) -> Iterator[Found]:
    """An expression of a gold table failed on events of the last hour of batches."""
    failed: Counter[str] = Counter()
    since: list[datetime] = []
    for name in context.pipeline.gold_names:
        table = context.lake.table(name)
        for commit in recent(table) if table.exists else ():
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
    "checkpoint_failing": AlertRule(_checkpoint_failing, "critical", "run"),
    "latency_over_sla": AlertRule(_latency_over_sla, "critical", "status"),
    "stale": AlertRule(_stale, "critical", "run"),
    "lag_growing": AlertRule(_lag_growing, "warning", "status"),
    "batch_over_interval": AlertRule(_batch_over_interval, "warning", "status"),
    "watermark_stuck": AlertRule(_watermark_stuck, "warning", "status"),
    "quarantine_rate": AlertRule(partial(_rate, fate="quarantined"), "warning", "quarantine list"),
    "late_rate": AlertRule(partial(_rate, fate="late"), "warning", "late list"),
    "expression_failed": AlertRule(_expression_failed, "warning", "status"),
}
# What a run judges of itself: the others count tables, or ask what the run itself would say.
RUNNING = tuple(rule for rule in RULES if rule not in ("books_unbalanced", "hop_refused"))
