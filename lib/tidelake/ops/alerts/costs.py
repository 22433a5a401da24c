"""Rules on what runs measured: batches that take too long, and what stopped a hop."""

from __future__ import annotations

from collections.abc import Iterator

from tidelake.delta.log import last_commit
from tidelake.delta.tables import HOPS, Hop
from tidelake.ops.alerts.alert import Alert
from tidelake.ops.alerts.sight import Sight, lasting
from tidelake.ops.metrics.measured import Measured

# Two batches may each have been unlucky.
_BATCHES = 3


def batch_over_interval(seen: Sight) -> Iterator[Alert]:
    """Tell where every batch of the last minutes took longer than its interval."""
    limit = seen.limits.batch_over_interval
    if limit is None:
        return
    for hop in HOPS:
        slow: list[Measured] = []
        for one in reversed([m for m in seen.measures if m.hop == hop and not m.error_class]):
            if one.interval_seconds is None or one.seconds <= one.interval_seconds:
                break
            slow.append(one)
        if len(slow) < _BATCHES or seen.now - slow[0].ended_at > limit:
            continue
        lasted = slow[0].ended_at - slow[-1].started_at
        if lasted > limit:
            mean = sum(one.seconds for one in slow) / len(slow)
            yield seen.alert(
                "batch_over_interval",
                "warning",
                f"the last {len(slow):,} batches took {mean:.1f} seconds each, the interval is "
                f"{slow[0].interval_seconds:g} seconds",
                "status",
                hop=hop,
                since=slow[-1].started_at,
            )


def hop_failed(seen: Sight) -> Iterator[Alert]:
    """Tell which hops were stopped by an error and have closed no batch since."""
    for hop in HOPS:
        of_hop = [one for one in seen.measures if one.hop == hop]
        last = of_hop[-1] if of_hop else None
        if last is None or last.error_class is None or _closed_since(seen, hop, last):
            continue
        waited = seen.now - last.ended_at
        yield seen.alert(
            "hop_failed",
            "critical",
            f"stopped {lasting(waited)} ago, {last.error_class}: {last.error}".rstrip("."),
            "run",
            hop=hop,
            since=last.ended_at,
        )


def _closed_since(seen: Sight, hop: Hop, failure: Measured) -> bool:
    """Tell whether a run that measured nothing went on after a failure."""
    table = seen.slowest().get(hop)
    closed = None if table is None else last_commit(table)
    return closed is not None and closed.written_at > failure.ended_at
