"""Stream alerts from the source at once, beside the hops."""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidelake.config import Detection, FilesSource, KafkaSource
from tidelake.config.gold import FastLane
from tidelake.errors import NotBuiltError, UsageError
from tidelake.folders import Folder, remove_tree
from tidelake.gold.fast import to_fast_alerts
from tidelake.kafka.reach import refuse_unreachable
from tidelake.kafka.source import client_options
from tidelake.runtime.failures import FOREIGN, named
from tidelake.runtime.fast.knowledge import Knowledge
from tidelake.runtime.hop import Run
from tidelake.silver.glance import glance
from tidelake.sources import read_stream
from tidelake.spark.engine import runs_until_stopped

_POLL_SECONDS = 1
# Longer than it takes to plan a batch, on any machine that could keep up.
_APART = timedelta(seconds=30)


@dataclass(frozen=True)
class Lane:
    """One stream of alerts.

    Attributes:
        run: What the command works with.
        detection: The definition.
        fast: Its fast lane.
    """

    run: Run
    detection: Detection
    fast: FastLane

    @property
    def folder(self) -> Folder:
        """What the lane keeps."""
        return self.run.lake.fast(self.detection.name)

    @property
    def target(self) -> str:
        """Where alerts go, in words."""
        source = self.run.pipeline.source
        if isinstance(source, KafkaSource):
            return f"topic {self.fast.topic} at {source.bootstrap}"
        return f"files under {self.folder / 'alerts'}"

    def go(self) -> None:
        """Run until asked to stop.

        Raises:
            UsageError: There is nothing to look back at yet, or the source is of another kind.
            NotBuiltError: The rules need what a fast lane does not have.
            KeyboardInterrupt: It was asked to stop.
            TidelakeError: Names what stopped it.
        """
        knowledge = Knowledge(self.run, self.detection, self.folder / "known")
        self._refuse(knowledge)
        try:
            knowledge.refresh()
            with knowledge.kept_fresh(self.fast.refresh / 2):
                self._follow(knowledge)
        except FOREIGN as error:
            if self.run.stop.is_set():
                raise KeyboardInterrupt from None
            raise self._named(error) from error
        finally:
            # The next one begins with its own; nothing of a key stays behind.
            remove_tree(knowledge.path)

    def _refuse(self, knowledge: Knowledge) -> None:
        pipeline = self.run.pipeline
        if not runs_until_stopped():
            raise UsageError(
                "a fast lane needs a session of its own, not one through Spark Connect. "
                "Give the environment a master, and unset SPARK_REMOTE."
            )
        if pipeline.enrich:
            raise NotBuiltError(f"{pipeline.file}: a fast lane beside enrich")
        if pipeline.reads_avro:
            raise NotBuiltError(f"{pipeline.file}: a fast lane over Avro")
        if isinstance(pipeline.source, KafkaSource):
            refuse_unreachable(pipeline.source.bootstrap)
        elif not isinstance(pipeline.source, FilesSource):
            raise UsageError(
                f"a fast lane follows topics or files, and the source of {pipeline.name} is "
                f"{pipeline.source.kind}"
            )
        knowledge.refuse_missing()

    def _started(self, knowledge: Knowledge, number: int) -> StreamingQuery:
        alerts = to_fast_alerts(self._events(), knowledge.read(), self.detection)
        seconds = round(self.fast.refresh.total_seconds())
        trigger: dict[str, Any] = {"realTime": f"{seconds} seconds"}
        if self.why_not():
            trigger = {"processingTime": "0 seconds"}
        return (
            self._into(alerts)
            .queryName(f"{self.run.pipeline.name}-fast-{number}")
            .option("checkpointLocation", str(self.folder / f"checkpoint-{number}"))
            .trigger(**trigger)
            .start()
        )

    def why_not(self) -> str:
        """Say why Spark's real-time mode is not to be had; empty where it is."""
        if not isinstance(self.run.pipeline.source, KafkaSource):
            return "Real-time mode needs Kafka"
        if "realTime" not in inspect.signature(DataStreamWriter.trigger).parameters:
            return f"Real-time mode needs Spark 4.2, and this is {self.run.spark.version}"
        return ""

    def _events(self) -> DataFrame:
        """Read the source loosely; it begins with the newest."""
        source = self.run.pipeline.source
        if isinstance(source, KafkaSource):
            newest = {"starting": "latest", "max_offsets_per_trigger": None, "min_partitions": None}
            source = source.model_copy(update=newest)
        records = read_stream(self.run.spark, source).withColumns(
            {
                "record_id": F.lit(None).cast("string"),
                # When it arrived at the source: a batch may last for minutes.
                "ingested_at": F.col("source_timestamp"),
                "ingest_date": F.to_date("source_timestamp"),
            }
        )
        events = glance(records, self.run.pipeline, self.detection.looks_at)
        return events.withColumnRenamed("ingested_at", "sent_at")

    def _into(self, alerts: DataFrame) -> DataStreamWriter:
        source = self.run.pipeline.source
        message = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
        if isinstance(source, KafkaSource):
            key = F.concat_ws("/", *self.detection.keys)
            rows = alerts.select(key.alias("key"), message.alias("value"))
            to = {"topic": self.fast.topic, **client_options(source)}
            return rows.writeStream.format("kafka").outputMode("update").options(**to)
        rows = alerts.select(message.alias("value"))
        return rows.writeStream.format("text").option("path", str(self.folder / "alerts"))

    def _follow(self, knowledge: Knowledge) -> None:
        """Start the streams one after the other, wait, and tell what each batch took.

        A stream stands still between two batches, while it makes the plan of the next. So there
        are two, whose batches begin at different times: the other one goes on.
        """
        say, why_not = self.run.progress.say, self.why_not()
        if why_not:
            say(f"{why_not}: short micro-batches instead")
        streams = 1 if why_not else self.fast.streams
        apart = min(self.fast.refresh / 2, _APART).total_seconds()
        queries, told = [self._started(knowledge, 0)], [-1] * streams
        due = time.monotonic() + apart
        say(f"Fast lane of {self.detection.name}: alerts go to {self.target}")
        try:
            while not self.run.stop.is_set():
                if len(queries) < streams and time.monotonic() >= due:
                    queries.append(self._started(knowledge, len(queries)))
                for number, query in enumerate(queries):
                    query.awaitTermination(_POLL_SECONDS)
                    told[number] = self._tell(query, told[number])
            raise KeyboardInterrupt
        except StreamingQueryException as error:
            raise self._named(error) from error
        finally:
            for query in queries:
                query.stop()

    def _tell(self, query: StreamingQuery, told: int) -> int:
        """Say what the newest batch took, if it is another than the one that was told."""
        progress = query.lastProgress
        if progress is None or progress["batchId"] <= told:
            return told
        if progress["numInputRows"]:
            still = progress["durationMs"].get("queryPlanning", 0) / 1000
            self.run.progress.say(
                f"fast    batch {progress['batchId']:4}  {progress['numInputRows']:>9,} rows  "
                f"planned in {still:.1f} s"
            )
        return int(progress["batchId"])

    def _named(self, error: Exception) -> Exception:
        return named(error, f"{self.run.pipeline.name}, fast lane,")
