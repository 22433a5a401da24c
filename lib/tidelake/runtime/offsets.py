"""Find where a hop's reader stands in the tables that it follows."""

from __future__ import annotations

import json

from tidelake.delta.positions import BEGINNING, Position
from tidelake.folders import Folder

# The offset log: a version line, a line of metadata, then a line for each input.
_FIRST_INPUT = 2
_VERSION, _NO_DATA = "v1", "-"
# No batch ends here.
_NOWHERE: Position = (-1, -1)


def planned_positions(checkpoint: Folder, batch: int, inputs: int) -> list[Position]:
    """Read how far a planned micro-batch goes in each of the Delta tables that the hop follows.

    Args:
        checkpoint: The generation's checkpoint.
        batch: The batch; Spark writes its offsets before it runs.
        inputs: How many tables the hop follows.

    Returns:
        A position for each table, in the order in which the stream names them.
    """
    return [_position(line) for line in _inputs(checkpoint, batch)[:inputs]]


def planned_tables(checkpoint: Folder, batch: int) -> list[str | None]:
    """Read by their ids which tables a planned micro-batch reads; None where one had no data."""
    lines = _inputs(checkpoint, batch)
    return [None if line == _NO_DATA else json.loads(line)["reservoirId"] for line in lines]


def _inputs(checkpoint: Folder, batch: int) -> list[str]:
    log = checkpoint / "offsets" / str(batch)
    return log.read_text(encoding="utf-8").splitlines()[_FIRST_INPUT:]


def unreadable(checkpoint: Folder, closed: int) -> str:
    """Say which file of a checkpoint is missing or is not what Spark wrote; empty for none.

    Looks at what a query reads when it starts: who it is, and its last batches.

    Args:
        checkpoint: The generation's checkpoint.
        closed: The newest batch that the hop's table holds.
    """
    wanted = [checkpoint / "metadata"]
    for log, first in (("offsets", max(closed - 1, 0)), ("commits", max(closed - 1, 0))):
        numbers = [int(file.name) for file in (checkpoint / log).glob("[0-9]*")]
        last = max(numbers, default=-1)
        wanted += [checkpoint / log / str(n) for n in range(min(first, last), last + 1) if n >= 0]
    wanted.append(checkpoint / "offsets" / str(closed))
    for file in wanted:
        problem = _broken(file)
        if problem:
            return f"{file.parent.name}/{file.name} of its checkpoint {problem}"
    return ""


def _broken(file: Folder) -> str:
    """Say what is wrong with a file of JSON objects, one a line; a log has its version first."""
    if not file.exists():
        return "is missing"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        is_log = file.name != "metadata"
        objects = lines[1:] if is_log else lines
        whole = bool(objects) and (not is_log or lines[0] == _VERSION)
        # What follows the first is each source's own: an object, or a number.
        first, *_ = [json.loads(line) for line in objects if line != _NO_DATA] or [None]
    except ValueError:
        return "cannot be read"
    return "" if whole and isinstance(first, dict) else "cannot be read"


def _position(line: str) -> Position:
    # An input without any data yet has a dash.
    if line == _NO_DATA:
        return BEGINNING
    offset = json.loads(line)
    # Ours begin with the first commit, never with a snapshot.
    if offset.get("isStartingVersion"):
        return _NOWHERE
    return int(offset["reservoirVersion"]), int(offset["index"])
