"""Catch-up of the clickstream through all hops on one, two and four slots.

Each measurement is a process of its own, since a JVM has one master; within it the first catch-up
warms up and does not count. Slots take turns, round by round, so that a machine that grows slower
slows all of them. The tables of each run are compared by their row counts and sums.

Usage: python -m benchmarks.slots [--events 300000] [--rounds 2] [--json build/bench/slots.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine
from benchmarks.runner import REPORTS
from tidelake.config import Limits, load_environment, load_pipeline
from tidelake.delta.tables import HOPS, Hop, Lake
from tidelake.generators import generate
from tidelake.ops.query import ask
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.session import build_session

_SLOTS = (1, 2, 4)
_COMPARED = "SELECT count(*), sum(events), sum(total_value) FROM gold.user_activity_1m"


def measure(landing: Path, folder: Path, slots: int, limit: str, repeats: int) -> dict[str, Any]:
    """Catch up on so many slots, some times over in one warm session.

    Returns:
        Seconds by hop of each counted catch-up, and what gold holds.
    """
    environment = load_environment("local", root=str(folder / "spark"))
    changes = {
        "master": f"local[{slots}]",
        "limits": Limits(silver_bytes=limit, gold_bytes=limit),
        "spark": {**environment.spark, "spark.sql.shuffle.partitions": slots},
    }
    environment = environment.model_copy(update=changes)
    spark = build_session(environment)
    seconds = []
    try:
        for repeat in range(repeats + 1):
            root = folder / f"lake{repeat}"
            pipeline = load_pipeline("clickstream", environment, source=str(landing))
            lake = Lake(root)
            run = Run(spark, pipeline, lake, environment, Progress(lambda _: None))
            seconds.append({hop: _timed(run, hop) for hop in HOPS})
    finally:
        spark.stop()
    held = [str(value) for value in ask(lake, _COMPARED).rows[0]]
    return {"seconds": seconds[1:], "held": held}


def _timed(run: Run, hop: Hop) -> float:
    began = time.monotonic()
    run_hops(run, [hop], parse_trigger(AVAILABLE_NOW))
    return time.monotonic() - began


def _measured_elsewhere(landing: Path, folder: Path, slots: int, limit: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.slots", "--one", str(slots), "--limit", limit]
    command += ["--landing", str(landing), "--folder", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    """Run the rounds and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limit", default="256m", help="bytes that a batch takes at most")
    parser.add_argument("--json", type=Path, default=REPORTS / "slots.json")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--landing", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.one:
        print(json.dumps(measure(told.landing, told.folder, told.one, told.limit, 1)))
        return
    runs: dict[int, list[dict[str, float]]] = defaultdict(list)
    held: set[tuple[str, ...]] = set()
    with tempfile.TemporaryDirectory() as base:
        landing = Path(base) / "landing"
        generate("clickstream", landing, events=told.events, seed=1)
        for number in range(told.rounds):
            for slots in _SLOTS:
                folder = Path(base) / f"{number}-{slots}"
                found = _measured_elsewhere(landing, folder, slots, told.limit)
                runs[slots] += found["seconds"]
                held.add(tuple(found["held"]))
                print(f"round {number}, {slots} slots: {found['seconds']}", file=sys.stderr)
    if len(held) != 1:
        sys.exit(f"the tables differ: {sorted(held)}")
    result = {
        "events": told.events,
        "machine": machine(),
        "slots": {slots: _summary(found, told.events) for slots, found in runs.items()},
    }
    told.json.parent.mkdir(parents=True, exist_ok=True)
    told.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print("\n".join(_table(result)))


def _summary(found: list[dict[str, float]], events: int) -> dict[str, float]:
    """Take the medians over the rounds."""
    medians: dict[str, float] = {
        hop: round(statistics.median(one[hop] for one in found), 2) for hop in HOPS
    }
    whole = statistics.median(sum(one.values()) for one in found)
    return {**medians, "all": round(whole, 2), "events_per_second": round(events / whole)}


def _table(result: dict[str, Any]) -> list[str]:
    columns = (*HOPS, "all", "events_per_second")
    lines = [
        f"{result['events']:,} events, {result['machine']['cores']} cores; seconds, medians",
        "",
        "| slots | bronze | silver | gold | all | events/s |",
        "|---|---|---|---|---|---|",
    ]
    for slots, found in result["slots"].items():
        values = " | ".join(f"{found[name]:,}" for name in columns)
        lines.append(f"| {slots} | {values} |")
    return lines


if __name__ == "__main__":
    main()
