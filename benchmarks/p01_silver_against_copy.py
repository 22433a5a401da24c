"""P1: silver with deduplication, routing and ledger, against a stateless copy of the same rows.

The copy is a stream that parses bronze with ``from_json`` and appends the result, without fates,
keys, rules or a ledger. Both sides read the same batches of the same bronze in one warm session.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.measuring import Finding, Goal, Report, arguments, hand_in, in_turns, ratios, say
from benchmarks.silver_data import Cut, accepted, mark, twin
from benchmarks.silver_lake import (
    ALL,
    NAME,
    NOW,
    batch_limit,
    check_silver,
    context,
    create_bronze,
    durations,
    land,
    play,
)
from tidelake.config import load_environment
from tidelake.delta.log import last_commit
from tidelake.delta.tables import Lake
from tidelake.spark.session import build_session

_GOAL = Goal("rows/s of silver over rows/s of the copy", 0.60, at_least=True)
_TTL = "1 hour"
_EVENT = (
    "event_id STRING, user_id STRING, event_time TIMESTAMP, action STRING, product_id STRING, "
    "value DECIMAL(18,2)"
)


@dataclass
class Sides:
    """Both sides on one prepared lake.

    Attributes:
        spark: The session.
        base: The lake: history in silver, the measured batches only in bronze.
        limit: Bytes a batch reads.
        measured: The cuts of the measured batches.
        first: Bronze's version with the first of them.
        progress: Spark's progress of each round's batches, by side.
    """

    spark: SparkSession
    base: Path
    limit: int
    measured: list[Cut]
    first: int
    progress: dict[str, list[list[dict[str, Any]]]] = field(default_factory=dict)

    def silver(self, number: int) -> float:
        """Time Tidelake's hop on a copy of the lake."""
        root = self.base.parent / f"silver{number}"
        twin(self.base, root)
        run = context(self.spark, root, batch_bytes=self.limit, ttl=_TTL)
        before = last_commit(run.lake.silver(NAME))
        assert before is not None
        began = time.monotonic()
        query = play(run)
        spent = time.monotonic() - began
        self.progress.setdefault("silver", []).append(durations(query))
        if number == 0:
            for note in check_silver(run, self.measured, before.batch):
                say(f"  searched {note.searched:,}, fates {dict(note.total())}")
        shutil.rmtree(root)
        return spent

    def copy(self, number: int) -> float:
        """Time the stateless stream."""
        root = self.base.parent / f"copy{number}"
        began = time.monotonic()
        rows = (
            self.spark.readStream.format("delta")
            .option("startingVersion", self.first)
            .option("maxBytesPerTrigger", self.limit)
            .load(str(Lake(self.base).bronze(NAME).path))
        )
        writer = copied(rows).writeStream.format("delta").outputMode("append")
        query = (
            writer.option("checkpointLocation", str(root / "checkpoint"))
            .trigger(**NOW)
            .start(str(root / "table"))
        )
        query.awaitTermination()
        spent = time.monotonic() - began
        self.progress.setdefault("copy", []).append(durations(query))
        assert len(self.progress["copy"][-1]) == len(self.measured), self.progress["copy"][-1]
        if number == 0:
            self._check_copy(root / "table")
        shutil.rmtree(root)
        return spent

    def _check_copy(self, table: Path) -> None:
        """Assert that the copy without duplicates and faults equals silver."""
        rows = self.spark.read.format("delta").load(str(table))
        assert rows.count() == sum(cut.end - cut.first for cut in self.measured)
        deduplicated = rows.where("action IS NOT NULL AND coalesce(value, 0) >= 0")
        deduplicated = deduplicated.where("event_date = DATE'2026-01-05'").dropDuplicates(
            ["event_id"]
        )
        base = self.spark.read.format("delta").load(str(Lake(self.base).silver(NAME).path))
        found = mark(deduplicated.join(base.select("event_id"), on="event_id", how="left_anti"))
        expected = mark(accepted(self.spark, self.measured))
        assert found == expected, f"the copy yields {found}, expected {expected}"


def copied(bronze: DataFrame) -> DataFrame:
    """Parse each payload and select the silver columns that one row determines."""
    read = F.from_json(F.col("payload").cast("string"), _EVENT)
    rows = bronze.select("record_id", "ingested_at", read.alias("event"))
    return rows.select(
        "event.event_id",
        "event.event_time",
        "event.user_id",
        F.lower("event.action").alias("action"),
        "event.product_id",
        "event.value",
        "record_id",
        "ingested_at",
        F.to_date("event.event_time").alias("event_date"),
    )


def main() -> None:
    """Measure, and write the report."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="rows a batch")
    parser.add_argument("--batches", type=int, default=2, help="measured batches a round")
    parser.add_argument("--history", type=int, default=1_000_000, help="ids within the TTL")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spark = build_session(load_environment("local", root=f"{folder}/spark"))
        try:
            sides = prepare(spark, Path(folder), options.rows, options.batches, options.history)
            spent = in_turns({"silver": sides.silver, "copy": sides.copy}, options.repeats)
        finally:
            spark.stop()
    rows = options.rows * options.batches
    found = Finding.of(_GOAL, ratios(spent["copy"], spent["silver"]))
    speeds = {side: rows / median(seconds) for side, seconds in spent.items()}
    for side, speed in speeds.items():
        say(f"  {side}: {speed:,.0f} rows/s")
    report = Report(
        "P1",
        "silver with deduplication, routing and ledger against a copy",
        [found],
        spent,
        "silver's new rows equal the expected events, and the rows of the copy without "
        "duplicates and faults; the ledger balances",
        {
            **{name: getattr(options, name) for name in ("rows", "batches", "history")},
            "copies": "one row in five, half of them duplicate a row of the same batch",
            "batch_bytes": sides.limit,
        },
        {"rows_per_s": speeds, "batches": sides.progress},
    )
    hand_in(report, options.json)


def prepare(spark: SparkSession, folder: Path, rows: int, batches: int, history: int) -> Sides:
    """Fill silver with the history, and bronze with the batches after it."""
    base = folder / "base"
    filling = context(spark, base, batch_bytes=ALL, ttl=_TTL)
    create_bronze(filling)
    parts = max(1, history // rows)
    ends = [history * number // parts for number in range(parts + 1)]
    for number, first in enumerate(ends[:-1]):
        land(filling, number, Cut(first, ends[number + 1]))
    play(filling)
    last = last_commit(filling.lake.bronze(NAME))
    assert last is not None
    starts = [history + rows * number for number in range(batches)]
    cuts = [Cut(first, first + rows, reach=history) for first in starts]
    for number, cut in enumerate(cuts):
        land(filling, parts + number, cut)
    limit = batch_limit(filling)
    say(f"silver holds {history:,} rows of history; batches of {rows:,} rows, {limit:,} bytes")
    return Sides(spark, base, limit, cuts, last.version + 1)


if __name__ == "__main__":
    main()
