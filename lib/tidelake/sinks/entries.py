"""What one commit of a log says, whichever way the log was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol


class Added(NamedTuple):
    """What came into a table, in one data file or in all of a commit.

    Attributes:
        rows: How many, by Delta's own statistics.
        size: Bytes.
        path: Of the file, relative to the table; empty where only sums are known.
    """

    rows: int
    size: int
    path: str = ""


@dataclass(frozen=True)
class Info:
    """What a commit says of itself.

    Attributes:
        written_at: When (UTC).
        operation: Delta's word for what was done.
        parameters: Of the operation.
        metrics: What Delta counted.
        metadata: What the writer wrote into it.
    """

    written_at: datetime
    operation: str
    parameters: Mapping[str, Any]
    metrics: Mapping[str, Any]
    metadata: str | None


class Entry(Protocol):
    """One commit of a log, whoever wrote it."""

    @property
    def version(self) -> int:
        """The table's version that it made."""

    @property
    def info(self) -> Info:
        """What it says of itself."""

    def added(self) -> Sequence[Added]:
        """List what it brought in the order in which a stream takes it; not what it rearranged."""

    def takes_out(self) -> bool:
        """Tell whether it took rows out of the table, or put others in their place."""
