"""Begin a generation of a hop: its name, and a checkpoint where its tables will stand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tidelake.delta.access import detail
from tidelake.delta.positions import BEGINNING, Position
from tidelake.delta.tables import Hop, Table
from tidelake.ops.books import history
from tidelake.runtime.checkpoints import delta_offset, prepare
from tidelake.runtime.hop import Run

_GENERATION = re.compile(r"g([1-9][0-9]*)")


def is_generation(name: str) -> bool:
    """Tell whether a name is that of a generation of ours: a letter and digits."""
    return _GENERATION.fullmatch(name) is not None


def next_generation(run: Run, hop: Hop, tables: Sequence[Table]) -> str:
    """Name a generation that neither a table nor a checkpoint has borne."""
    folders = run.lake.checkpoints(run.pipeline.name, hop).iterdir()
    names = [folder.name for folder in folders]
    names += [commit.generation for table in tables for commit in history(run.lake, table)]
    found = [_GENERATION.fullmatch(name) for name in names]
    return f"g{max((int(match[1]) for match in found if match), default=0) + 1}"


def begin(
    run: Run,
    hop: Hop,
    generation: str,
    batch: int,
    offsets: Sequence[str],
    files: Sequence[str] = (),
) -> None:
    """Prepare the checkpoint of a generation.

    Args:
        run: What the command works with.
        hop: Which arrow.
        generation: The new one.
        batch: The last closed batch.
        offsets: Where it stands in each input.
        files: Entries of the file source's log, if the input is one.
    """
    run.locks.step(f"prepare the checkpoint of {hop}, generation {generation}")
    folder = run.lake.checkpoints(run.pipeline.name, hop) / generation
    prepare(folder, batch, offsets, files=files)


def offsets_of(run: Run, inputs: Mapping[str, Table], reached: Mapping[str, Position]) -> list[str]:
    """Write where a hop stands in each of its inputs as their streams' offsets."""
    offsets = []
    for key, table in inputs.items():
        offsets.append(delta_offset(detail(run.spark, table)["id"], reached.get(key, BEGINNING)))
    return offsets
