"""Count offsets: what a batch took, and what a topic holds beyond it."""

from __future__ import annotations

# By topic and partition: an offset, or how many.
Offsets = dict[str, dict[str, int]]


def behind(reached: Offsets, ends: Offsets) -> Offsets:
    """Tell how many offsets of each partition come after those that were taken.

    Offsets are not all records: a transaction's marker has one, and one that was compacted away.

    Args:
        reached: The offset after the last that was taken.
        ends: The offset after the last that the broker has; a topic that it left out is left out.
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
    """Count the offsets between two positions, in the partitions that both know."""
    return sum(
        end - before[name][partition]
        for name, partitions in after.items()
        for partition, end in partitions.items()
        if partition in before.get(name, {})
    )


def total(offsets: Offsets) -> int:
    """Add up what each partition has."""
    return sum(sum(partitions.values()) for partitions in offsets.values())
