"""Ask the broker what its topics are and hold, through the client that Spark itself uses.

A stream notices that records are gone when it reads them, and not at all where a topic was made
anew and has grown past the old one's end. So each commit of bronze names its topics by their ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from tidelake.config import KafkaSource
from tidelake.errors import SourceError
from tidelake.kafka.lag import Offsets
from tidelake.kafka.source import options_of
from tidelake.spark.internals import JavaError, jvm_of

_SECONDS = 20
_CLIENT = "kafka."


@dataclass(frozen=True)
class Topic:
    """A topic as the broker has it.

    Attributes:
        id: Another one when the topic is made anew.
        held: By partition: the first offset that is still there, and the one after the last.
    """

    id: str
    held: Mapping[str, tuple[int, int]]

    @property
    def ends(self) -> dict[str, int]:
        """Give the offset after the last, by partition."""
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
    """Say which records are gone that were not taken yet; empty where none are.

    Args:
        reached: How far bronze has come.
        ids: The topics' ids as bronze's newest commit names them.
        topics: What the broker has now.
    """
    for name, partitions in reached.items():
        now = topics.get(name)
        if now is None:
            return f"{name} does not exist any more"
        if ids.get(name, now.id) != now.id:
            return made_anew(name)
        for partition, taken in partitions.items():
            first, end = now.held.get(partition, (0, 0))
            if first > taken:
                return (
                    f"{name} partition {partition}: offsets {taken} to {first - 1} are gone, "
                    "and were not taken"
                )
            if end < taken:
                return (
                    f"{name} partition {partition}: ends at offset {end}, and was taken up to "
                    f"{taken}"
                )
    return ""


def made_anew(name: str) -> str:
    """Say that a topic is another one than it was."""
    return f"{name} was deleted and made anew: its offsets are those of other records"


@contextmanager
def _admin(jvm: Any, source: KafkaSource) -> Iterator[Any]:
    settings = jvm.java.util.Properties()
    for name, value in options_of(source).items():
        if name.startswith(_CLIENT):
            settings.put(name.removeprefix(_CLIENT), value)
    settings.put("request.timeout.ms", str(_SECONDS * 1000))
    settings.put("default.api.timeout.ms", str(_SECONDS * 1000))
    admin = jvm.org.apache.kafka.clients.admin.Admin.create(settings)
    try:
        yield admin
    except JavaError as error:
        # A wait that was too long says nothing.
        why = str(error.java_exception.getMessage() or f"not within {_SECONDS} s").splitlines()[0]
        raise SourceError(
            f"the Kafka broker at {source.bootstrap} does not answer: {why}. "
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
    return future.get(_SECONDS, jvm.java.util.concurrent.TimeUnit.SECONDS)
