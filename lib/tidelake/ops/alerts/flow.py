"""Rules on what flows: what waits too long, what takes too long, what rests."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from tidelake.delta.log import Commit, commits, last_commit
from tidelake.delta.notes import position
from tidelake.delta.tables import Hop, Table
from tidelake.instants import from_json
from tidelake.ops.alerts.alert import Alert
from tidelake.ops.alerts.sight import Sight, lasting
from tidelake.ops.backlogs import Backlog, landing_backlog, table_backlog
from tidelake.ops.books import history
from tidelake.ops.status import source_lag


def backlogs(seen: Sight) -> tuple[Backlog, ...]:
    """Tell what waits for each hop; a topic's records are told by :func:`lag_growing` itself."""
    lake, name = seen.lake, seen.name
    lately = timedelta(seconds=seen.limits.lag_seconds or 300.0)
    found = [landing_backlog(seen.pipeline, seen.taken, now=seen.now, lately=lately)]
    slowest = seen.slowest()
    follows: dict[Hop, tuple[str, Table]] = {
        "silver": ("bronze", lake.bronze(name)),
        "gold": ("silver", lake.silver(name)),
    }
    for hop, (key, followed) in follows.items():
        if followed.exists:
            # A hop that has no table yet holds nothing of what it follows.
            reader = slowest.get(hop)
            found.append(table_backlog(hop, followed, reader, key=key, now=seen.now, lately=lately))
    return tuple(one for one in found if one is not None)


def lag_growing(seen: Sight, waiting: tuple[Backlog, ...]) -> Iterator[Alert]:
    """Tell where something waits for too long, and no more is taken than comes."""
    limit = seen.limits.lag_seconds
    if limit is None:
        return
    for one in waiting:
        waited = one.seconds(seen.now)
        if waited > limit and not one.falls:
            yield seen.alert(
                "lag_growing",
                "warning",
                f"{one.waiting:,} {one.unit} wait, the oldest for {lasting(waited)}; in the last "
                f"{lasting(limit)} came {one.came:,} and {one.taken:,} were taken",
                "status",
                hop=one.hop,
                since=one.oldest,
            )
    yield from _topic_lag(seen, limit)


def _topic_lag(seen: Sight, limit: float) -> Iterator[Alert]:
    lag = source_lag(seen.pipeline, history(seen.lake, seen.lake.bronze(seen.name)), now=seen.now)
    if lag is None or not lag.lag or lag.advice.verdict in ("none", "unknown", "falls"):
        return
    rests = lag.advice.verdict == "rests"
    if rests or lag.catch_up_seconds is None or lag.catch_up_seconds > limit:
        lasts = lag.catch_up_seconds
        more = "never at these rates" if lasts is None else f"in {lasting(lasts)}"
        yield seen.alert(
            "lag_growing",
            "warning",
            f"{lag.lag:,} records wait, taken {more}; {lag.advice.text}",
            "status",
            hop="bronze",
            since=lag.checked_at,
        )


def latency_over_sla(seen: Sight, waiting: tuple[Backlog, ...]) -> Iterator[Alert]:
    """Tell where what bronze took comes into gold too late, or is still not there."""
    limit = seen.limits.latency_seconds
    gold = seen.slowest().get("gold")
    if limit is None or gold is None:
        return
    newest = [one for one in commits(gold) if one.batch >= 0][:2]
    bronze = list(commits(seen.lake.bronze(seen.name)))
    silver = list(commits(seen.lake.silver(seen.name)))
    held = _reached(newest[0] if newest else None, silver)
    before = _reached(newest[1] if len(newest) > 1 else None, silver)
    waits = _arrival(bronze, held, None)
    # A commit without a row for gold may never reach it.
    is_open = any(one.waiting for one in waiting if one.hop != "bronze")
    if is_open and waits is not None and (seen.now - waits).total_seconds() > limit:
        yield _too_slow(seen, waits, "is not in gold yet after", seen.now - waits, since=waits)
        return
    came = _arrival(bronze, before, held) if newest else None
    if came is not None and (newest[0].written_at - came).total_seconds() > limit:
        took, since = newest[0].written_at - came, newest[0].written_at
        yield _too_slow(seen, came, "came into gold in", took, since=since)


def _too_slow(seen: Sight, came: datetime, what: str, took: timedelta, *, since: datetime) -> Alert:
    agreed = lasting(seen.limits.latency_seconds or 0.0)
    return seen.alert(
        "latency_over_sla",
        "critical",
        f"what bronze took at {came:%Y-%m-%d %H:%M:%SZ} {what} {lasting(took)}; "
        f"agreed are {agreed}",
        "status",
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
    """Tell when the first rows came in that lie between two versions of bronze."""
    between = [
        one
        for one in bronze
        if one.version >= since and (until is None or one.version < until) and one.brought
    ]
    if not between:
        return None
    return from_json(between[-1].note.get("ingested_at")) or between[-1].written_at


def stale(seen: Sight, waiting: tuple[Backlog, ...]) -> Iterator[Alert]:
    """Tell where no batch was closed for long: no run, or nothing that comes."""
    limit = seen.limits.stale
    if limit is None:
        return
    lasts = [last_commit(table) for tables in seen.closing().values() for table in tables]
    newest = max((one.written_at for one in lasts if one is not None), default=None)
    if newest is None or seen.now - newest <= limit:
        return
    waits = ", ".join(f"{one.waiting:,} {one.unit} for {one.hop}" for one in waiting if one.waiting)
    yield seen.alert(
        "stale",
        "critical" if waits else "warning",
        f"no batch was closed for {lasting(seen.now - newest)}, "
        + (f"and what waits: {waits}" if waits else "and nothing waits: ask the senders"),
        "run" if waits else "status",
        since=newest,
    )
