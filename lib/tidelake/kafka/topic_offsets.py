"""Offsets of Kafka topics: in a checkpoint's batches, their differences and sums."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tidelake.folders import Folder

# By topic and partition: an offset, or a number of offsets.
Offsets = dict[str, dict[str, int]]
_FIRST_INPUT = 2


def behind(reached: Offsets, ends: Offsets) -> Offsets:
    """Return how many offsets each partition has between ``reached`` and its end.

    Not every offset is a record: markers of transactions have one, and compacted records. A topic
    without ends is left out.
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
    """Count the offsets between two positions, in partitions that both have."""
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
    """Read the start offsets of a planned micro-batch; None where the checkpoint has none.

    Partitions without one start at their first offset.
    """
    before = planned_offsets(checkpoint, batch - 1)
    if before:
        return before
    first = checkpoint / "sources" / "0" / "0"
    if not first.exists():
        return None
    # A zero byte comes first, for the sake of Spark 2.1.
    return dict(json.loads(first.read_text(encoding="utf-8").splitlines()[-1]))


def differs(reached: Offsets, known: Mapping[str, Mapping[str, int]]) -> str:
    """Describe the first difference between two sets of offsets, or return ""."""
    for topic in sorted(reached.keys() | known.keys()):
        ours, theirs = reached.get(topic, {}), known.get(topic, {})
        for partition in sorted(ours.keys() | theirs.keys(), key=int):
            if ours.get(partition) != theirs.get(partition):
                return (
                    f"{topic} partition {partition} at offset {ours.get(partition)}, "
                    f"bronze at {theirs.get(partition)}"
                )
    return ""
