"""Ask Kafka brokers and schema registries without Spark, and count with topics' offsets.

Spark's JVM takes seconds to start. Functions that ask raise MachineError if the client is not
installed, SourceError if nothing answers.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from tidelake.config import KafkaSource, Registry
from tidelake.config.environment import resolved
from tidelake.config.loading import Address
from tidelake.config.source import REFERENCE, SERVICE_CREDENTIAL
from tidelake.errors import SourceError, TidelakeError, imported
from tidelake.folders import Folder
from tidelake.typed import runnable

# By topic and partition: an offset, or a number of offsets.
Offsets = dict[str, dict[str, int]]
# The line of the first source in a file of offsets.
_FIRST_INPUT = 2


def offsets_behind(reached: Offsets, ends: Offsets) -> Offsets:
    """Return the number of offsets of each partition between ``reached`` and its end.

    Not every offset is a record: transaction markers and compacted records have offsets too. Topics
    without ends are omitted.
    """
    return {
        name: {
            partition: max(ends[name].get(partition, taken) - taken, 0)
            for partition, taken in partitions.items()
        }
        for name, partitions in reached.items()
        if name in ends
    }


def offsets_between(before: Offsets, after: Offsets) -> int:
    """Count the offsets between two positions, over the partitions in both."""
    return sum(
        end - before[name][partition]
        for name, partitions in after.items()
        for partition, end in partitions.items()
        if partition in before.get(name, {})
    )


def total_offsets(offsets: Offsets) -> int:
    """Sum the numbers of all partitions."""
    return sum(sum(partitions.values()) for partitions in offsets.values())


def planned_offsets(checkpoint: Folder, batch: int) -> Offsets:
    """Read the end offsets of a planned micro-batch; empty before the first.

    Also empty for a file that was cut off, which the checks of a checkpoint report.
    """
    file = checkpoint / "offsets" / str(batch)
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return dict(json.loads(lines[_FIRST_INPUT])) if len(lines) > _FIRST_INPUT else {}


def begun_offsets(checkpoint: Folder, batch: int) -> Offsets | None:
    """Read the start offsets of a planned micro-batch; None if the checkpoint has none.

    Partitions that are missing from them start at their first offset.
    """
    before = planned_offsets(checkpoint, batch - 1)
    if before:
        return before
    first = checkpoint / "sources" / "0" / "0"
    if not first.exists():
        return None
    # The file starts with a zero byte, for compatibility with Spark 2.1.
    return dict(json.loads(first.read_text(encoding="utf-8").splitlines()[-1]))


def offset_difference(reached: Offsets, known: Mapping[str, Mapping[str, int]]) -> str:
    """Describe the first difference between two sets of offsets, or return ""."""
    for topic in sorted(reached.keys() | known.keys()):
        read, committed = reached.get(topic, {}), known.get(topic, {})
        for partition in sorted(read.keys() | committed.keys(), key=int):
            if read.get(partition) != committed.get(partition):
                return (
                    f"{topic} partition {partition} at offset {read.get(partition)}, "
                    f"bronze at {committed.get(partition)}"
                )
    return ""


_SECONDS = 10.0
# Of the client's own answer, that the request's time is over.
_GRACE_SECONDS = 3.0
_CONNECT_SECONDS, _EVERY_SECONDS = 3.0, 5.0
_PARTITIONS, _PRODUCE_SECONDS, _REPORT_EVERY = 4, 30, 50_000
_CONSUMED_AT_ONCE, _SHOWN = 500, 5_000
_JAAS = "sasl.jaas.config"
_LOGIN = re.compile(r"\b(username|password)\s*=\s*\"([^\"]*)\"")


def refuse_unreachable(bootstrap: str, *, key: str = "source.bootstrap") -> None:
    """Check that one of the brokers (``host:port``, comma-separated) accepts a connection.

    Kafka's own clients retry for minutes. ``key`` is where the pipeline file names the brokers.
    Values of references are not shown.
    """
    reasons = _unreachable(bootstrap)
    if reasons:
        raise SourceError(
            f"no Kafka broker can be reached ({reasons}). Check {key}, "
            f"or start one on this machine: {runnable('tidelake kafka up')}"
        )


class Contact:
    """Report once when the brokers become unreachable, and once when they are back.

    The clients that Spark uses report nothing until they give up.
    """

    def __init__(self, bootstrap: str, say: Callable[[str], None]) -> None:
        """Start in the reachable state; ``say`` receives the messages."""
        self._bootstrap, self._say = bootstrap, say
        self._checked_at, self._is_lost = time.monotonic(), False

    def look(self) -> None:
        """Try to connect, at most every few seconds, and report a change."""
        if time.monotonic() - self._checked_at < _EVERY_SECONDS:
            return
        reasons = _unreachable(self._bootstrap)
        if reasons and not self._is_lost:
            self._say(f"bronze  waits: no Kafka broker can be reached ({reasons})")
        elif self._is_lost and not reasons:
            self._say("bronze  resumed: a Kafka broker can be reached again")
        self._checked_at, self._is_lost = time.monotonic(), bool(reasons)


def may_share_cluster(was: str, now: str) -> bool:
    """Return whether brokers may be of one cluster, compared as pipeline files name them.

    Lists that share a broker are of the same cluster. What a reference names is unknown: it may be
    the brokers of a list. Empty in what versions wrote that did not record the brokers.
    """
    is_reference = [bool(REFERENCE.fullmatch(one)) for one in (was, now)]
    if not was or any(is_reference) != all(is_reference):
        return True
    before, after = ({broker.strip() for broker in one.split(",")} for one in (was, now))
    return not before.isdisjoint(after)


def _unreachable(bootstrap: str) -> str:
    """Return why none of the brokers accepts a connection, or "" if one does."""
    brokers = _settings(bootstrap)["bootstrap.servers"]
    reasons = []
    for address in map(str.strip, brokers.split(",")):
        host, _, port = address.rpartition(":")
        shown = address if brokers == bootstrap else bootstrap
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
                return ""
        except OSError as error:
            reasons.append(f"{shown}: {error}")
        except (ValueError, OverflowError):
            # The error's message has the text.
            reasons.append(f"{shown}: not HOST:PORT")
    return "; ".join(reasons)


def listed_topics(source: KafkaSource) -> list[str]:
    """Return the topics that a source lists; none if it selects them by a pattern."""
    return [name.strip() for name in source.topic.split(",")] if source.topic else []


def ends_of(source: KafkaSource, reached: Offsets) -> Offsets:
    """Return the end offset of each partition in ``reached``, and of those added since.

    Added are other partitions of its topics, and topics that the source lists beside them; new
    topics of a pattern are unknown, because Python's expressions differ from Java's.

    Raises:
        SourceError: No broker answers, an option is not accepted, or a topic is gone.
        UsageError: An option refers to a variable that is not set.
    """
    listed = set(listed_topics(source))
    # Topics that the source does not list came from ``run --source``, and its own are not read.
    names = listed if reached.keys() <= listed else reached.keys()
    with _administering(source) as (kafka, which, admin):
        topics, places = kafka.TopicCollection(sorted(names)), _places(reached)
        for name, future in admin.describe_topics(topics, request_timeout=_SECONDS).items():
            error = future.exception(_SECONDS + _GRACE_SECONDS)
            is_unknown = error and error.args[0].code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
            if is_unknown and name in reached:
                raise SourceError(f"{name} no longer exists at {source.bootstrap}: restore it")
            if not is_unknown:
                places.update((name, partition.id) for partition in future.result().partitions)
        return _list_offsets(kafka, admin, places, which.latest())


def with_added(source: KafkaSource, reached: Offsets, ends: Offsets) -> Offsets:
    """Return ``reached`` and the first available offset of partitions that only ``ends`` has."""
    if not (added := _places(ends) - _places(reached)):
        return reached
    with _administering(source) as (kafka, which, admin):
        first = _list_offsets(kafka, admin, added, which.earliest())
    return {name: first.get(name, {}) | reached.get(name, {}) for name in ends}


def _places(offsets: Offsets) -> set[tuple[str, int]]:
    return {(name, int(number)) for name, partitions in offsets.items() for number in partitions}


@contextmanager
def _administering(source: KafkaSource) -> Iterator[tuple[Any, Any, Any]]:
    if source.only_spark_connects:
        raise SourceError(f"only Spark can ask the brokers: option {SERVICE_CREDENTIAL} is set")
    refuse_unreachable(source.bootstrap)
    kafka, administration = _library()
    with _requesting(kafka, "listing the offsets", source.bootstrap):
        settings = _settings(source.bootstrap) | client_options(resolved(source.options))
        yield kafka, administration.OffsetSpec, administration.AdminClient(settings)


def _list_offsets(kafka: Any, admin: Any, places: set[tuple[str, int]], which: Any) -> Offsets:
    requests = {kafka.TopicPartition(*place): which for place in places}
    offsets: Offsets = {}
    for place, future in admin.list_offsets(requests, request_timeout=_SECONDS).items():
        found = future.result(_SECONDS + _GRACE_SECONDS)
        offsets.setdefault(place.topic, {})[str(place.partition)] = found.offset
    return offsets


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """Translate a source's options from Kafka's Java client to librdkafka.

    Most names are the same; the login is taken from the JAAS text. Certificate stores in Java's
    formats have no counterpart; the client rejects them by name.
    """
    translated = {name.removeprefix("kafka."): value for name, value in options.items()}
    login = dict(_LOGIN.findall(translated.pop(_JAAS, "")))
    return translated | {f"sasl.{name}": value for name, value in login.items()}


class TopicRecord(NamedTuple):
    """A record of a topic; ``value`` is empty for a null value."""

    partition: int
    offset: int
    value: bytes
    key: bytes | None


def first_records(of: Address, *, count: int) -> list[TopicRecord]:
    """Read at most ``count`` records, evenly from the starts of the partitions.

    No offsets are committed to the broker.

    Raises:
        SourceError: No broker answers, there is no such topic, or it is empty.
    """
    refuse_unreachable(of.bootstrap)
    kafka, _ = _library()
    settings = {
        **_settings(of.bootstrap),
        # Required, but unused: partitions are assigned.
        "group.id": "tidelake-init",
        "enable.auto.commit": False,
        # The last offset may be a transaction marker, which is not a record.
        "enable.partition.eof": True,
    }
    what = f"reading topic {of.topic}"
    with closing(kafka.Consumer(settings)) as consumer, _requesting(kafka, what, of.bootstrap):
        found = list(_consume(kafka, consumer, of, count))
    if not found:
        raise SourceError(
            f"the topic {of.topic} at {of.bootstrap} holds no record. Write records to it, or give "
            "another source"
        )
    return sorted(found, key=lambda record: record[:2])


def _consume(kafka: Any, consumer: Any, of: Address, count: int) -> Iterator[TopicRecord]:
    known = consumer.list_topics(timeout=_SECONDS).topics
    if of.topic not in known:
        raise no_topic(f"there is no topic {of.topic}", of.bootstrap, known)
    places = [kafka.TopicPartition(of.topic, number) for number in known[of.topic].partitions]
    left: dict[int, int] = {}
    for place in places:
        first, end = consumer.get_watermark_offsets(place, timeout=_SECONDS)
        place.offset = first
        left[place.partition] = min(end - first, -(-count // len(places)))
    consumer.assign([place for place in places if left[place.partition] > 0])
    deadline = time.monotonic() + _SECONDS
    while any(number > 0 for number in left.values()) and time.monotonic() < deadline:
        for message in consumer.consume(_CONSUMED_AT_ONCE, timeout=1.0):
            number, error = message.partition(), message.error()
            if error is not None:
                if error.code() != kafka.KafkaError._PARTITION_EOF:
                    raise kafka.KafkaException(error)
                left[number] = 0
            elif left[number] > 0:
                left[number] -= 1
                value = message.value() or b""
                yield TopicRecord(number, message.offset(), value, message.key())


def no_topic(what: str, bootstrap: str, known: Iterable[str]) -> SourceError:
    """Build the error for topics that do not exist, with the names of those that do."""
    names = ", ".join(sorted(name for name in known if not name.startswith("__"))) or "none"
    return SourceError(
        f"{what} at {bootstrap} (known: {names[:_SHOWN]}). Create one, name another, or allow "
        "DESCRIBE on it, then run again."
    )


def produce(
    to: Address, payloads: Iterable[bytes], *, progress: Callable[[str], None] | None = None
) -> int:
    """Write payloads round-robin over the topic's partitions, each once, and wait for all of them.

    The topic is created if it does not exist; records have no key.

    Raises:
        TidelakeError: The broker refused the topic or a record.
    """
    refuse_unreachable(to.bootstrap)
    kafka, administration = _library()
    reliable = {"enable.idempotence": True, "acks": "all", "linger.ms": 20}
    client = kafka.Producer(_settings(to.bootstrap) | reliable)
    partitions = _ensure_topic(kafka, administration, to)
    failed: list[str] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(str(error))

    count = 0
    for payload in payloads:
        while True:
            try:
                client.produce(
                    to.topic, payload, partition=count % partitions, on_delivery=delivered
                )
                break
            except BufferError:
                client.poll(0.5)
        count += 1
        client.poll(0)
        if progress is not None and count % _REPORT_EVERY == 0:
            progress(f"{count:,} records")
    left = client.flush(_PRODUCE_SECONDS)
    if failed or left:
        why = failed[0] if failed else f"it did not answer for {_PRODUCE_SECONDS} s"
        raise TidelakeError(
            f"{len(failed) + left:,} of {count:,} records did not reach {to.topic} at "
            f"{to.bootstrap}: {why}. Check the broker, then write "
            "all of them to another topic."
        )
    return count


def _ensure_topic(kafka: Any, administration: Any, to: Address) -> int:
    """Create the topic unless it exists; return the number of its partitions."""
    admin = administration.AdminClient(_settings(to.bootstrap))
    with _requesting(kafka, f"creating topic {to.topic}", to.bootstrap):
        try:
            made = admin.create_topics(
                [administration.NewTopic(to.topic, _PARTITIONS, 1)],
                request_timeout=_PRODUCE_SECONDS,
            )
            made[to.topic].result(_PRODUCE_SECONDS + _GRACE_SECONDS)
        except kafka.KafkaException as error:
            if _is_silence(kafka, error):
                raise
            if error.args[0].code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise TidelakeError(
                    f"the Kafka broker at {to.bootstrap} did not create topic {to.topic}: "
                    f"{error.args[0].str()}. Create it, or allow CREATE on it, then run again."
                ) from error
            found = admin.list_topics(to.topic, timeout=_PRODUCE_SECONDS).topics[to.topic]
            return len(found.partitions)
    return _PARTITIONS


def _library() -> list[Any]:
    return imported("the Kafka client", "confluent_kafka", "confluent_kafka.admin", extra="kafka")


def _settings(bootstrap: str) -> dict[str, Any]:
    return {**resolved({"bootstrap.servers": bootstrap}), "log_level": 0}


@contextmanager
def _requesting(kafka: Any, what: str, bootstrap: str) -> Iterator[None]:
    """Turn errors of Kafka during the operation ``what`` into a SourceError."""
    try:
        yield
    except (TimeoutError, kafka.KafkaException) as error:
        why = "it accepts connections and does not answer, as a TLS port does to clients without"
        checked = "the address, the broker"
        if not _is_silence(kafka, error):
            why, checked = error.args[0].str(), "the address"
        raise SourceError(
            f"{what} failed at the Kafka broker {bootstrap}: {why}. "
            f"Check {checked}, and the options and rights of the client, then run again."
        ) from error


def _is_silence(kafka: Any, error: Exception) -> bool:
    """Return whether a broker that accepted a connection gave no answer.

    The client's own timeout usually comes before Python's.
    """
    silent = (kafka.KafkaError._TIMED_OUT, kafka.KafkaError._TRANSPORT)
    return isinstance(error, TimeoutError) or error.args[0].code() in silent


_NOT_FOUND, _DENIED = 404, (401, 403)
_REGISTRY_SECONDS = 10


class Version(NamedTuple):
    """One version of a subject; records refer to it by ``schema_id``.

    ``kind`` is ``AVRO``, ``JSON`` or ``PROTOBUF``; ``is_whole``: it refers to no other schema.
    """

    number: int
    schema_id: int
    schema: str
    kind: str
    is_whole: bool


def versions_of(registry: Registry) -> list[Version]:
    """List the versions of the subject, oldest first.

    Not looked up by the ids in records, because corrupt records may have any number of them.

    Raises:
        SourceError: The registry does not answer, has no such subject, or refuses access.
        UsageError: The credentials refer to a variable that is not set.
        MachineError: The client is not installed.
    """
    module = "confluent_kafka.schema_registry"
    (library,) = imported("the client of schema registries", module, extra="kafka")
    settings: dict[str, Any] = {"url": registry.url, "timeout": _REGISTRY_SECONDS, "max.retries": 1}
    if registry.credentials is not None:
        name = "source.registry.credentials"
        settings["basic.auth.user.info"] = resolved({name: registry.credentials})[name]
    client = library.SchemaRegistryClient.new_client(settings)
    subject = registry.subject
    with _asking(registry):
        numbers = sorted(client.get_versions(subject))
        found = [client.get_version(subject, number) for number in numbers]
    return [
        Version(
            int(version.version),
            int(version.schema_id),
            version.schema.schema_str,
            version.schema.schema_type or "AVRO",
            not version.schema.references,
        )
        for version in found
    ]


@contextmanager
def _asking(registry: Registry) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # The client passes on whatever its transport raises.
        status = getattr(error, "http_status_code", None)
        if status == _NOT_FOUND:
            problem = f"the schema registry at {registry.url} has no subject {registry.subject}"
            remedy = "Check source.registry.subject"
        elif status is not None:
            problem = f"the schema registry at {registry.url} answered {status}"
            what = "source.registry.credentials" if status in _DENIED else "the registry"
            remedy = f"Check {what}, then run again"
        else:
            kind = type(error).__name__
            problem = f"the schema registry at {registry.url} cannot be reached ({kind})"
            remedy = "Check source.registry.url, then run again"
        raise SourceError(f"{problem}. No row was processed. {remedy}.") from error
