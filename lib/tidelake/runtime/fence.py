"""Admit each batch to each table once, so that a batch that is run again writes nothing twice.

A hop compares the batch's number and generation with the table's newest commit before it writes.
The MERGE of a gold table repeats the comparison for each stored row (:mod:`tidelake.delta.merge`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelake.delta.commit_metadata import positions
from tidelake.delta.log import CREATION, Commit, commits, last_commit, number_of
from tidelake.delta.positions import Position
from tidelake.delta.tables import Hop, Table
from tidelake.errors import GenerationError, RefusedError
from tidelake.folders import Folder
from tidelake.typed import runnable


@dataclass(frozen=True)
class Fence:
    """Admits each batch to a table exactly once, and only in the current generation.

    ``closed`` is the newest batch in any of the hop's tables when the hop was opened; ``unfilled``
    names those that must be filled from the inputs before the next batch, see
    :func:`~tidelake.delta.positions.unfilled_tables`.
    """

    pipeline: str
    hop: Hop
    generation: str
    closed: int = field(default=CREATION, compare=False)
    unfilled: tuple[str, ...] = field(default=(), compare=False)

    def admits(
        self,
        table: Table,
        last: Commit | None,
        batch: int,
        until: Mapping[str, Position] | None = None,
    ) -> Commit | None:
        """Return ``last``, the table's newest commit, if ``batch`` is the next one.

        Returns None if the table holds ``batch`` already, so that it must not be written again.
        ``until``, the batch's end in each input table, is compared only then; a hop without input
        tables passes none.

        Raises:
            GenerationError: The table has no commit metadata, or another generation; its last batch
                is neither ``batch`` nor the one before (another writer, or an old copy of the
                table); or it holds this batch with another end, and so with other rows.
        """
        name, mine = table.name, self.generation
        if last is None:
            raise self.refusal(f"{name} has lost its commit metadata")
        if last.generation != mine:
            raise self.refusal(f"{name} has generation {last.generation}, this writer has {mine}")
        if last.batch not in (batch - 1, batch):
            raise self.refusal(f"{name}: expected batch {last.batch + 1}, got {batch}")
        if last.batch < batch:
            return last
        if until is not None and positions(last) != dict(until):
            raise self.refusal(f"{name} holds batch {batch} with other rows")
        return None

    @property
    def repair(self) -> str:
        """The command that begins a new generation of the hop after its tables' last batch."""
        return runnable("tidelake repair", self.pipeline, f"--hop {self.hop}")

    def refusal(self, what: str, more: str = "") -> GenerationError:
        """Build the error for a mismatch, with the command that repairs it and ``more``."""
        return GenerationError(what, f"Repair it with: {self.repair}{more}")


def overtaken(table: Table, checkpoints: Folder) -> str:
    """Describe a newest commit of an older generation than one before it, or return "".

    A writer that compared generations before the new one began wrote it, without a lock or after
    losing it. The table holds its rows beside those of the new generation, which has them too.
    ``checkpoints`` has a folder for each generation; the log is read only if there is a newer one.
    """
    last = last_commit(table)
    names = (one.name for one in checkpoints.glob("g*"))
    if last is None or not any(number_of(name) > last.order[0] for name in names):
        return ""
    newer = next((one for one in commits(table) if one.order[0] > last.order[0]), None)
    if newer is None:
        # A new generation whose first commit is still to come.
        return ""
    return (
        f"{table.name}: batch {last.batch} of generation {last.generation} was written after "
        f"generation {newer.generation} had begun, by another process; rows may be there twice"
    )


def bronze_is_gone(name: str) -> RefusedError:
    """Build the error for a bronze table that was deleted, which nothing here can recompute."""
    return RefusedError(
        f"{name} was deleted, but its checkpoint, or tables filled from it, are still there. "
        "Restore its folder from a backup, or ingest the source again under another --root"
    )
