"""Producers whose transactions are committed, given up or left open, in any interleaving."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message, Producer

from tests.brokers import Kafka
from tests.running import click

_SECONDS = 60
# Nobody but us ends a transaction.
_OPEN_SECONDS = 600
_AT_ONCE = 4
_MOST = 5


@dataclass
class _Open:
    """A transaction that has begun.

    Attributes:
        producer: Its own.
        written: By partition and offset, what it wrote.
    """

    producer: Producer
    written: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def took(self, error: Any, message: Message) -> None:
        """Note where a record came to lie."""
        assert error is None, error
        place, payload = (message.partition(), message.offset()), message.value()
        assert place[0] is not None and place[1] is not None and payload is not None
        self.written[place[0], place[1]] = payload


class Transactions:
    """Writes a topic's records in transactions, several open at once.

    Attributes:
        committed: By partition and offset, the payloads of transactions that came to their end.
        aborted: The payloads of those that were given up.
    """

    def __init__(self, kafka: Kafka, topic: str, seed: int) -> None:
        """Begin with an empty topic."""
        self._topic, self._chance = topic, random.Random(seed)
        self._partitions = kafka.partitions(topic)
        self._idle = [self._producer(kafka.bootstrap) for _ in range(_AT_ONCE)]
        self._open: list[_Open] = []
        self._number = 0
        self.committed: dict[tuple[int, int], bytes] = {}
        self.aborted: list[bytes] = []

    def play(self, count: int) -> None:
        """Begin so many transactions, and end some; a few are still open then."""
        begun = 0
        while begun < count or len(self._open) > _AT_ONCE // 2:
            begins = begun < count and self._idle and self._chance.random() < 0.5
            if begins or not self._open:
                self._begin()
                begun += 1
            elif self._chance.random() < 0.5:
                self._write(self._chance.choice(self._open))
            else:
                self._end(self._open.pop(self._chance.randrange(len(self._open))))

    def end_all(self) -> None:
        """End what is open."""
        while self._open:
            self._end(self._open.pop())

    def visible(self) -> list[bytes]:
        """Give what a reader of committed records sees: what lies before any open transaction."""
        stable: dict[int, int] = {}
        for transaction in self._open:
            for partition, offset in transaction.written:
                stable[partition] = min(offset, stable.get(partition, offset))
        return [
            payload
            for (partition, offset), payload in self.committed.items()
            if partition not in stable or offset < stable[partition]
        ]

    def _begin(self) -> None:
        transaction = _Open(self._idle.pop())
        transaction.producer.begin_transaction()
        self._open.append(transaction)
        self._write(transaction)

    def _write(self, transaction: _Open) -> None:
        for _ in range(self._chance.randint(1, _MOST)):
            self._number += 1
            transaction.producer.produce(
                self._topic,
                click(self._number, minute=self._number),
                partition=self._chance.randrange(self._partitions),
                on_delivery=transaction.took,
            )
        assert transaction.producer.flush(_SECONDS) == 0

    def _end(self, transaction: _Open) -> None:
        if self._chance.random() < 0.5:
            transaction.producer.abort_transaction(_SECONDS)
            self.aborted += transaction.written.values()
        else:
            transaction.producer.commit_transaction(_SECONDS)
            self.committed |= transaction.written
        self._idle.append(transaction.producer)

    @staticmethod
    def _producer(bootstrap: str) -> Producer:
        told = {"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex}
        producer = Producer(
            {**told, "transaction.timeout.ms": _OPEN_SECONDS * 1000, "linger.ms": 0}
        )
        producer.init_transactions(_SECONDS)
        return producer
