"""The two sides of ``stateful.py``: Tidelake's gold hop, and Spark's stateful operators."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, Protocol

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.stateful_data import GAP, MINUTES, NAME, SESSIONS, context
from tidelake.delta.tables import Lake
from tidelake.folders import Folder
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.gold import GoldHop
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.engine import fitted
from tidelake.spark.tuning import STATE_SETTINGS

_NOW = parse_trigger(AVAILABLE_NOW).options
_MATERIALIZE = "spark.databricks.delta.merge.materializeSource"


class Side(Protocol):
    """Fills a table of minutes and one of sessions from silver."""

    @property
    def minutes(self) -> str:
        """The table of minutes."""

    @property
    def sessions(self) -> str:
        """The table of sessions."""

    @property
    def checkpoints(self) -> Folder:
        """The folder of the checkpoints."""

    def start(self, max_bytes: str) -> list[StreamingQuery]:
        """Start on the part of silver not yet in the tables, with a limit of bytes a batch."""


@dataclass(frozen=True)
class Tables:
    """Tidelake's gold hop: one query merges partial aggregates into both tables."""

    spark: SparkSession
    lake: Lake
    minutes: str = MINUTES
    sessions: str = SESSIONS

    @property
    def checkpoints(self) -> Folder:
        """The checkpoint folder of the hop."""
        return self.lake.checkpoints(NAME, "gold")

    def start(self, max_bytes: str) -> list[StreamingQuery]:
        """Start the hop, including its checks."""
        landing = self.lake.root / "landing"
        landing.mkdir(exist_ok=True)
        return [GoldHop(context(self.spark, self.lake.root, landing, max_bytes)).start(_NOW)]


@dataclass(frozen=True)
class Operators:
    """Spark's operators: minutes in update mode with MERGE, sessions in append mode to Delta.

    The MERGE is Tidelake's: bounded by literals, source checkpointed, small batches interpreted.
    Only the place of the state differs.
    """

    spark: SparkSession
    lake: Lake
    delay: str

    @property
    def minutes(self) -> str:
        """The table of minutes, one for each delay."""
        return f"minutes_{self._suffix}"

    @property
    def sessions(self) -> str:
        """The table of sessions, one for each delay."""
        return f"sessions_{self._suffix}"

    @property
    def checkpoints(self) -> Folder:
        """The checkpoint folder of both queries."""
        return self.lake.root / "checkpoints" / self._suffix

    @property
    def _suffix(self) -> str:
        return f"spark_{self.delay.replace(' ', '_')}"

    def start(self, max_bytes: str) -> list[StreamingQuery]:
        """Start both queries, which share the cores."""
        for key, value in STATE_SETTINGS.items():
            if "noDataMicroBatches" not in key:
                self.spark.conf.set(key, value)
        events = (
            self.spark.readStream.format("delta")
            .option("startingVersion", 0)
            .option("maxBytesPerTrigger", max_bytes)
            .load(str(self.lake.silver(NAME).path))
            .select("user_id", "event_time", "action", "value")
            .withWatermark("event_time", self.delay)
        )
        counts = [F.count("*").alias("events"), F.sum("value").alias("total")]
        minutes = events.groupBy(F.window("event_time", "1 minute"), "user_id").agg(*counts)
        minutes = minutes.select(F.col("window.start").alias("window_start"), *minutes.columns[1:])
        last = F.max_by("action", "event_time").alias("last_action")
        grouped = events.groupBy(F.session_window("event_time", GAP).alias("session"), "user_id")
        sessions = grouped.agg(*counts, last)
        sessions = sessions.select(
            F.col("session.start").alias("session_start"),
            (F.col("session.end") - F.expr(f"INTERVAL {GAP}")).alias("session_end"),
            *sessions.columns[1:],
        )
        for name, rows in ((self.minutes, minutes), (self.sessions, sessions)):
            self._create(name, rows)
        merged = minutes.writeStream.outputMode("update").foreachBatch(self._merge)
        appended = sessions.writeStream.outputMode("append").format("delta")
        return [
            merged.option("checkpointLocation", str(self.checkpoints / "minutes"))
            .trigger(**_NOW)
            .start(),
            appended.option("checkpointLocation", str(self.checkpoints / "sessions"))
            .trigger(**_NOW)
            .start(str(self.lake.gold(self.sessions).path)),
        ]

    def _create(self, name: str, rows: DataFrame) -> None:
        table = self.lake.gold(name)
        if not table.exists:
            none = self.spark.createDataFrame([], rows.schema)
            writer = none.write.format("delta").option("delta.checkpointInterval", "50")
            writer.save(str(table.path))

    def _merge(self, rows: DataFrame, batch: int) -> None:
        spark = rows.sparkSession
        with CheckpointedFrames() as frames:
            kept = frames.checkpoint(rows)
            start = F.unix_micros("window_start")
            low, high, count = kept.agg(F.min(start), F.max(start), F.count("*")).collect()[0]
            if not count:
                return
            on = (
                "t.window_start = s.window_start AND t.user_id <=> s.user_id "
                f"AND t.window_start BETWEEN timestamp_micros({low}) AND timestamp_micros({high})"
            )
            spark.conf.set(_MATERIALIZE, "none")
            with fitted(spark, count):
                table = DeltaTable.forPath(spark, str(self.lake.gold(self.minutes).path))
                merge = table.alias("t").merge(kept.alias("s"), on)
                merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


class Played(NamedTuple):
    """Measurements of one run of a side to the end of silver.

    Attributes:
        seconds: Seconds of the whole run.
        first: Seconds until each query had committed a batch with rows.
        batches: Median seconds of the later batches with rows, by query.
        empty: Seconds of batches without rows.
        dropped: Rows that Spark reports as dropped by the watermark, by query.
        watermark: The last watermark that Spark reports; None if it has none.
    """

    seconds: float
    first: float
    batches: list[float]
    empty: list[float]
    dropped: list[int]
    watermark: str | None


def play(side: Side, max_bytes: str) -> Played:
    """Run a side until it has read all of silver."""
    began = time.monotonic()
    queries = side.start(max_bytes)
    waiting = list(queries)
    while waiting:
        waiting = [query for query in waiting if query.isActive and not _has_closed(query)]
        time.sleep(0.005)
    first = time.monotonic() - began
    for query in queries:
        query.awaitTermination()
    seconds = time.monotonic() - began
    progress = [query.recentProgress for query in queries]
    filled = [[batch for batch in batches if batch.numInputRows] for batches in progress]
    operators = [
        [state for batch in batches for state in batch.stateOperators] for batches in progress
    ]
    watermarks = [
        batch.eventTime["watermark"] for batch in progress[-1] if "watermark" in batch.eventTime
    ]
    return Played(
        seconds=seconds,
        first=first,
        batches=[median(map(_seconds, batches[1:] or batches)) for batches in filled],
        empty=[
            _seconds(batch) for batches in progress for batch in batches if not batch.numInputRows
        ],
        dropped=[sum(state.numRowsDroppedByWatermark for state in states) for states in operators],
        watermark=max(watermarks, default=None),
    )


def _has_closed(query: StreamingQuery) -> bool:
    last = query.lastProgress
    return last is not None and last.numInputRows > 0


def _seconds(progress: StreamingQueryProgress) -> float:
    return float(progress.durationMs["triggerExecution"]) / 1_000
