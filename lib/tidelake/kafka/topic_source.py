"""Read Kafka topics with Spark, and describe them through the client that Spark itself uses.

A stream notices that records are gone when it reads them, and not at all where a topic was deleted
and created again and has grown past the old one's end. So each bronze commit records topic ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidelake.config import KafkaSource
from tidelake.config.secrets import resolved
from tidelake.errors import SourceError
from tidelake.kafka.topic_offsets import Offsets
from tidelake.spark.internals import JavaError, jvm_of

# As long as Kafka's own clients wait for a broker; Spark's source would wait twice as long.
_POLL_MILLISECONDS = 60_000
_ADMIN_SECONDS = 20
_CLIENT = "kafka."


def read_topics(spark: SparkSession, source: KafkaSource) -> DataFrame:
    """Open topics as a stream of Kafka's own columns.

    Raises:
        UsageError: An option refers to a variable that is not set.
    """
    return spark.readStream.format("kafka").options(**options_of(source)).load()


def options_of(source: KafkaSource) -> dict[str, str]:
    """Return the options of Spark's Kafka source.

    Aborted transactions are not read, and records that are gone stop the stream.
    """
    told = {"subscribe": source.topic} if source.topic else {"subscribePattern": source.pattern}
    if source.starting in ("earliest", "latest"):
        told["startingOffsets"] = source.starting
    else:
        instant = datetime.fromisoformat(source.starting)
        told["startingTimestamp"] = str(int(instant.timestamp() * 1000))
        # A partition without a record since then starts at the next one.
        told["startingOffsetsByTimestampStrategy"] = "latest"
    if source.max_offsets_per_trigger:
        told["maxOffsetsPerTrigger"] = str(source.max_offsets_per_trigger)
    if source.min_partitions:
        told["minPartitions"] = str(source.min_partitions)
    ours = {
        "kafka.isolation.level": "read_committed",
        "kafkaConsumer.pollTimeoutMs": str(_POLL_MILLISECONDS),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }
    return {name: value for name, value in told.items() if value} | ours | client_options(source)


def client_options(source: KafkaSource) -> dict[str, str]:
    """Return the options of Kafka's Java client: the brokers, and the source's own.

    Raises:
        UsageError: An option refers to a variable that is not set.
    """
    return {"kafka.bootstrap.servers": source.bootstrap, **resolved(source.options)}


@dataclass(frozen=True)
class Topic:
    """A topic as the broker has it.

    Attributes:
        id: Another one after the topic was deleted and created again.
        held: By partition: the first offset that is still there, and the one after the last.
    """

    id: str
    held: Mapping[str, tuple[int, int]]

    @property
    def ends(self) -> dict[str, int]:
        """The offset after the last, by partition."""
        return {partition: end for partition, (_, end) in self.held.items()}


def look_at(
    spark: SparkSession, source: KafkaSource, names: Collection[str]
) -> dict[str, Topic] | None:
    """Describe topics; those that do not exist are left out.

    Returns:
        By name; None where Spark's JVM is out of reach, as through Spark Connect.

    Raises:
        SourceError: The broker does not answer.
    """
    jvm = jvm_of(spark)
    if jvm is None:
        return None
    if not names:
        return {}
    with _admin(jvm, source) as admin:
        known = _got(jvm, admin.listTopics().names())
        wanted = jvm.java.util.ArrayList()
        for name in names:
            if known.contains(name):
                wanted.add(name)
        told = _got(jvm, admin.describeTopics(wanted).allTopicNames())
        found = {name: told.get(name) for name in names if told.containsKey(name)}
        return {
            name: Topic(about.topicId().toString(), _held(jvm, admin, name, about))
            for name, about in found.items()
        }


def lost(reached: Offsets, ids: Mapping[str, str], topics: Mapping[str, Topic]) -> str:
    """Describe the first loss of records that were not taken yet, or return ""."""
    for name, partitions in reached.items():
        now = topics.get(name)
        if now is None:
            return f"{name} does not exist any more"
        if ids.get(name, now.id) != now.id:
            return made_anew(name)
        for partition, taken in partitions.items():
            first, end = now.held.get(partition, (0, 0))
            place = f"{name} partition {partition}"
            if first > taken:
                return f"{place}: offsets {taken} to {first - 1} are gone, and were not taken"
            if end < taken:
                return f"{place}: ends at offset {end}, and was taken up to {taken}"
    return ""


def made_anew(name: str) -> str:
    """Return the message that a topic was deleted and created again."""
    return f"{name} was deleted and made anew: its offsets are those of other records"


@contextmanager
def _admin(jvm: Any, source: KafkaSource) -> Iterator[Any]:
    settings = jvm.java.util.Properties()
    for name, value in options_of(source).items():
        if name.startswith(_CLIENT):
            settings.put(name.removeprefix(_CLIENT), value)
    for name in ("request.timeout.ms", "default.api.timeout.ms"):
        settings.put(name, str(_ADMIN_SECONDS * 1000))
    admin = jvm.org.apache.kafka.clients.admin.Admin.create(settings)
    try:
        yield admin
    except JavaError as error:
        # A timeout has no message.
        told = error.java_exception.getMessage() or f"not within {_ADMIN_SECONDS} s"
        raise SourceError(
            f"the Kafka broker at {source.bootstrap} does not answer: {str(told).splitlines()[0]}. "
            "Look at it, then run again."
        ) from error
    finally:
        admin.close()


def _held(jvm: Any, admin: Any, name: str, about: Any) -> dict[str, tuple[int, int]]:
    """Find the first offset of each partition, and the one after its last."""
    spec = jvm.org.apache.kafka.clients.admin.OffsetSpec
    numbers = [partition.partition() for partition in about.partitions()]
    places = {n: jvm.org.apache.kafka.common.TopicPartition(name, n) for n in numbers}
    found = []
    for edge in (spec.earliest(), spec.latest()):
        asked = jvm.java.util.HashMap()
        for place in places.values():
            asked.put(place, edge)
        found.append(_got(jvm, admin.listOffsets(asked).all()))
    return {
        str(n): (int(found[0].get(place).offset()), int(found[1].get(place).offset()))
        for n, place in places.items()
    }


def _got(jvm: Any, future: Any) -> Any:
    return future.get(_ADMIN_SECONDS, jvm.java.util.concurrent.TimeUnit.SECONDS)
