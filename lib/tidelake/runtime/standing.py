"""Hold a hop's checkpoint against what its tables say, and both against what the hop follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidelake.delta.generations import CREATION, Fence
from tidelake.delta.log import Commit, last_commit, newest_version, oldest_version
from tidelake.delta.notes import positions
from tidelake.delta.positions import (
    BEGINNING,
    Position,
    bytes_between,
    rewritten_after,
    rows_between,
    size_between,
)
from tidelake.delta.tables import Table
from tidelake.folders import Folder
from tidelake.runtime.offsets import planned_positions, planned_tables, unreadable


@dataclass(frozen=True)
class Standing:
    """Where a hop stands.

    Attributes:
        fence: Of its generation.
        checkpoint: The folder of that generation's checkpoint.
        closing: The tables whose commits close a batch.
        inputs: The tables that it follows, in the order in which its stream names them.
    """

    fence: Fence
    checkpoint: Folder
    closing: tuple[Table, ...]
    inputs: Mapping[str, Table]

    def reached(self) -> dict[str, Position]:
        """Tell how far the hop has come in each input; empty before the first batch."""
        return positions(last_commit(self.closing[0]))

    def idle(self) -> frozenset[str]:
        """Name the inputs that have no commit behind what the hop has taken."""
        reached = self.reached()
        return frozenset(
            key
            for key, table in self.inputs.items()
            if newest_version(table) < reached.get(key, BEGINNING)[0]
        )

    def is_at_the_end(self) -> bool:
        """Tell whether there is nothing to take in: no row, and no batch of those it follows.

        A stream would close a batch without rows for a mere compaction, in every table.
        """
        notes = [last_commit(table) for table in self.closing]
        reached = positions(notes[0])
        if not self.inputs or any(positions(note) != reached for note in notes):
            return False
        return set(reached) >= set(self.inputs) and all(
            _has_all(table, reached[key]) for key, table in self.inputs.items()
        )

    def planned(self, batch: int) -> dict[str, Position]:
        """Tell how far a batch goes in each input.

        Raises:
            GenerationError: Behind what the table holds, or past what the input holds: rows would
                be taken twice, or never.
        """
        ends = planned_positions(self.checkpoint, batch, len(self.inputs))
        if len(ends) != len(self.inputs):
            raise self.fence.refusal(f"offsets/{batch} of its checkpoint lacks an input")
        until = dict(zip(self.inputs, ends, strict=True))
        for key, followed in self.inputs.items():
            if followed.store.takes_whole_commits and until[key][1] >= 0:
                raise self.fence.refusal(
                    f"its checkpoint lets batch {batch} end inside a commit of {followed.name}"
                )
        for key, reached in self.reached().items():
            table, newest = self.inputs.get(key), until.get(key)
            if table and newest and not reached <= newest <= (newest_version(table) + 1, -1):
                raise self.fence.refusal(
                    f"its checkpoint lets batch {batch} end at version {newest[0]} of {table.name}"
                )
        return until

    def size(self, until: Mapping[str, Position]) -> tuple[int, int]:
        """Tell how many rows a batch takes, by Delta's statistics, and their bytes in files.

        Args:
            until: How far it goes in each input.
        """
        reached = self.reached()
        sizes = [
            size_between(table, reached.get(key, BEGINNING), until[key])
            for key, table in self.inputs.items()
        ]
        return sum(rows for rows, _ in sizes), sum(size for _, size in sizes)

    def taken(self, before: Commit | None, batch: int) -> tuple[int, int] | None:
        """Tell how many bytes a closed batch took, and how many wait still.

        Args:
            before: The newest commit from before the batch.
            batch: The batch.

        Returns:
            Of the largest input, since Delta's limit holds for each; None without any.
        """
        if not self.inputs:
            return None
        was, until = positions(before), self.planned(batch)
        sizes = [
            bytes_between(table, was.get(key, BEGINNING), until[key])
            for key, table in self.inputs.items()
        ]
        waiting = [bytes_between(table, until[key]) for key, table in self.inputs.items()]
        return max(sizes), max(waiting)

    def astray(self, closed: Commit) -> str:
        """Say how the checkpoint goes on elsewhere than a batch ended; empty where it does not.

        Args:
            closed: The newest batch of a table.
        """
        told = positions(closed)
        if not told or set(told) != set(self.inputs):
            return ""
        planned = planned_positions(self.checkpoint, closed.batch, len(self.inputs))
        ids = planned_tables(self.checkpoint, closed.batch)
        if len(ids) != len(self.inputs):
            return f"offsets/{closed.batch} of its checkpoint lacks an input"
        for (key, table), position, known in zip(self.inputs.items(), planned, ids, strict=True):
            if known and table.store.id not in (None, known):
                return f"{table.name} is another table now than the one that was read"
            if told[key] != position:
                return (
                    f"its checkpoint stands at version {position[0]} of {table.name}, "
                    f"batch {closed.batch} ended at version {told[key][0]}"
                )
        return ""

    def refuse_astray(self, astray: Callable[[Commit], str]) -> None:
        """Stop where the checkpoint is broken: it would skip rows, or take some twice."""
        for table in self.closing:
            closed = last_commit(table)
            if closed is None or closed.batch <= CREATION:
                continue
            problem = unreadable(self.checkpoint, closed.batch) or astray(closed)
            if problem:
                raise self.fence.refusal(f"{self.fence.pipeline}, hop {self.fence.hop}: {problem}")

    def refuse_rewritten(self) -> None:
        """Stop where rows that were read already may have changed: a stream cannot take it back."""
        reached = self.reached()
        for key, table in self.inputs.items():
            position = reached.get(key, BEGINNING)
            if position == BEGINNING and oldest_version(table) > 0:
                raise self.fence.refusal(f"the first commits of {table.name} are gone")
            version = rewritten_after(table, position) if table.exists else None
            if version is not None:
                raise self.fence.refusal(
                    f"version {version} of {table.name} took out or replaced rows "
                    f"that hop {self.fence.hop} may have read"
                )


def _has_all(table: Table, position: Position) -> bool:
    last = last_commit(table)
    is_behind = last is not None and last.version >= position[0]
    return not is_behind and not rows_between(table, position)
