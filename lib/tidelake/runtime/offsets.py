"""Find where a hop's reader stands in the table that it follows."""

from __future__ import annotations

import json

from tidelake.errors import GenerationError
from tidelake.sinks.commits import last_commit, rows_after
from tidelake.tables import Hop, Lake, Table

# The offset log: a version line, a line of metadata, then a line for each input.
_FIRST_INPUT = 2


def rows_not_taken(lake: Lake, pipeline: str, *, hop: Hop, written: Table, read: Table) -> int:
    """Count a table's rows that no closed batch of the hop behind it has taken.

    Args:
        lake: Where the tables are.
        pipeline: The pipeline's name.
        hop: The hop that reads.
        written: A table whose commits close the hop's batches. It names the last closed batch;
            the checkpoint may be one behind after a crash.
        read: The table that the hop reads first.
    """
    last = last_commit(written)
    if last is None or last.batch < 0:
        return rows_after(read, 0, -1)
    log = lake.checkpoints(pipeline, hop) / last.generation / "offsets" / str(last.batch)
    if not log.exists():
        raise GenerationError(
            f"{written.name} stands at batch {last.batch}, which its checkpoint does not know. "
            f"Mend it with: tidelake repair {pipeline} --hop {hop}"
        )
    offset = json.loads(log.read_text(encoding="utf-8").splitlines()[_FIRST_INPUT])
    return rows_after(read, int(offset["reservoirVersion"]), int(offset["index"]))
