"""Brokers that go away under a pipeline that follows them, while events go on being produced."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from confluent_kafka import Producer

from tests.brokers import Kafka
from tests.recovery.processes import Started
from tidelake.delta.log import last_commit
from tidelake.delta.tables import Table
from tidelake.kafka.broker import down, kill

Kind = Literal["killed", "paused", "restarted"]
KINDS: tuple[Kind, ...] = ("killed", "paused", "restarted")
# Longer than any outage.
_PRODUCER_SECONDS = 600
_FLUSH_SECONDS = 120
_POLL_SECONDS = 0.1


@contextmanager
def away(kafka: Kafka, kind: Kind) -> Iterator[None]:
    """Take the broker away, its process alone, and bring it back."""
    if kind == "paused":
        os.kill(kafka.broker.process, signal.SIGSTOP)
    elif kind == "killed":
        kill(kafka.broker)
    else:
        assert down(kafka.folder)
    try:
        yield
    finally:
        if kind == "paused":
            os.kill(kafka.broker.process, signal.SIGCONT)
        else:
            kafka.start()


@dataclass
class Producing:
    """Writes lines into a topic at a steady pace, each once: it waits for a broker that is away.

    Attributes:
        kafka: The broker.
        topic: Where to.
        lines: What.
        pace: Lines a second.
        failed: What the broker refused.
    """

    kafka: Kafka
    topic: str
    lines: Sequence[bytes]
    pace: int
    failed: list[str] = field(default_factory=list)
    _hurries: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Produce meanwhile; at the end, all that is left at once."""
        thread = threading.Thread(target=self._produce)
        thread.start()
        try:
            yield
        finally:
            self._hurries.set()
            thread.join()
        assert self.failed == []

    def _produce(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.kafka.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": _PRODUCER_SECONDS * 1000,
                # What it knows of a broker from before is forgotten in seconds, not in minutes.
                "topic.metadata.refresh.interval.ms": 5000,
                "reconnect.backoff.max.ms": 1000,
                "log_level": 0,
            }
        )
        partitions = self.kafka.partitions(self.topic)
        began = time.monotonic()
        for number, line in enumerate(self.lines):
            if number % 20 == 0 and not self._hurries.is_set():
                due = began + number / self.pace
                self._hurries.wait(max(0.0, due - time.monotonic()))
            producer.produce(
                self.topic, line, partition=number % partitions, on_delivery=self._delivered
            )
            producer.poll(0)
        if left := producer.flush(_FLUSH_SECONDS):
            self.failed.append(f"{left} records were not delivered in {_FLUSH_SECONDS} s")

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self.failed.append(str(error))


def taken(bronze: Table, topic: str) -> dict[str, int]:
    """Tell from bronze's newest commit how far it has come in each partition."""
    last = last_commit(bronze)
    return dict(last.note["offsets"].get(topic, {})) if last and last.batch >= 0 else {}


def catches_up(
    bronze: Table, topic: str, ends: Mapping[str, int], run: Started, seconds: float
) -> bool:
    """Wait until bronze has come as far as a topic had; tell whether it did before its run ended.

    Args:
        bronze: The table.
        topic: The topic.
        ends: The offset after the last of each partition, at some moment.
        run: Fills the table.
        seconds: How long to wait.
    """
    until = time.monotonic() + seconds
    while run.process.poll() is None:
        reached = taken(bronze, topic)
        if all(reached.get(partition, 0) >= end for partition, end in ends.items()):
            return True
        assert time.monotonic() < until, run.words
        time.sleep(_POLL_SECONDS)
    return False
