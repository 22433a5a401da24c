"""P14: a catch-up of the clickstream through all hops on two slots against one.

Each catch-up is one cold run, in a process of its own, since a JVM has one master. The time is from
its start to its end. Planning, commits, the JVM's compiler and garbage collector, and Python run
outside the slots on both sides, so with one slot they have the machine's other core: the report
tells how many cores each side keeps busy. Row counts and sums of gold are compared.

Usage: python -m benchmarks.p14_slots [--repeats 1] [--events 5000000] [--json FILE]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import Finding, Goal, Report, arguments, hand_in, in_turns, ratios, say
from benchmarks.processes import took
from benchmarks.watch import Watch
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
_CATCH_UP = "catch-up"


def main() -> None:
    """Measure, and write the report; with ``catch-up`` run one catch-up."""
    if sys.argv[1:2] == [_CATCH_UP]:
        landing, root, slots, answer = sys.argv[2:]
        found = _catch_up(Path(landing), Path(root), int(slots))
        Path(answer).write_text(json.dumps(found), encoding="utf-8")
        return
    parser = arguments(__doc__)
    parser.set_defaults(repeats=1)
    parser.add_argument("--events", type=int, default=5_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidelake-slots-") as folder:
        hand_in(_measured(Path(folder), options.events, options.repeats), options.json)


def _measured(folder: Path, events: int, repeats: int) -> Report:
    landing = folder / "landing"
    generate(_NAME, landing, events=events, seed=1)
    ends: dict[str, list[dict[Hop, float]]] = {side: [] for side in _SLOTS}
    contents: set[str] = set()
    busy: dict[str, list[float]] = {side: [] for side in _SLOTS}

    def catch_up(side: str, number: int) -> float:
        root = folder / f"{_SLOTS[side]}-{number}"
        answer = folder / f"{root.name}.json"
        words = [_CATCH_UP, str(landing), str(root), str(_SLOTS[side]), str(answer)]
        command = [sys.executable, "-m", "benchmarks.p14_slots", *words]
        process = took(command, folder / f"{root.name}.log")
        busy[side].append(process.cpu / process.seconds)
        result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        ends[side].append(result["ends"])
        contents.add(result["held"])
        if len(contents) > 1:
            raise SystemExit(f"the tables differ: {sorted(contents)}")
        say(f"  {side}: {result['ends']}")
        return float(result["seconds"])

    sides = {side: partial(catch_up, side) for side in _SLOTS}
    seconds = in_turns(sides, repeats, warm_up=0)
    return Report(
        row="P14",
        title=f"a catch-up of {events:,} events on two slots against one",
        findings=[Finding.of(_GOAL, ratios(seconds["one slot"], seconds["two slots"]))],
        seconds=seconds,
        checked="row count and sums of events and values of gold are equal on both sides",
        setting={"events": events, "pipeline": "clickstream, all of it", "environment": "local"},
        details={
            "end_of_hop_s": {
                side: {hop: round(median(one[hop] for one in found), 1) for hop in HOPS}
                for side, found in ends.items()
            },
            "busy_cores": {side: round(median(found), 2) for side, found in busy.items()},
        },
    )


def _catch_up(landing: Path, root: Path, slots: int) -> dict[str, Any]:
    """Run all hops; return the seconds, the end of each hop, and row count and sums of gold."""
    environment = load_environment("local", root=str(root))
    settings = {**environment.spark, "spark.sql.shuffle.partitions": slots}
    environment = environment.model_copy(update={"master": f"local[{slots}]", "spark": settings})
    spark = build_session(environment, use="bulk")
    try:
        pipeline = load_pipeline(_NAME, environment, source=str(landing))
        watch = Watch()
        run = Run(spark, pipeline, Lake(root), environment, Progress(lambda _: None, watch))
        began, started = time.monotonic(), time.time()
        run_hops(run, HOPS, parse_trigger(AVAILABLE_NOW))
        seconds = round(time.monotonic() - began, 2)
    finally:
        spark.stop()
    ends = {hop: round(ended / 1_000 - started, 2) for hop, ended in watch.ended.items()}
    held = str(ask(Lake(root), _COMPARED).rows[0])
    return {"seconds": seconds, "ends": ends, "held": held}


if __name__ == "__main__":
    main()
