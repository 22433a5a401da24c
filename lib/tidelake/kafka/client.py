"""Access Kafka brokers without Spark, whose JVM takes seconds to start.

All functions raise MachineError if the client is not installed, SourceError if no broker answers.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from tidelake.config import KafkaSource
from tidelake.config.addresses import Address
from tidelake.config.secrets import resolved
from tidelake.errors import SourceError, TidelakeError
from tidelake.kafka import imported
from tidelake.kafka.topic_offsets import Offsets
from tidelake.typed import runnable

_SECONDS = 10.0
_CONNECT_SECONDS = 3.0
_EVERY_SECONDS = 5.0
_PARTITIONS, _PRODUCE_SECONDS, _REPORT_EVERY = 4, 30, 50_000
_CONSUMED_AT_ONCE = 500
_JAAS = "sasl.jaas.config"
_LOGIN = re.compile(r"\b(username|password)\s*=\s*\"([^\"]*)\"")


def refuse_unreachable(bootstrap: str, *, key: str = "source.bootstrap") -> None:
    """Check that one of the brokers (``host:port``, comma-separated) accepts a connection.

    Kafka's own clients retry for minutes. ``key`` is where the pipeline file names the brokers. Of
    a reference the value is not told.
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
            self._say("bronze  goes on: a Kafka broker can be reached again")
        self._checked_at, self._is_lost = time.monotonic(), bool(reasons)


def _unreachable(bootstrap: str) -> str:
    """Return why none of the brokers accepts a connection, or "" if one does."""
    brokers = _settings(bootstrap)["bootstrap.servers"]
    reasons = []
    for address in map(str.strip, brokers.split(",")):
        host, _, port = address.rpartition(":")
        told = address if brokers == bootstrap else bootstrap
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
                return ""
        except OSError as error:
            reasons.append(f"{told}: {error}")
        except ValueError:
            # The error's message has the text.
            reasons.append(f"{told}: not HOST:PORT")
    return "; ".join(reasons)


def ends_of(source: KafkaSource, reached: Offsets) -> Offsets:
    """Return the end offset of each partition in ``reached``.

    Raises:
        SourceError: No broker answers, or the client does not accept the source's options.
        UsageError: An option refers to a variable that is not set.
    """
    refuse_unreachable(source.bootstrap)
    kafka, administration = _library()
    latest = administration.OffsetSpec.latest()
    requests = {
        kafka.TopicPartition(name, int(partition)): latest
        for name, partitions in reached.items()
        for partition in partitions
    }
    ends: Offsets = {}
    with _requesting(kafka, source.bootstrap):
        options = client_options(resolved(source.options))
        admin = administration.AdminClient(_settings(source.bootstrap) | options)
        for place, future in admin.list_offsets(requests, request_timeout=_SECONDS).items():
            ends.setdefault(place.topic, {})[str(place.partition)] = future.result(_SECONDS).offset
    return ends


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
    with closing(kafka.Consumer(settings)) as consumer, _requesting(kafka, of.bootstrap):
        found = list(_consume(kafka, consumer, of, count))
    if not found:
        raise SourceError(f"the topic {of.topic} at {of.bootstrap} holds no record.")
    return sorted(found, key=lambda record: record[:2])


def _consume(kafka: Any, consumer: Any, of: Address, count: int) -> Iterator[TopicRecord]:
    known = consumer.list_topics(timeout=_SECONDS).topics
    if of.topic not in known:
        names = ", ".join(sorted(name for name in known if not name.startswith("__"))) or "none"
        raise SourceError(f"there is no topic {of.topic} at {of.bootstrap} (known: {names})")
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
            f"{to.bootstrap}: {why}"
        )
    return count


def _ensure_topic(kafka: Any, administration: Any, to: Address) -> int:
    """Create the topic unless it exists; return the number of its partitions."""
    admin = administration.AdminClient(_settings(to.bootstrap))
    try:
        made = admin.create_topics(
            [administration.NewTopic(to.topic, _PARTITIONS, 1)], request_timeout=_PRODUCE_SECONDS
        )
        made[to.topic].result(_PRODUCE_SECONDS)
    except kafka.KafkaException as error:
        if error.args[0].code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
            raise TidelakeError(
                f"{to.bootstrap} did not create the topic {to.topic}: {error.args[0].str()}"
            ) from error
        found = admin.list_topics(to.topic, timeout=_PRODUCE_SECONDS).topics[to.topic]
        return len(found.partitions)
    return _PARTITIONS


def _library() -> list[Any]:
    return imported("the Kafka client", "confluent_kafka", "confluent_kafka.admin")


def _settings(bootstrap: str) -> dict[str, Any]:
    return {**resolved({"bootstrap.servers": bootstrap}), "log_level": 0}


@contextmanager
def _requesting(kafka: Any, bootstrap: str) -> Iterator[None]:
    try:
        yield
    except kafka.KafkaException as error:
        raise SourceError(
            f"the request to Kafka at {bootstrap} failed: {error.args[0].str()}"
        ) from error
