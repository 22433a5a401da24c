"""How a peer's program is driven: once from the command line, or round by round from outside.

Nothing but the standard library: it is imported beside programs that live in other environments.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_BEGAN = time.monotonic()

# Takes the files to read, oldest first, and the folder of the tables; tells more about it.
Pipeline = Callable[..., Mapping[str, Any]]


def landed(files: Sequence[Path], out: Path) -> Path:
    """Let files land in a folder of the round's own, and name it; nothing is copied."""
    landing = out / "landing"
    landing.mkdir(exist_ok=True)
    for file in files:
        os.link(file, landing / file.name)
    return landing


def drive(about: str | None, start: Callable[[], Pipeline]) -> None:
    """Run a pipeline, and print a line of JSON for each round.

    Each line has ``start`` (seconds from the program's beginning until it could take work, the
    same in every round), ``seconds`` (from the first read to the last commit), and what the
    pipeline tells.

    Args:
        about: What the program does.
        start: Starts the engine, and gives the pipeline.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("landing", nargs="?", type=Path, help="a folder of JSON lines")
    parser.add_argument("out", nargs="?", type=Path, help="the folder of the tables")
    asked = parser.parse_args()
    if asked.landing is not None and asked.out is None:
        parser.error("give the folder of the tables too")
    # What an engine prints must not come between the lines of the answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    pipeline = start()
    ready = time.monotonic() - _BEGAN
    if asked.landing is not None:
        rounds = iter([{"files": sorted(asked.landing.glob("*.jsonl")), "out": asked.out}])
    else:
        rounds = map(json.loads, sys.stdin)
    for one in rounds:
        out = Path(one["out"])
        out.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        told = pipeline([Path(file) for file in one["files"]], out, **one.get("settings", {}))
        seconds = time.monotonic() - began
        print(json.dumps({"start": ready, "seconds": seconds, **told}), file=answers, flush=True)
