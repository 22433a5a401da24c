"""P5: an available-now catch-up through all hops against one plain batch job for the same tables.

Both sides run in one warm session, in alternating rounds, on the same landing folder: the
clickstream without its invalid lines, so that a lenient parse accepts the same rows as Tidelake.
Duplicates, late events and lines that the pipeline filters are included; the enrichment and the
gold table that depends on it are left out. The first round, on fewer events, warms the JVM and
compares all rows of both sides; later rounds compare the row count of each table.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import executions
from benchmarks.batch_job import TABLES, run_batch_job
from benchmarks.measuring import Finding, Goal, Report, arguments, hand_in, in_turns, ratios, say
from benchmarks.watch import Watch
from tidelake.config import Limits, Pipeline, load_environment, load_pipeline
from tidelake.delta.tables import HOPS, Lake
from tidelake.examples import clickstream, generate
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.session import build_session

NAME = "clickstream"
_GOAL = Goal("rows/s of the catch-up against the batch job", 0.75, at_least=True)
# The first round takes a fifth of the events.
_FEWER = 5
_LIMIT = "256m"
_CLEAN = clickstream.Rates(conflicting=0, malformed=0, implausible=0, too_late=0, future=0)


@dataclass
class CatchUp:
    """Tidelake's side, with a new root in each round.

    Attributes:
        spark: The session.
        root: Root of the tables.
        landings: Landing folders of the first round and of later ones.
        hops: Seconds of each hop by round; ``afterwards`` is the time after gold.
        last: Batches and executions of each hop in the last round.
    """

    spark: SparkSession
    root: Path
    landings: tuple[Path, Path]
    hops: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    last: dict[str, Any] = field(default_factory=dict)

    def play(self, number: int) -> float:
        """Run all hops, and return the seconds."""
        shutil.rmtree(self.root, ignore_errors=True)
        # The limits of the local environment are for few rows.
        environment = load_environment("local", root=str(self.root)).model_copy(
            update={"limits": Limits(silver_bytes=_LIMIT, gold_bytes=_LIMIT)}
        )
        landing = self.landings[number > 0]
        pipeline = _measured_part(load_pipeline(NAME, environment, source=str(landing)))
        watch, mark = Watch(), executions.newest(self.spark)
        run = Run(self.spark, pipeline, Lake(self.root), environment, Progress(_silent, watch))
        began, started = time.monotonic(), round(time.time() * 1_000)
        run_hops(run, HOPS, parse_trigger(AVAILABLE_NOW))
        seconds = time.monotonic() - began
        spent = executions.since(self.spark, mark)
        for hop in HOPS:
            of_hop = [one for one in spent if started <= one.began < watch.ended[hop]]
            self.hops[hop].append((watch.ended[hop] - started) / 1_000)
            self.last[hop] = {
                "batches": watch.batches[hop],
                "counts": executions.counts(of_hop, 1),
                "where": executions.by_label(of_hop, 1, most=12),
            }
            started = watch.ended[hop]
        self.hops["afterwards"].append(time.time() - started / 1_000)
        return seconds


@dataclass
class BatchJob:
    """The batch job's side.

    Attributes:
        spark: The session.
        root: Root of the tables.
        landings: The same as Tidelake's.
        tables: Seconds of each table by round.
    """

    spark: SparkSession
    root: Path
    landings: tuple[Path, Path]
    tables: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def play(self, number: int) -> float:
        """Run the job, and return the seconds."""
        shutil.rmtree(self.root, ignore_errors=True)
        began = time.monotonic()
        spent = run_batch_job(self.spark, self.landings[number > 0], self.root)
        seconds = time.monotonic() - began
        for name, one in spent.items():
            self.tables[name].append(one)
        return seconds


def main() -> None:
    """Measure, and write the report."""
    parser = arguments(__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.set_defaults(repeats=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        began = time.monotonic()
        _generate(base / "landing", options.events)
        _generate(base / "few", options.events // _FEWER)
        say(f"{options.events:,} events generated in {time.monotonic() - began:.0f} s")
        environment = load_environment("local", root=str(base / "spark"))
        spark = build_session(executions.recorded(environment), use="bulk")
        try:
            report = _measured(spark, base, options.events, options.repeats)
        finally:
            spark.stop()
    hand_in(report, options.json)


def _generate(landing: Path, events: int) -> None:
    """Write the clickstream without its invalid lines."""
    before = clickstream.RATES
    clickstream.RATES = _CLEAN
    try:
        generate(NAME, landing, events=events, seed=1)
    finally:
        clickstream.RATES = before


def _measured(spark: SparkSession, base: Path, events: int, repeats: int) -> Report:
    landings = base / "few", base / "landing"
    tidelake = CatchUp(spark, base / "ours", landings)
    batch_job = BatchJob(spark, base / "theirs", landings)
    checked: list[str] = []
    ran: list[int] = []

    def checked_after(side: Callable[[int], float], number: int) -> float:
        """Compare both sides once both have run in a round."""
        seconds = side(number)
        ran.append(number)
        if ran.count(number) == 2:
            checked.append(_check(spark, tidelake.root, batch_job.root, whole=not number))
        return seconds

    sides = {"tidelake": tidelake.play, "batch job": batch_job.play}
    spent = in_turns({name: partial(checked_after, side) for name, side in sides.items()}, repeats)
    rates = {side: events / median(seconds) for side, seconds in spent.items()}
    return Report(
        row="P5",
        title=f"a catch-up of {events:,} events through all hops against one batch job",
        findings=[Finding.of(_GOAL, ratios(spent["batch job"], spent["tidelake"]))],
        seconds=spent,
        checked=f"all rows: {checked[0]}; row counts: {checked[-1]}",
        setting={
            "events": events,
            "tables": ["bronze", "silver", *TABLES],
            "limits": f"up to a thousand files a batch of bronze, {_LIMIT} of silver and gold",
            "batch_job": "the same session with adaptive execution on",
            "left_out": "invalid lines, the enrichment and the table by category",
        },
        details={
            "events_per_s": rates,
            "hops_s": {hop: median(seconds[1:]) for hop, seconds in tidelake.hops.items()},
            "tables_s": {name: median(seconds[1:]) for name, seconds in batch_job.tables.items()},
            "last_round": tidelake.last,
        },
    )


def _check(spark: SparkSession, tidelake: Path, batch_job: Path, *, whole: bool) -> str:
    """Assert that both sides hold the same events and the same gold."""
    counts = []
    named: dict[str, tuple[str, ...]] = {
        "silver.clickstream": ("event_id", "user_id", "event_time", "action", "value")
    }
    named |= {f"gold.{name}": columns for name, columns in TABLES.items()}
    for name, columns in named.items():
        path = name.replace(".", "/")
        left, right = (
            spark.read.format("delta").load(str(root / path)).select(*columns)
            for root in (tidelake, batch_job)
        )
        count = left.count()
        assert count, name
        assert count == right.count(), name
        assert not whole or left.exceptAll(right).isEmpty(), name
        counts.append(f"{name} {count:,}")
    return ", ".join(counts)


def _measured_part(pipeline: Pipeline) -> Pipeline:
    gold = tuple(table for table in pipeline.gold if table.name in TABLES)
    # Five files a batch are for the demo; a pipeline that says nothing takes up to a thousand.
    source = pipeline.source.model_copy(update={"max_files_per_trigger": None})
    return pipeline.model_copy(update={"enrich": (), "gold": gold, "source": source})


def _silent(line: str) -> None:
    pass


if __name__ == "__main__":
    main()
