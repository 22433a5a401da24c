"""Find when each event of a stream arrived in each layer, from the tables' logs alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tidelake.delta.commit_metadata import position
from tidelake.delta.log import Commit, commits
from tidelake.delta.tables import Lake, Table
from tidelake.ledger.query import ask


class Arrivals(NamedTuple):
    """When an event arrived in each layer, in seconds since the epoch.

    Attributes:
        sent: Just before the producer took it.
        bronze: When bronze's commit with the event was in the table's log.
        silver: The same for silver.
        gold: When the last gold table's commit that covers the event was in its log.
    """

    sent: float
    bronze: float
    silver: float
    gold: float


def arrivals(
    lake: Lake, name: str, topic: str, sent: Sequence[float], partitions: int
) -> dict[int, Arrivals]:
    """Find the arrival times of events sent round-robin to the partitions of a topic.

    Args:
        lake: The lake with the tables.
        name: Name of the pipeline.
        topic: The topic, which holds only these events.
        sent: When each event was sent, by its number; an event's id is ``e`` and its number.
        partitions: Event ``n`` went to partition ``n % partitions``.

    Returns:
        Arrival times by event number, without events that are not in all gold tables yet.
    """
    bronze, silver = lake.bronze(name), lake.silver(name)
    landed = _landed(bronze, topic, partitions)
    by_batch = {one.batch: one for one in commits(silver)}
    golds = [table for table in lake.existing() if table.name.startswith("gold.")]
    coverage = [_Coverage(table) for table in golds]
    found = {}
    in_silver = {batch: _logged_at(silver, one) for batch, one in by_batch.items()}
    in_gold = {
        batch: _last(cover.when(one.version) for cover in coverage)
        for batch, one in by_batch.items()
    }
    for event_id, batch in ask(lake, f"SELECT event_id, _batch FROM silver.{name}").rows:
        number = int(event_id[1:])
        # A batch that closed after the logs were read is not known yet.
        gold = in_gold.get(batch)
        in_bronze = landed[number % partitions].when(number // partitions)
        if gold is not None and in_bronze is not None:
            found[number] = Arrivals(sent[number], in_bronze, in_silver[batch], gold)
    return found


class Steps:
    """When a growing count passed a value."""

    def __init__(self, steps: Iterable[tuple[int, float]]) -> None:
        """Store (count at the end of the step, time) pairs in order."""
        self._steps = sorted(steps)
        self._ends = [end for end, _ in self._steps]

    def when(self, value: int) -> float | None:
        """Return the time of the first step that ends beyond a value, or None."""
        index = bisect_right(self._ends, value)
        return self._steps[index][1] if index < len(self._steps) else None


class _Coverage(Steps):
    """When a gold table had read a version of silver completely."""

    def __init__(self, table: Table) -> None:
        """Read the commits from the table's log."""
        # A position within a version covers only a part of it: the version counts with a later one.
        super().__init__(
            (_first_unread(position(one, "silver")), _logged_at(table, one))
            for one in commits(table)
            if one.batch >= 0
        )


def _first_unread(place: tuple[int, int]) -> int:
    """Return the first version not yet read completely, with one file a commit."""
    return place[0] + 1 if place[1] >= 0 else place[0]


def _landed(bronze: Table, topic: str, partitions: int) -> list[Steps]:
    """Return for each partition when bronze had its records."""
    known = [(one.note["offsets"][topic], _logged_at(bronze, one)) for one in _batches(bronze)]
    return [
        Steps((int(offsets.get(str(number), 0)), at) for offsets, at in known)
        for number in range(partitions)
    ]


def _batches(table: Table) -> list[Commit]:
    return [one for one in commits(table) if one.batch >= 0]


def _logged_at(table: Table, commit: Commit) -> float:
    """Return when a commit's file was written, which makes it visible to readers."""
    file = Path(str(table.path)) / "_delta_log" / f"{commit.version:020d}.json"
    return file.stat().st_mtime


def _last(moments: Iterable[float | None]) -> float | None:
    found = list(moments)
    known = [one for one in found if one is not None]
    return max(known) if len(known) == len(found) else None
