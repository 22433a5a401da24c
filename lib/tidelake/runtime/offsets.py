"""Find where a hop's reader stands in the tables that it follows."""

from __future__ import annotations

import json
from pathlib import Path

from tidelake.sinks.commits import BEGINNING, Position

# The offset log: a version line, a line of metadata, then a line for each input.
_FIRST_INPUT = 2


def planned_positions(checkpoint: Path, batch: int, inputs: int) -> list[Position]:
    """Read how far a planned micro-batch goes in each of the Delta tables that the hop follows.

    Args:
        checkpoint: The generation's checkpoint.
        batch: The batch; Spark writes its offsets before it runs.
        inputs: How many tables the hop follows.

    Returns:
        A position for each table, in the order in which the stream names them.
    """
    log = checkpoint / "offsets" / str(batch)
    lines = log.read_text(encoding="utf-8").splitlines()[_FIRST_INPUT:]
    return [_position(lines[number]) for number in range(inputs)]


def _position(line: str) -> Position:
    # An input without any data yet has a dash.
    if not line.startswith("{"):
        return BEGINNING
    offset = json.loads(line)
    return int(offset["reservoirVersion"]), int(offset["index"])
