"""Tell how far bronze lags behind a topic: by partition, whether it grows, what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidelake.delta.log import Commit
from tidelake.kafka.topic_offsets import Offsets, total
from tidelake.ops.advice import Advice, Taking, Trend, advise, trend_of

# Checks that are closer say more of the moment in a batch than of the lag.
_APART = timedelta(seconds=30)
# How many batches tell the rate.
_LATELY = 10
# How many batches in a row the limit must have ended to be what holds them back, and the part of
# the time in which they worked.
_IN_A_ROW, _BUSY = 3, 0.9


@dataclass(frozen=True)
class Check:
    """What was known of a topic at one moment.

    Attributes:
        at: When (UTC).
        taken: By topic and partition: the offset after the last that bronze has.
        behind: What lay beyond it then.
    """

    at: datetime
    taken: Offsets
    behind: Offsets


@dataclass(frozen=True)
class PartitionLag:
    """A partition of a topic.

    Attributes:
        topic: Its topic.
        partition: Its number.
        taken: The offset after the last record that bronze has.
        end: The offset after the last that it holds.
        lag: What lies in between.
        trend: Against the earlier check; None where there was none.
    """

    topic: str
    partition: int
    taken: int
    end: int
    lag: int
    trend: Trend | None


@dataclass(frozen=True)
class SourceLag:
    """How far bronze lags behind its topics.

    Attributes:
        checked_at: When (UTC).
        not_asked: Why the broker was not asked just now; empty where it was.
        partitions: The one with the largest lag first.
        lag: Of all of them.
        rows_per_second: What bronze lately took while it worked; None before it took any.
        arriving_per_second: What was written to the topics between two checks.
        catch_up_seconds: How long the backlog lasts at these rates; None where it would never end.
        advice: What to do.
    """

    checked_at: datetime
    not_asked: str
    partitions: tuple[PartitionLag, ...]
    lag: int
    rows_per_second: float | None
    arriving_per_second: float | None
    catch_up_seconds: float | None
    advice: Advice


def checks_of(newest_first: Sequence[Commit]) -> list[Check]:
    """Read the checks that bronze's commits noted, newest first."""
    return [
        Check(datetime.fromisoformat(note["looked_at"]), note["offsets"], note["behind"])
        for note in (commit.note for commit in newest_first)
        if note.get("behind")
    ]


def lag_of(
    newest_first: Sequence[Commit],
    asked: Check | None,
    *,
    not_asked: str = "",
    min_partitions: int = 0,
    seconds: float = 300,
    now: datetime,
) -> SourceLag | None:
    """Judge how far bronze lags.

    Args:
        newest_first: Bronze's commits.
        asked: What the broker says now.
        not_asked: Why it says nothing.
        min_partitions: Of the source: into how many tasks Spark cuts the partitions at least.
        seconds: How long a backlog may last.
        now: The moment, in UTC.

    Returns:
        None where nothing was noted yet.
    """
    noted = checks_of(newest_first)
    checks = [asked, *noted] if asked else noted
    if not checks:
        return None
    latest = checks[0]
    older = [check for check in checks[1:] if check.at < latest.at]
    apart = (check for check in older if latest.at - check.at >= _APART)
    earlier = next(apart, older[-1] if older else None)
    partitions = _partitions(latest, earlier)
    recent = [commit for commit in newest_first if commit.note.get("records")][:_LATELY]
    rate, arriving = _rate(recent), _arriving(earlier, latest)
    slots = recent[0].note["slots"] if recent else 1
    tasks = max(len(partitions), min_partitions)
    taking = Taking(
        rows_per_slot=rate / min(slots, tasks) if rate else None,
        slots=slots,
        tasks=tasks,
        limit=recent[0].note["limit"] if recent else None,
        is_held_back=_is_held_back(recent[:_IN_A_ROW]),
        rests=now - newest_first[0].written_at > timedelta(seconds=seconds),
    )
    lags = [(_behind(earlier, one.topic, str(one.partition)), one.lag) for one in partitions]
    waits = total(latest.behind)
    return SourceLag(
        checked_at=latest.at,
        not_asked=not_asked,
        partitions=partitions,
        lag=waits,
        rows_per_second=rate,
        arriving_per_second=arriving,
        catch_up_seconds=_catch_up(waits, rate, arriving),
        advice=advise(lags, taking, seconds=seconds),
    )


def _partitions(latest: Check, earlier: Check | None) -> tuple[PartitionLag, ...]:
    found = []
    for topic, lags in latest.behind.items():
        for partition, lag in lags.items():
            taken = latest.taken[topic][partition]
            before = _behind(earlier, topic, partition)
            trend = None if before is None else trend_of(before, lag)
            found.append(PartitionLag(topic, int(partition), taken, taken + lag, lag, trend))
    return tuple(sorted(found, key=lambda one: (-one.lag, one.topic, one.partition)))


def _behind(check: Check | None, topic: str, partition: str) -> int | None:
    return None if check is None else check.behind.get(topic, {}).get(partition)


def _seconds(commit: Commit) -> float:
    """Tell how long a batch took; the log's clock is one of milliseconds."""
    began = datetime.fromisoformat(commit.note["began"])
    return max((commit.written_at - began).total_seconds(), 1e-3)


def _rate(recent: Sequence[Commit]) -> float | None:
    if not recent:
        return None
    took: int = sum(commit.note["records"] for commit in recent)
    return took / sum(map(_seconds, recent))


def _is_held_back(recent: Sequence[Commit]) -> bool:
    """Tell whether the last batches were full, and bronze had time left between them."""
    limits = [commit.note["limit"] for commit in recent]
    if len(recent) < _IN_A_ROW or not all(limits):
        return False
    is_full = all(
        commit.note["records"] >= 0.9 * limit for commit, limit in zip(recent, limits, strict=True)
    )
    first, last = (datetime.fromisoformat(recent[n].note["began"]) for n in (-1, 0))
    return is_full and sum(map(_seconds, recent[1:])) < _BUSY * (last - first).total_seconds()


def _arriving(earlier: Check | None, latest: Check) -> float | None:
    """Tell what was written between two checks; a topic that is new since would count whole."""
    if earlier is None:
        return None
    came = sum(
        latest.taken[topic][partition] + lag - earlier.taken[topic][partition] - before
        for topic, lags in latest.behind.items()
        for partition, lag in lags.items()
        if (before := _behind(earlier, topic, partition)) is not None
    )
    return max(came, 0) / (latest.at - earlier.at).total_seconds()


def _catch_up(waits: int, rate: float | None, arriving: float | None) -> float | None:
    if not waits:
        return 0.0
    left = (rate or 0.0) - (arriving or 0.0)
    return waits / left if left > 0 else None
