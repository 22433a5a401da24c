"""The driver of a side's program: one run from the command line, or rounds requested on stdin.

It uses only the standard library, since it is imported in several environments.
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

# Called with the files to read, oldest first, and the folder of the tables; returns a report.
Pipeline = Callable[..., Mapping[str, Any]]


def landed(files: Sequence[Path], out: Path) -> Path:
    """Link files into a landing folder of the round; return the folder."""
    landing = out / "landing"
    landing.mkdir(exist_ok=True)
    for file in files:
        os.link(file, landing / file.name)
    return landing


def drive(about: str | None, start: Callable[[], Pipeline]) -> None:
    """Run a pipeline, and print a line of JSON for each round.

    Each line has ``start`` (seconds from the program's start until it accepts work, the same in
    every round), ``seconds`` (from the first read to the last commit), and the pipeline's report.

    Args:
        about: Description of the program.
        start: Starts the engine, and returns the pipeline.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("landing", nargs="?", type=Path, help="a folder of JSON lines")
    parser.add_argument("out", nargs="?", type=Path, help="the folder of the tables")
    options = parser.parse_args()
    if options.landing is not None and options.out is None:
        parser.error("the folder of the tables is missing: give LANDING and OUT")
    # Output of the engine must not mix with the reports.
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    pipeline = start()
    ready = time.monotonic() - _BEGAN
    if options.landing is not None:
        rounds = iter([{"files": sorted(options.landing.glob("*.jsonl")), "out": options.out}])
    else:
        rounds = map(json.loads, sys.stdin)
    for request in rounds:
        out = Path(request["out"])
        out.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        report = pipeline(
            [Path(file) for file in request["files"]], out, **request.get("settings", {})
        )
        seconds = time.monotonic() - began
        print(json.dumps({"start": ready, "seconds": seconds, **report}), file=reports, flush=True)
