"""P7: a small batch, whole trigger, against the same stream to a no-op sink.

Silver with deduplication reads bronze; gold with one tumbling table reads silver. For each of them
a second stream reads the same commits into ``format("noop")``. All four run continuously, without
an interval, in alternating rounds of a few batches. The first batch after each start does not
count, nor do the first rounds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import executions
from benchmarks.measuring import Finding, Goal, Report, arguments, hand_in, in_turns, ratios, say
from benchmarks.triggers import GOES_ON, Triggers, going_on
from benchmarks.visits import MINUTES, NAME, feed, land_batches, opened, version_of
from tidelake.config import load_environment
from tidelake.delta.access import follow, load
from tidelake.delta.tables import Lake, Table
from tidelake.runtime.gold import GoldHop
from tidelake.runtime.runner import run_hops
from tidelake.runtime.silver import SilverHop
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.session import build_session

_GOALS = {
    "silver": Goal("silver with dedup against the no-op sink", 4.0, at_least=False),
    "gold": Goal("one gold table against the no-op sink", 7.0, at_least=False),
}
_WARM_UP = 2


@dataclass
class Side:
    """One side: a stream over its own copy of a table, which gets some more commits each round.

    Attributes:
        stream: The query.
        source: The table that the commits are copied from.
        target: The copy that the query reads.
        turn: Batches in a round.
        ahead: Rounds by which it is ahead of the sides that read its output.
    """

    stream: Triggers
    source: Table
    target: Table
    turn: int
    ahead: int = 0

    def play(self, number: int) -> float:
        """Run a round's commits, and return the median trigger in seconds."""
        last = (number + self.ahead + 1) * self.turn - 1
        feed(self.source, self.target, version_of(self.source)[last])
        return self.stream.play(self.turn, counts=number >= _WARM_UP)


def main() -> None:
    """Measure, and write the report."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=1_000, help="rows a batch")
    parser.add_argument("--turn", type=int, default=6, help="batches of a side in a round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        environment = load_environment("local", root=str(base / "spark"))
        spark = build_session(executions.recorded(environment))
        try:
            report = _measured(spark, base, options.repeats, options.rows, options.turn)
        finally:
            spark.stop()
    hand_in(report, options.json)


def _measured(spark: SparkSession, base: Path, repeats: int, rows: int, turn: int) -> Report:
    # Gold reads what the silver hop wrote one round earlier.
    rounds = repeats + _WARM_UP + 1
    events = land_batches(base / "landing", rounds * turn, rows)
    prepared = opened(spark, base / "made", base / "landing")
    began = time.monotonic()
    run_hops(prepared, ["bronze"], parse_trigger(AVAILABLE_NOW))
    sides = _sides(spark, base, prepared.lake, turn)
    for side in sides.values():
        if side.ahead:
            side.play(-side.ahead)
    say(f"prepared in {time.monotonic() - began:.0f} s")
    spent = in_turns({name: side.play for name, side in sides.items()}, repeats, warm_up=_WARM_UP)
    _check(spark, base, events)
    return Report(
        row="P7",
        title=f"{rows:,}-row batches against the same stream to a no-op sink",
        findings=[
            Finding.of(goal, ratios(spent[hop], spent[f"{hop}, no-op"]))
            for hop, goal in _GOALS.items()
        ],
        seconds=spent,
        checked=(
            f"silver holds each of {events:,} events once; gold equals a batch aggregate of "
            "silver; each batch of each side read one commit"
        ),
        setting={
            "rows_a_batch": rows,
            "batches_a_side": repeats * (turn - 1),
            "warm_up_batches_a_side": _WARM_UP * turn,
            "trigger": "continuous, no interval",
            "event_ids_within_ttl": f"all so far, up to {events:,}",
            "copies": "5 %",
        },
        details={name: side.stream.details() for name, side in sides.items()},
    )


def _sides(spark: SparkSession, base: Path, made: Lake, turn: int) -> dict[str, Side]:
    """Set up the four sides, each with its own copy of the table it reads."""
    silver = opened(spark, base / "silver", base / "nothing")
    gold = opened(spark, base / "gold", base / "nothing")
    noop_bronze = Lake(base / "silver-noop").bronze(NAME)
    noop_silver = Lake(base / "gold-noop").silver(NAME)
    bronze, followed = made.bronze(NAME), silver.lake.silver(NAME)
    # The second input of silver, without changes.
    feed(made.requeue(NAME), silver.lake.requeue(NAME), 0)
    starts: dict[str, tuple[Callable[[], StreamingQuery], Table, Table, int]] = {
        "silver, no-op": (partial(_noop, spark, noop_bronze), bronze, noop_bronze, 1),
        "silver": (lambda: going_on(SilverHop(silver)), bronze, silver.lake.bronze(NAME), 1),
        "gold, no-op": (partial(_noop, spark, noop_silver), followed, noop_silver, 0),
        "gold": (lambda: going_on(GoldHop(gold)), followed, gold.lake.silver(NAME), 0),
    }
    return {
        name: Side(Triggers(spark, start), source, target, turn, ahead)
        for name, (start, source, target, ahead) in starts.items()
    }


def _noop(spark: SparkSession, table: Table) -> StreamingQuery:
    """Start a stream that reads the same commits into a no-op sink."""
    checkpoint = str(Path(str(table.path)).parent / "checkpoint")
    writer = follow(spark, table, max_bytes=1024).writeStream.format("noop")
    return writer.option("checkpointLocation", checkpoint).trigger(**GOES_ON.options).start()


def _check(spark: SparkSession, base: Path, events: int) -> None:
    """Assert that both tables equal a recomputation."""
    silver = load(spark, Lake(base / "silver").silver(NAME))
    assert silver.count() == silver.select("event_id").distinct().count() == events
    followed = load(spark, Lake(base / "gold").silver(NAME))
    minute = F.window("event_time", "1 minute")
    exact = followed.groupBy(minute.alias("w"), "user_id").agg(
        F.count("*").alias("events"), F.sum("value").alias("total")
    )
    exact = exact.select("user_id", F.col("w.start").alias("window_start"), "events", "total")
    _assert_same(load(spark, Lake(base / "gold").gold(MINUTES)), exact, exact.columns)


def _assert_same(found: DataFrame, exact: DataFrame, columns: list[str]) -> None:
    left, right = found.select(*columns), exact.select(*columns)
    assert left.exceptAll(right).isEmpty() and right.exceptAll(left).isEmpty(), columns


if __name__ == "__main__":
    main()
