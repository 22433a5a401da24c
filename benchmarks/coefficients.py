"""Measure the coefficients of the capacity model: fixed seconds a batch, µs a row, bytes, files.

The clickstream with two gold tables runs batches of two sizes, one file each, in one warm session.
For each hop and size the median trigger and the CPU seconds are recorded. Small batches give the
fixed cost, the difference to large ones the cost of a row.

Usage: python -m benchmarks.coefficients [--sizes 1000 100000] [--batches 8 4] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.clicks import TWO, definition, land
from benchmarks.measuring import machine, say
from benchmarks.runner import REPORTS
from tidelake.config import Limits, load_environment, load_pipeline
from tidelake.delta.tables import HOPS, Hop, Lake, Table
from tidelake.ledger.query import ask
from tidelake.ops.observers import TriggerListener, TriggerProgress
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Observer, Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.session import build_session

_TICKS = os.sysconf("SC_CLK_TCK")
# Events a second of event time: several events for each visitor and minute.
_RATE, _USERS = 1_000.0, 10_000
_NAME, _PATIENCE = "clickstream", 10.0


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs=2, default=(1_000, 100_000))
    parser.add_argument("--batches", type=int, nargs=2, default=(8, 4))
    parser.add_argument("--json", type=Path, default=REPORTS / "coefficients.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidelake-model-") as name:
        found = measured(Path(name), tuple(options.sizes), tuple(options.batches))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measured(folder: Path, sizes: tuple[int, int], batches: tuple[int, int]) -> dict[str, Any]:
    """Run batches of both sizes, and compute the coefficients."""
    file = definition(folder)
    environment = load_environment("local", root=str(folder / "spark"))
    spark = build_session(environment)
    try:
        by_size = {}
        # The first run warms the JVM and does not count.
        for name, size, count in (
            ("warm", sizes[0], 4),
            ("small", sizes[0], batches[0]),
            ("large", sizes[1], batches[1]),
        ):
            landing = folder / f"landing-{name}"
            land(landing, [size] * count, users=_USERS, rate=_RATE)
            by_size[name] = _played(spark, file, landing, folder / f"lake-{name}")
            say(f"{name}: {by_size[name]['hops']}")
    finally:
        spark.stop()
    small, large = by_size["small"], by_size["large"]
    return {
        "hops": {
            hop: _line(small["hops"][hop], large["hops"][hop], sizes, batches) for hop in HOPS
        },
        "tables": {
            layer: {
                "bytes_a_row": round(large["tables"][layer]["bytes_a_row"], 1),
                "rows_an_event": round(
                    large["tables"][layer]["live_rows"] / (sizes[1] * batches[1]), 4
                ),
                "rewritten": round(
                    large["tables"][layer]["rows"] / large["tables"][layer]["live_rows"], 2
                ),
                "files_a_commit_small": small["tables"][layer]["files_a_commit"],
                "files_a_commit_large": large["tables"][layer]["files_a_commit"],
            }
            for layer in large["tables"]
        },
        "payload_bytes": _payload(folder / "landing-large", sizes[1]),
        "setting": {
            "small": sizes[0],
            "large": sizes[1],
            "slots": os.cpu_count(),
            "gold": list(TWO),
            "copies": 0.2,
        },
        "raw": by_size,
        "machine": machine(),
    }


class _TriggerTimes(Observer):
    """An observer that records trigger times and ignores everything else."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {hop: [] for hop in HOPS}
        self._listener = TriggerListener(self._record)
        self._sessions: list[SparkSession] = []

    def _record(self, trigger: TriggerProgress) -> None:
        self.seconds[trigger.query.rpartition("-")[2]].append(trigger.seconds)

    def attach(self, session: SparkSession) -> None:
        session.streams.addListener(self._listener)
        self._sessions.append(session)

    def detach(self) -> None:
        for session in self._sessions:
            session.streams.removeListener(self._listener)


def _played(spark: SparkSession, file: Path, landing: Path, root: Path) -> dict[str, Any]:
    """Run all files through the hops, one file a batch."""
    environment = load_environment("local", root=str(root)).model_copy(
        # One file of the input table a batch.
        update={"limits": Limits(silver_bytes="1", gold_bytes="1")}
    )
    pipeline = load_pipeline(str(file), environment, source=str(landing))
    source = pipeline.source.model_copy(update={"max_files_per_trigger": 1})
    pipeline = pipeline.model_copy(update={"source": source})
    lake, triggers, files = Lake(root), _TriggerTimes(), len(list(landing.iterdir()))
    cores: dict[str, float] = {}
    triggers.attach(spark)
    try:
        for hop in HOPS:
            run = Run(spark, pipeline, lake, environment, Progress(lambda _: None, triggers))
            before = _cores(spark)
            run_hops(run, [hop], parse_trigger(AVAILABLE_NOW))
            cores[hop] = round(_cores(spark) - before, 2)
        deadline = time.monotonic() + _PATIENCE
        # Spark reports a trigger some time after it.
        while any(len(one) < files for one in triggers.seconds.values()):
            if time.monotonic() > deadline:
                raise SystemExit(f"batches are missing: {triggers.seconds}")
            time.sleep(0.1)
    finally:
        triggers.detach()
    hops = {hop: {"seconds": triggers.seconds[hop], "cores": cores[hop]} for hop in HOPS}
    return {"hops": hops, "tables": {layer: _stored(lake, layer) for layer in HOPS}}


def _cores(spark: SparkSession) -> float:
    """Return the CPU seconds of this process and its JVM."""
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]  # it runs
    stats = [Path(f"/proc/{pid}/stat").read_text() for pid in (os.getpid(), jvm)]
    fields = [stat.rpartition(")")[2].split() for stat in stats]
    return sum(int(stat[11]) + int(stat[12]) for stat in fields) / _TICKS


def _stored(lake: Lake, layer: Hop) -> dict[str, Any]:
    """Sum up rows, bytes and files of a layer's commits."""
    names = {"bronze": [lake.bronze(_NAME)], "silver": [lake.silver(_NAME)]}
    tables: list[Table] = names.get(layer) or [lake.gold(name) for name in TWO]
    added = [entry.added() for table in tables for entry in table.entries() if entry.added()]
    rows = sum(file.rows for commit in added for file in commit)
    return {
        "rows": rows,
        "bytes_a_row": sum(file.size for commit in added for file in commit) / rows,
        "files_a_commit": round(sum(len(commit) for commit in added) / len(added), 1),
        "live_rows": sum(_live(lake, table) for table in tables),
    }


def _live(lake: Lake, table: Table) -> int:
    return int(ask(lake, f"SELECT count(*) FROM {table.name}").rows[0][0])


def _line(
    small: dict[str, Any], large: dict[str, Any], sizes: tuple[int, int], batches: tuple[int, int]
) -> dict[str, float]:
    """Fit a line through both sizes: fixed cost, and cost of a row."""
    # The first batch of a query includes its start.
    low, high = (median(size["seconds"][1:]) for size in (small, large))
    more = (high - low) / (sizes[1] - sizes[0])
    used_low, used_high = small["cores"] / batches[0], large["cores"] / batches[1]
    cores = (used_high - used_low) / (sizes[1] - sizes[0])
    return {
        "seconds_small": round(low, 3),
        "seconds_large": round(high, 3),
        "fixed_seconds": round(max(0.0, low - more * sizes[0]), 3),
        "us_a_row": round(more * 1e6, 2),
        "fixed_core_seconds": round(max(0.0, used_low - cores * sizes[0]), 3),
        "core_us_a_row": round(max(0.0, cores) * 1e6, 2),
    }


def _payload(landing: Path, size: int) -> float:
    file = min(landing.iterdir())
    return round(file.stat().st_size / size, 1)


if __name__ == "__main__":
    main()
