"""Say whether a backlog calls for more slots, more partitions, a higher limit, or for nothing.

The number of slots follows from the backlog by the rule of KEDA's Kafka scaler: what waits over
what one may leave waiting, and never more than there are partitions to read side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["none", "unknown", "falls", "rests", "limit", "slots", "partitions", "enough"]
Trend = Literal["growing", "falling", "steady"]

# By how much a lag must change between two checks to be more than its ordinary to and fro.
_FIFTH = 1.2


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
    """What to do about a backlog.

    Attributes:
        verdict: In a word.
        slots: How many slots would take the backlog in time; None where nothing is known.
        text: In a sentence.
    """

    verdict: Verdict
    slots: int | None
    text: str


def trend_of(earlier: int, latest: int) -> Trend:
    """Tell whether a lag changed by a fifth or more."""
    if latest >= _FIFTH * earlier and latest > earlier:
        return "growing"
    return "falling" if earlier >= _FIFTH * latest and latest < earlier else "steady"


def advise(
    lags: Sequence[tuple[int | None, int]], taking: Taking, *, seconds: float = 300
) -> Advice:
    """Judge a backlog.

    Args:
        lags: Of each partition at the earlier check, None where it was not known, and at the
            latest.
        taking: How it is taken.
        seconds: How long a backlog may last.
    """
    total = sum(latest for _, latest in lags)
    known = [(earlier, latest) for earlier, latest in lags if earlier is not None]
    if not total:
        return Advice("none", None, "nothing waits")
    if not known or not taking.rows_per_slot:
        return Advice("unknown", None, "there are no two checks yet to tell where the lag goes")
    needed = math.ceil(total / (taking.rows_per_slot * seconds))
    slots = min(taking.tasks, needed)
    if sum(latest for _, latest in known) < sum(earlier for earlier, _ in known):
        return Advice("falls", slots, "the lag falls: nothing to do")
    grown = sum(trend_of(earlier, latest) == "growing" for earlier, latest in known)
    return _held_back(taking, slots) or (
        _more(taking, needed, slots, seconds)
        if 2 * grown > len(lags)
        else Advice("enough", slots, "the lag does not grow: nothing to do")
    )


def _held_back(taking: Taking, slots: int) -> Advice | None:
    """Name what more slots would not change; None where nothing else holds bronze back."""
    if taking.rests:
        return Advice("rests", slots, "no batch was closed lately: start the run, or look at it")
    if taking.is_held_back:
        return Advice(
            "limit",
            slots,
            f"the limit of {taking.limit:,} records a batch holds it back: "
            "raise source.max_offsets_per_trigger",
        )
    return None


def _more(taking: Taking, needed: int, slots: int, seconds: float) -> Advice:
    if slots > taking.slots:
        return Advice(
            "slots",
            slots,
            f"more slots would help: {slots} instead of {taking.slots} take what waits "
            f"within {seconds:g} s",
        )
    if needed > taking.tasks:
        return Advice(
            "partitions",
            slots,
            f"more slots would not help: {taking.tasks} tasks read side by side. Give the topic "
            "more partitions, or raise source.min_partitions",
        )
    return Advice(
        "enough",
        slots,
        f"the lag grows; {taking.slots} slots still take it within {seconds:g} s: look again",
    )
