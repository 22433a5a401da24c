"""How far bronze lags behind a topic: by partition, whether it grows, and what would help.

The number of slots follows from the backlog by the rule of KEDA's Kafka scaler: what waits over
what one may leave waiting, and never more than there are partitions to read in parallel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from tidelake.delta.log import Commit
from tidelake.kafka.topic_offsets import Offsets, total

Verdict = Literal["none", "unknown", "falls", "rests", "limit", "slots", "partitions", "enough"]
Trend = Literal["growing", "falling", "steady"]
Lags = dict[tuple[str, str], tuple[int | None, int]]

# Checks that are closer say more of the moment in a batch than of the lag.
_APART = timedelta(seconds=30)
# How many batches tell the rate.
_LATELY = 10
# How many batches in a row the limit must have ended to be what holds them back, and the part of
# the time in which they worked.
_IN_A_ROW, _BUSY = 3, 0.9
# By how much a lag must change between two checks to be more than its ordinary to and fro.
_FIFTH = 1.2


@dataclass(frozen=True)
class Check:
    """What was known of a topic at one moment (UTC)."""

    at: datetime
    # The offset after the last that bronze has, and how many lay beyond it.
    taken: Offsets
    behind: Offsets


@dataclass(frozen=True)
class Taking:
    """How a hop takes what waits.

    Attributes:
        rows_per_slot: Rows that one slot lately took in a second; None before it took any.
        slots: How many it had.
        tasks: How many may read side by side: partitions, or what ``min_partitions`` makes of them.
        limit: Records a batch takes at most; None for no limit.
        is_held_back: Whether the last batches were as large as the limit, with pauses in between.
        rests: Whether no batch was closed for longer than a backlog may last.
    """

    rows_per_slot: float | None
    slots: int
    tasks: int
    limit: int | None = None
    is_held_back: bool = False
    rests: bool = False


@dataclass(frozen=True)
class Advice:
    """What to do about a backlog, in a word and in a sentence.

    ``slots`` would take the backlog in time; None where nothing is known.
    """

    verdict: Verdict
    slots: int | None
    text: str


@dataclass(frozen=True)
class PartitionLag:
    """A partition of a topic, and how many records bronze lags behind it.

    ``taken`` is the offset after the last record that bronze has, ``end`` the one after the last
    that the partition holds; the trend is against the earlier check, None where there was none.
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


def lag_of(
    newest_first: Sequence[Commit],
    asked: Check | None,
    *,
    not_asked: str = "",
    min_partitions: int = 0,
    seconds: float = 300,
    now: datetime,
) -> SourceLag | None:
    """Judge how far bronze lags, by its commits; None where they noted nothing yet.

    Args:
        newest_first: Bronze's commits.
        asked: What the broker says now.
        not_asked: Why it says nothing.
        min_partitions: Of the source: into how many tasks Spark cuts the partitions at least.
        seconds: How long a backlog may last.
        now: The moment, in UTC.
    """
    checks = [] if asked is None else [asked]
    checks += [
        Check(datetime.fromisoformat(note["looked_at"]), note["offsets"], note["behind"])
        for note in (commit.note for commit in newest_first)
        if note.get("behind")
    ]
    if not checks:
        return None
    latest = checks[0]
    older = [check for check in checks[1:] if check.at < latest.at]
    apart = (check for check in older if latest.at - check.at >= _APART)
    earlier = next(apart, older[-1] if older else None)
    was = earlier.behind if earlier else {}
    # By topic and partition: the lag at the earlier check, None where it was not known, and now.
    lags = {
        (topic, partition): (was.get(topic, {}).get(partition), lag)
        for topic, of_topic in latest.behind.items()
        for partition, lag in of_topic.items()
    }
    recent = [commit for commit in newest_first if commit.note.get("records")][:_LATELY]
    took: int = sum(commit.note["records"] for commit in recent)
    rate = took / sum(map(_seconds, recent)) if recent else None
    arriving = _arriving(earlier, latest, lags) if earlier else None
    slots = recent[0].note["slots"] if recent else 1
    tasks = max(len(lags), min_partitions)
    taking = Taking(
        rows_per_slot=rate / min(slots, tasks) if rate else None,
        slots=slots,
        tasks=tasks,
        limit=recent[0].note["limit"] if recent else None,
        is_held_back=_is_held_back(recent[:_IN_A_ROW]),
        rests=now - newest_first[0].written_at > timedelta(seconds=seconds),
    )
    waits = total(latest.behind)
    left = (rate or 0.0) - (arriving or 0.0)
    catch_up = waits / left if left > 0 else None
    return SourceLag(
        checked_at=latest.at,
        not_asked=not_asked,
        partitions=_partitions(latest, lags),
        lag=waits,
        rows_per_second=rate,
        arriving_per_second=arriving,
        catch_up_seconds=catch_up if waits else 0.0,
        advice=advise(list(lags.values()), taking, seconds=seconds),
    )


def _partitions(latest: Check, lags: Lags) -> tuple[PartitionLag, ...]:
    found = []
    for (topic, partition), (before, lag) in lags.items():
        taken = latest.taken[topic][partition]
        trend = None if before is None else trend_of(before, lag)
        found.append(PartitionLag(topic, int(partition), taken, taken + lag, lag, trend))
    return tuple(sorted(found, key=lambda one: (-one.lag, one.topic, one.partition)))


def _seconds(commit: Commit) -> float:
    """Give how long a batch took; the log's clock is one of milliseconds."""
    began = datetime.fromisoformat(commit.note["began"])
    return max((commit.written_at - began).total_seconds(), 1e-3)


def _is_held_back(recent: Sequence[Commit]) -> bool:
    """Whether the last batches were full, and bronze had time left between them."""
    limits = [commit.note["limit"] for commit in recent]
    if len(recent) < _IN_A_ROW or not all(limits):
        return False
    is_full = all(
        commit.note["records"] >= 0.9 * limit for commit, limit in zip(recent, limits, strict=True)
    )
    first, last = (datetime.fromisoformat(recent[n].note["began"]) for n in (-1, 0))
    return is_full and sum(map(_seconds, recent[1:])) < _BUSY * (last - first).total_seconds()


def _arriving(earlier: Check, latest: Check, lags: Lags) -> float:
    """Give the records a second between two checks; a topic that is new since would count whole."""
    came = sum(
        latest.taken[topic][partition] + lag - earlier.taken[topic][partition] - before
        for (topic, partition), (before, lag) in lags.items()
        if before is not None
    )
    return max(came, 0) / (latest.at - earlier.at).total_seconds()


def trend_of(earlier: int, latest: int) -> Trend:
    """Whether a lag changed by a fifth or more."""
    if latest >= _FIFTH * earlier and latest > earlier:
        return "growing"
    return "falling" if earlier >= _FIFTH * latest and latest < earlier else "steady"


def advise(
    lags: Sequence[tuple[int | None, int]], taking: Taking, *, seconds: float = 300
) -> Advice:
    """Judge a backlog that may last so many seconds.

    ``lags`` has the lag of each partition at the earlier check, None where it was not known, and
    at the latest.
    """
    waits = sum(latest for _, latest in lags)
    known = [(earlier, latest) for earlier, latest in lags if earlier is not None]
    if not waits:
        return Advice("none", None, "nothing waits")
    if not known or not taking.rows_per_slot:
        return Advice("unknown", None, "there are no two checks yet to tell where the lag goes")
    needed = math.ceil(waits / (taking.rows_per_slot * seconds))
    slots = min(taking.tasks, needed)
    grown = sum(trend_of(earlier, latest) == "growing" for earlier, latest in known)
    verdict: Verdict = "enough"
    if sum(latest for _, latest in known) < sum(earlier for earlier, _ in known):
        verdict, text = "falls", "the lag falls: nothing to do"
    # More slots would change nothing about these two.
    elif taking.rests:
        verdict, text = "rests", "no batch was closed lately: start the run, or look at it"
    elif taking.is_held_back:
        verdict = "limit"
        text = (
            f"the limit of {taking.limit:,} records a batch holds it back: "
            "raise source.max_offsets_per_trigger"
        )
    elif 2 * grown <= len(lags):
        text = "the lag does not grow: nothing to do"
    elif slots > taking.slots:
        verdict = "slots"
        text = (
            f"more slots would help: {slots} instead of {taking.slots} take what waits "
            f"within {seconds:g} s"
        )
    elif needed > taking.tasks:
        verdict = "partitions"
        text = (
            f"more slots would not help: {taking.tasks} tasks read side by side. Give the topic "
            "more partitions, or raise source.min_partitions"
        )
    else:
        text = f"the lag grows; {taking.slots} slots still take it within {seconds:g} s: look again"
    return Advice(verdict, slots, text)
