"""A burst of 50 times the usual rate: nothing lost, the backlog processed, memory flat.

A real broker, and ``tidelake run clickstream`` with an interval as a separate process, with two of
its gold tables so that two cores keep up. Prints lag, batches and memory over time, or JSON with
``--json``. Fails if a record is missing or duplicated, the ledger does not balance, the lag stays
high, or memory grew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stubs lack it

from benchmarks.measuring import in_thread
from tidelake.config import load_environment, load_pipeline
from tidelake.config.locations import find_file
from tidelake.delta.commit_metadata import position
from tidelake.delta.log import last_commit
from tidelake.delta.positions import added_between
from tidelake.delta.tables import Lake
from tidelake.kafka.broker import down, up
from tidelake.kafka.client import total_offsets
from tidelake.ledger.query import ask
from tidelake.ledger.terms import read_ledger
from tidelake.ops.status import read_status

_PARTITIONS = 4
_GOLD = ("user_activity_1m", "product_totals")
_LEFT_OUT = ("enrich", "joins", "quality")
_TICK = 0.1
# Normal backlog, in seconds of the usual rate: for bronze, and for silver and gold together.
_USUAL_LAG, _USUAL_PENDING = 30, 120
# Timeout for session, tables and first batches; the machine may be shared.
_STARTS = 400
# A progress line of a hop: name, rows, rows a second.
_BATCH = re.compile(r"(bronze|silver|gold) +batch +\d+ +([\d,]+) rows +([\d,]+) rows/s")
_ACTIONS = ("view", "click", "purchase", "bot")


@dataclass
class Stream:
    """Sends events to a topic at a rate.

    Attributes:
        bootstrap: The broker's address.
        topic: The topic.
        rate: Events a second; may be changed while sending.
        sent: Events sent so far, numbered from 0.
    """

    bootstrap: str
    topic: str
    rate: float
    sent: int = 0
    _ends: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send in a thread until the block ends."""
        with in_thread(self._send, self._ends):
            yield

    def _send(self) -> None:
        settings = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True}
        producer = Producer(settings | {"log_level": 0})
        began, due = time.monotonic(), 0.0
        while not self._ends.wait(_TICK):
            now = time.monotonic()
            due += (now - began) * self.rate
            began = now
            while self.sent < int(due):
                producer.produce(self.topic, _event(self.sent), partition=self.sent % _PARTITIONS)
                self.sent += 1
            producer.poll(0)
        if producer.flush(30):
            raise SystemExit("the broker did not acknowledge all events")


def _event(number: int) -> bytes:
    return json.dumps(
        {
            "event_id": f"e{number}",
            "user_id": f"u{number % 997}",
            "event_time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "action": _ACTIONS[number % 4],
            "product_id": f"p{number % 101}",
            "value": 12.5 if number % 4 == 2 else None,
        }
    ).encode()


@dataclass(frozen=True)
class Sample:
    """Lag and memory at one moment.

    Attributes:
        seconds: Seconds since the start.
        phase: ``calm``, ``burst`` or ``after``.
        lag: Records that bronze has not read.
        pending: Rows that silver and gold have not read.
        java: Resident memory of the run's JVM, in MB.
        python: Resident memory of its Python processes, in MB.
    """

    seconds: float
    phase: str
    lag: int
    pending: int
    java: int
    python: int


def sample(began: float, phase: str, lake: Lake, sent: int, process: int) -> Sample:
    """Read lag from the tables' logs, and the memory of a process with its children."""
    bronze, silver = lake.bronze("clickstream"), lake.silver("clickstream")
    last = last_commit(bronze)
    taken = total_offsets(last.note.get("offsets", {})) if last else 0
    golds = [table for table in lake.existing() if table.name.startswith("gold.")]
    reached = [position(last_commit(table), "silver") for table in golds]
    for_silver = added_between(bronze, position(last_commit(silver), "bronze")).rows
    for_gold = added_between(silver, min(reached)).rows if reached else 0
    memory = _memory(process)
    seconds = round(time.monotonic() - began, 1)
    return Sample(seconds, phase, sent - taken, for_silver + for_gold, *memory)


def _memory(process: int) -> tuple[int, int]:
    """Sum up resident memory in MB, of Java and of other processes."""
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    java: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = dict(
                line.split(":", 1) for line in (folder / "status").read_text().splitlines()
            )
        except (OSError, ValueError):
            continue
        number = int(folder.name)
        parents[number] = int(fields["PPid"])
        sizes[number] = int(fields.get("VmRSS", "0 kB").split()[0]) // 1024
        if fields["Name"].strip() == "java":
            java.add(number)
    tree = {process}
    while more := {n for n, parent in parents.items() if parent in tree} - tree:
        tree |= more
    # A JVM that forks a command appears twice for a moment, with the same memory.
    counted = {n for n in tree & sizes.keys() if parents[n] not in java}
    return sum(sizes[n] for n in counted & java), sum(sizes[n] for n in counted - java)


@contextmanager
def running(folder: Path, source: str, interval: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the pipeline until the block ends, with its output in a file."""
    arguments = ["run", "clickstream", "--source", source, "--trigger", interval]
    with (folder / "run.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidelake.cli", *arguments, "--root", str(folder / "lake")],
            cwd=folder,
            stderr=log,
            stdout=log,
            start_new_session=True,
        )
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def play(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Send the calm, burst and after phases, and return the results."""
    broker = up(folder / "kafka", 0)
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("clicks", _PARTITIONS, 1)])["clicks"].result(30)
        stream = Stream(broker.bootstrap, "clicks", options.rate)
        lake = Lake(folder / "lake")
        source = f"kafka://{broker.bootstrap}/clicks"
        with running(folder, source, options.interval) as process:
            with stream.sending():
                samples, status = _watch(folder, lake, stream, process, options)
            # Until the last records are read, too.
            _until(lambda: sample(0, "", lake, stream.sent, process.pid).lag == 0, process, 60)
        return _result(folder, lake, stream, samples, status, options)
    finally:
        down(folder / "kafka")


def _watch(
    folder: Path,
    lake: Lake,
    stream: Stream,
    process: subprocess.Popen[bytes],
    options: argparse.Namespace,
) -> tuple[list[Sample], dict[str, Any]]:
    totals = lake.gold("product_totals")
    _until(lambda: (last := last_commit(totals)) is not None and last.batch >= 2, process, _STARTS)
    samples: list[Sample] = []
    began = time.monotonic()
    status: dict[str, Any] = {}
    phases = [
        ("calm", options.rate, options.calm),
        ("burst", options.rate * options.times, options.burst),
        ("after", options.rate, options.patience),
    ]
    for phase, rate, seconds in phases:
        stream.rate = rate
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise SystemExit("the run exited: see its log")
            samples.append(sample(began, phase, lake, stream.sent, process.pid))
            if phase == "after" and _is_calm(samples, options):
                break
            time.sleep(1)
        if phase == "burst":
            pipeline = load_pipeline(
                str(folder / "conf" / "pipelines" / "clickstream.yml"),
                load_environment(root=str(lake.root)),
            )
            status = read_status(lake, pipeline).to_json()["source"]
    return samples, status


def _is_calm(samples: list[Sample], options: argparse.Namespace) -> bool:
    """Return whether the last ten samples are within the calm phase's or the normal backlog."""
    before = [each for each in samples if each.phase == "calm"]
    lag = max(options.rate * _USUAL_LAG, *(each.lag for each in before))
    pending = max(options.rate * _USUAL_PENDING, *(each.pending for each in before))
    latest = [each for each in samples if each.phase == "after"][-10:]
    return len(latest) == 10 and all(each.lag <= lag and each.pending <= pending for each in latest)


def _until(done: Any, process: subprocess.Popen[bytes], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the run exited or timed out: see its log")
        time.sleep(0.5)


def _result(
    folder: Path,
    lake: Lake,
    stream: Stream,
    samples: list[Sample],
    status: dict[str, Any],
    options: argparse.Namespace,
) -> dict[str, Any]:
    output = (folder / "run.log").read_text(encoding="utf-8")
    batches: dict[str, list[float]] = {"bronze": [], "silver": [], "gold": []}
    for hop, rows, rate in _BATCH.findall(output):
        if rate != "0":
            batches[hop].append(int(rows.replace(",", "")) / int(rate.replace(",", "")))
    payloads = ask(lake, "SELECT payload FROM bronze.clickstream").rows
    found = Counter(json.loads(bytes(row[0]))["event_id"] for row in payloads)
    pipeline = load_pipeline(
        str(folder / "conf" / "pipelines" / "clickstream.yml"),
        load_environment(root=str(lake.root)),
    )
    ledger = read_ledger(lake, pipeline).to_json()
    memory = {
        phase: max(each.java + each.python for each in samples if each.phase == phase)
        for phase in ("calm", "burst", "after")
    }
    grown = max(memory.values()) / memory["calm"]
    problems = {
        "events are missing or duplicated": found != Counter(f"e{n}" for n in range(stream.sent)),
        "the ledger does not balance": not ledger["balanced"],
        "the lag stayed high": not _is_calm(samples, options),
        f"memory grew {grown:.2f} times": grown > options.memory,
    }
    return {
        "events": stream.sent,
        "burst_events": int(options.rate * options.times * options.burst),
        "largest_lag": max(each.lag for each in samples),
        "largest_pending": max(each.pending for each in samples),
        "caught_up_seconds": round(
            samples[-10].seconds - max(each.seconds for each in samples if each.phase == "burst"), 1
        ),
        "batch_seconds": {
            hop: {"median": round(median(took), 2), "longest": round(max(took), 2)}
            for hop, took in batches.items()
        },
        "limits": re.findall(r"(?:bronze|silver|gold) +limit .*", output),
        "memory_mb": memory,
        "memory_grew": round(grown, 2),
        "status_at_the_end_of_the_burst": status,
        "lag": [
            [each.seconds, each.phase, each.lag, each.pending, each.java + each.python]
            for each in samples
        ],
        "problems": [problem for problem, is_so in problems.items() if is_so],
    }


def _conf(folder: Path, heap: str) -> None:
    """Write the run's configuration, with a small heap that is allocated at the start.

    A heap that grows on first use would look like a backlog kept in memory.
    """
    shutil.copytree(find_file("clickstream", "pipeline").parents[1], folder / "conf")
    definition = folder / "conf" / "pipelines" / "clickstream.yml"
    content = yaml.safe_load(definition.read_text())
    kept = {key: value for key, value in content.items() if key not in _LEFT_OUT}
    kept["gold"] = [table for table in content["gold"] if table["name"] in _GOLD]
    definition.write_text(yaml.safe_dump(kept, sort_keys=False))
    file = folder / "conf" / "environments" / "local.yml"
    content = yaml.safe_load(file.read_text())
    content["spark"]["spark.driver.memory"] = heap
    touched = f"-Duser.timezone=UTC -Xms{heap} -XX:+AlwaysPreTouch"
    content["spark"]["spark.driver.extraJavaOptions"] = touched
    file.write_text(yaml.safe_dump(content))


def main() -> None:
    """Run a burst and check the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=40, help="events a second")
    parser.add_argument("--times", type=float, default=50, help="factor of the burst")
    parser.add_argument("--calm", type=float, default=60, help="seconds before the burst")
    parser.add_argument("--burst", type=float, default=30, help="seconds of the burst")
    parser.add_argument("--patience", type=float, default=150, help="seconds allowed to catch up")
    parser.add_argument("--interval", default="2 seconds")
    parser.add_argument("--heap", default="1g")
    parser.add_argument(
        "--memory", type=float, default=1.3, help="largest allowed growth of memory, as a factor"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tidelake-burst-"))
    try:
        _conf(folder, options.heap)
        result = play(folder, options)
    except BaseException:
        log = folder / "run.log"
        print(log.read_text()[-3000:] if log.exists() else "", file=sys.stderr)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps(result))
    else:
        _print(result)
    if result["problems"]:
        raise SystemExit("; ".join(result["problems"]))


def _print(result: dict[str, Any]) -> None:
    print(" second  phase      lag  pending   MB")
    for seconds, phase, lag, pending, memory in result["lag"][::5]:
        print(f"{seconds:7.1f}  {phase:<6} {lag:8,} {pending:8,} {memory:5,}")
    for key, value in result.items():
        if key not in ("lag", "status_at_the_end_of_the_burst"):
            print(f"{key}: {value}")
    print(f"advice: {result['status_at_the_end_of_the_burst']['advice']}")


if __name__ == "__main__":
    main()
