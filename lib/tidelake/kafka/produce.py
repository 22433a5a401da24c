"""Write records into a Kafka topic, each once: an idempotent producer that waits for the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from tidelake.config.source import Address
from tidelake.errors import MachineError, TidelakeError
from tidelake.kafka.reach import refuse_unreachable

_PARTITIONS, _SECONDS, _EVERY = 4, 30, 50_000


def produce(
    to: Address, payloads: Iterable[bytes], *, progress: Callable[[str], None] | None = None
) -> int:
    """Write payloads, one after the other over the topic's partitions, and wait for all of them.

    The topic is made where it does not exist yet.

    Args:
        to: The broker and the topic.
        payloads: The values; records have no key.
        progress: Called with a line of text now and then.

    Returns:
        How many were written.

    Raises:
        MachineError: The client is not installed.
        SourceError: No broker can be reached.
        TidelakeError: The broker refused the topic or a record.
    """
    refuse_unreachable(to.bootstrap)
    client, partitions = _client(to), _ensure_topic(to)
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
        if progress is not None and count % _EVERY == 0:
            progress(f"{count:,} records")
    left = client.flush(_SECONDS)
    if failed or left:
        why = failed[0] if failed else f"it did not answer for {_SECONDS} s"
        raise TidelakeError(
            f"{len(failed) + left:,} of {count:,} records did not reach {to.topic} at "
            f"{to.bootstrap}: {why}"
        )
    return count


def library() -> Any:
    """Load the client.

    Raises:
        MachineError: It is not installed.
    """
    try:
        import confluent_kafka  # noqa: PLC0415  optional
    except ImportError as error:
        raise MachineError(
            "the Kafka client is not installed. Install it with: pip install 'tidelake[kafka]'"
        ) from error
    return confluent_kafka


def _client(to: Address) -> Any:
    return library().Producer(
        {
            "bootstrap.servers": to.bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 20,
            "log_level": 0,
        }
    )


def _ensure_topic(to: Address) -> int:
    """Make the topic unless it is there; give the number of its partitions."""
    kafka = library()
    administration: Any = import_module("confluent_kafka.admin")
    admin = administration.AdminClient({"bootstrap.servers": to.bootstrap, "log_level": 0})
    try:
        made = admin.create_topics(
            [administration.NewTopic(to.topic, _PARTITIONS, 1)], request_timeout=_SECONDS
        )
        made[to.topic].result(_SECONDS)
    except kafka.KafkaException as error:
        if error.args[0].code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
            raise TidelakeError(
                f"{to.bootstrap} did not make the topic {to.topic}: {error.args[0].str()}"
            ) from error
        found = admin.list_topics(to.topic, timeout=_SECONDS).topics[to.topic]
        return len(found.partitions)
    return _PARTITIONS
