"""A Kafka broker of its own for tests, and pipelines that follow its topics."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from pyspark.sql import SparkSession

from tests.caretaker import clearing_up
from tests.running import run
from tidelake.config import Environment, Pipeline, load_environment, load_pipeline
from tidelake.delta.log import commits
from tidelake.delta.tables import HOPS, Hop, Lake
from tidelake.kafka.broker import Broker, kill, up
from tidelake.ledger.query import ask
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import parse_trigger

_SECONDS = 30
_LONGEST = 120
_CLICKS: dict[str, Any] = {
    "name": "clicks",
    "event": {
        "schema": "event_id STRING, user_id STRING, event_time TIMESTAMP, action STRING",
        "id": "event_id",
        "time": "event_time",
    },
    "gold": [
        {
            "name": "by_user",
            "window": {"kind": "global"},
            "keys": ["user_id"],
            "measures": {"events": {"count": "*"}},
        }
    ],
}


@dataclass
class Kafka:
    """A broker in a folder, and clients of it that know nothing of Tidelake.

    Attributes:
        folder: The broker's.
        broker: As it runs now.
    """

    folder: Path
    broker: Broker

    @property
    def bootstrap(self) -> str:
        """Give the address that clients take."""
        return self.broker.bootstrap

    def topic(self, *, partitions: int = 2, name: str = "", is_compacted: bool = False) -> str:
        """Make a topic, by default of a name that no other test has."""
        name = name or f"t{uuid.uuid4().hex[:12]}"
        policy = {"cleanup.policy": "compact" if is_compacted else "delete"}
        made = self._admin.create_topics([NewTopic(name, partitions, 1, config=policy)])
        made[name].result(_SECONDS)
        # The broker says yes before it knows the topic itself.
        until = time.monotonic() + _SECONDS
        while self.partitions(name) < partitions and time.monotonic() < until:
            time.sleep(0.05)
        return name

    def send(self, topic: str, values: Sequence[bytes | None], **more: Any) -> None:
        """Write values in turns over the topic's partitions."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all"})
        count = self.partitions(topic)
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % count, **more)
        assert producer.flush(_SECONDS) == 0

    def send_and_abort(self, topic: str, values: Sequence[bytes]) -> None:
        """Write values in a transaction that is given up."""
        told = {"bootstrap.servers": self.bootstrap, "transactional.id": uuid.uuid4().hex}
        producer = Producer(told)
        producer.init_transactions(_SECONDS)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value)
        producer.flush(_SECONDS)
        producer.abort_transaction(_SECONDS)

    def records(self, topic: str) -> list[tuple[Any, ...]]:
        """Read a topic from its beginning: id, key, value, headers of each committed record."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                # The end is told after a fetch that found nothing.
                "fetch.wait.max.ms": 10,
            }
        )
        found = []
        try:
            for partition in range(self.partitions(topic)):
                consumer.assign([TopicPartition(topic, partition, 0)])
                while (message := _next_record(consumer)) is not None:
                    found.append(
                        (
                            f"{topic}:{partition}:{message.offset()}",
                            message.key(),
                            message.value(),
                            message.headers(),
                        )
                    )
        finally:
            consumer.close()
        return sorted(found, key=repr)

    def forget(self, topic: str, until: Mapping[int, int]) -> None:
        """Delete what lies before an offset of each partition, as retention does."""
        places = [TopicPartition(topic, *place) for place in until.items()]
        for done in self._admin.delete_records(places).values():
            done.result(_SECONDS)

    def ends(self, topic: str) -> dict[str, int]:
        """Give the offset after the last of each partition."""
        latest = OffsetSpec.latest()
        asked = {TopicPartition(topic, one): latest for one in range(self.partitions(topic))}
        until = time.monotonic() + _SECONDS
        while True:
            found = self._admin.list_offsets(asked)
            try:
                return {str(one.partition): done.result().offset for one, done in found.items()}
            except KafkaException:
                # A partition finds its leader a moment after the broker came up.
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def partitions(self, topic: str) -> int:
        """Count the partitions of a topic."""
        return len(self._admin.list_topics(topic, timeout=_SECONDS).topics[topic].partitions)

    def widen(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        done = self._admin.create_partitions([NewPartitions(topic, partitions)])
        done[topic].result(_SECONDS)

    def drop(self, topic: str) -> None:
        """Delete a topic."""
        self._admin.delete_topics([topic])[topic].result(_SECONDS)

    def restart(self) -> None:
        """Kill the broker as a power cut would, and start it on the same topics."""
        kill(self.broker)
        self.start()

    def start(self) -> None:
        """Start the broker again, on its topics and its port."""
        self.broker = up(self.folder, self.broker.port)

    @cached_property
    def _admin(self) -> AdminClient:
        # CheckpointedBatch: a client that is let go of gives up what it was asked.
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})


def _next_record(consumer: Consumer) -> Message | None:
    """Give the next record of the partition that is assigned; None at its end."""
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        message = consumer.poll(1)
        error = None if message is None else message.error()
        if message is not None and error is None:
            return message
        # Also where the markers of transactions come last.
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            return None
    raise AssertionError("the broker does not tell what the partition holds")


@contextmanager
def a_broker(folder: Path) -> Iterator[Kafka]:
    """Run a broker in a new folder on a free port; nothing of it stays, whatever happens."""
    # In Java's properties it would be read as Latin-1, and as two folders.
    folder = folder.with_name(f"{folder.name}, ü")
    folder.mkdir(parents=True)
    with clearing_up(folder):
        yield Kafka(folder, up(folder, 0))


# The version of the record that a consumer applied last, by topic key, with the row.
Applied = dict[str, tuple[int, dict[str, Any] | None]]


def changes_on(kafka: Kafka, topic: str) -> list[tuple[str, dict[str, Any], bytes]]:
    """Read a topic of changes: key, value and the value's bytes, in order within a partition."""
    found = kafka.records(topic)
    found.sort(key=lambda one: tuple(map(int, one[0].split(":")[1:])))
    for _, _, value, headers in found:
        assert dict(headers)["version"] == str(json.loads(value)["version"]).encode()
    return [(key.decode(), json.loads(value), value) for _, key, value, _ in found]


def assert_applied(kafka: Kafka, topic: str, lake: Lake, table: str) -> None:
    """Apply a topic as a consumer does that knows the version of each key; it has the table."""
    state: Applied = {}
    for key, value, _ in changes_on(kafka, topic):
        known = state.get(key, (-1, None))
        if value["version"] > known[0]:
            # Once a topic has begun, each change says what it found.
            assert key not in state or value["before"] == known[1]
            state[key] = value["version"], value["after"]
    rows = [row for _, row in state.values() if row is not None]
    assert sorted(rows, key=_sorted_text) == written_rows(lake, table) != []


def written_rows(lake: Lake, table: str) -> list[dict[str, Any]]:
    """Read a table's visible columns as a record of a change has them."""

    def written(value: Any) -> Any:
        if isinstance(value, datetime):
            return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        return value if value is None or isinstance(value, int | str) else str(value)

    found = ask(lake, f"SELECT * FROM {table}")
    rows = [dict(zip(found.columns, map(written, row), strict=True)) for row in found.rows]
    visible = [{name: row[name] for name in row if not name.startswith("_")} for row in rows]
    return sorted(visible, key=_sorted_text)


def _sorted_text(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


@dataclass(frozen=True)
class Followed:
    """A pipeline that follows topics.

    Attributes:
        spark: The session.
        environment: With the root of the tables.
        pipeline: The definition.
    """

    spark: SparkSession
    environment: Environment
    pipeline: Pipeline

    @property
    def lake(self) -> Lake:
        """The tables."""
        assert self.environment.root is not None
        return Lake(self.environment.root)

    @property
    def context(self) -> Run:
        """What a command works with."""
        return Run(self.spark, self.pipeline, self.lake, self.environment, Progress(lambda _: None))

    def run(self, hops: Sequence[Hop] = HOPS) -> list[str]:
        """Run hops until the topics are exhausted."""
        return run(self.spark, self.environment, self.pipeline, hops=hops)


def until_decided(followed: Followed, events: int, lines: list[str]) -> None:
    """Run without an end until silver has so many events; take down the progress lines."""
    context = replace(followed.context, progress=Progress(lines.append))

    def watch() -> None:
        ends = time.monotonic() + _LONGEST
        while time.monotonic() < ends and _decided(followed.lake) < events:
            time.sleep(0.2)
        context.stop.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with contextlib.suppress(KeyboardInterrupt):
        run_hops(context, ("bronze", "silver"), parse_trigger("continuous"))
    watcher.join()


def _decided(lake: Lake) -> int:
    return sum(commit.added_rows for commit in commits(lake.silver("clicks")))


def following(spark: SparkSession, folder: Path, kafka: Kafka, **source: Any) -> Followed:
    """Define a pipeline whose source has these keys beside the broker's address."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = load_environment("local", root=str(folder / "lake"))
    content = {**_CLICKS, "source": {"kind": "kafka", "bootstrap": kafka.bootstrap, **source}}
    file = folder / "clicks.yml"
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return Followed(spark, environment, load_pipeline(str(file), environment))
