"""Tell when each event of a stream reached each layer, by the logs of the tables alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tidelake.delta.log import Commit, commits
from tidelake.delta.notes import position
from tidelake.delta.tables import Lake, Table
from tidelake.ledger.query import ask


class Reached(NamedTuple):
    """When an event was in each layer, in seconds of the clock.

    Attributes:
        sent: Just before the producer took it.
        bronze: When the commit of bronze that holds it was in the table's log.
        silver: Likewise silver's.
        gold: Likewise that of the last gold table whose input holds it.
    """

    sent: float
    bronze: float
    silver: float
    gold: float


def reached(
    lake: Lake, name: str, topic: str, sent: Sequence[float], partitions: int
) -> dict[int, Reached]:
    """Follow events that were sent in turns into the partitions of a topic.

    Args:
        lake: Where the tables are.
        name: The pipeline's.
        topic: Where the events were sent to; nothing else was.
        sent: When, by their numbers; an event's id is ``e`` and its number.
        partitions: Event ``n`` went into partition ``n % partitions``.

    Returns:
        By number; without those that are not in all gold tables.
    """
    bronze, silver = lake.bronze(name), lake.silver(name)
    landed = _landed(bronze, topic, partitions)
    of_batch = {one.batch: one for one in commits(silver)}
    golds = [table for table in lake.existing() if table.name.startswith("gold.")]
    covers = [_Covers(table) for table in golds]
    found = {}
    at = {batch: _logged_at(silver, one) for batch, one in of_batch.items()}
    in_gold = {
        batch: _last(cover.when(one.version) for cover in covers) for batch, one in of_batch.items()
    }
    for event_id, batch in ask(lake, f"SELECT event_id, _batch FROM silver.{name}").rows:
        number = int(event_id[1:])
        gold = in_gold[batch]
        arrived = landed[number % partitions].when(number // partitions)
        if gold is not None and arrived is not None:
            found[number] = Reached(sent[number], arrived, at[batch], gold)
    return found


class Steps:
    """When a count that only grows passed a value."""

    def __init__(self, steps: Iterable[tuple[int, float]]) -> None:
        """Keep the count at the end of each step, and its moment."""
        self._steps = sorted(steps)
        self._ends = [end for end, _ in self._steps]

    def when(self, value: int) -> float | None:
        """Give the moment of the first step whose end lies beyond a value."""
        place = bisect_right(self._ends, value)
        return self._steps[place][1] if place < len(self._steps) else None


class _Covers(Steps):
    """When a gold table had taken in a version of silver whole."""

    def __init__(self, table: Table) -> None:
        """Read the table's log."""
        # A position within a version holds only a part of it: the version counts with the next.
        super().__init__(
            (_whole(position(one, "silver")), _logged_at(table, one))
            for one in commits(table)
            if one.batch >= 0
        )


def _whole(at: tuple[int, int]) -> int:
    """Give the version up to which, itself left out, a reader has taken all; one file a commit."""
    return at[0] + 1 if at[1] >= 0 else at[0]


def _landed(bronze: Table, topic: str, partitions: int) -> list[Steps]:
    """Give for each partition when bronze had its records."""
    known = [(one.note["offsets"][topic], _logged_at(bronze, one)) for one in _batches(bronze)]
    return [
        Steps((int(offsets.get(str(number), 0)), at) for offsets, at in known)
        for number in range(partitions)
    ]


def _batches(table: Table) -> list[Commit]:
    return [one for one in commits(table) if one.batch >= 0]


def _logged_at(table: Table, commit: Commit) -> float:
    """Tell when a commit's file was written, which is when readers saw it."""
    file = Path(str(table.path)) / "_delta_log" / f"{commit.version:020d}.json"
    return file.stat().st_mtime


def _last(moments: Iterable[float | None]) -> float | None:
    found = list(moments)
    known = [one for one in found if one is not None]
    return max(known) if len(known) == len(found) else None
