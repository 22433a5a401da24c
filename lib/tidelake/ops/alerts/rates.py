"""Rules on commits: how many rows go aside or fail, and whether the watermark moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Literal

from tidelake.delta.log import Commit, commits
from tidelake.delta.notes import FRESH, SilverNote
from tidelake.delta.tables import Table
from tidelake.ops.alerts.alert import Alert
from tidelake.ops.alerts.sight import Sight, lasting
from tidelake.silver.watermark import held_back_by

# Before the newest batch: what lies further back is another hour's matter.
_LATELY = timedelta(hours=1)
# Of fewer rows a rate says nothing.
_ENOUGH = 100
_RULES: dict[Literal["quarantined", "late"], tuple[str, str, str]] = {
    "quarantined": ("quarantine_rate", "were quarantined", "quarantine list"),
    "late": ("late_rate", "came too late", "late list"),
}


def rates(seen: Sight) -> Iterator[Alert]:
    """Tell where too many of the rows that lately came went aside."""
    recent = _recent(seen.lake.silver(seen.name))
    fates: Counter[str] = Counter()
    stages: Counter[str] = Counter()
    for commit in recent:
        for one in SilverNote.of(commit).counts:
            if one.origin == FRESH:
                fates[one.fate] += one.rows
                stages[one.stage or ""] += one.rows if one.fate == "quarantined" else 0
    rows = fates.total()
    if rows < _ENOUGH:
        return
    limits = {"quarantined": seen.limits.quarantine_rate, "late": seen.limits.late_rate}
    for fate, (rule, what, command) in _RULES.items():
        limit, rate = limits[fate], fates[fate] / rows
        if limit is None or rate <= limit:
            continue
        by_stage = [f"{stage} {n:,}" for stage, n in stages.most_common() if stage and n]
        detail = f" ({', '.join(by_stage)})" if fate == "quarantined" else ""
        yield seen.alert(
            rule,
            "warning",
            f"{rate:.1%} of the last {rows:,} rows {what}{detail}; the limit is {limit:.1%}",
            command,
            hop="silver",
            since=recent[-1].written_at,
        )


def watermark_stuck(seen: Sight) -> Iterator[Alert]:
    """Tell where batches accept rows for long and the watermark stays where it was."""
    limit = seen.limits.watermark_stuck
    if limit is None:
        return
    newest: Commit | None = None
    oldest: Commit | None = None
    accepted = 0
    for commit in commits(seen.lake.silver(seen.name)):
        note = SilverNote.of(commit)
        if commit.batch < 0 or (newest and note.watermark != SilverNote.of(newest).watermark):
            break
        newest, oldest = newest or commit, commit
        accepted += note.total()["silver"]
    if newest is None or oldest is None or not accepted:
        return
    lasted = newest.written_at - oldest.written_at
    if lasted <= limit:
        return
    note = SilverNote.of(newest)
    slow, _ = held_back_by(note.partitions, idle_after=seen.pipeline.watermark.idle_after)
    mark = f"{note.watermark:%Y-%m-%d %H:%M:%SZ}" if note.watermark else "none"
    # Of one partition there is nothing to tell apart.
    waits = f"; it waits for {slow}" if slow and len(note.partitions) > 1 else ""
    yield seen.alert(
        "watermark_stuck",
        "warning",
        f"{accepted:,} events were accepted in {lasting(lasted)} and the watermark stays at "
        f"{mark}{waits}",
        "status",
        hop="silver",
        since=oldest.written_at,
    )


def expressions_failed(seen: Sight) -> Iterator[Alert]:
    """Report gold tables with expressions that failed on events of the last hour of batches."""
    failed: dict[str, int] = {}
    since: datetime | None = None
    for name in seen.pipeline.gold_names:
        table = seen.lake.table(name)
        recent = _recent(table) if table.exists else []
        affected = [commit for commit in recent if commit.note.get("failed")]
        if affected:
            failed[name] = sum(int(commit.note["failed"]) for commit in affected)
            oldest = affected[-1].written_at
            since = oldest if since is None else min(since, oldest)
    if failed:
        told = ", ".join(f"{name} {rows:,}" for name, rows in failed.items())
        yield seen.alert(
            "expression_failed",
            "warning",
            f"expressions failed on events, which count as null there: {told}",
            "status",
            hop="gold",
            since=since,
        )


def _recent(table: Table) -> list[Commit]:
    """List a table's batches of the last hour in which there were any, newest first."""
    found: list[Commit] = []
    for commit in commits(table):
        if commit.batch < 0 or (found and found[0].written_at - commit.written_at > _LATELY):
            break
        found.append(commit)
    return found
