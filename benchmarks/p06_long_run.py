"""P6: the cost of a batch and of a restart after a thousand commits.

Two roots take the same kind of batches through bronze, silver and gold, in alternating rounds of
ten batches: a young one from its twentieth commit on, an old one from its thousandth. A compaction
counts with the batch that it follows. A restart, in a warm JVM whose cache of Delta tables was
cleared, is the time until each hop has started and committed one batch, one hop after the other.

By default most of the old root's commits are written without running the hops (see
``long_history``); with ``--whole`` the hops write all of them, which takes half an hour.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import mean, median

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import executions
from benchmarks.long_history import MINUTE, Minutes, fill
from benchmarks.measuring import Finding, Goal, Report, arguments, hand_in, in_turns, ratios, say
from benchmarks.triggers import Triggers, going_on
from benchmarks.visits import MINUTES, NAME, opened
from tidelake.config import load_environment
from tidelake.delta.access import load
from tidelake.delta.log import newest_version
from tidelake.delta.tables import HOPS, Hop
from tidelake.runtime.bronze_hop import BronzeHop
from tidelake.runtime.gold import GoldHop
from tidelake.runtime.hop import HopQuery, Run
from tidelake.runtime.silver import SilverHop
from tidelake.spark.session import build_session
from tidelake.spark.tuning import COMPACTION_BATCHES

_BATCH = Goal("a batch of all hops, late against early, compactions included", 1.15, at_least=False)
_RESTART = Goal("a restart of all hops at 1,000 commits against 10", 1.3, at_least=False)
_KINDS: dict[Hop, type[HopQuery]] = {"bronze": BronzeHop, "silver": SilverHop, "gold": GoldHop}
# Batches before the restarts, before the measured window, and in a round.
_BEGUN, _EARLY, _TURN = 10, 20, 10
# The first batches, run by the hops, which serve as the template for those written without them.
_MODEL = 2
_TTL = "10 minutes"


@dataclass
class AgedRoot:
    """A root with a history.

    Attributes:
        run: The hops' context.
        minutes: Generates the events.
        landing: The landing folder.
        next: Number of the next batch.
        streams: The query of each hop.
        windows: Milliseconds of each counted batch, by hop.
    """

    run: Run
    minutes: Minutes
    landing: Path
    next: int = 0
    streams: dict[Hop, Triggers] = field(default_factory=dict)
    windows: dict[Hop, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        """Set up the query of each hop."""
        for hop, kind in _KINDS.items():
            self.streams[hop] = Triggers(self.run.spark, partial(self._started, kind))

    def _started(self, kind: type[HopQuery]) -> StreamingQuery:
        return going_on(kind(self.run))

    def take(self, batches: int, *, counts: bool) -> float:
        """Run ``batches`` files through all hops.

        Returns:
            Mean seconds of a batch, summed over the hops, without each hop's first batch.
        """
        for number in range(self.next, self.next + batches):
            self.minutes.land(self.landing, number)
        self.next += batches
        total = 0.0
        for hop, stream in self.streams.items():
            millis = stream.take(batches, counts=counts)
            if counts:
                self.windows[hop] += millis
                total += mean(millis)
        return total / 1_000

    def restart(self) -> dict[Hop, float]:
        """Restart each hop and run it on one file; return the seconds of each."""
        self.minutes.land(self.landing, self.next)
        self.next += 1
        self.run.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]  # classic
        return {hop: stream.once() for hop, stream in self.streams.items()}

    def versions(self) -> dict[str, int]:
        """Return how many commits each table has."""
        lake = self.run.lake
        tables = (lake.bronze(NAME), lake.silver(NAME), lake.gold(MINUTES))
        return {table.name: newest_version(table) + 1 for table in tables}


def main() -> None:
    """Measure, and write the report."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=200, help="rows a batch")
    parser.add_argument("--commits", type=int, default=1_000)
    parser.add_argument("--whole", action="store_true", help="write all commits with the hops")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        environment = load_environment("local", root=str(base / "spark"))
        spark = build_session(executions.recorded(environment))
        try:
            report = _measured(spark, base, options)
        finally:
            spark.stop()
    hand_in(report, options.json)


def _measured(spark: SparkSession, base: Path, options: Namespace) -> Report:
    repeats, commits, rows = options.repeats, options.commits, options.rows
    # Compactions fall on the same batches of both measured windows.
    reached = commits - commits % COMPACTION_BATCHES
    roots = {age: _aged_root(spark, base / age, reached, rows) for age in ("early", "late")}
    early, late = roots.values()
    early.take(_BEGUN, counts=False)
    say(f"{early.next} commits")
    _extend_history(late, reached, whole=options.whole)
    late.take(_BEGUN, counts=False)
    restarts: dict[str, list[dict[Hop, float]]] = {age: [] for age in roots}

    def restarted(age: str, number: int) -> float:
        restarts[age].append(roots[age].restart())
        return sum(restarts[age][-1].values())

    starts = in_turns(
        {f"restart, {age}": partial(restarted, age) for age in roots},
        repeats,
    )
    more = max(_EARLY - early.next, 2)
    for root in roots.values():
        root.take(more, counts=False)
    first = early.next
    spent = in_turns(
        {age: partial(_turn, root) for age, root in roots.items()},
        repeats,
        warm_up=0,
    )
    checked = [_check(root) for root in roots.values()]
    means = {
        age: sum(mean(millis) for millis in root.windows.values()) for age, root in roots.items()
    }
    by_round = Finding.of(_BATCH, ratios(spent["late"], spent["early"]))
    return Report(
        row="P6",
        title=f"batches and restarts after {commits:,} commits",
        findings=[
            replace(by_round, value=means["late"] / means["early"]),
            Finding.of(_RESTART, ratios(starts["restart, late"], starts["restart, early"])),
        ],
        seconds={**spent, **starts},
        checked="; ".join(checked),
        setting={
            "rows_a_batch": rows,
            "early": f"batches {first} to {early.next}, restarts from batch {_BEGUN} on",
            "late": f"batches {reached + first} to {late.next}, "
            f"restarts from batch {reached + _BEGUN} on",
            "until_then": "all by the hops"
            if options.whole
            else f"batches {_MODEL} to {reached} written without the hops, with the same rows, "
            "commit metadata and compactions",
            "ids_remembered": f"{_TTL} by arrival time, here the ids of the batches of the run",
            "counts": "all batches but the first after each start, which counts as a restart",
            "restart": "a warm JVM, Delta's cache of tables cleared",
            "versions": {age: root.versions() for age, root in roots.items()},
        },
        details={
            **{
                age: {
                    "mean_ms": {hop: mean(millis) for hop, millis in root.windows.items()},
                    "median_ms": {hop: median(millis) for hop, millis in root.windows.items()},
                    "longest_ms": {hop: max(millis) for hop, millis in root.windows.items()},
                    **{hop: stream.details() for hop, stream in root.streams.items()},
                }
                for age, root in roots.items()
            },
            "restarts": {
                age: {hop: median(seconds[hop] for seconds in rounds[1:]) for hop in HOPS}
                for age, rounds in restarts.items()
            },
        },
    )


def _turn(root: AgedRoot, _: int) -> float:
    return root.take(_TURN, counts=True)


def _aged_root(spark: SparkSession, root: Path, commits: int, rows: int) -> AgedRoot:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    # So far back that ids of prepared batches are beyond the TTL, and all events in the past.
    start = now - (commits + 200) * MINUTE
    calm = {*range(10), *range(_MODEL, _MODEL + 10)}
    landing = root.with_name(f"{root.name}-landing")
    return AgedRoot(opened(spark, root, landing, ttl=_TTL), Minutes(start, rows, calm), landing)


def _extend_history(late: AgedRoot, reached: int, *, whole: bool) -> None:
    began = time.monotonic()
    if whole:
        while late.next < reached:
            late.take(min(50, reached - late.next), counts=False)
    else:
        late.take(_MODEL, counts=False)
        fill(late.run, late.landing, late.minutes, _MODEL, reached)
        late.next = reached
    say(f"{reached} commits in {time.monotonic() - began:.0f} s")


def _check(root: AgedRoot) -> str:
    """Assert that silver equals the landed events, and gold an aggregate of silver."""
    spark, lake = root.run.spark, root.run.lake
    silver, gold = load(spark, lake.silver(NAME)), load(spark, lake.gold(MINUTES))
    events = root.next * root.minutes.rows
    assert silver.count() == silver.select("event_id").distinct().count() == events
    grouped = silver.groupBy(F.window("event_time", "1 minute").alias("w"), "user_id")
    exact = grouped.agg(F.count("*").alias("events"), F.sum("value").alias("total"))
    exact = exact.select("w.start", "user_id", "events", "total")
    held = gold.select("window_start", "user_id", "events", "total")
    assert held.exceptAll(exact).isEmpty() and exact.exceptAll(held).isEmpty()
    return f"after {root.next:,} batches silver holds {events:,} events, gold is its aggregate"


if __name__ == "__main__":
    main()
