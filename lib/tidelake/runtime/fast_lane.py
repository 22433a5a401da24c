"""The fast lane: alerts within milliseconds, which the tables confirm or retract later.

Real-time mode keeps no state and cannot query the tables, so the stream joins a small copy of each
key's features.
"""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidelake.bronze.records import identify, read_stream
from tidelake.columns import EXACT_TIMES, instant
from tidelake.config import Detection, FilesSource, KafkaSource
from tidelake.config.expressions import columns_in
from tidelake.config.gold_definitions import FastLane
from tidelake.delta.access import load
from tidelake.delta.append import append
from tidelake.delta.commit_metadata import SilverNote, positions
from tidelake.delta.holders import Waiting
from tidelake.delta.locks import hold
from tidelake.delta.log import CREATION, Commit, last_commit, newest_version
from tidelake.delta.merge import vacuum
from tidelake.delta.positions import BEGINNING
from tidelake.delta.store import FolderTable
from tidelake.delta.tables import Lake, Table, require_table
from tidelake.errors import NotBuiltError, UsageError
from tidelake.folders import Folder, ensure_folder, remove_tree, write_whole
from tidelake.gold.detections import EVIDENCE, RULE, features_by_key, to_fast_alerts
from tidelake.gold.kinds import OWN
from tidelake.instants import BEGINNING as FIRST_INSTANT
from tidelake.instants import back, from_micros
from tidelake.kafka.client import refuse_unreachable
from tidelake.kafka.topic_source import java_client_options
from tidelake.names import logical_name
from tidelake.runtime.failures import FOREIGN, named
from tidelake.runtime.gold_tables import up_to
from tidelake.runtime.hop import Run
from tidelake.silver.lenient_parse import lenient_parse
from tidelake.silver.stages import CONFLICTING
from tidelake.spark.engine import runs_in_process
from tidelake.visible import kind_of

VERDICTS = ("confirmed", "retracted", "open", "missed")
_EVENT, _SENT, _ALERTED = "alerted_event", "sent_at", "alerted_at"
_FEATURES = "known"
# Counts rows of the reconciled table whose rule is null; a rule's name has no space.
_NO_RULE = "without a rule"
# Old copies are deleted after this many, about an hour by default.
_CLEANED_AFTER = 24
_POLL_SECONDS = 1
# A batch may alert for a whole landing folder, and a file's text is held in memory.
_ALERTS_A_FILE = 10_000
# Maximum seconds between the starts of two streams: longer than planning a batch takes.
_MAX_DELAY = 30.0


@dataclass(frozen=True)
class Lane:
    """Streams that read the source directly and send alerts, independent of the hops.

    They join a copy of each key's features, a Delta table of which a stream reads a new version
    with its next batch. The copy has one row per key, since the stream pauses while it is read and
    broadcast.
    """

    run: Run
    detection: Detection
    fast: FastLane

    @property
    def folder(self) -> Folder:
        """The lane's folder: checkpoints, the copy of the features and alerts in files."""
        return self.run.lake.fast(self.detection.name)

    def go(self) -> None:
        """Run until the user asks to stop, which raises a KeyboardInterrupt."""
        self._refuse()
        try:
            self._prepare_folder()
            self._copy_features()
            self._run_streams()
        except FOREIGN as error:
            if self.run.stop.is_set():
                raise KeyboardInterrupt from None
            raise named(error, f"{self.run.pipeline.name}, fast lane,") from error
        finally:
            # The next run writes its own copy, and no data of a key is left behind.
            remove_tree(self.folder / _FEATURES)

    @property
    def _is_over_files(self) -> bool:
        return isinstance(self.run.pipeline.source, FilesSource)

    @property
    def _alerts(self) -> Folder:
        """Where a lane over files writes its alerts."""
        return self.folder / "alerts"

    def _prepare_folder(self) -> None:
        """Delete the checkpoints that no stream continues; over files, create the alerts' folder.

        Streams over a topic begin with the newest records. Else they would first send alerts of
        what arrived since the lane was stopped, and be refused where that is gone from the topic.
        """
        # The second are of earlier versions, in which lanes over topics and over files shared them.
        for pattern in ("topic-checkpoint-*", "checkpoint-*"):
            for checkpoint in self.folder.glob(pattern):
                remove_tree(checkpoint)
        if self._is_over_files:
            ensure_folder(self._alerts)
            # Earlier versions wrote with Spark's sink. Where its log is, some readers read only
            # the files in it.
            remove_tree(self._alerts / "_spark_metadata")

    def _copy_features(self) -> None:
        """Overwrite the copy of the features from the current tables."""
        spark, lake, detection = self.run.spark, self.run.lake, self.detection
        silver = lake.silver(self.run.pipeline.name)
        hours = load(spark, lake.gold(detection.features))
        newest = hours.agg(F.max(F.unix_micros("window_start"))).collect()[0][0]
        now = from_micros(newest) or FIRST_INSTANT
        partitions = SilverNote.of(last_commit(silver)).partitions.values()
        times = [p.max_event_time for p in partitions if p.max_event_time is not None]
        burst = detection.burst.within if detection.burst else timedelta(0)
        recent_since = back(max(times, default=FIRST_INSTANT), burst)
        rows = features_by_key(
            hours.where(F.col("window_start") >= instant(back(now, detection.lookback))),
            load(spark, silver).where(F.col("event_time") > instant(recent_since)),
            detection,
            now=now,
        )
        writer = rows.coalesce(1).write.format("delta").mode("overwrite")
        writer.save(str(self.folder / _FEATURES))
        # Not after each copy, since the streams wait meanwhile. A batch reads a copy for less than
        # an hour.
        copies = FolderTable(_FEATURES, self.folder / _FEATURES)
        if newest_version(copies) % _CLEANED_AFTER == 0:
            vacuum(spark, copies, hours=1)

    def _refuse(self) -> None:
        pipeline, features = self.run.pipeline, self.detection.features
        if not runs_in_process():
            raise UsageError(
                "a fast lane needs its own Spark session and cannot run through Spark Connect. "
                "Give the environment a master, and unset SPARK_REMOTE."
            )
        of_files = pipeline.source if isinstance(pipeline.source, FilesSource) else None
        other = of_files and of_files.format != "json"
        # The lane could miss a file, which bronze removes when it has ingested it.
        is_cleaned = of_files and of_files.is_cleaned
        unknown = self.detection.used_columns & {"is_late", "event_date"}
        not_built = {
            "with enrich": pipeline.enrich,
            "with transform": pipeline.transform,
            "over Avro": pipeline.reads_avro,
            "over files that are not JSON": other,
            "over change events": pipeline.envelope,
            "with is_late or event_date in the detection": unknown,
            "over files that bronze removes (source.clean_source)": is_cleaned,
        }
        for what, is_wanted in not_built.items():
            if is_wanted:
                raise NotBuiltError(
                    f"{pipeline.file}: a fast lane {what}", "Remove fast from the detection."
                )
        if isinstance(pipeline.source, KafkaSource):
            refuse_unreachable(pipeline.source.bootstrap)
        elif isinstance(pipeline.source, FilesSource):
            self._refuse_record_ids()
        else:
            raise UsageError(
                f"{pipeline.file}: a fast lane reads topics or files, but the source is of kind "
                f"{pipeline.source.kind}. Remove fast from the detection."
            )
        require_table(self.run.lake.gold(features), pipeline.name)

    def _refuse_record_ids(self) -> None:
        """Refuse expressions that use ``record_id``, which a stream of files cannot compute."""
        pipeline, used = self.run.pipeline, self.detection.used_columns
        if "record_id" in {field.name.lower() for field in pipeline.event.fields}:
            return
        event = pipeline.event
        tried = {"event.id": event.id, "event.time": event.time, "event.where": event.where or ""}
        tried |= {
            f"event.select.{name}": sql
            for name, sql in pipeline.selected.items()
            if name.lower() in used
        }
        found = [name for name, sql in tried.items() if sql and "record_id" in columns_in(sql)]
        if "record_id" in used:
            found.append(f"the detection {self.detection.name}")
        if found:
            raise UsageError(
                f"{pipeline.file}: a fast lane over files does not know record_id, which is in "
                f"{', '.join(found)}. Use a field of the payload instead, read a topic, or remove "
                "fast from the detection."
            )

    def _start_stream(self, number: int) -> StreamingQuery:
        # Each batch reads the newest version.
        features = self.run.spark.read.format("delta").load(str(self.folder / _FEATURES))
        alerts = to_fast_alerts(self._events(), features, self.detection)
        kind = "files" if self._is_over_files else "topic"
        trigger: dict[str, Any] = {"processingTime": "0 seconds"}
        if not self.why_not():
            trigger = {"realTime": f"{round(self.fast.refresh.total_seconds())} seconds"}
        return (
            self._writer(alerts)
            .queryName(f"{self.run.pipeline.name}-fast-{number}")
            .option("checkpointLocation", str(self.folder / f"{kind}-checkpoint-{number}"))
            .trigger(**trigger)
            .start()
        )

    def why_not(self) -> str:
        """Return why Spark's real-time mode is unavailable; empty if it is available."""
        if not isinstance(self.run.pipeline.source, KafkaSource):
            return "it needs a Kafka source"
        if "realTime" not in inspect.signature(DataStreamWriter.trigger).parameters:
            return f"it needs Spark 4.2, and this is {self.run.spark.version}"
        return ""

    def _events(self) -> DataFrame:
        """Stream the source's events from its newest record on, with lenient parsing."""
        source = self.run.pipeline.source
        if isinstance(source, KafkaSource):
            newest = {"starting": "latest", "max_offsets_per_trigger": None, "min_partitions": None}
            source = source.model_copy(update=newest)
        records = read_stream(self.run.spark, source)
        if isinstance(source, KafkaSource):
            records = identify(records, source, 0)
        else:
            # Only a micro-batch's rows can be numbered.
            records = records.withColumn("record_id", F.lit(None).cast("string"))
        records = records.withColumns(
            {
                # The arrival at the source, not the batch's start: a batch may last for minutes.
                "ingested_at": F.col("source_timestamp"),
                "ingest_date": F.to_date("source_timestamp"),
            }
        )
        return lenient_parse(records, self.run.pipeline, self.detection.used_columns)

    def _writer(self, alerts: DataFrame) -> DataStreamWriter:
        source = self.run.pipeline.source
        message = F.to_json(F.struct("*"), {**EXACT_TIMES, "ignoreNullFields": "false"})
        if isinstance(source, KafkaSource):
            key = F.concat_ws("/", *self.detection.keys)
            rows = alerts.select(key.alias("key"), message.alias("value"))
            to = {"topic": self.fast.topic, **java_client_options(source)}
            return rows.writeStream.format("kafka").outputMode("update").options(**to)
        return alerts.select(message).writeStream.foreachBatch(self._write_files)

    def _write_files(self, messages: DataFrame, batch: int) -> None:
        """Write a batch's alerts to new files, a line each, which appear when they are complete.

        A batch that was interrupted before Spark committed it is repeated, with newer features. Its
        files have new names, as the pipeline that reads them refuses a file that changed.
        """
        lines = (row[0] for row in messages.toLocalIterator(prefetchPartitions=True))
        while part := list(islice(lines, _ALERTS_A_FILE)):
            file = self._alerts / f"part-{batch}-{uuid4().hex}.jsonl"
            write_whole(file, "".join(f"{line}\n" for line in part))

    def _run_streams(self) -> None:
        """Start the streams, staggered; report their batches and refresh the features until asked.

        A stream pauses between two batches, while it plans the next one. So two streams run, whose
        batches start at different times.
        """
        say, why_not, source = self.run.progress.say, self.why_not(), self.run.pipeline.source
        target = f"files under {self._alerts}"
        if isinstance(source, KafkaSource):
            target = f"topic {self.fast.topic} at {source.bootstrap}"
        if why_not:
            say(f"Real-time mode is unavailable ({why_not}); using short micro-batches")
        streams = 1 if why_not else self.fast.streams
        interval = self.fast.refresh.total_seconds() / 2
        delay = min(interval, _MAX_DELAY)
        queries, reported = [self._start_stream(0)], [-1] * streams
        began = refreshed = time.monotonic()
        say(f"Fast lane of {self.detection.name}: alerts go to {target}")
        try:
            while not self.run.stop.is_set():
                if len(queries) < streams and time.monotonic() - began >= delay:
                    queries.append(self._start_stream(len(queries)))
                for number, query in enumerate(queries):
                    query.awaitTermination(_POLL_SECONDS)
                    reported[number] = self._report(query, reported[number])
                if time.monotonic() - refreshed >= interval:
                    try:
                        self._copy_features()
                    except FOREIGN as error:
                        if not self.run.stop.is_set():
                            why = kind_of(error)
                            say(f"refreshing the features failed, the old copy stays: {why}")
                    refreshed = time.monotonic()
            raise KeyboardInterrupt
        finally:
            for query in queries:
                query.stop()

    def _report(self, query: StreamingQuery, reported: int) -> int:
        """Report a query's newest batch if it is newer than ``reported``; return its number."""
        progress = query.lastProgress
        if progress is None or progress["batchId"] <= reported:
            return reported
        if progress["numInputRows"]:
            planning = progress["durationMs"].get("queryPlanning", 0) / 1000
            self.run.progress.say(
                f"fast    batch {progress['batchId']:4}  {progress['numInputRows']:>9,} rows  "
                f"planned in {planning:.1f} s"
            )
        return int(progress["batchId"])


class Reconciled(NamedTuple):
    """The reconciled table, with one row per alert, and its counts by rule and verdict."""

    table: str
    counts: dict[str, dict[str, int]]


def reconcile(run: Run, detection: Detection, fast: FastLane) -> Reconciled:
    """Compare the fast lane's alerts with the exact alerts, and overwrite the reconciled table.

    ``confirmed``: the exact table has the alert too. ``retracted``: its event was processed without
    an exact alert, or quarantined, or late, in batches that are committed. ``open``: its event is
    not processed yet. ``missed``: only the exact table has the alert. Later events may change a
    verdict.
    """
    lake = run.lake
    exact_table, sent_table = lake.gold(detection.name), lake.silver(fast.pipeline)
    for table, pipeline in ((exact_table, run.pipeline.name), (sent_table, fast.pipeline)):
        require_table(table, pipeline)
    sent = _first_alerts(load(run.spark, sent_table), detection, fast)
    exact = load(run.spark, exact_table)
    judged = _with_verdicts(sent, exact, _decided(run, exact_table), detection)
    reconciled = reconciled_table(lake, detection)
    # Maintenance compacts the table, and another reconciliation overwrites it.
    waits = Waiting(run.progress.say_once, run.stop)
    with hold(lake.lock_of(reconciled), reconciled.name, waits=waits, optional=True):
        append(judged, reconciled, {"reconciled": detection.name}, replaces=True)
    return Reconciled(reconciled.name, _count_verdicts(load(run.spark, reconciled)))


def _count_verdicts(judged: DataFrame) -> dict[str, dict[str, int]]:
    # Anyone may write to the topic: its pipeline may accept records without a rule.
    rule = F.coalesce(RULE, F.lit(_NO_RULE)).alias(RULE)
    counts: dict[str, dict[str, int]] = {}
    for name, verdict, count in sorted(judged.groupBy(rule, "verdict").count().collect()):
        counts.setdefault(name, dict.fromkeys(VERDICTS, 0))[verdict] = count
    return counts


def reconciled_table(lake: Lake, detection: Detection) -> Table:
    """Return the table of a detection's judged alerts, which :func:`reconcile` overwrites."""
    return lake.table(f"{lake.gold(detection.name).name}__reconciled")


def _first_alerts(sent: DataFrame, detection: Detection, fast: FastLane) -> DataFrame:
    """Return the first alert of each event and rule; a UsageError if columns are missing."""
    needed = (RULE, _EVENT, EVIDENCE, _SENT, _ALERTED, *detection.keys)
    missing = [name for name in needed if name not in sent.columns]
    if missing:
        raise UsageError(
            f"{logical_name('silver', fast.pipeline)} has no column {', '.join(missing)}: name it "
            f"under event.select of the pipeline {fast.pipeline}"
        )
    # The order of the fields decides which alert is the first.
    names = {"event_time": "_sent_time", EVIDENCE: "fast_evidence", _SENT: _SENT}
    names |= {key: f"_sent_{key}" for key in detection.keys}
    alert = [F.col(name).alias(alias) for name, alias in names.items()]
    first = F.min(F.struct(_ALERTED, "record_id", *alert)).alias("_first")
    alerts = sent.groupBy(F.col(_EVENT).alias("event_id"), RULE).agg(first)
    return alerts.select("event_id", RULE, "_first.*")


def _decided(run: Run, exact: Table) -> DataFrame:
    """Return the ids of events that gold has processed, or that are quarantined or late."""
    # Before the side tables are read: their rows of later batches do not count.
    closed = last_commit(run.lake.silver(run.pipeline.name))
    tables = run.lake.hop_inputs(run.pipeline, "gold")
    reached = positions(last_commit(exact))
    until = {key: reached.get(key, BEGINNING) for key in tables}
    ids = up_to(run.spark, tables, until)(OWN).select("event_id")
    name = run.pipeline.name
    for refused in (run.lake.quarantine(name), run.lake.late(name)):
        if refused.exists:
            ids = ids.unionByName(_refused_ids(load(run.spark, refused), closed))
    return ids.distinct().withColumn("_decided", F.lit(True))


def _refused_ids(side: DataFrame, closed: Commit | None) -> DataFrame:
    """Return the event ids of quarantine or late up to the batch of ``closed``, silver's commit.

    A conflicting duplicate decides nothing: the event was accepted before, with another payload,
    and gold may not have processed it yet.
    """
    # As `in_closed_batch` of the ledger, which the runtime must not import: rows of no batch were
    # inserted by another writer.
    generation, batch = (closed.generation, closed.batch) if closed else ("", CREATION)
    is_open = (F.col("_generation") == generation) & (F.col("_batch") > batch)
    kept = side.where(~F.coalesce(is_open, F.lit(False)))
    if "stage" in side.columns:
        kept = kept.where(~F.col("stage").eqNullSafe(CONFLICTING))
    return kept.select("event_id")


def _with_verdicts(
    sent: DataFrame, exact: DataFrame, decided: DataFrame, detection: Detection
) -> DataFrame:
    stored = exact.select("event_id", RULE, "event_time", *detection.keys, EVIDENCE)
    both = sent.withColumn("_fast", F.lit(True)).join(
        stored.withColumn("_exact", F.lit(True)), on=["event_id", RULE], how="full"
    )
    both = both.join(decided, on="event_id", how="left")
    verdict = (
        F.when(F.col("_exact") & F.col("_fast"), "confirmed")
        .when(F.col("_exact"), "missed")
        .when(F.col("_decided"), "retracted")
        .otherwise("open")
    )
    return both.select(
        verdict.alias("verdict"),
        RULE,
        "event_id",
        F.coalesce("event_time", "_sent_time").alias("event_time"),
        *[F.coalesce(key, f"_sent_{key}").alias(key) for key in detection.keys],
        EVIDENCE,
        "fast_evidence",
        _SENT,
        _ALERTED,
    )
