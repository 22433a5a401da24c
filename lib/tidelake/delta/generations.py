"""Hold table and checkpoint together: which generation writes, and which batch comes next.

The table is the truth: its newest note says the generation and the last closed batch. A
checkpoint that is not exactly there, or one batch behind because the process died in between,
belongs to another history, and writing on would double or skip a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidelake.delta.log import Commit, last_commit
from tidelake.delta.notes import positions
from tidelake.delta.positions import Position
from tidelake.delta.tables import Hop, Table
from tidelake.errors import GenerationError
from tidelake.folders import Folder

FIRST_GENERATION = "g1"
CREATION = -1


def generation_number(generation: str) -> int:
    """Tell which generation of its hop it is, from 1; 0 for a name that is none of ours."""
    return int(generation[1:]) if generation[1:].isdecimal() else 0


@dataclass(frozen=True)
class Fence:
    """Admits each batch of a hop to a table exactly once.

    Attributes:
        pipeline: The pipeline's name.
        hop: Which arrow.
        generation: The one that may write.
        closed: The newest batch that one of its tables held when the hop was opened.
    """

    pipeline: str
    hop: Hop
    generation: str
    closed: int = field(default=CREATION, compare=False)

    def admits(
        self, table: Table, batch: int, until: Mapping[str, Position] | None = None
    ) -> Commit | None:
        """Give the commit after which a batch is the table's next; None when it holds the batch.

        Args:
            table: One whose commits close a batch.
            batch: The batch that came.
            until: How far it goes in each of its inputs; None where none of them is a table.

        Raises:
            GenerationError: The table stands elsewhere; another writer, an old copy, or a batch
                that it holds comes again with other rows.
        """
        last = last_commit(table)
        if last is None:
            raise self.refusal(f"{table.name} has lost the notes of its commits")
        if last.generation != self.generation:
            raise self.refusal(
                f"{table.name} is of generation {last.generation}, this writer of {self.generation}"
            )
        if last.batch == batch:
            if until is not None and positions(last) != dict(until):
                raise self.refusal(f"{table.name} holds batch {batch} with other rows")
            return None
        if last.batch == batch - 1:
            return last
        raise self.refusal(f"{table.name} stands at batch {last.batch}, batch {batch} came")

    def refusal(self, what: str) -> GenerationError:
        """Say what does not fit, and which command mends it."""
        return GenerationError(
            f"{what}. Nothing was written. "
            f"Mend it with: tidelake repair {self.pipeline} --hop {self.hop}"
        )


def open_generation(pipeline: str, hop: Hop, tables: Sequence[Table], checkpoints: Folder) -> Fence:
    """Find the generation in which a hop goes on, and check that its checkpoint fits.

    Args:
        pipeline: The pipeline's name.
        hop: Which arrow.
        tables: The tables whose commits close a batch of it; none of them may exist yet.
        checkpoints: The folder that holds one checkpoint a generation.

    Raises:
        GenerationError: The checkpoint is missing, older or of another history.
    """
    last = {table.name: last_commit(table) for table in tables}
    notes = [commit for commit in last.values() if commit is not None]
    generation = notes[0].generation if notes else FIRST_GENERATION
    newest = max((commit.batch for commit in notes), default=CREATION)
    fence = Fence(pipeline, hop, generation, closed=newest)
    others = sorted({commit.generation for commit in notes} - {generation})
    if others:
        raise fence.refusal(f"the tables are of generations {generation} and {', '.join(others)}")
    checkpoint = checkpoints / generation
    committed = _newest(checkpoint / "commits")
    planned = max(committed, _newest(checkpoint / "offsets"))
    for name, commit in last.items():
        batch = CREATION if commit is None else commit.batch
        if batch in (committed, planned):
            continue
        if not checkpoint.exists():
            raise fence.refusal(f"{name} holds batch {batch}, but its checkpoint is gone")
        if batch == CREATION and newest > CREATION:
            raise fence.refusal(f"{name} is new beside tables that already hold batches")
        raise fence.refusal(
            f"{name} stands at batch {batch}, its checkpoint at {committed}: "
            "one of them is an older copy"
        )
    return fence


def _newest(folder: Folder) -> int:
    """Give the highest batch number in a checkpoint's folder, -1 for none."""
    numbers = [int(file.name) for file in folder.glob("[0-9]*") if file.name.isdigit()]
    return max(numbers, default=CREATION)
