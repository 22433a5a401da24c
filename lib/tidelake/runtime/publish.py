"""Publish the changes of gold tables to Kafka topics, one table version after another.

The version's commit comes first, the records second, the position third. If a run dies in between,
the next one publishes the same versions again, from the table: with the same keys, values and
headers, and in the same order for each key.

Spark's Kafka sink sends a version in one job, which ends when the brokers have all of its records.
So the records of two versions never mix, and no row passes through Python.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructType

from tidelake.columns import EXACT_TIMES
from tidelake.config import KafkaSource
from tidelake.config.table_settings import Publish
from tidelake.delta.access import changed_rows, load, load_old
from tidelake.delta.log import Commit, last_commit, newest_version
from tidelake.delta.positions import (
    TableChange,
    TopicPosition,
    published_to,
    recorded_at,
    unpublished,
)
from tidelake.delta.tables import Table
from tidelake.errors import RefusedError, SourceError, TidelakeError, UnpublishedError
from tidelake.kafka.client import may_share_cluster, refuse_unreachable
from tidelake.kafka.topic_source import (
    Topic,
    asks_brokers,
    ensure_topic,
    has_records,
    java_client_options,
)
from tidelake.names import quoted
from tidelake.runtime.failures import FOREIGN, error_text, named
from tidelake.runtime.gold_tables import targets_of
from tidelake.runtime.hop import Run
from tidelake.spark.engine import fitted

# The position is committed after this many versions, so that less is repeated after a crash.
_RECORDED_EVERY = 20
_RENEWED_AFTER = timedelta(days=1)
# How long a continuous run waits after a refusal, and at its end for the running step.
_REFUSED_SECONDS = 300
_END_SECONDS = 1
_JSON = {**EXACT_TIMES, "ignoreNullFields": "false"}
_KEY, _VALUE, _BEFORE, _AFTER, _OP = "key", "value", "before", "after", "op"
_NEXT_RUN = "The tables are committed, and the next run publishes what is left."
# What Delta says of a version whose files or changes are gone, beside a missing file.
_GONE = (
    "DELTA_MISSING_CHANGE_DATA",
    "DELTA_VERSION_NOT_FOUND",
)


def publish_gold(run: Run) -> None:
    """Publish what the pipeline's gold tables have not published yet.

    A table that fails stops no other.

    Raises:
        UnpublishedError: A broker does not answer, or does not take the records.
        RefusedError: Changes are gone, or a topic does not belong to its table.
    """
    failures = list(_failures(run).values())
    if len(failures) > 1:
        is_refused = any(isinstance(failure, RefusedError) for failure in failures)
        kind = RefusedError if is_refused else UnpublishedError
        raise kind("\n".join(map(str, failures))) from failures[0]
    if failures:
        raise failures[0]


def _failures(run: Run, *, but: Collection[str] = ()) -> dict[str, TidelakeError]:
    """Publish all tables except those named ``but``; return what failed, by table."""
    found: dict[str, TidelakeError] = {}
    for target in targets_of(run.lake, run.pipeline):
        name = target.table.name
        to = run.published.get(name)
        if to is not None and name not in but:
            try:
                _publish(run, target.table, target.kind.identity, to)
            except TidelakeError as error:
                found[name] = error
    return found


class Publishing:
    """Publishes concurrently with the hops of a continuous run.

    Failures are retried at the next step, refusals after five minutes. Reports when the set of
    failures changes, and on recovery.
    """

    def __init__(self, run: Run) -> None:
        """Publish nothing yet. ``run`` has a session and a stop event that no one else has."""
        self._run = run
        self._failed: dict[str, TidelakeError] = {}
        self._refused_at: dict[str, float] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._begun: Future[None] | None = None

    def begin_step(self) -> None:
        """Begin a step in the background, unless the last one is still running.

        Raises the unexpected error of the last one, if it had one.
        """
        if self._begun is not None:
            if not self._begun.done():
                return
            self._begun.result()
        self._begun = self._thread.submit(self.step)

    def end(self) -> None:
        """Interrupt the running step, whose producer may wait for minutes, and wait for its end.

        What was not sent is sent by the next run.
        """
        self._run.stop.set()
        while self._begun is not None and wait([self._begun], timeout=_END_SECONDS).not_done:
            self._run.spark.interruptAll()
        self._thread.shutdown()

    def step(self) -> None:
        """Publish the versions that wait, and report changes of the failures."""
        now = time.monotonic()
        resting = {name: at for name, at in self._refused_at.items() if now - at < _REFUSED_SECONDS}
        failed = {name: self._failed[name] for name in resting}
        failed |= _failures(self._run, but=resting)
        self._refused_at = {
            name: resting.get(name, now)
            for name, error in failed.items()
            if isinstance(error, RefusedError)
        }
        if failed and _kinds(failed) != _kinds(self._failed):
            reasons = "\n".join(map(str, failed.values()))
            self._run.progress.say(f"publishing failed and will be retried: {reasons}")
        elif self._failed and not failed:
            self._run.progress.say("publishing resumed")
        self._failed = failed


def _kinds(failed: Mapping[str, TidelakeError]) -> dict[str, type[TidelakeError]]:
    return {name: type(error) for name, error in failed.items()}


class _SharedTopicError(RefusedError):
    """The topic is another table's, and must not be deleted."""


def _publish(run: Run, table: Table, key: Sequence[str], to: Publish) -> None:
    place = f"{run.pipeline.name}, publishing {table.name} to topic {to.topic}"
    try:
        _Publication(run, table, tuple(key), to.client).go()
    except RefusedError as error:
        remedy = _remedy(run, to, is_own=not isinstance(error, _SharedTopicError))
        raise RefusedError(f"{place} is refused: {error}. {remedy}") from error
    except SourceError as error:
        raise UnpublishedError(f"{place} stopped: {error}\n{_NEXT_RUN}") from error
    except FOREIGN as error:
        if run.stop.is_set():
            raise
        gone = (
            f"the files or changes of a version that was not published are gone. {_remedy(run, to)}"
        )
        if any(words in error_text(error) for words in _GONE):
            raise RefusedError(f"{place}: {gone}") from error
        found = named(error, place, gone=gone, retry=_NEXT_RUN)
        if isinstance(found, RefusedError):
            raise found from error
        raise UnpublishedError(str(found)) from error


def _remedy(run: Run, to: Publish, *, is_own: bool = True) -> str:
    # Where brokers are not asked, a topic of the same name is not known to be another one.
    may_delete = is_own and asks_brokers(run.spark, to.client)
    ways = "another name, or delete the topic" if may_delete else "another name"
    return (
        f"Give the table an empty topic: {ways}. It gets all rows of the table, then each change."
    )


@dataclass(frozen=True)
class _Publication:
    """A table, the columns of its key, and its topic."""

    run: Run
    table: Table
    key: tuple[str, ...]
    to: KafkaSource

    @property
    def topic(self) -> str:
        return str(self.to.topic)

    def go(self) -> None:
        """Publish the versions after the table's position."""
        reached, began = published_to(self.table), time.monotonic()
        # Before `_waits` reads the log: a batch may be committed meanwhile.
        last = last_commit(self.table)
        if reached is not None and not self._waits(reached):
            self._renew(reached, last)
            return
        refuse_unreachable(self.to.bootstrap, key="publish.bootstrap")
        reached = self._joined(reached, ensure_topic(self.run.spark, self.to, self.topic))
        first = reached.version if reached.begun else reached.version + 1
        if reached.begun:
            self._send_all(reached.version)
            reached = self._record(reached.version, reached)
        changes = unpublished(self.table, reached.version)
        for number, change in enumerate(changes, start=1):
            if self.run.stop.is_set():
                raise KeyboardInterrupt
            self._send_change(change)
            if number % _RECORDED_EVERY == 0 or number == len(changes):
                reached = self._record(change.version, reached)
        self.run.progress.say(
            f"publish {self.table.name}, versions {first} to {reached.version}, "
            f"to topic {self.topic} in {time.monotonic() - began:.1f} s"
        )

    def _waits(self, reached: TopicPosition) -> bool:
        """Return whether there may be something to publish; if not, the broker is not asked."""
        if reached.begun or reached.topic != self.topic:
            return True
        # Changes that are gone do not matter if the topic was recreated.
        try:
            return bool(unpublished(self.table, reached.version))
        except RefusedError:
            return True

    def _renew(self, reached: TopicPosition, last: Commit | None) -> None:
        """Record a position again if it is old: Delta cleans commits up after 30 days.

        A table may get batches for months that change none of its rows. Nothing up to its commit
        ``last`` waits to be published.
        """
        at = recorded_at(self.table)
        is_old = at is not None and datetime.now(UTC) - at > _RENEWED_AFTER
        if is_old and last is not None and last.version > reached.version:
            self._record(last.version, reached)

    def _joined(self, reached: TopicPosition | None, topic: Topic | None) -> TopicPosition:
        """Return the table's position in its topic; begin one in a topic that is new to it.

        Raises:
            RefusedError: The topic has records that are not the table's, or of another key; or
                another table is published to it.
        """
        topic_id = "" if topic is None else topic.id
        place = self.topic, topic_id, self.to.bootstrap
        if reached is not None and reached.is_in(*place):
            if reached.key != self.key:
                raise RefusedError(
                    f"its records have the key {', '.join(reached.key)}, and the table now "
                    f"has the key {', '.join(self.key)}"
                )
            # The id may not have been known before.
            known = topic_id or reached.topic_id
            return replace(reached, topic_id=known, bootstrap=self.to.bootstrap)
        elsewhere = ""
        if reached is not None and reached.topic == self.topic:
            if topic_id and reached.topic_id:
                told = f"publish topic {self.topic} was recreated"
                if not may_share_cluster(reached.bootstrap, self.to.bootstrap):
                    told = f"publish topic {self.topic} is another topic than before"
                self.run.progress.say(told)
            else:
                elsewhere = f" at {self.to.bootstrap}, only at {reached.bootstrap}"
        if topic is None:
            is_taken = has_records(self.run.spark, self.to, self.topic)
        else:
            is_taken = not topic.is_empty
        if is_taken:
            raise RefusedError(
                f"the topic has records already, and {self.table.name} has not published to it"
                f"{elsewhere}"
            )
        self._refuse_shared(*place)
        begun = TopicPosition(
            *(self.topic, topic_id, self.key, newest_version(self.table)),
            begun=True,
            bootstrap=self.to.bootstrap,
        )
        # First, or the records of a run that dies would make the topic another table's.
        self._save(begun)
        return begun

    def _refuse_shared(self, *place: str) -> None:
        """Refuse the topic of another table, which is empty while that table has no row."""
        for other in self.run.lake.existing():
            theirs = published_to(other) if other.name.startswith("gold.") else None
            if other != self.table and theirs is not None and theirs.is_in(*place):
                raise _SharedTopicError(f"{other.name} is published to the topic")

    def _record(self, version: int, reached: TopicPosition) -> TopicPosition:
        position = replace(reached, version=version, begun=False)
        self._save(position)
        return position

    def _save(self, position: TopicPosition) -> None:
        rows = load(self.run.spark, self.table).limit(0)
        self.table.save(rows, position.options(self.table), "append", "")

    def _send_all(self, version: int) -> None:
        """Send all rows of a version, with which a topic begins."""
        closing = last_commit(self.table, up_to=version)
        assert closing is not None
        head = RecordHead(self.table.name, closing.generation, closing.batch, version)
        rows = _sided(load_old(self.run.spark, self.table, version), self.key, _AFTER)
        self._send(rows.withColumn(_BEFORE, F.lit(None).cast("string")), head)

    def _send_change(self, change: TableChange) -> None:
        """Send the rows that differ between a version and the one before."""
        spark = self.run.spark
        head = RecordHead(self.table.name, change.generation, change.batch, change.version)
        with fitted(spark, change.rows):
            self._send(differing(*changed_rows(spark, self.table, change), self.key), head)

    def _send(self, rows: DataFrame, head: RecordHead) -> None:
        """Send records, and wait until the brokers have all of them."""
        options = {
            **java_client_options(self.to),
            "kafka.acks": "all",
            "kafka.enable.idempotence": "true",
            "topic": self.topic,
        }
        writer = to_records(rows, head).write.format("kafka")
        writer.options(**options).save()


class RecordHead(NamedTuple):
    """The fields that all records of a table version have in common."""

    table: str
    generation: str
    batch: int
    version: int


def differing(before: DataFrame, after: DataFrame, key: Sequence[str]) -> DataFrame:
    """Pair the rows before and after a version by key, and keep the pairs that differ.

    Internal columns, whose names begin with an underscore, do not count.

    Returns:
        ``key``, and ``before`` and ``after``, each null where the table had no such row; as JSON.
    """
    sides = _sided(before, key, _BEFORE).unionByName(
        _sided(after, key, _AFTER), allowMissingColumns=True
    )
    pairs = sides.groupBy(_KEY).agg(*[F.max(side).alias(side) for side in (_BEFORE, _AFTER)])
    return pairs.where(~F.col(_BEFORE).eqNullSafe(F.col(_AFTER)))


def to_records(rows: DataFrame, head: RecordHead) -> DataFrame:
    """Return the records of a version's rows: key, value and headers."""
    op = F.when(F.col(_AFTER).isNull(), "delete").otherwise("upsert")
    begin = json.dumps(head._asdict(), separators=(",", ":")).removesuffix("}")
    parts = [F.lit(f'{begin},"op":"'), op]
    for side in (_BEFORE, _AFTER):
        comma = '",' if side == _BEFORE else ","
        parts += [F.lit(f'{comma}"{side}":'), F.coalesce(side, F.lit("null"))]
    named_texts = {"table": F.lit(head.table), "version": F.lit(str(head.version)), _OP: op}
    headers = [
        F.struct(F.lit(name).alias("key"), F.encode(text, "UTF-8").alias("value"))
        for name, text in named_texts.items()
    ]
    return rows.select(
        _KEY, F.concat(*parts, F.lit("}")).alias(_VALUE), F.array(*headers).alias("headers")
    )


def _sided(rows: DataFrame, key: Sequence[str], side: str) -> DataFrame:
    """Return the key and the visible columns of rows, each as JSON."""
    visible = [name for name in rows.columns if not name.startswith("_")]
    return rows.select(_json(rows, key).alias(_KEY), _json(rows, visible).alias(side))


def _json(rows: DataFrame, names: Sequence[str]) -> Column:
    exact = [
        F.col(quoted(name)).cast(_exact(rows.schema[name].dataType)).alias(name) for name in names
    ]
    return F.to_json(F.struct(*exact), _JSON)


def _exact(kind: DataType) -> DataType:
    """Return a type with text for decimals, which readers of JSON numbers would round."""
    if isinstance(kind, DecimalType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(_exact(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_exact(kind.keyType), _exact(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        exact = StructType()
        for field in kind.fields:
            exact.add(field.name, _exact(field.dataType), field.nullable)
        return exact
    return kind
