"""Hold the offsets that bronze's batches read of topics against the rows that bronze holds.

Offsets are more than records: the marker that ends a transaction has one, and so have records that
were aborted or compacted away. So a missing row is no loss where only offsets tell. What is known:
how many records each batch read of a partition, from where, and up to where.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tidelake.delta.log import ERASED, Commit
from tidelake.delta.tables import Lake, Table
from tidelake.ops.query import ask


@dataclass(frozen=True)
class TopicBooks:
    """What batches read of topics.

    Attributes:
        offered: Offsets between where the batches began and where they ended.
        taken: Rows that bronze holds of them.
        problems: What does not add up, by partition.
    """

    offered: int
    taken: int
    problems: tuple[str, ...]


@dataclass
class _Partition:
    """One partition as the commits tell it.

    Attributes:
        name: Its number and topic, for messages.
        first: Where the first batch began; None where its commit does not tell.
        end: Where the last one ended.
        read: Records that all of them read; None where a commit does not tell.
        problems: What does not follow from one batch to the next.
    """

    name: str
    first: int | None
    end: int
    read: int | None = 0
    problems: list[str] = field(default_factory=list)

    def add(self, batch: int, begins: int | None, end: int, read: int | None) -> None:
        """Add a batch."""
        told = f"bronze, batch {batch}: it read partition {self.name} from offset {begins} on, and"
        if begins is not None and begins > self.end:
            gone = _span(self.end, begins)
            self.problems.append(f"{told} {gone} before that were never read")
        elif begins is not None and begins < self.end:
            self.problems.append(f"{told} {_span(begins, self.end)} had been read before")
        self.end = max(self.end, end)
        self.read = None if read is None or self.read is None else self.read + read


@dataclass(frozen=True)
class _Held:
    """The rows of one partition in bronze."""

    rows: int = 0
    first: int = 0
    last: int = -1


def topic_books(lake: Lake, bronze: Table, taken: Sequence[Commit]) -> TopicBooks | None:
    """Add up what batches read of topics.

    Args:
        lake: Where the tables are.
        bronze: The table.
        taken: Its commits, newest first.

    Returns:
        None where bronze was not filled from Kafka.
    """
    partitions = _partitions(taken)
    if not partitions:
        return None
    # Rows that were erased are known by their arrivals, not by their partitions.
    erased = any(ERASED in commit.note for commit in taken)
    held = _held(lake, bronze)
    problems: list[str] = []
    offered = 0
    for key, one in partitions.items():
        mine = held.get(key, _Held())
        first = one.first
        if first is None:
            first = mine.first if mine.rows else one.end
        offered += one.end - first
        problems += one.problems
        problems += _problems(one, mine, first, erased=erased)
    return TopicBooks(offered, sum(one.rows for one in held.values()), tuple(problems))


def _partitions(taken: Sequence[Commit]) -> dict[tuple[str, str], _Partition]:
    found: dict[tuple[str, str], _Partition] = {}
    for commit in reversed(taken):
        # The commit that takes rows out carries the metadata of the last batch.
        if commit.batch < 0 or ERASED in commit.note:
            continue
        begins, read = commit.note.get("from"), commit.note.get("read")
        for topic, ends in commit.note.get("offsets", {}).items():
            for number, end in ends.items():
                # A partition that is new begins with its first offset.
                start = None if begins is None else begins.get(topic, {}).get(number, 0)
                records = None if read is None else read.get(topic, {}).get(number, 0)
                name = f"{number} of {topic}"
                before = start if start is not None else end
                one = found.setdefault((topic, number), _Partition(name, start, before))
                one.add(commit.batch, start, end, records)
    return found


def _held(lake: Lake, bronze: Table) -> dict[tuple[str, str], _Held]:
    """Count bronze's rows by topic and partition, as their record ids tell them."""
    topic, number, offset = (f"split_part(record_id, ':', {part})" for part in (1, 2, 3))
    at = f"CAST({offset} AS BIGINT)"
    columns = f"{topic}, {number}, count(*), min({at}), max({at})"
    found = ask(lake, f"SELECT {columns} FROM {bronze.name} GROUP BY 1, 2").rows
    return {(name, part): _Held(*map(int, numbers)) for name, part, *numbers in found}


def _problems(one: _Partition, held: _Held, first: int, *, erased: bool) -> Iterator[str]:
    counted = f"bronze holds {held.rows:,} rows of partition {one.name}"
    if one.read is not None and held.rows != one.read and not erased:
        yield f"{counted}, {one.read:,} records were read"
    if held.rows and (held.first < first or held.last >= one.end):
        told = f"bronze holds offsets {_span(held.first, held.last + 1)} of partition {one.name}"
        yield f"{told}, its batches read {_span(first, one.end)}"
    if held.rows > one.end - first:
        yield f"{counted}, its batches read {one.end - first:,} offsets"


def _span(first: int, end: int) -> str:
    """Name offsets."""
    return str(first) if end - first == 1 else f"{first} to {end - 1}"
