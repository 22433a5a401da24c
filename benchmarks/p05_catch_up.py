"""P5: an available-now catch-up through all hops against one plain batch job for the same tables.

Both sides run in one warm session, in turns, on the same landing folder: the clickstream without
its broken lines, so that a plain parse keeps what Tidelake keeps; copies, late events and lines
that the pipeline filters stay. The pipeline is the clickstream's own, without the enrichment and
the table that counts by it. The first round, on fewer events, warms the JVM; there all rows of both
sides are compared, later the number of rows of each table.
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
from tidelake.config import Limits, Pipeline, load_environment, load_pipeline
from tidelake.delta.tables import HOPS, Hop, Lake
from tidelake.examples import clickstream, generate
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.session import build_session

NAME = "clickstream"
_GOAL = Goal("rows/s of the catch-up against the batch job", 0.75, at_least=True)
# The first round takes so much less.
_FEWER = 5
_LIMIT = "256m"
_CLEAN = clickstream.Rates(conflicting=0, malformed=0, implausible=0, too_late=0, future=0)


@dataclass
class Watch:
    """Hears how far a run has come.

    Attributes:
        ended: When each hop came to the end of its source, in milliseconds since the epoch.
        batches: How many each took.
    """

    ended: dict[Hop, int] = field(default_factory=dict)
    batches: dict[Hop, int] = field(default_factory=lambda: defaultdict(int))

    def attach(self, session: SparkSession) -> None:
        """Need no listener."""

    def starts(self, hop: Hop, generation: str, limit: int | None) -> None:
        """Hops start one after the other."""

    def closed(self, hop: Hop, batch: int, rows: int, seconds: float) -> None:
        """Count a batch."""
        self.batches[hop] += 1

    def ends(self, hop: Hop) -> None:
        """Note when."""
        self.ended[hop] = round(time.time() * 1_000)

    def failed(self, hop: Hop, error: Exception) -> None:
        """A failure ends the measurement anyway."""


@dataclass
class CatchUp:
    """Tidelake's side: a new root each round.

    Attributes:
        spark: The session.
        root: Where its tables are.
        landings: What is taken: in the first round, and later.
        hops: Seconds of each hop, one for each round; what comes after gold is ``afterwards``.
        last: Batches and executions of each hop in the last round.
    """

    spark: SparkSession
    root: Path
    landings: tuple[Path, Path]
    hops: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    last: dict[str, Any] = field(default_factory=dict)

    def play(self, number: int) -> float:
        """Run all hops, one after the other."""
        shutil.rmtree(self.root, ignore_errors=True)
        # What a laptop's environment sets is for its few rows.
        environment = load_environment("local", root=str(self.root)).model_copy(
            update={"limits": Limits(silver_bytes=_LIMIT, gold_bytes=_LIMIT)}
        )
        landing = self.landings[number > 0]
        pipeline = _measured_part(load_pipeline(NAME, environment, source=str(landing)))
        watch, mark = Watch(), executions.newest(self.spark)
        run = Run(self.spark, pipeline, Lake(self.root), environment, Progress(_silent, watch))
        began, at = time.monotonic(), round(time.time() * 1_000)
        run_hops(run, HOPS, parse_trigger(AVAILABLE_NOW))
        seconds = time.monotonic() - began
        spent = executions.since(self.spark, mark)
        for hop in HOPS:
            mine = [one for one in spent if at <= one.began < watch.ended[hop]]
            self.hops[hop].append((watch.ended[hop] - at) / 1_000)
            self.last[hop] = {
                "batches": watch.batches[hop],
                "counts": executions.counts(mine, 1),
                "where": executions.by_label(mine, 1, most=12),
            }
            at = watch.ended[hop]
        self.hops["afterwards"].append(time.time() - at / 1_000)
        return seconds


@dataclass
class BatchJob:
    """The other side.

    Attributes:
        spark: The session.
        root: Where its tables are.
        landings: As of the other side.
        tables: Seconds of each table, one for each round.
    """

    spark: SparkSession
    root: Path
    landings: tuple[Path, Path]
    tables: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def play(self, number: int) -> float:
        """Run the job."""
        shutil.rmtree(self.root, ignore_errors=True)
        began = time.monotonic()
        spent = run_batch_job(self.spark, self.landings[number > 0], self.root)
        seconds = time.monotonic() - began
        for name, one in spent.items():
            self.tables[name].append(one)
        return seconds


def main() -> None:
    """Measure, and hand in what was measured."""
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
        spark = build_session(load_environment("local", root=str(base / "spark")))
        try:
            report = _measured(spark, base, options.events, options.repeats)
        finally:
            spark.stop()
    hand_in(report, options.json)


def _generate(landing: Path, events: int) -> None:
    """Write the clickstream without its broken lines."""
    before = clickstream.RATES
    clickstream.RATES = _CLEAN
    try:
        generate(NAME, landing, events=events, seed=1)
    finally:
        clickstream.RATES = before


def _measured(spark: SparkSession, base: Path, events: int, repeats: int) -> Report:
    landings = base / "few", base / "landing"
    ours = CatchUp(spark, base / "ours", landings)
    theirs = BatchJob(spark, base / "theirs", landings)
    checked: list[str] = []
    ran: list[int] = []

    def checked_after(side: Callable[[int], float], number: int) -> float:
        """Hold both against each other when both have run in a round."""
        seconds = side(number)
        ran.append(number)
        if ran.count(number) == 2:
            checked.append(_check(spark, ours.root, theirs.root, whole=not number))
        return seconds

    sides = {"tidelake": ours.play, "batch job": theirs.play}
    spent = in_turns({name: partial(checked_after, side) for name, side in sides.items()}, repeats)
    rates = {side: events / median(seconds) for side, seconds in spent.items()}
    return Report(
        row="P5",
        title=f"a catch-up of {events:,} events through all hops against one batch job",
        findings=[Finding.of(_GOAL, ratios(spent["batch job"], spent["tidelake"]))],
        seconds=spent,
        checked=f"row for row: {checked[0]}; by numbers: {checked[-1]}",
        setting={
            "events": events,
            "tables": ["bronze", "silver", *TABLES],
            "limits": f"the pipeline's five files a batch of bronze, {_LIMIT} of silver and gold",
            "batch_job": "adaptive execution on, else the same session",
            "left_out": "broken lines, the enrichment and the table by category",
        },
        details={
            "events_per_s": rates,
            "hops_s": {hop: median(seconds[1:]) for hop, seconds in ours.hops.items()},
            "tables_s": {name: median(seconds[1:]) for name, seconds in theirs.tables.items()},
            "last_round": ours.last,
        },
    )


def _check(spark: SparkSession, ours: Path, theirs: Path, *, whole: bool) -> str:
    """Assert that both sides hold the same events and the same gold."""
    told = []
    named: dict[str, tuple[str, ...]] = {
        "silver.clickstream": ("event_id", "user_id", "event_time", "action", "value")
    }
    named |= {f"gold.{name}": columns for name, columns in TABLES.items()}
    for name, columns in named.items():
        place = name.replace(".", "/")
        one, other = (
            spark.read.format("delta").load(str(root / place)).select(*columns)
            for root in (ours, theirs)
        )
        count = one.count()
        assert count, name
        assert count == other.count(), name
        assert not whole or one.exceptAll(other).isEmpty(), name
        told.append(f"{name} {count:,}")
    return ", ".join(told)


def _measured_part(pipeline: Pipeline) -> Pipeline:
    gold = tuple(table for table in pipeline.gold if table.name in TABLES)
    return pipeline.model_copy(update={"enrich": (), "gold": gold})


def _silent(line: str) -> None:
    pass


if __name__ == "__main__":
    main()
