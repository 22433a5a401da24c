"""A continuous run from Kafka for hours, killed again and again, checked by an oracle at its end.

A broker, a sender and ``tidelake run --trigger continuous`` share one machine. The process group
of the run is killed with SIGKILL at intervals and started again at once. Meanwhile a field appears
in the events, the pipeline file gets the column and a gold table over it, all tables are rebuilt by
a backfill and promoted, tables are compacted and old files deleted, and the topic forgets what is
older than some minutes. Everything that was sent is in a file, from which an oracle without the
pipeline's code knows the fate of each record.

Usage: python -m benchmarks.endurance [--minutes 120] [--rate 500] [--every 600] [--seed N]
       [--reports build/endurance]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stubs lack it

from benchmarks.clicks import TWO, definition
from benchmarks.endurance.driver import NAME, Driver, Life, printed_json
from benchmarks.endurance.oracle import judge
from benchmarks.endurance.page import written
from benchmarks.endurance.samples import (
    GC_LOG,
    Samples,
    heap_after_collections,
    lag_of,
)
from benchmarks.endurance.stream import PARTITIONS, SHARES, Stream
from benchmarks.measuring import end_in_order, machine, say
from benchmarks.runner import HERE
from tidelake.delta.log import Entry, last_commit, note_of
from tidelake.delta.tables import HOPS, Lake, Table
from tidelake.kafka.broker import down, up
from tidelake.ledger.query import ask

_TOPIC = "clicks"
_REPORTS = HERE.parent / "build" / "endurance"
# When things happen, as a part of the run.
_FIELD, _COLUMN, _BACKFILL, _UPKEEP, _WINDOW = 0.15, 0.3, 0.45, 0.75, 0.9
_STARTS_SECONDS, _CATCHES_UP_SECONDS = 300, 1800
_CAMPAIGN_TOTALS: dict[str, Any] = {
    "name": "campaign_totals",
    "window": {"kind": "global"},
    "keys": ["campaign"],
    "measures": {"events": {"count": "*"}, "value": {"sum": "value"}},
}
# Short times, so that within the run ids leave the memory of duplicates and files are deleted.
_SETTINGS: dict[str, Any] = {
    "watermark": {
        "delay": "1 minute",
        "allowed_lateness": "1 hour",
        "max_future_skew": "5 minutes",
    },
    "dedup": {"ttl": "5 minutes", "beyond_ttl": "merge"},
}
_ENVIRONMENT = {"recovery_horizon": "1 minute"}
_HEAP = "2g"


def main() -> None:
    """Run, check, and write the report and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--rate", type=float, default=500, help="records a second")
    parser.add_argument("--every", type=float, default=600, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--reports", type=Path, default=_REPORTS)
    options = parser.parse_args()
    end_in_order()
    folder = Path(tempfile.mkdtemp(prefix="tidelake-endurance-"))
    say(f"seed {options.seed}, tables and logs in {folder} until the run has passed")
    file = options.reports / "endurance.json"
    report = _Run(folder, file, options).play()
    say(f"wrote {file} and {written(file, options.reports)}")
    if report["problems"]:
        raise SystemExit(f"{'; '.join(report['problems'])}. Tables and logs: {folder}")
    shutil.rmtree(folder)


class _Run:
    """The story of a run."""

    def __init__(self, folder: Path, file: Path, options: argparse.Namespace) -> None:
        self.folder, self.file, self.options = folder, file, options
        self.lake = Lake(folder / "lake")
        self.events: list[dict[str, Any]] = []
        self.chance = random.Random(options.seed)
        # Longer than any pause of the reader: what is gone before it was read stops the run.
        self.retention = max(20.0, options.minutes / 4)
        # The number of the first record that was sent after the promotion.
        self.promoted = 0
        self.compared: Any = None
        self.upkeep: list[Any] = []
        self.story_ends = threading.Event()
        self.began = 0.0

    def play(self) -> dict[str, Any]:
        """Play everything; the broker and the run never outlive this."""
        broker = up(self.folder / "kafka", 0)
        # After the options of the command line, which switch the JVM's log off.
        os.environ["_JAVA_OPTIONS"] = f"-Xlog:gc:file={self.folder / GC_LOG}:utctime"
        try:
            return self._played(broker.bootstrap)
        finally:
            del os.environ["_JAVA_OPTIONS"]
            down(self.folder / "kafka")

    def _played(self, bootstrap: str) -> dict[str, Any]:
        minute = 60_000
        told = {"retention.ms": str(int(self.retention * minute)), "segment.ms": str(minute)}
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(_TOPIC, PARTITIONS, 1, config=told)])[_TOPIC].result(30)
        source = {"kind": "kafka", "bootstrap": bootstrap, "topic": _TOPIC}
        file = definition(self.folder, TWO, source)
        _change(file, _SETTINGS)
        environment = file.parents[1] / "environments" / "local.yml"
        spark = yaml.safe_load(environment.read_text(encoding="utf-8"))["spark"]
        heap = {"spark": {**spark, "spark.driver.memory": _HEAP}}
        _change(environment, _ENVIRONMENT | heap)
        options = self.options
        stream = Stream(
            bootstrap, _TOPIC, options.rate / 10, self.folder / "sent.parquet", options.seed
        )
        driver = Driver(self.folder, file, self.lake)
        samples = Samples(driver, stream)
        driver.start()
        try:
            with stream.sending():
                self._until(lambda: _batches(self.lake.gold(TWO[-1])) >= 3, driver)
                stream.rate, self.began = options.rate, time.time()
                say(f"gold runs; {options.minutes:g} minutes begin")
                with samples.running(), ThreadPoolExecutor(1) as pool:
                    killing = pool.submit(self._kill, driver)
                    try:
                        self._story(driver, stream, file)
                    finally:
                        self.story_ends.set()
                    killing.result()
                    stream.end()
                    self._until(lambda: self._is_through(stream.sent), driver, _CATCHES_UP_SECONDS)
                    self._tell("everything that was sent is in gold")
            driver.stop()
            driver.command("run")
        finally:
            driver.close()
        found = self._series(driver, stream, samples)
        # Kept even if a check does not come to its end.
        self._write(found | {"problems": ["the checks did not end"]})
        found |= self._checks(driver, stream, file)
        self._write(found)
        return found

    def _story(self, driver: Driver, stream: Stream, file: Path) -> None:
        """Let everything happen, in the thread that runs the other commands."""
        self._wait(driver, 1 / 60 if self.options.minutes > 30 else 0.1)
        stream.too_late = True
        self._tell("records beyond the allowed lateness are sent from here")
        self._wait(driver, _FIELD)
        stream.campaigns = True
        self._tell("the events have a new field", "field")
        self._wait(driver, _COLUMN)
        with driver.stopped():
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
            event = content["event"]
            event["schema"] += ", campaign STRING"
            event["select"]["campaign"] = "campaign"
            _change(file, {"event": event, "gold": [*content["gold"], _CAMPAIGN_TOTALS]})
            # Exits with 0 only if the tables can go on: silver has the column already, as text.
            driver.command("check")
        self._tell("the pipeline file has the column, and a gold table over it", "column")
        self._wait(driver, _BACKFILL)
        self._tell("a backfill from bronze begins", "backfill")
        driver.command("backfill", "run")
        self.compared = printed_json(driver.command("backfill", "compare", "--json"))
        stream.too_late = False
        sent = stream.sent
        # In a backfill no row is late, so the sender must know which it includes.
        margin = 2 * stream.rate
        self._until(lambda: sent + margin < self._taken(), driver)
        with driver.stopped():
            driver.command("backfill", "promote")
        self.promoted = stream.sent
        self._tell("the backfill is promoted", "promotion")
        stream.too_late = True
        self._wait(driver, _UPKEEP)
        self.upkeep.append(printed_json(driver.command("maintain", "--json")))
        self._tell("maintain ran beside the run", "maintain")
        self._wait(driver, _WINDOW)
        with driver.stopped():
            # A hop or an epoch that is behind would keep files for an hour more.
            driver.command("run")
            self.upkeep.append(printed_json(driver.command("maintain", "--json")))
        self._tell("maintain ran while the run was stopped", "maintain")
        self._wait(driver, 1.0)

    def _kill(self, driver: Driver) -> None:
        """Kill at intervals that vary by a tenth, so that no step of a batch is spared."""
        while not self.story_ends.wait(self.options.every * self.chance.uniform(0.9, 1.1)):
            # On a slow machine a run would otherwise be killed before it ever wrote anything.
            while not self._has_written(driver):
                if self.story_ends.wait(1.0):
                    return
            driver.kill()

    def _has_written(self, driver: Driver) -> bool:
        """Return whether gold has got a batch from the process that runs now."""
        with driver.lock:
            last = last_commit(self.lake.gold(TWO[-1]))
            return last is not None and last.written_at.timestamp() > driver.lives[-1].started

    def _wait(self, driver: Driver, part: float) -> None:
        until = self.began + part * self.options.minutes * 60
        while time.time() < until:
            driver.assert_runs()
            time.sleep(0.5)

    def _until(self, done: Any, driver: Driver, seconds: float = _STARTS_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            driver.assert_runs()
            if time.monotonic() > deadline:
                raise SystemExit(f"nothing more arrives; logs: {self.folder}")
            time.sleep(0.5)

    def _taken(self) -> int:
        return -lag_of(self.lake, "bronze", 0)

    def _is_through(self, sent: int) -> bool:
        return not any(lag_of(self.lake, hop, sent) for hop in HOPS)

    def _tell(self, what: str, mark: str = "") -> None:
        minutes = (time.time() - self.began) / 60
        say(f"{minutes:6.1f} min  {what}")
        if mark:
            self.events.append({"minutes": round(minutes, 2), "mark": mark, "what": what})

    def _write(self, found: dict[str, Any]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(found) + "\n", encoding="utf-8")

    def _series(self, driver: Driver, stream: Stream, samples: Samples) -> dict[str, Any]:
        """Collect what was measured."""
        tables = [table for table in self.lake.existing() if not table.name.startswith("ops.")]
        return {
            "title": "A continuous run that is killed again and again",
            "at": datetime.fromtimestamp(self.began, UTC).isoformat(timespec="seconds"),
            "setting": {
                "minutes": self.options.minutes,
                "records a second": self.options.rate,
                "seconds between kills": self.options.every,
                "seed": self.options.seed,
                "heap": _HEAP,
                "partitions": PARTITIONS,
                "topic keeps, minutes": self.retention,
                **{f"{key}.{name}": v for key, one in _SETTINGS.items() for name, v in one.items()},
                **_ENVIRONMENT,
                "of a thousand records": SHARES,
            },
            "machine": machine(),
            "began": self.began,
            "sent": stream.sent,
            "sender_behind": round(stream.behind, 2),
            "forgotten": _forgotten(stream.bootstrap),
            "lives": [
                asdict(life) | {"first_commit": _first_commits(tables, life)}
                for life in driver.lives
            ],
            "commands": driver.commands,
            "marks": self.events,
            "batches": {table.name: _batches(table) for table in tables},
            "operations": {table.name: _operations(table) for table in tables},
            "upkeep": self.upkeep,
            "compared": self.compared["silver"],
            "samples": samples.taken,
            "sampling_cpu_seconds": round(samples.cost, 1),
            "heap": heap_after_collections(self.folder, samples.jvms),
            "progress": _progress(self.lake),
        }

    def _checks(self, driver: Driver, stream: Stream, file: Path) -> dict[str, Any]:
        """Ask the ledger, verify and the oracle, and list what is wrong."""
        ledger = printed_json(driver.command("ledger", "--json", may_differ=True))
        verified = printed_json(driver.command("verify", "--json", may_differ=True))
        golds = yaml.safe_load(file.read_text(encoding="utf-8"))["gold"]
        root = Path(str(self.lake.root))
        judged = judge(root, stream.file, NAME, golds, self.promoted)
        differing = {
            name: [wanted, ledger[name]]
            for name, wanted in judged["expected"].items()
            if ledger[name] != wanted
        }
        problems = {
            f"{judged['lost']:,} rows are lost": judged["lost"],
            f"{judged['doubled']:,} rows are doubled": judged["doubled"],
            f"{judged['different']:,} rows of silver have other values": judged["different"],
            f"the ledger differs from the oracle: {differing}": differing,
            "the ledger does not balance": not ledger["balanced"],
            "verify is not equal": not verified["equal"],
            f"the sender failed: {stream.failures[:3]}": stream.failures,
        }
        return {
            "ledger": ledger,
            "verify": verified,
            "oracle": judged,
            "problems": [problem for problem, is_so in problems.items() if is_so],
        }


def _change(file: Path, changes: dict[str, Any]) -> None:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    file.write_text(yaml.safe_dump(content | changes, sort_keys=False), encoding="utf-8")


def _batches(table: Table) -> int:
    """Count the batches that a table's log holds, before and after a rebuild."""
    return sum(map(_is_batch, table.entries()))


def _is_batch(entry: Entry) -> bool:
    note = note_of(entry)
    return note is not None and int(note["batch"]) >= 0


def _operations(table: Table) -> dict[str, int]:
    """Count the commits of a table by operation."""
    return dict(Counter(entry.info.operation for entry in table.entries()))


def _first_commits(tables: list[Table], life: Life) -> dict[str, float]:
    """Find the seconds from a start to each table's first batch before the process ended."""
    found = {}
    for table in tables:
        times = [one.info.written_at.timestamp() for one in table.entries() if _is_batch(one)]
        ours = [at for at in times if life.started < at < (life.ended or at + 1)]
        if ours:
            found[table.name] = round(min(ours) - life.started, 1)
    return found


def _forgotten(bootstrap: str) -> int:
    """Count the records that the topic does not hold any more."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "endurance"})
    try:
        places = [TopicPartition(_TOPIC, number) for number in range(PARTITIONS)]
        return sum(int(consumer.get_watermark_offsets(place, timeout=30)[0]) for place in places)
    finally:
        consumer.close()


def _progress(lake: Lake) -> list[list[Any]]:
    """Give hop, instant, seconds and rows of each batch; a kill loses those of a minute."""
    sql = "SELECT hop, epoch(started_at), seconds, rows FROM ops.progress WHERE rows > 0 ORDER BY 2"
    return [[hop, round(at, 1), round(s, 2), rows] for hop, at, s, rows in ask(lake, sql).rows]


if __name__ == "__main__":
    main()
