"""Prepare a checkpoint that goes on exactly after what a table holds.

The formats are Spark's: a version line and JSON. An offset is written with its commit, so that
the query takes the batch as done and plans the next one from there.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence

from tidelake.delta.positions import Position
from tidelake.folders import Folder, remove_tree
from tidelake.runtime.landing import LandedFile

_VERSION = "v1"


def prepare(
    folder: Folder, batch: int, offsets: Sequence[str], *, files: Sequence[str] = ()
) -> None:
    """Write a checkpoint whose last closed batch is given.

    Its metadata comes last: a checkpoint without is refused. And no table names the generation
    until the checkpoint is whole, so that an interrupted repair leaves nothing that counts.

    Args:
        folder: The generation's checkpoint; what an interrupted repair left there is replaced.
        batch: The last closed batch, at least 1; -1 leaves the checkpoint to the query.
        offsets: One line an input, in the order in which the stream names them.
        files: Entries of the file source's log, if the input is one.
    """
    remove_tree(folder)
    folder.mkdir(parents=True)
    if batch >= 0:
        state = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
        done = json.dumps({"nextBatchWatermarkMs": 0})
        # A query that starts asks its sources for the last batch once more, from the end of the
        # one before it. Both end alike, so that nothing is read again.
        for number in (batch - 1, batch):
            _write(folder / "offsets" / str(number), [_VERSION, state, *offsets])
            _write(folder / "commits" / str(number), [_VERSION, done])
        if files:
            _write(folder / "sources" / "0" / "0", [_VERSION, *files])
        _write(folder / "metadata", [json.dumps({"id": str(uuid.uuid4())})])


def delta_offset(table_id: str, position: Position) -> str:
    """Write a position in a Delta table as its stream's offset."""
    version, index = position
    return json.dumps(
        {
            "sourceVersion": 1,
            "reservoirId": table_id,
            "reservoirVersion": version,
            "index": index,
            "isStartingVersion": False,
        }
    )


def file_entry(uri: str, file: LandedFile) -> str:
    """Write a file that was taken as an entry of the file source's log.

    Args:
        uri: Its path as Spark lists it.
        file: What was taken.
    """
    return json.dumps({"path": uri, "timestamp": file.modified, "batchId": 0})


def _write(file: Folder, lines: Sequence[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines), encoding="utf-8")
