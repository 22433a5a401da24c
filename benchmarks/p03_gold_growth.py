"""P3: the cost of a gold batch when its tables are a hundred times larger.

Two roots hold one day of events in silver and gold; the larger one also holds the 99 days before
it. Both then take the same batches, in alternating rounds: two thousand events a batch in order of
event time, one in a hundred up to a day late. The gold hop merges them into one-minute windows and
into user sessions.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks import executions
from benchmarks.measuring import Finding, Goal, Report, arguments, hand_in, in_turns, ratios, say
from benchmarks.triggers import Triggers, going_on
from benchmarks.visits import MINUTES, NAME, SESSIONS, append_silver, opened
from tidelake.config import load_environment
from tidelake.delta.access import load
from tidelake.runtime.gold import GoldHop
from tidelake.runtime.hop import Run
from tidelake.spark.session import build_session

_TABLES = (MINUTES, SESSIONS)
_TIME = Goal("a batch of both tables, whole trigger, 100 x against 1 x", 1.2, at_least=False)
_READ = "number of target files after skipping"
_BEFORE = "number of target files before skipping"
_DAY, _REST = 86_400, 7_200
_FIRST = 1_767_571_200
_USERS = 2_000
# Batches for the days before: large ones, in order of event time.
_FILLS = 11
# Batches for the last day: the size of a hop that keeps up.
_LAST_DAY = 10
_WARM_UP = 1


@dataclass
class GoldSide:
    """One side: gold tables on a history of some days.

    Attributes:
        run: The hop's context.
        days: Days before the last one.
        events_a_day: Events a day of all users.
        turn: Batches a round.
        rows: Rows a batch.
        stream: The gold query.
        merges: Metrics of each MERGE in the counted rounds, by table.
    """

    run: Run
    days: int
    events_a_day: int
    turn: int
    rows: int
    stream: Triggers = field(init=False)
    merges: dict[str, list[dict[str, int]]] = field(init=False)
    _silver: int = 0

    def __post_init__(self) -> None:
        """Set up the query and the metrics."""
        self.stream = Triggers(self.run.spark, lambda: going_on(GoldHop(self.run)))
        self.merges = {name: [] for name in _TABLES}

    @property
    def today(self) -> int:
        """Start of the last day, in seconds since the epoch; the same for both sides."""
        return _FIRST

    def fill(self) -> None:
        """Run the hop on the history."""
        before = self.days * self.events_a_day
        if before:
            span = self.days * _DAY - _REST
            for part in range(_FILLS):
                self._append_silver(
                    -1 - part, before // _FILLS, _FIRST - self.days * _DAY, span, part
                )
            self.stream.play(_FILLS, counts=False)
        for part in range(_LAST_DAY):
            self._append_silver(part, self.events_a_day // _LAST_DAY, _FIRST, _DAY, part, _LAST_DAY)
        self.stream.play(_LAST_DAY, counts=False)

    def play(self, number: int) -> float:
        """Run a round's batches, and return the median trigger in seconds."""
        span = _DAY * self.rows // self.events_a_day
        for batch in range(number * self.turn, (number + 1) * self.turn):
            self._append_silver(1_000 + batch, self.rows, _FIRST + _DAY + batch * span, span, 0, 1)
        mark = executions.newest(self.run.spark)
        seconds = self.stream.play(self.turn, counts=number >= _WARM_UP)
        if number >= _WARM_UP:
            self._store_metrics(mark)
        return seconds

    def _append_silver(
        self, seed: int, count: int, begins: int, span: int, part: int, parts: int = _FILLS
    ) -> None:
        """Append one part of a time span to silver."""
        first = begins + span * part / parts
        rows = _events(self.run.spark, seed, count, first, span / parts, begins >= _FIRST)
        append_silver(self.run, rows, self._silver)
        self._silver += 1

    def _store_metrics(self, mark: tuple[int, int]) -> None:
        """Store the metrics of the round's MERGEs, which run in the order of the tables."""
        metrics = executions.metrics(self.run.spark, mark, "MergeIntoCommand")
        for number, name in enumerate(_TABLES):
            history = DeltaTable.forPath(self.run.spark, str(self.run.lake.gold(name).path))
            merges = history.history(2 * self.turn).where("operation = 'MERGE'").collect()
            newest = sorted(merges, key=lambda row: row.version)[-self.turn :]
            seconds = [int(row.operationMetrics["executionTimeMs"]) for row in newest]
            of_table = metrics[number :: len(_TABLES)]
            assert len(seconds) == len(of_table) == self.turn, (len(seconds), len(of_table))
            self.merges[name] += [
                {**one, "executionTimeMs": ms} for one, ms in zip(of_table, seconds, strict=True)
            ]


def main() -> None:
    """Measure, and write the report."""
    parser = arguments(__doc__)
    parser.add_argument("--events-a-day", type=int, default=30_000)
    parser.add_argument("--days", type=int, default=100, help="days in the larger table")
    parser.add_argument("--rows", type=int, default=2_000, help="rows a batch")
    parser.add_argument("--turn", type=int, default=5, help="batches of a side in a round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        environment = load_environment("local", root=str(base / "spark"))
        spark = build_session(executions.recorded(environment))
        try:
            sides = {
                name: GoldSide(
                    opened(spark, base / name, base / "nothing", gold=_TABLES),
                    days,
                    options.events_a_day,
                    options.turn,
                    options.rows,
                )
                for name, days in (("1 x", 0), ("100 x", options.days - 1))
            }
            report = _measured(sides, options.repeats)
        finally:
            spark.stop()
    hand_in(report, options.json)


def _measured(sides: Mapping[str, GoldSide], repeats: int) -> Report:
    for name, side in sides.items():
        began = time.monotonic()
        side.fill()
        say(f"{name}: filled in {time.monotonic() - began:.0f} s")
    spent = in_turns({name: side.play for name, side in sides.items()}, repeats, warm_up=_WARM_UP)
    small, large = sides["1 x"], sides["100 x"]
    _check(small, large)
    findings = [Finding.of(_TIME, ratios(spent["100 x"], spent["1 x"]))]
    for table in _TABLES:
        for what, metric, limit in (
            ("MERGE alone", "executionTimeMs", 1.2),
            ("files scanned", _READ, 1.0),
        ):
            goal = Goal(f"{table}: {what}, 100 x against 1 x", limit, at_least=False)
            pairs = zip(large.merges[table], small.merges[table], strict=True)
            findings.append(
                Finding.of(goal, [one[metric] / max(1, other[metric]) for one, other in pairs])
            )
    return Report(
        row="P3",
        title="a batch of gold when its tables are 100 times larger",
        findings=findings,
        seconds=spent,
        checked="both sides hold the same rows from the last day on; the windows of the smaller "
        "side equal a batch aggregate of silver",
        setting={
            "rows_of_gold": {name: _rows(side) for name, side in sides.items()},
            "rows_a_batch": small.rows,
            "late": "1 % of the rows, up to a day",
            "batches_a_side": len(small.merges[MINUTES]),
            "filled_by": f"the gold hop: the days before in {_FILLS} batches, the last day in "
            f"{_LAST_DAY}; silver is written directly",
        },
        details={
            name: {**side.stream.details(), "merges": _merges(side)} for name, side in sides.items()
        },
    )


def _merges(side: GoldSide) -> dict[str, Any]:
    """Return medians of the MERGE metrics, and the number of files."""
    found = {}
    for table, metrics in side.merges.items():
        detail = DeltaTable.forPath(side.run.spark, str(side.run.lake.gold(table).path)).detail()
        found[table] = {
            "files": detail.collect()[0]["numFiles"],
            **{name: median(one.get(name, 0) for one in metrics) for name in sorted(metrics[0])},
        }
    return found


def _rows(side: GoldSide) -> dict[str, int]:
    return {name: load(side.run.spark, side.run.lake.gold(name)).count() for name in _TABLES}


def _check(small: GoldSide, large: GoldSide) -> None:
    """Assert that the larger table equals the smaller, and the smaller equals silver."""
    for table, time_column in ((MINUTES, "window_start"), (SESSIONS, "session_start")):
        of_small, of_large = (_visible(side, table) for side in (small, large))
        today = F.col(time_column) >= F.timestamp_seconds(F.lit(_FIRST))
        _assert_same(of_large.where(today), of_small)
    silver = load(small.run.spark, small.run.lake.silver(NAME))
    minute = F.window("event_time", "1 minute")
    exact = silver.groupBy(minute.alias("w"), "user_id").agg(
        F.count("*").alias("events"), F.sum("value").alias("total")
    )
    exact = exact.select("w.start", "w.end", "user_id", "events", "total")
    _assert_same(_visible(small, MINUTES), exact)


def _visible(side: GoldSide, table: str) -> DataFrame:
    rows = load(side.run.spark, side.run.lake.gold(table))
    return rows.select(*[name for name in rows.columns if not name.startswith("_")])


def _assert_same(left: DataFrame, right: DataFrame) -> None:
    assert left.exceptAll(right).isEmpty() and right.exceptAll(left).isEmpty(), left.columns


def _events(
    spark: SparkSession, seed: int, count: int, first: float, span: float, is_today: bool
) -> DataFrame:
    """Generate events of a time span in order; late ones do not cross the start of the last day."""
    # One partition gives one file, and so one batch.
    rows = spark.range(count, numPartitions=1)
    late = F.when(F.rand(seed) < 0.01, F.rand(seed + 100_000) * _DAY).otherwise(0)
    second = F.lit(first) + F.col("id") * (span / count) - late
    second = F.greatest(second, F.lit(float(_FIRST))) if is_today else second
    user = (F.rand(seed + 200_000) * _USERS).cast("int")
    return rows.select(
        F.concat(F.lit(f"{seed}-"), "id").alias("event_id"),
        F.concat(F.lit(f"{seed}:"), "id").alias("record_id"),
        F.concat(F.lit("u"), user).alias("user_id"),
        F.timestamp_micros((second * 1_000_000).cast("bigint")).alias("event_time"),
        F.lit("view").alias("action"),
        (F.col("id") % 1_000 / 10).alias("value"),
    )


if __name__ == "__main__":
    main()
