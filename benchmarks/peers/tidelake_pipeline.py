"""Tidelake's side: the same pipeline by `run_hops`, in a process of its own as the peers are."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.definition import run_in
from benchmarks.peers.rounds import Pipeline, drive, landed
from tidelake.config import load_environment
from tidelake.runtime.pipeline import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.session import build_session
from tidelake.tables import HOPS


def start() -> Pipeline:
    """Start Spark."""
    spark = build_session(load_environment("local", root=tempfile.mkdtemp(prefix="tidelake-")))

    def pipeline(files: list[Path], out: Path, **wanted: Any) -> Mapping[str, Any]:
        landed(files, out)
        closed: list[str] = []
        run = run_in(spark, out, say=closed.append, **wanted)
        spent: dict[str, float] = {}
        for hop in HOPS:
            began = time.monotonic()
            run_hops(run, [hop], parse_trigger(AVAILABLE_NOW))
            spent[hop] = time.monotonic() - began
        return {"spent": spent, "closed": closed}

    return pipeline


if __name__ == "__main__":
    drive(__doc__, start)
