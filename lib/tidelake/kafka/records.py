"""Read the first records of a topic without Spark, and without leaving a trace at the broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidelake.config.source import Address
from tidelake.errors import SourceError
from tidelake.kafka.produce import library
from tidelake.kafka.reach import refuse_unreachable

_SECONDS = 10.0
_AT_ONCE = 500


@dataclass(frozen=True)
class TopicRecord:
    """One record of a topic; its value is empty where it has none."""

    partition: int
    offset: int
    value: bytes


def first_records(of: Address, *, count: int) -> list[TopicRecord]:
    """Read from the beginning of each partition, in turn.

    Args:
        of: The broker and the topic.
        count: At most so many, evenly from the partitions.

    Raises:
        MachineError: The client is not installed.
        SourceError: No broker answers, there is no such topic, or it is empty.
    """
    refuse_unreachable(of.bootstrap)
    kafka = library()
    consumer = kafka.Consumer(
        {
            "bootstrap.servers": of.bootstrap,
            # Asked for by the client; partitions are assigned, so nothing joins it.
            "group.id": "tidelake-init",
            "enable.auto.commit": False,
            # Markers of transactions are no records: the last offset may never come.
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        found = list(_read(kafka, consumer, of, count))
    except kafka.KafkaException as error:
        raise SourceError(f"{of.bootstrap} does not tell: {error.args[0].str()}") from error
    finally:
        consumer.close()
    if not found:
        raise SourceError(f"the topic {of.topic} at {of.bootstrap} holds no record.")
    return sorted(found, key=lambda one: (one.partition, one.offset))


def _read(kafka: Any, consumer: Any, of: Address, count: int) -> Iterator[TopicRecord]:
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
        for message in consumer.consume(_AT_ONCE, timeout=1.0):
            number, error = message.partition(), message.error()
            if error is not None:
                if error.code() != kafka.KafkaError._PARTITION_EOF:
                    raise kafka.KafkaException(error)
                left[number] = 0
            elif left[number] > 0:
                left[number] -= 1
                yield TopicRecord(number, message.offset(), message.value() or b"")
