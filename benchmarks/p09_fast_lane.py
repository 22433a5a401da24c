"""P9: how long an alert takes in the fast lane, from a producer to a consumer outside Spark.

A separate broker, a lake with a history for each card, and the lane as its own process. Every
second payment is far above its card's mean and must alert. An alert's time starts just before the
payment is handed to the producer, and ends when a consumer has received the alert. The first
minute after the first alert is the lane's start-up and does not count.

Usage: python -m benchmarks.p09_fast_lane [--minutes 10] [--rate 200] [--refresh "5 minutes"]
       [--repeats 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stubs lack it

from benchmarks.measuring import (
    Finding,
    Goal,
    Report,
    arguments,
    end_in_order,
    hand_in,
    lines,
    quantiles,
    say,
    spread,
)
from tidelake.config.locations import conf_dir, find_file
from tidelake.examples.payments import Card, Payment, cards_of, line_of, ordinary
from tidelake.kafka.broker import down, up

_CARDS, _HISTORY, _PARTITIONS = 500, 10, 2
_TOPIC, _ALERTS = "payments", "payment-alerts"
_PATIENCE, _WARM_SECONDS, _PART_SECONDS = 120.0, 60.0, 10
# Multiple of the card's usual amount: far above its mean for every card.
_FRAUD_FACTOR = 20


_GOALS = {
    "p50": Goal("p50, producer to consumer", 2, False, "ms"),
    "p99": Goal("p99", 10, False, "ms"),
    "max": Goal("largest", 100, False, "ms"),
}


def main() -> None:
    """Measure, and write the report."""
    parser = arguments(__doc__)
    parser.set_defaults(repeats=1)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--refresh", default="5 minutes")
    options = parser.parse_args()
    end_in_order()
    found = [_run(options) for _ in range(options.repeats)]
    hand_in(_report(found, options), options.json)


def _run(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tidelake-latency-") as name:
        folder = Path(name)
        broker = up(folder / "kafka", 0)
        try:
            found = _measured(folder, broker.bootstrap, options)
        finally:
            down(folder / "kafka")
    if found["missing"]:
        raise SystemExit(f"{found['missing']} frauds raised no alert")
    return found


def _measured(folder: Path, bootstrap: str, options: argparse.Namespace) -> dict[str, Any]:
    """Fill the tables, start the lane, wait for its first alert, then send at the rate."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for made in admin.create_topics(
        [NewTopic(_TOPIC, _PARTITIONS, 1), NewTopic(_ALERTS, 1, 1)]
    ).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    cards = cards_of(random.Random(1), "latency", _CARDS)
    _send_history(producer, cards)
    definition = _definition(folder, bootstrap, options.refresh)
    command = [sys.executable, "-m", "tidelake.cli"]
    root = ["--root", str(folder / "lake")]
    subprocess.run([*command, "run", str(definition), *root], check=True)
    seen = _AlertConsumer(bootstrap)
    with seen.listening(), _lane([*command, "fast", "run", str(definition), *root]) as lane:
        sender = _Sender(producer, cards, lane)
        began = time.monotonic()
        while not seen.at:
            if time.monotonic() - began > _PATIENCE:
                raise SystemExit("the lane did not alert")
            sender.send(2, rate=2)
        say(f"first alert after {time.monotonic() - began:.1f} s")
        sender.send(int(_WARM_SECONDS * options.rate), rate=options.rate)
        sender.sent.clear()
        count = int(options.minutes * 60 * options.rate)
        late = sender.send(count, rate=options.rate)
        wanted = {name for name in sender.sent if name.endswith("-fraud")}
        deadline = time.monotonic() + _PATIENCE / 4
        while wanted - seen.at.keys() and time.monotonic() < deadline:
            time.sleep(0.5)
    first = min(sender.sent.values())
    latencies = [
        (sender.sent[name] - first, (seen.at[name] - sender.sent[name]) * 1000)
        for name in sorted(wanted & seen.at.keys(), key=sender.sent.__getitem__)
    ]
    missing = len(wanted - seen.at.keys())
    return {"sent": count, "missing": missing, "latencies": latencies, "behind_ms": late * 1000}


class _Sender:
    """Sends payments at a steady rate, every second one a fraud."""

    def __init__(
        self, producer: Producer, cards: list[Card], lane: subprocess.Popen[bytes]
    ) -> None:
        self.sent: dict[str, float] = {}
        self._producer, self._cards, self._lane = producer, cards, lane
        self._chance, self._count = random.Random(2), 0

    def send(self, count: int, *, rate: int) -> float:
        """Send payments, and return by how many seconds the sender fell behind at most."""
        began, worst = time.monotonic(), 0.0
        for number in range(count):
            due = began + number / rate
            # Not producer.poll(timeout): it returns with each delivery report.
            time.sleep(max(0.0, due - time.monotonic()))
            worst = max(worst, time.monotonic() - due)
            if self._lane.poll() is not None:
                raise SystemExit("the lane ended")
            self._send_one()
        self._producer.flush(30)
        return worst

    def _send_one(self) -> None:
        number, self._count = self._count, self._count + 1
        card = self._cards[number % len(self._cards)]
        # Not twice within a minute, nor in another city, so that only one rule matches.
        payment = ordinary(self._chance, card, number)
        fraud = number % 2 == 0
        if fraud:
            payment = Payment(number, card, _FRAUD_FACTOR * card.usual, payment.city)
        name = f"p{number:08d}-{'fraud' if fraud else 'plain'}"
        line = line_of(payment, name, time=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}")
        self.sent[name] = time.monotonic()
        self._producer.produce(_TOPIC, line.encode(), partition=number // 2 % _PARTITIONS)
        self._producer.poll(0)


class _AlertConsumer:
    """Consumes alerts, and records when each arrived first."""

    def __init__(self, bootstrap: str) -> None:
        self.at: dict[str, float] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "latency",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 5,
                "log_level": 0,
            }
        )

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Consume in a separate thread until the block ends."""
        ended = threading.Event()

        def listen() -> None:
            self._consumer.subscribe([_ALERTS])
            while not ended.is_set():
                message = self._consumer.poll(0.1)
                if message is None or message.error():
                    continue
                now, value = time.monotonic(), message.value()
                alert = json.loads(value) if value else {}
                if alert.get("rule") == "unusual_amount":
                    self.at.setdefault(alert["event_id"], now)
            self._consumer.close()

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@contextmanager
def _lane(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    lane = subprocess.Popen(command, start_new_session=True)
    try:
        yield lane
    finally:
        lane.send_signal(signal.SIGINT)
        lane.wait(60)


def _send_history(producer: Producer, cards: list[Card]) -> None:
    """Send some payments of each card in the hours before now."""
    chance, now = random.Random(3), datetime.now(UTC)
    for card in cards:
        for number in range(_HISTORY):
            when = now - timedelta(hours=1 + number / 2, minutes=30)
            line = line_of(
                ordinary(chance, card, number),
                f"{card.name}-{number}",
                time=f"{when:%Y-%m-%dT%H:%M:%S.%fZ}",
            )
            producer.produce(_TOPIC, line.encode(), partition=number % _PARTITIONS)
        producer.poll(0)
    producer.flush(30)


def _definition(folder: Path, bootstrap: str, refresh: str) -> Path:
    """Write the reference pipeline with the broker as its source."""
    raw = yaml.safe_load(find_file("payments", "pipeline").read_text(encoding="utf-8"))
    raw["source"] = {"kind": "kafka", "bootstrap": bootstrap, "topic": _TOPIC}
    raw["detections"][0]["fast"]["refresh"] = refresh
    suite = folder / "expectations" / "payments.yml"
    suite.parent.mkdir(parents=True)
    suite.write_bytes((conf_dir() / "expectations" / "payments.yml").read_bytes())
    written = folder / "pipelines" / "payments.yml"
    written.parent.mkdir()
    written.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    return written


def _report(found: list[dict[str, Any]], options: argparse.Namespace) -> Report:
    runs = [quantiles([ms for _, ms in one["latencies"]]) for one in found]
    alerts = found[-1]["latencies"]
    slow = Counter(int(at) for at, ms in alerts if ms > 100)
    return Report(
        row="P9",
        title=f"The fast lane, Kafka to Kafka, {options.rate} payments a second for "
        f"{options.minutes:g} minutes",
        findings=[Finding.of(goal, [run[name] for run in runs]) for name, goal in _GOALS.items()],
        seconds={},
        checked=f"each of the {len(alerts):,} payments that must alert did",
        setting={
            "payments a second": options.rate,
            "minutes": options.minutes,
            "refresh": options.refresh,
            "cards": _CARDS,
            "partitions": _PARTITIONS,
            "streams": 2,
        },
        details={
            "milliseconds": {name: round(ms, 2) for name, ms in runs[-1].items()},
            "sender behind at most, ms": round(max(one["behind_ms"] for one in found), 1),
            "alerts_over_100_ms_by_second": dict(sorted(slow.items())),
            "plots": [
                spread(
                    "Distribution of alert times, both axes logarithmic",
                    [ms for _, ms in alerts],
                    x="milliseconds from producer to consumer; number of alerts",
                ),
                _over_time(alerts),
            ],
        },
    )


def _over_time(alerts: list[tuple[float, float]]) -> dict[str, Any]:
    """Plot quantiles of ten seconds each, so that batch boundaries are visible."""
    parts: dict[int, list[float]] = {}
    for at, ms in alerts:
        parts.setdefault(int(at // _PART_SECONDS), []).append(ms)
    named: dict[str, list[tuple[float, float]]] = {"largest": [], "p99": [], "p50": []}
    for part, values in sorted(parts.items()):
        known = quantiles(values)
        minute = part * _PART_SECONDS / 60
        for name, key in (("largest", "max"), ("p99", "p99"), ("p50", "p50")):
            named[name].append((round(minute, 3), round(known[key], 2)))
    return lines("Quantiles of each ten seconds of the run", named, x="minutes", y="milliseconds")


if __name__ == "__main__":
    main()
