"""P8: how long an event takes from a Kafka producer to gold, at 1,000 events a second.

Broker, producer and `tidelake run`, with its three hops, share one machine. An event's
time starts just before the producer takes it, and ends when the commit that covers it is in the
log of the last of two gold tables. It is read from the tables' logs and file times afterwards, so
that nothing polls during the run. The first minutes warm the JVM and do not count.

Usage: python -m benchmarks.p08_event_to_gold [--minutes 3] [--rate 1000] [--trigger continuous]
       [--warm 180] [--repeats 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stubs lack it

from benchmarks.clicks import TWO, definition
from benchmarks.event_times import Arrivals, arrivals
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
)
from tidelake.config import load_environment, load_pipeline
from tidelake.delta.log import last_commit
from tidelake.delta.tables import HOPS, Lake
from tidelake.kafka.broker import down, up
from tidelake.ledger.query import ask
from tidelake.ledger.terms import read_ledger

_GOAL = Goal("p95, event to gold", 5, False, "s")
_TOPIC, _PARTITIONS = "clicks", 2
_TICK, _PART_SECONDS, _START_SHARE = 0.005, 5, 0.1
# Timeouts: until gold's first or last batches, and until the process exits.
_PATIENCE, _EXIT_SECONDS = 180.0, 60.0
_TAIL, _POLL_SECONDS = 15.0, 5.0
_ACTIONS = ("view", "view", "click", "purchase", "bot")


def main() -> None:
    """Measure, and write the report."""
    parser = arguments(__doc__)
    parser.set_defaults(repeats=1)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--rate", type=int, default=1_000, help="events a second")
    parser.add_argument("--trigger", default="continuous")
    parser.add_argument(
        "--warm", type=float, default=180, help="seconds after gold's first batches"
    )
    options = parser.parse_args()
    end_in_order()
    runs = [_run(options) for _ in range(options.repeats)]
    hand_in(_report(runs, options), options.json)


def _run(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tidelake-p8-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        broker = up(folder / "kafka", 0)
        try:
            return _measured(folder, broker.bootstrap, options)
        finally:
            down(folder / "kafka")


def _measured(folder: Path, bootstrap: str, options: argparse.Namespace) -> dict[str, Any]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 1)])[_TOPIC].result(30)
    file = definition(folder, source={"kind": "kafka", "bootstrap": bootstrap, "topic": _TOPIC})
    lake = Lake(folder / "lake")
    sender = _Sender(bootstrap, options.rate)
    with _running(folder, file, options.trigger) as process:
        last = lake.gold(TWO[-1])
        deadline = time.monotonic() + _PATIENCE
        while not _has_batches(last, 3):
            _refuse_ended(process, deadline)
            # At a reduced rate: a backlog from the start-up would have to be processed first.
            sender.send(1.0, share=_START_SHARE)
        say(f"gold runs after {len(sender.sent):,} events")
        sender.send(options.warm)
        _refuse_ended(process)
        first = len(sender.sent)
        sender.send(options.minutes * 60)
        end = len(sender.sent)
        # Keep the load until the last counted events have reached gold.
        sender.send(_TAIL)
        sender.close()
        deadline = time.monotonic() + _PATIENCE
        while True:
            found = arrivals(lake, "clickstream", _TOPIC, sender.sent, _PARTITIONS)
            missing = sum(number not in found for number in range(first, end))
            if not missing:
                break
            say(f"{missing:,} of {end - first:,} events are not in gold yet")
            _refuse_ended(process, deadline)
            time.sleep(_POLL_SECONDS)
    environment = load_environment("local", root=str(lake.root))
    ledger = read_ledger(lake, load_pipeline(str(file), environment)).to_json()
    if not ledger["balanced"]:
        raise SystemExit(f"the ledger does not balance: {ledger}")
    counted = [found[number] for number in range(first, end)]
    return {
        "events": counted,
        "behind": sender.behind,
        "hops": _hops(lake, counted[0].sent, counted[-1].sent),
    }


class _Sender:
    """Sends events at a steady rate, round-robin over the partitions."""

    def __init__(self, bootstrap: str, rate: int) -> None:
        self.sent: list[float] = []
        self.behind = 0.0
        self._rate = rate
        settings = {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True}
        self._producer = Producer({**settings, "linger.ms": 5, "log_level": 0})

    def send(self, seconds: float, *, share: float = 1.0) -> None:
        """Send for ``seconds``, at the rate or a share of it."""
        began, count = time.monotonic(), 0
        while (now := time.monotonic() - began) < seconds:
            due = int(now * self._rate * share)
            self.behind = max(self.behind, (due - count) / (self._rate * share))
            for _ in range(due - count):
                self._send_one()
            count = due
            self._producer.poll(0)
            time.sleep(_TICK)

    def close(self) -> None:
        """Wait until the broker has acknowledged all events."""
        if self._producer.flush(30):
            raise SystemExit("the broker did not acknowledge all events")

    def _send_one(self) -> None:
        number, now = len(self.sent), time.time()
        action = _ACTIONS[number % len(_ACTIONS)]
        event = {
            "event_id": f"e{number}",
            "user_id": f"u{number % 997}",
            "event_time": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
            "action": action,
            "product_id": f"p{number % 101}",
            "value": 12.5 if action == "purchase" else None,
        }
        self.sent.append(now)
        self._producer.produce(_TOPIC, json.dumps(event), partition=number % _PARTITIONS)


@contextmanager
def _running(folder: Path, file: Path, trigger: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the pipeline until the block ends; print the end of its log if it fails."""
    command = [sys.executable, "-m", "tidelake.cli", "run", str(file), "--trigger", trigger]
    with (folder / "run.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--root", str(folder / "lake")],
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            process.wait(_EXIT_SECONDS)
        except BaseException:
            say((folder / "run.log").read_text(encoding="utf-8", errors="replace")[-3000:])
            raise
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _has_batches(table: Any, count: int) -> bool:
    last = last_commit(table) if table.exists else None
    return last is not None and last.batch >= count - 1


def _refuse_ended(process: subprocess.Popen[bytes], until: float | None = None) -> None:
    if process.poll() is not None or (until is not None and time.monotonic() > until):
        raise SystemExit("the run ended, or does not begin")


def _hops(lake: Lake, first: float, last: float) -> dict[str, Any]:
    """Sum up the triggers of each hop that began while events counted."""
    since, until = (datetime.fromtimestamp(one, UTC) for one in (first, last))
    sql = (
        "SELECT hop, seconds, rows, phases FROM ops.progress WHERE rows > 0 AND "
        f"started_at BETWEEN TIMESTAMPTZ '{since:%Y-%m-%d %H:%M:%S}+00' "
        f"AND TIMESTAMPTZ '{until:%Y-%m-%d %H:%M:%S}+00'"
    )
    rows = ask(lake, sql).rows
    found: dict[str, Any] = {}
    for hop in HOPS:
        took = [row for row in rows if row[0] == hop]
        if took:
            phases = sorted({name for row in took for name in row[3]})
            found[hop] = {
                "batches": len(took),
                "seconds, median": round(median(row[1] for row in took), 2),
                "seconds, longest": round(max(row[1] for row in took), 2),
                "rows, median": int(median(row[2] for row in took)),
                **{
                    f"{name}, ms": int(median(row[3].get(name, 0) for row in took))
                    for name in phases
                },
            }
    return found


def _report(runs: list[dict[str, Any]], options: argparse.Namespace) -> Report:
    quantile = [quantiles([one.gold - one.sent for one in run["events"]]) for run in runs]
    events: list[Arrivals] = runs[-1]["events"]
    parts = {
        "producer to bronze": [one.bronze - one.sent for one in events],
        "bronze to silver": [one.silver - one.bronze for one in events],
        "silver to gold": [one.gold - one.silver for one in events],
    }
    return Report(
        row="P8",
        title=f"From Kafka to gold through three hops at {options.rate:,} events a second",
        findings=[Finding.of(_GOAL, [one["p95"] for one in quantile])],
        seconds={},
        checked=f"each of {len(events):,} events is in both gold tables, and the ledger balances",
        setting={
            "events a second": options.rate,
            "minutes": options.minutes,
            "trigger": options.trigger,
            "partitions": _PARTITIONS,
            "gold tables": list(TWO),
            "broker and producer": "on the same machine",
        },
        details={
            "seconds": {name: round(value, 2) for name, value in quantile[-1].items()},
            **{
                f"seconds, {name}": {
                    key: round(value, 2) for key, value in quantiles(values).items()
                }
                for name, values in parts.items()
            },
            **{f"triggers of {hop}": one for hop, one in runs[-1]["hops"].items()},
            "sender behind at most, s": round(max(run["behind"] for run in runs), 3),
            "plots": [_over_time(events)],
        },
    )


def _over_time(events: list[Arrivals]) -> dict[str, Any]:
    """Plot the events by the five seconds in which they were sent."""
    began = events[0].sent
    parts: dict[int, list[float]] = {}
    for one in events:
        parts.setdefault(int((one.sent - began) // _PART_SECONDS), []).append(one.gold - one.sent)
    named: dict[str, list[tuple[float, float]]] = {"largest": [], "p50": []}
    for part, values in sorted(parts.items()):
        known = quantiles(values)
        for name, key in (("largest", "max"), ("p50", "p50")):
            named[name].append((part * _PART_SECONDS, round(known[key], 2)))
    title = "Seconds from producer to gold, of the events sent in each five seconds"
    return lines(title, named, x="seconds of the run", y="seconds")


if __name__ == "__main__":
    main()
