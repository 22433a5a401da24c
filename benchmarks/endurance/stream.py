"""The events of the run: each sent with a fate that is known beforehand, and written to a file."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer

from benchmarks.measuring import in_thread

PARTITIONS = 2
# The fates that a record is made for, and their shares in a thousand; the rest are fresh events.
SHARES = {
    "copy": 60,
    "old copy": 20,
    "conflict": 10,
    "out of order": 50,
    "too late": 10,
    "parse": 10,
    "contract": 10,
    "expectation": 10,
    "filtered": 10,
    "future": 10,
}
# How far behind the current time: out of order is within the allowed lateness, too late beyond it.
_OUT_OF_ORDER = (timedelta(minutes=2), timedelta(minutes=20))
_TOO_LATE, _FUTURE = timedelta(days=2), timedelta(days=1)
_ACTIONS = ("view", "view", "click", "purchase", "bot")
_USERS, _PRODUCTS, _CAMPAIGNS = 997, 101, 7
# Events that are still copied: the newest, and a sample of all before.
_RECENT, _OLD = 2_000, 2_000
_TICK, _ROWS_A_GROUP, _FLUSH_SECONDS = 0.01, 20_000, 60
SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("kind", pa.string()),
        ("partition", pa.int32()),
        ("payload", pa.string()),
    ]
)


@dataclass
class Stream:
    """Sends records at a steady rate, and writes each to a Parquet file.

    Attributes:
        bootstrap: The broker's address.
        topic: The topic, of ``PARTITIONS`` partitions.
        rate: Records a second; may be changed while sending.
        file: Gets number, kind, partition and payload of every record.
        seed: What the kinds are drawn from.
        too_late: Whether records beyond the allowed lateness are sent.
        campaigns: Whether the events have the new field.
        sent: Records so far.
        behind: The longest time for which the sender was behind its rate, in seconds.
        failures: Errors of the broker.
    """

    bootstrap: str
    topic: str
    rate: float
    file: Path
    seed: int
    too_late: bool = False
    campaigns: bool = False
    sent: int = 0
    behind: float = 0.0
    failures: list[str] = field(default_factory=list)
    _ends: threading.Event = field(default_factory=threading.Event)
    _recent: deque[tuple[int, dict[str, Any]]] = field(
        default_factory=lambda: deque(maxlen=_RECENT)
    )
    _old: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    _rows: list[tuple[int, str, int, str]] = field(default_factory=list)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send in a thread until the block ends; then every record is acknowledged."""
        with in_thread(self._send, self._ends):
            yield

    def end(self) -> None:
        """Stop sending; the records that were sent are still acknowledged."""
        self._ends.set()

    def _send(self) -> None:
        chance = random.Random(self.seed)
        settings = {"bootstrap.servers": self.bootstrap, "acks": "all", "enable.idempotence": True}
        producer = Producer({**settings, "linger.ms": 5, "log_level": 0})
        before, due = time.monotonic(), 0.0
        with pq.ParquetWriter(self.file, SCHEMA, compression="zstd") as writer:
            while not self._ends.wait(_TICK):
                now = time.monotonic()
                due += (now - before) * self.rate
                before = now
                self.behind = max(self.behind, (int(due) - self.sent) / self.rate)
                while self.sent < int(due):
                    self._send_one(producer, chance)
                producer.poll(0)
                if len(self._rows) >= _ROWS_A_GROUP:
                    self.write(writer)
            self.write(writer)
        if producer.flush(_FLUSH_SECONDS):
            self.failures.append("the broker did not acknowledge all records")

    def _send_one(self, producer: Producer, chance: random.Random) -> None:
        partition, payload = self.draw(chance)
        producer.produce(self.topic, payload, partition=partition, on_delivery=self._delivered)

    def draw(self, chance: random.Random) -> tuple[int, str]:
        """Draw the next record, and note it for the file; return its partition and payload."""
        kind, partition, payload = self._drawn(chance)
        self._rows.append((self.sent, kind, partition, payload))
        self.sent += 1
        return partition, payload

    def write(self, writer: pq.ParquetWriter) -> None:
        """Write the records that were noted since the last call."""
        rows, self._rows = self._rows, []
        names = SCHEMA.names
        records = [dict(zip(names, row, strict=True)) for row in rows]
        writer.write_table(pa.Table.from_pylist(records, schema=SCHEMA))

    def _drawn(self, chance: random.Random) -> tuple[str, int, str]:
        """Draw a record: its kind, partition and payload."""
        kind, partition = self._kind(chance), self.sent % PARTITIONS
        if kind in ("copy", "old copy", "conflict"):
            # In the partition of the first, so that it comes after it.
            partition, event = chance.choice(self._old if kind == "old copy" else self._recent)
            if kind == "conflict":
                event = {**event, "product_id": "another"}
            return kind, partition, json.dumps(event)
        event = self._event(chance, kind)
        if kind == "parse":
            return kind, partition, json.dumps(event)[:-9]
        if kind in ("fresh", "out of order"):
            self._remember(chance, partition, event)
        return kind, partition, json.dumps(event)

    def _kind(self, chance: random.Random) -> str:
        point = chance.randrange(1000)
        for kind, share in SHARES.items():
            point -= share
            if point < 0:
                is_possible = self.too_late if kind == "too late" else bool(self._old)
                return kind if is_possible else "fresh"
        return "fresh"

    def _event(self, chance: random.Random, kind: str) -> dict[str, Any]:
        at = datetime.now(UTC)
        if kind == "out of order":
            at -= chance.uniform(0, 1) * (_OUT_OF_ORDER[1] - _OUT_OF_ORDER[0]) + _OUT_OF_ORDER[0]
        elif kind == "too late":
            at -= _TOO_LATE
        elif kind == "future":
            at += _FUTURE
        action = chance.choice(_ACTIONS)
        event = {
            "event_id": f"e{self.sent}",
            "user_id": f"u{chance.randrange(_USERS)}",
            "event_time": at.isoformat(timespec="milliseconds"),
            "action": None if kind == "filtered" else action,
            "product_id": f"p{chance.randrange(_PRODUCTS)}",
            "value": chance.randrange(20_000) / 100 if action == "purchase" else None,
        }
        if kind == "contract":
            event["value"] = "12,50"
        elif kind == "expectation":
            event["value"] = -1
        if self.campaigns:
            event["campaign"] = f"c{chance.randrange(_CAMPAIGNS)}"
        return event

    def _remember(self, chance: random.Random, partition: int, event: dict[str, Any]) -> None:
        self._recent.append((partition, event))
        if len(self._old) < _OLD:
            self._old.append((partition, event))
        elif chance.randrange(max(1, self.sent // _OLD)) == 0:
            self._old[chance.randrange(_OLD)] = (partition, event)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
