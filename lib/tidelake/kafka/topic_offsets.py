"""Offsets of Kafka topics: read them from checkpoints, compare and sum them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tidelake.folders import Folder

# By topic and partition: an offset, or a number of offsets.
Offsets = dict[str, dict[str, int]]
_FIRST_INPUT = 2


def behind(reached: Offsets, ends: Offsets) -> Offsets:
    """Return the number of offsets of each partition between ``reached`` and its end.

    Not every offset is a record: transaction markers and compacted records have offsets too. Topics
    without ends are omitted.
    """
    return {
        name: {
            partition: max(ends[name].get(partition, taken) - taken, 0)
            for partition, taken in partitions.items()
        }
        for name, partitions in reached.items()
        if name in ends
    }


def between(before: Offsets, after: Offsets) -> int:
    """Count the offsets between two positions, over the partitions in both."""
    return sum(
        end - before[name][partition]
        for name, partitions in after.items()
        for partition, end in partitions.items()
        if partition in before.get(name, {})
    )


def total(offsets: Offsets) -> int:
    """Sum the numbers of all partitions."""
    return sum(sum(partitions.values()) for partitions in offsets.values())


def planned_offsets(checkpoint: Folder, batch: int) -> Offsets:
    """Read the end offsets of a planned micro-batch; empty before the first."""
    file = checkpoint / "offsets" / str(batch)
    if not file.exists():
        return {}
    return dict(json.loads(file.read_text(encoding="utf-8").splitlines()[_FIRST_INPUT]))


def begun_offsets(checkpoint: Folder, batch: int) -> Offsets | None:
    """Read the start offsets of a planned micro-batch; None if the checkpoint has none.

    Partitions that are missing from them start at their first offset.
    """
    before = planned_offsets(checkpoint, batch - 1)
    if before:
        return before
    first = checkpoint / "sources" / "0" / "0"
    if not first.exists():
        return None
    # The file starts with a zero byte, for compatibility with Spark 2.1.
    return dict(json.loads(first.read_text(encoding="utf-8").splitlines()[-1]))


def differs(reached: Offsets, known: Mapping[str, Mapping[str, int]]) -> str:
    """Describe the first difference between two sets of offsets, or return ""."""
    for topic in sorted(reached.keys() | known.keys()):
        read, committed = reached.get(topic, {}), known.get(topic, {})
        for partition in sorted(read.keys() | committed.keys(), key=int):
            if read.get(partition) != committed.get(partition):
                return (
                    f"{topic} partition {partition} at offset {read.get(partition)}, "
                    f"bronze at {committed.get(partition)}"
                )
    return ""
