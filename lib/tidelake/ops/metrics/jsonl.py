"""Append one JSON object a batch to a file, for whatever collects logs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tidelake.ops.metrics.measured import Measured

# About a month of batches of ten seconds; the file before it is kept beside it.
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class JsonLines:
    """A file that grows to a limit, and then begins anew; the one before ends in ``.1``.

    Attributes:
        path: The file.
        most: Its limit in bytes.
    """

    path: Path
    most: int = _MOST_BYTES
    name: str = "the file of JSON lines"

    def put(self, measured: Measured) -> None:
        """Append a batch in one write, so that two processes do not mix their lines."""
        line = json.dumps(measured.to_json(), separators=(",", ":")).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            file.write(line)
            grown = file.tell()
        if grown >= self.most:
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))

    def tick(self) -> None:
        """Keep nothing back."""

    def close(self) -> None:
        """Keep nothing open."""
