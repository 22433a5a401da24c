"""Tidelake's side: the same pipeline with `run_hops`, as a separate process like the others."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.definition import run_in
from benchmarks.peers.rounds import Pipeline, drive, landed
from tidelake.config import load_environment
from tidelake.delta.tables import HOPS, Hop
from tidelake.runtime.progress import Observer
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.session import build_session


@dataclass
class Stopwatch(Observer):
    """An observer that records the seconds of hops and batches."""

    spent: dict[str, float] = field(default_factory=dict)
    batches: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    _last: float = field(default_factory=time.monotonic)

    def closed(self, hop: Hop, batch: int, rows: int, seconds: float) -> None:
        """Record a batch."""
        self.batches.setdefault(hop, []).append((rows, seconds))

    def ends(self, hop: Hop) -> None:
        """Record a hop."""
        self.spent[hop], self._last = time.monotonic() - self._last, time.monotonic()


def start() -> Pipeline:
    """Start Spark."""
    spark = build_session(
        load_environment("local", root=tempfile.mkdtemp(prefix="tidelake-")), use="bulk"
    )

    def pipeline(files: list[Path], out: Path, **settings: Any) -> Mapping[str, Any]:
        landed(files, out)
        watch = Stopwatch()
        run_hops(run_in(spark, out, observer=watch, **settings), HOPS, parse_trigger(AVAILABLE_NOW))
        return {"spent": watch.spent, "batches": watch.batches}

    return pipeline


if __name__ == "__main__":
    drive(__doc__, start)
