"""A large gold table of minutes, events that touch a share of it, and Tidelake's merge."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.peers.definition import run_in
from benchmarks.peers.events import START
from tidelake.columns import stamped
from tidelake.delta.access import load
from tidelake.delta.append import append, ensure_table
from tidelake.delta.log import last_commit
from tidelake.delta.merge import enable_deletion_vectors, merge
from tidelake.gold.kinds import OWN, GoldBatch, Inputs
from tidelake.runtime.gold_tables import Target, targets_of
from tidelake.runtime.held import Held
from tidelake.spark.engine import fitted, slots_of, with_settings

# Spark's own times of 96 bits have no statistics, and few readers like them.
READABLE = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
Spread = Literal["recent", "everywhere"]
_A_DAY, _USERS = 100_000, 25_000
_A_MINUTE = -(-_A_DAY // 1_440)


@dataclass
class Large:
    """Tidelake's large gold table, and how its gold hop merges a batch into it.

    Attributes:
        spark: The session.
        target: The gold table.
        size: Its rows.
        merged: Batches so far.
    """

    spark: SparkSession
    target: Target
    size: int
    merged: int = 0

    @classmethod
    def made(cls, spark: SparkSession, root: Path, size: int) -> Large:
        """Make the table, a file a day, as batches of a day leave it."""
        (root / "landing").mkdir(parents=True)
        run = run_in(spark, root)
        (target,) = targets_of(run.lake, run.pipeline)
        large = cls(spark, target, size)
        rows = spark.range(0, size, numPartitions=-(-size // _A_DAY))
        filled = stamped(
            target.kind.of_all(Inputs({OWN: _events(rows)}, lambda _: _events(rows))),
            generation="g1",
            batch=0,
        )
        ensure_table(spark, target.table, filled.schema, large._note(-1))
        # By the formula and not by its aggregate, which would be shuffled out of the order of time.
        known = {
            "window_start": _minute(),
            "window_end": _minute() + F.expr("INTERVAL 1 MINUTE"),
            "user_id": _user(),
            "events": F.lit(1),
            "total": F.lit(1),
            "_generation": F.lit("g1"),
            "_batch": F.lit(0),
        }
        columns = [
            known[field.name].cast(field.dataType).alias(field.name)
            for field in filled.schema.fields
        ]
        append(rows.select(*columns), target.table, large._note(0))
        return large

    @property
    def path(self) -> Path:
        """Where the table lies."""
        return Path(str(self.target.table.path))

    def events(self, folder: Path, share: float, spread: Spread) -> Path:
        """Write events that touch a share of the rows, one event a row, into one Parquet file.

        Args:
            folder: Where the file goes.
            share: Of the table's rows.
            spread: Whether the newest rows are touched, or rows of all days.
        """
        wanted = round(self.size * share)
        if spread == "recent":
            numbers = self.spark.range(self.size - wanted, self.size, numPartitions=1)
        else:
            step = self.size // wanted
            numbers = self.spark.range(0, wanted, numPartitions=1).select(
                (F.col("id") * step).alias("id")
            )
        with with_settings(self.spark, READABLE):
            _events(numbers).write.parquet(str(folder))
        (file,) = folder.glob("*.parquet")
        return file

    def lend(self, to: Path) -> None:
        """Write the table's rows as another loop would have left them, a file a day too."""
        rows = self.spark.read.format("delta").load(str(self.path))
        # Otherwise Spark puts small files together where it reads them.
        by_day = rows.repartitionByRange(-(-self.size // _A_DAY), "window_start")
        with with_settings(self.spark, READABLE):
            by_day.select("window_start", "user_id", "events", "total").write.format("delta").save(
                str(to)
            )

    def merge(self, file: Path) -> float:
        """Merge events as a batch of the gold hop does, and give the seconds."""
        self.merged += 1
        began = time.monotonic()
        rows = self.spark.read.parquet(str(file))
        count = rows.count()
        with fitted(self.spark, count), Held() as hold:
            inputs = Inputs({OWN: hold(rows)}, lambda _: rows)
            note = self._note(self.merged)
            batch = GoldBatch(
                inputs,
                eligible=count,
                stored=lambda _: load(self.spark, self.target.table),
                generation=note["generation"],
                number=self.merged,
                slots=slots_of(self.spark),
                hold=hold,
            )
            plan = self.target.kind.plan(batch)
            assert plan is not None
            merge(plan, self.target.table, note)
            last = last_commit(self.target.table)
            enable_deletion_vectors(self.spark, self.target.table, last)
        return time.monotonic() - began

    def metrics(self) -> dict[str, str]:
        """Give what Delta says of the last merge."""
        history = DeltaTable.forPath(self.spark, str(self.path)).history(3).collect()
        merges = [row["operationMetrics"] for row in history if row["operation"] == "MERGE"]
        return dict(merges[0]) if merges else {}

    def _note(self, batch: int) -> dict[str, object]:
        return {"pipeline": "upserts", "hop": "gold", "generation": "g1", "batch": batch}


def _minute() -> Column:
    first = F.unix_micros(F.lit(f"{START:%Y-%m-%d}T00:00:00Z").cast("timestamp"))
    minute = F.floor(F.col("id") / _A_MINUTE)
    return F.timestamp_micros((first + minute * 60_000_000).cast("bigint"))


def _user() -> Column:
    # Different for all rows of a minute: 7,919 has no factor in common with their number.
    return F.concat(F.lit("u"), (F.col("id") * 7_919) % _USERS)


def _events(numbers: DataFrame) -> DataFrame:
    return numbers.select(
        F.md5(F.col("id").cast("string")).alias("event_id"),
        _user().alias("user_id"),
        (_minute() + F.expr("INTERVAL 30 SECONDS")).alias("event_time"),
        F.lit("purchase").alias("action"),
        F.lit("p0001").alias("product_id"),
        F.lit(1).cast("decimal(18,2)").alias("value"),
    )
