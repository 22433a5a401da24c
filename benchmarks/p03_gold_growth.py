"""P3: what a batch of gold costs when its tables are a hundred times larger.

Two roots hold one day of events in silver and gold, the larger one 99 more days before it. Then
both take the same batches, in turns: two thousand events a batch in the order of time, one in a
hundred of them up to a day late. The gold hop merges them into one-minute windows and into sessions
of users.
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
# Of the days before: large batches, in the order of time.
_FILLS = 11
# Of the last day: as the hop takes events when it keeps up.
_LAST_DAY = 10
_WARM_UP = 1


@dataclass
class Grown:
    """A side: gold on a history of some days.

    Attributes:
        run: Its tables.
        days: How many lie before the last one.
        events_a_day: Of all users.
        turn: Batches a round.
        rows: Of a batch.
        stream: Its query.
        merges: What the merges of the rounds that count say, by table.
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
        """Know how to start."""
        self.stream = Triggers(self.run.spark, lambda: going_on(GoldHop(self.run)))
        self.merges = {name: [] for name in _TABLES}

    @property
    def today(self) -> int:
        """When the last day begins, in seconds since the epoch; the same for all sides."""
        return _FIRST

    def fill(self) -> None:
        """Let the hop take the history."""
        before = self.days * self.events_a_day
        if before:
            span = self.days * _DAY - _REST
            for part in range(_FILLS):
                self._grow(-1 - part, before // _FILLS, _FIRST - self.days * _DAY, span, part)
            self.stream.play(_FILLS, counts=False)
        for part in range(_LAST_DAY):
            self._grow(part, self.events_a_day // _LAST_DAY, _FIRST, _DAY, part, _LAST_DAY)
        self.stream.play(_LAST_DAY, counts=False)

    def play(self, number: int) -> float:
        """Take a round's batches; the median trigger, in seconds."""
        span = _DAY * self.rows // self.events_a_day
        for one in range(number * self.turn, (number + 1) * self.turn):
            self._grow(1_000 + one, self.rows, _FIRST + _DAY + one * span, span, 0, 1)
        mark = executions.newest(self.run.spark)
        seconds = self.stream.play(self.turn, counts=number >= _WARM_UP)
        if number >= _WARM_UP:
            self._note(mark)
        return seconds

    def _grow(
        self, seed: int, count: int, begins: int, span: int, part: int, parts: int = _FILLS
    ) -> None:
        """Append a part of a span to silver."""
        first = begins + span * part / parts
        rows = _events(self.run.spark, seed, count, first, span / parts, begins >= _FIRST)
        append_silver(self.run, rows, self._silver)
        self._silver += 1

    def _note(self, mark: tuple[int, int]) -> None:
        """Keep what the round's merges counted; they come in the order of the tables."""
        told = executions.metrics(self.run.spark, mark, "MergeIntoCommand")
        for number, name in enumerate(_TABLES):
            history = DeltaTable.forPath(self.run.spark, str(self.run.lake.gold(name).path))
            merges = history.history(2 * self.turn).where("operation = 'MERGE'").collect()
            newest = sorted(merges, key=lambda row: row.version)[-self.turn :]
            seconds = [int(row.operationMetrics["executionTimeMs"]) for row in newest]
            counted = told[number :: len(_TABLES)]
            assert len(seconds) == len(counted) == self.turn, (len(seconds), len(counted))
            self.merges[name] += [
                {**one, "executionTimeMs": ms} for one, ms in zip(counted, seconds, strict=True)
            ]


def main() -> None:
    """Measure, and hand in what was measured."""
    parser = arguments(__doc__)
    parser.add_argument("--events-a-day", type=int, default=30_000)
    parser.add_argument("--days", type=int, default=100, help="of the larger table")
    parser.add_argument("--rows", type=int, default=2_000, help="of a batch")
    parser.add_argument("--turn", type=int, default=5, help="batches a side and round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        spark = build_session(load_environment("local", root=str(base / "spark")))
        try:
            sides = {
                name: Grown(
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


def _measured(sides: Mapping[str, Grown], repeats: int) -> Report:
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
        checked="the last day and all after it are the same rows in both; the windows of the "
        "smaller equal a batch aggregate of silver",
        setting={
            "rows_of_gold": {name: _rows(side) for name, side in sides.items()},
            "rows_a_batch": small.rows,
            "late": "1 % of the rows, up to a day",
            "batches_a_side": len(small.merges[MINUTES]),
            "filled_by": f"the gold hop: the days before in {_FILLS} batches, the last in "
            f"{_LAST_DAY}; silver is written directly",
        },
        details={
            name: {**side.stream.details(), "merges": _merges(side)} for name, side in sides.items()
        },
    )


def _merges(side: Grown) -> dict[str, Any]:
    """Give medians of what merges counted, and what there is."""
    found = {}
    for table, told in side.merges.items():
        detail = DeltaTable.forPath(side.run.spark, str(side.run.lake.gold(table).path)).detail()
        found[table] = {
            "files": detail.collect()[0]["numFiles"],
            **{name: median(one.get(name, 0) for one in told) for name in sorted(told[0])},
        }
    return found


def _rows(side: Grown) -> dict[str, int]:
    return {name: load(side.run.spark, side.run.lake.gold(name)).count() for name in _TABLES}


def _check(small: Grown, large: Grown) -> None:
    """Hold the larger table against the smaller, and that one against silver."""
    for table, time_column in ((MINUTES, "window_start"), (SESSIONS, "session_start")):
        of_small, of_large = (_shown(side, table) for side in (small, large))
        today = F.col(time_column) >= F.timestamp_seconds(F.lit(_FIRST))
        _same(of_large.where(today), of_small)
    silver = load(small.run.spark, small.run.lake.silver(NAME))
    minute = F.window("event_time", "1 minute")
    exact = silver.groupBy(minute.alias("w"), "user_id").agg(
        F.count("*").alias("events"), F.sum("value").alias("total")
    )
    exact = exact.select("w.start", "w.end", "user_id", "events", "total")
    _same(_shown(small, MINUTES), exact)


def _shown(side: Grown, table: str) -> DataFrame:
    rows = load(side.run.spark, side.run.lake.gold(table))
    return rows.select(*[name for name in rows.columns if not name.startswith("_")])


def _same(one: DataFrame, other: DataFrame) -> None:
    assert one.exceptAll(other).isEmpty() and other.exceptAll(one).isEmpty(), one.columns


def _events(
    spark: SparkSession, seed: int, count: int, first: float, span: float, is_today: bool
) -> DataFrame:
    """Draw events of a stretch of time, in its order; late ones stay on their side of today."""
    # One file, and so one batch.
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
