"""Read Kafka topics with Spark; describe and create them with Spark's Kafka client.

A stream detects lost records only when it reads their offsets. It cannot detect that a topic was
deleted and recreated if the new one has grown past the old offsets, so bronze commits record topic
ids.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tidelake.config import KafkaSource
from tidelake.config.environment import resolved
from tidelake.config.source import described
from tidelake.errors import LostError, RefusedError, SourceError
from tidelake.kafka.client import Offsets, listed_topics, may_share_cluster, no_topic
from tidelake.spark.internals import JavaError, jvm_with, stack_trace

# The timeout of Kafka's own clients, within a batch; the default of Spark's source is twice as
# long.
_BATCH_SECONDS = 60
# Before a batch, where nothing is lost by an error.
_ADMIN_SECONDS = 20
_CREATED_SECONDS = 0.1
_CLIENT = "kafka."
_ADMIN = "org.apache.kafka.clients.admin.Admin"


def read_topics(spark: SparkSession, source: KafkaSource) -> DataFrame:
    """Open topics as a stream with Kafka's columns; errors as in :func:`client_options`."""
    return spark.readStream.format("kafka").options(**options_of(source)).load()


def options_of(source: KafkaSource) -> dict[str, str]:
    """Return the options of Spark's Kafka source.

    Aborted transactions are not read, and lost records stop the stream.
    """
    if source.starting in ("earliest", "latest"):
        starting = {"startingOffsets": source.starting}
    else:
        milliseconds = int(datetime.fromisoformat(source.starting).timestamp() * 1000)
        starting = {
            "startingTimestamp": str(milliseconds),
            # A partition without a record since then starts at its end.
            "startingOffsetsByTimestampStrategy": "latest",
        }
    configured = {
        "subscribe": source.topic,
        "subscribePattern": source.pattern,
        "maxOffsetsPerTrigger": source.max_offsets_per_trigger,
        "minPartitions": source.min_partitions,
    }
    return {
        **{name: str(value) for name, value in configured.items() if value},
        **starting,
        "kafka.isolation.level": "read_committed",
        "kafkaConsumer.pollTimeoutMs": str(_BATCH_SECONDS * 1000),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        **java_client_options(source),
    }


def java_client_options(source: KafkaSource) -> dict[str, str]:
    """Return the options of Kafka's Java client: the brokers, and the source's options.

    Raises a UsageError if one refers to a variable that is not set.
    """
    return resolved({"kafka.bootstrap.servers": source.bootstrap, **source.options})


@dataclass(frozen=True)
class Topic:
    """A topic at the broker; its id changes when it is deleted and recreated.

    ``held`` has the first available and the end offset of each partition. ``is_compacted``: whether
    Kafka may remove records between them; true if the client may not ask for that.
    """

    id: str
    held: Mapping[str, tuple[int, int]]
    is_compacted: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it has no record."""
        return all(first == end for first, end in self.held.values())

    @property
    def ends(self) -> dict[str, int]:
        """The end offset of each partition."""
        return {partition: end for partition, (_, end) in self.held.items()}


def asks_brokers(spark: SparkSession, source: KafkaSource) -> bool:
    """Return whether topics can be described: Spark's JVM, and Kafka's client in it, are reached.

    They are not through Spark Connect, and where a managed runtime renames the client's packages.
    The client has no credential that only Databricks' Spark knows.
    """
    return _admin_jvm(spark, source) is not None


def _admin_jvm(spark: SparkSession, source: KafkaSource) -> Any:
    return None if source.only_spark_connects else jvm_with(spark, _ADMIN)


def describe_topics(
    spark: SparkSession,
    source: KafkaSource,
    names: Collection[str],
    *,
    with_selected: bool = False,
    in_batch: bool = False,
) -> dict[str, Topic] | None:
    """Describe the topics that exist, by name; a SourceError if the broker does not answer.

    ``with_selected``: also those that the source selects now, by name or pattern; a SourceError if
    there is none, or not each that it lists. ``in_batch``: wait for the broker as long as a batch
    does. None where topics cannot be described, see :func:`asks_brokers`.
    """
    jvm = _admin_jvm(spark, source)
    if jvm is None:
        return None
    if not (names or with_selected):
        return {}
    with _admin(jvm, source, _BATCH_SECONDS if in_batch else _ADMIN_SECONDS) as admin:
        known = _result(jvm, admin.listTopics().names())
        wanted = jvm.java.util.ArrayList()
        selected = _selected(jvm, source, known) if with_selected else []
        missing = [name for name in selected if not (name in names or known.contains(name))]
        if missing:
            what = f"there is no topic {', '.join(missing)}"
            raise no_topic(what, source.bootstrap, known)
        if with_selected and not (names or selected):
            raise no_topic(f"no topic matches {source.pattern}", source.bootstrap, known)
        for name in filter(known.contains, {*names, *selected}):
            wanted.add(name)
        found = _result(jvm, admin.describeTopics(wanted).allTopicNames())
        compacted = _compacted(jvm, admin, list(wanted))
        return {
            name: Topic(about.topicId().toString(), _held(jvm, admin, name, about), is_compacted)
            for name, is_compacted in compacted.items()
            if (about := found.get(name))
        }


def ensure_topic(spark: SparkSession, source: KafkaSource, name: str) -> Topic | None:
    """Describe a topic, and create it with the broker's defaults if it does not exist.

    None where topics cannot be described, see :func:`asks_brokers`: then a producer creates it.

    Raises:
        SourceError: The broker does not answer, or does not create the topic.
    """
    found = describe_topics(spark, source, [name])
    jvm = _admin_jvm(spark, source)
    if found is None or jvm is None:
        return None
    if name not in found:
        with _admin(jvm, source) as admin:
            default = jvm.java.util.Optional.empty()
            topic = jvm.org.apache.kafka.clients.admin.NewTopic(name, default, default)
            _result(jvm, admin.createTopics(jvm.java.util.Collections.singleton(topic)).all())
    until = time.monotonic() + _ADMIN_SECONDS
    # The broker may confirm that it created a topic before it lists it.
    while found is not None and name not in found and time.monotonic() < until:
        time.sleep(_CREATED_SECONDS)
        found = describe_topics(spark, source, [name])
    if not found or name not in found:
        raise SourceError(
            f"the Kafka broker at {source.bootstrap} did not create topic {name}: "
            "create it, or allow CREATE on it"
        )
    return found[name]


def has_records(spark: SparkSession, source: KafkaSource, name: str) -> bool:
    """Return whether a topic has a record, read by a job; false if there is no such topic.

    For engines that cannot describe a topic. The user of ``source`` must be allowed to read it.
    """
    options = {**java_client_options(source), "subscribe": name, "startingOffsets": "earliest"}
    try:
        return not spark.read.format("kafka").options(**options).load().isEmpty()
    except (PySparkException, JavaError) as error:
        if "UnknownTopicOrPartitionException" in stack_trace(error):
            return False
        raise


def refuse_unselected(spark: SparkSession, source: KafkaSource, names: Collection[str]) -> None:
    """Raise a RefusedError if a source no longer selects a topic that bronze reads.

    Spark would plan a batch without it, and then take its records for lost, also once the source
    selects it again. A pattern is not compared where topics cannot be described.
    """
    jvm = jvm_with(spark, _ADMIN)
    if source.pattern is not None and jvm is None:
        return
    left = set(names).difference(_selected(jvm, source, names))
    if left:
        raise RefusedError(
            f"bronze reads topic {', '.join(sorted(left))}, and the source is {described(source)} "
            "now. Nothing was written. Name it again, or read the new topics into new tables, with "
            "another --root."
        )


def refuse_expired(topics: Mapping[str, Topic], reached: Collection[str]) -> None:
    """Raise a RefusedError if a topic was added of which the first records are gone.

    Spark begins an added topic at offset 0, and treats missing offsets as data loss.
    """
    for name in sorted(topics.keys() - reached):
        for partition, (first, _) in topics[name].held.items():
            if first > 0:
                raise RefusedError(
                    f"topic {name} was added, and its partition {partition} begins at offset "
                    f"{first}: an added topic can be read only from offset 0 on. Nothing was "
                    "written. Leave it out, and read it with a pipeline of its own, or read all "
                    "topics into new tables, with another --root."
                )


def _selected(jvm: Any, source: KafkaSource, names: Iterable[str]) -> list[str]:
    """Return the topics of a source: those that it lists, or those of some that match it."""
    if source.pattern is None:
        return listed_topics(source)
    # Python's expressions differ from those by which Spark selects.
    matches = jvm.java.util.regex.Pattern.matches
    return [name for name in names if matches(source.pattern, name)]


def refuse_changed(
    spark: SparkSession, source: KafkaSource, note: Mapping[str, Any], planned: Offsets, place: str
) -> set[str]:
    """Compare the topics that a source selects with those that bronze has read.

    Args:
        spark: The session; where it cannot describe topics, only their names are compared.
        source: The source.
        note: The metadata of bronze's newest commit.
        planned: Where the newest batch ends, committed or not.
        place: The beginning of the messages.

    Returns:
        The topics of the planned batch that the source lacks, and those read that the batch lacks.

    Raises:
        LostError: Records that were not read are gone, or a topic was recreated.
        RefusedError: The first records of an added topic are gone; or the topics are of another
            cluster.
        SourceError: The broker does not answer, or has no topic for the source.
    """
    reached: Offsets = note.get("offsets", {})
    ids, was = note.get("topics", {}), note.get("bootstrap", "")
    if not reached:
        # A run may have ended before its first batch was committed.
        refuse_unselected(spark, source, planned)
    topics = describe_topics(spark, source, reached, with_selected=True)
    if topics is None or not reached:
        return set()
    is_same = any(name in topics and topics[name].id == known for name, known in ids.items())
    is_moved = not (is_same or may_share_cluster(was, source.bootstrap))
    gone = lost(reached, ids, topics, is_moved=is_moved)
    if gone and is_moved:
        raise RefusedError(
            f"{place}: {gone} (it was read from {was}; source.bootstrap is {source.bootstrap}). "
            "Nothing was written. Name the former brokers again, or read the topics of the new "
            "ones into new tables, with another --root."
        )
    if gone:
        raise LostError(f"{place}: {gone}")
    refuse_expired(topics, reached)
    return (planned.keys() - topics.keys()) | (reached.keys() - planned.keys())


def known_ids(ids: Mapping[str, str], topics: Mapping[str, Topic], place: str) -> dict[str, str]:
    """Return the ids of topics, beside those in ``ids``; a LostError if one was recreated.

    Spark compares offsets alone: it would continue in a recreated topic that has grown past them.
    """
    for name, topic in topics.items():
        if ids.get(name, topic.id) != topic.id:
            raise LostError(f"{place}: {recreated_text(name)}")
    return {**ids, **{name: topic.id for name, topic in topics.items()}}


def lost(
    reached: Offsets,
    ids: Mapping[str, str],
    topics: Mapping[str, Topic],
    *,
    is_moved: bool = False,
) -> str:
    """Describe the first loss of unread records, or return "".

    ``is_moved``: the brokers are not those from which they were read.
    """
    for name, partitions in reached.items():
        now = topics.get(name)
        if now is None:
            return f"{name} no longer exists"
        if ids.get(name, now.id) != now.id:
            return f"{name} is another topic than before" if is_moved else recreated_text(name)
        for partition, read in partitions.items():
            first, end = now.held.get(partition, (0, 0))
            place = f"{name} partition {partition}"
            if first > read:
                return f"{place}: offsets {read} to {first - 1} are gone, and were not read"
            if end < read:
                return f"{place}: ends at offset {end}, but was read up to {read}"
    return ""


def recreated_text(name: str) -> str:
    """Return the message that a topic was deleted and recreated."""
    return f"{name} was deleted and recreated: its offsets refer to other records"


def failure(bootstrap: str, message: str | None) -> SourceError:
    """Describe a failed request by the message of Kafka's client, which a timeout may lack."""
    why = (message or "not in time").splitlines()[0]
    if "Authorization" in why or "Authentication" in why:
        return SourceError(
            f"the Kafka broker at {bootstrap} refuses access: {why}. Check the options and the "
            "rights of the client, then run again."
        )
    return SourceError(
        f"the Kafka broker at {bootstrap} does not answer: {why}. Check it, then run again."
    )


@contextmanager
def _admin(jvm: Any, source: KafkaSource, seconds: int = _ADMIN_SECONDS) -> Iterator[Any]:
    settings = jvm.java.util.Properties()
    for name, value in options_of(source).items():
        if name.startswith(_CLIENT):
            settings.put(name.removeprefix(_CLIENT), value)
    for name in ("request.timeout.ms", "default.api.timeout.ms"):
        settings.put(name, str(seconds * 1000))
    try:
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(settings)
    except JavaError as error:
        thrown = error.java_exception
        why = (thrown.getCause() or thrown).toString().rpartition("Exception: ")[2]
        raise SourceError(
            f"the client of Kafka for {source.bootstrap} does not start: {why}. Check the address "
            "and the options."
        ) from error
    try:
        yield admin
    except JavaError as error:
        raise failure(source.bootstrap, error.java_exception.getMessage()) from error
    finally:
        admin.close()


def _held(jvm: Any, admin: Any, name: str, about: Any) -> dict[str, tuple[int, int]]:
    """Return the first available and the end offset of each partition."""
    spec = jvm.org.apache.kafka.clients.admin.OffsetSpec
    numbers = [partition.partition() for partition in about.partitions()]
    places = {n: jvm.org.apache.kafka.common.TopicPartition(name, n) for n in numbers}
    found = []
    for edge in (spec.earliest(), spec.latest()):
        requests = jvm.java.util.HashMap()
        for place in places.values():
            requests.put(place, edge)
        found.append(_result(jvm, admin.listOffsets(requests).all()))
    return {
        str(n): (int(found[0].get(place).offset()), int(found[1].get(place).offset()))
        for n, place in places.items()
    }


def _compacted(jvm: Any, admin: Any, names: Sequence[str]) -> dict[str, bool]:
    """Return whether topics are compacted, by name; true where the broker does not say so."""
    resource = jvm.org.apache.kafka.common.config.ConfigResource
    topics = {name: resource(resource.Type.TOPIC, name) for name in names}
    wanted = jvm.java.util.ArrayList()
    for topic in topics.values():
        wanted.add(topic)
    try:
        found = _result(jvm, admin.describeConfigs(wanted).all())
    except JavaError:
        # It needs a right of its own, which reading does not.
        return dict.fromkeys(names, True)
    policies = {name: found.get(topic).get("cleanup.policy") for name, topic in topics.items()}
    return {
        name: policy is None or "compact" in policy.value() for name, policy in policies.items()
    }


def _result(jvm: Any, future: Any) -> Any:
    # The client's own timeout is as short or shorter.
    return future.get(_BATCH_SECONDS, jvm.java.util.concurrent.TimeUnit.SECONDS)
