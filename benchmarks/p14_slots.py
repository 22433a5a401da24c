"""P14: a catch-up of the clickstream through all hops on two slots against one.

Each catch-up is a process of its own, since a JVM has one master, and cold; what counts is the time
from the first hop's start to the end of the last. Whatever is not a task (planning, commits, the
JVM's compiler and collector, Python) runs beside the slots on both sides, so that a single slot
has the machine's other core for those. Rows and sums of gold are compared.

Usage: python -m benchmarks.p14_slots [--repeats 1] [--events 5000000] [--json FILE]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import Finding, Goal, Report, arguments, hand_in, in_turns, ratios, say
from tidelake.config import load_environment, load_pipeline
from tidelake.delta.tables import HOPS, Hop, Lake
from tidelake.examples import generate
from tidelake.ledger.query import ask
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.session import build_session

_GOAL = Goal("events/s on two slots against one", 1.6, at_least=True)
_SLOTS = {"one slot": 1, "two slots": 2}
_NAME = "clickstream"
_COMPARED = "SELECT count(*), sum(events), sum(total_value) FROM gold.user_activity_1m"
_ONE = "catch-up"


def main() -> None:
    """Measure, and hand in what was found; or be one catch-up."""
    if sys.argv[1:2] == [_ONE]:
        landing, root, slots = sys.argv[2:]
        print(json.dumps(_catch_up(Path(landing), Path(root), int(slots))))
        return
    parser = arguments(__doc__)
    parser.set_defaults(repeats=1)
    parser.add_argument("--events", type=int, default=5_000_000)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidelake-slots-") as folder:
        hand_in(_measured(Path(folder), told.events, told.repeats), told.json)


def _measured(folder: Path, events: int, repeats: int) -> Report:
    landing = folder / "landing"
    generate(_NAME, landing, events=events, seed=1)
    hops: dict[str, list[dict[Hop, float]]] = {side: [] for side in _SLOTS}
    held: set[str] = set()

    def caught_up(side: str, number: int) -> float:
        root = folder / f"{_SLOTS[side]}-{number}"
        words = ["-m", "benchmarks.p14_slots", _ONE, str(landing), str(root), str(_SLOTS[side])]
        done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, check=True)
        told: dict[str, Any] = json.loads(done.stdout)
        hops[side].append(told["seconds"])
        held.add(told["held"])
        if len(held) > 1:
            raise SystemExit(f"the tables differ: {sorted(held)}")
        say(f"  {side}: {told['seconds']}")
        return float(sum(told["seconds"].values()))

    sides = {side: partial(caught_up, side) for side in _SLOTS}
    seconds = in_turns(sides, repeats, warm_up=0)
    return Report(
        row="P14",
        title=f"a catch-up of {events:,} events on two slots against one",
        findings=[Finding.of(_GOAL, ratios(seconds["one slot"], seconds["two slots"]))],
        seconds=seconds,
        checked="rows, events and values of the windows are the same on both sides",
        setting={"events": events, "pipeline": "clickstream, all of it", "environment": "local"},
        details={
            "hops_s": {
                side: {hop: round(median(one[hop] for one in found), 1) for hop in HOPS}
                for side, found in hops.items()
            }
        },
    )


def _catch_up(landing: Path, root: Path, slots: int) -> dict[str, Any]:
    """Run all hops; seconds of each, and what gold holds."""
    environment = load_environment("local", root=str(root))
    settings = {**environment.spark, "spark.sql.shuffle.partitions": slots}
    environment = environment.model_copy(update={"master": f"local[{slots}]", "spark": settings})
    spark = build_session(environment)
    try:
        pipeline = load_pipeline(_NAME, environment, source=str(landing))
        run = Run(spark, pipeline, Lake(root), environment, Progress(lambda _: None))
        seconds = {}
        for hop in HOPS:
            began = time.monotonic()
            run_hops(run, [hop], parse_trigger(AVAILABLE_NOW))
            seconds[hop] = round(time.monotonic() - began, 2)
    finally:
        spark.stop()
    return {"seconds": seconds, "held": str(ask(Lake(root), _COMPARED).rows[0])}


if __name__ == "__main__":
    main()
