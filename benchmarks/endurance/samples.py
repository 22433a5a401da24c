"""Memory, files and lag every few seconds, cheap enough not to disturb the run."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from benchmarks.endurance.driver import NAME, Driver
from benchmarks.endurance.stream import Stream
from benchmarks.measuring import in_thread
from tidelake.delta.commit_metadata import position
from tidelake.delta.log import last_commit
from tidelake.delta.positions import added_between
from tidelake.delta.tables import HOPS, Hop, Lake
from tidelake.errors import TidelakeError
from tidelake.kafka.client import total_offsets

EVERY_SECONDS = 10.0
_MB = 1e6
# The log of a JVM's collections, in the folder of the run; %p is the process.
GC_LOG = "gc-%p.log"
_PAUSE = re.compile(r"^\[([^\]]+)\].* Pause .* \d+M->(\d+)M\(", re.MULTILINE)


@dataclass
class Samples:
    """Takes samples in a thread.

    Attributes:
        driver: The run.
        stream: What is sent to it.
        taken: The samples, each with ``at``, seconds since the epoch; memory in MB; ``lag`` of
            a hop in rows, None while a swap changes the tables; files of a table as [data, log].
        jvms: Process ids of the runs' JVMs.
        cost: CPU seconds of the sampling.
    """

    driver: Driver
    stream: Stream
    taken: list[dict[str, Any]] = field(default_factory=list)
    jvms: set[int] = field(default_factory=set)
    cost: float = 0.0
    _ends: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Take samples until the block ends."""
        with in_thread(self._run, self._ends):
            yield

    def _run(self) -> None:
        while True:
            before = time.thread_time()
            self.taken.append(self._sample())
            self.cost += time.thread_time() - before
            if self._ends.wait(EVERY_SECONDS):
                return

    def _sample(self) -> dict[str, Any]:
        lake, pid = self.driver.lake, self.driver.pid
        java, python = self._memory(pid) if pid else (0.0, 0.0)
        lag = {hop: self._lag(hop) for hop in HOPS}
        return {
            "at": time.time(),
            "java": java,
            "python": python,
            "lag": lag,
            "files": files_of(lake),
            "checkpoints": _bytes_of(Path(str(lake.root)) / "checkpoints"),
        }

    def _lag(self, hop: Hop) -> int | None:
        # A table may not exist yet, or be replaced at this moment; the next sample has it.
        try:
            return lag_of(self.driver.lake, hop, self.stream.sent)
        except (OSError, TidelakeError):
            return None

    def _memory(self, pid: int) -> tuple[float, float]:
        """Sum up resident memory in MB of a process and its descendants: Java, and the others."""
        java = python = 0.0
        try:
            root = psutil.Process(pid)
            tree = [root, *root.children(recursive=True)]
        except psutil.Error:
            return 0.0, 0.0
        for process in tree:
            try:
                size, name, parent = (
                    process.memory_info().rss / _MB,
                    process.name(),
                    process.parent(),
                )
            except psutil.Error:
                continue
            if name != "java":
                python += size
            # A JVM that forks a command appears twice for a moment, with the same memory.
            elif parent is None or parent.name() != "java":
                java += size
                self.jvms.add(process.pid)
        return round(java, 1), round(python, 1)


def lag_of(lake: Lake, hop: Hop, sent: int) -> int:
    """Count the records that bronze has not read, or the rows that silver or gold have not."""
    bronze, silver = lake.bronze(NAME), lake.silver(NAME)
    if hop == "bronze":
        last = last_commit(bronze)
        return sent - (total_offsets(last.note.get("offsets", {})) if last else 0)
    if hop == "silver":
        return added_between(bronze, position(last_commit(silver), "bronze")).rows
    golds = [table for table in lake.existing() if table.name.startswith("gold.")]
    reached = [position(last_commit(table), "silver") for table in golds]
    return added_between(silver, min(reached)).rows if reached else 0


def files_of(lake: Lake) -> dict[str, list[int]]:
    """Count the data files on disk and the files of the log, of each table with a folder."""
    found = {}
    root = Path(str(lake.root))
    for log in root.glob("*/*/_delta_log"):
        data = sum(
            file.endswith((".parquet", ".bin"))
            for folder, folders, files in os.walk(log.parent)
            for file in files
            if "_delta_log" not in Path(folder).parts
        )
        found[f"{log.parent.parent.name}.{log.parent.name}"] = [data, len(os.listdir(log))]
    return found


def _bytes_of(folder: Path) -> int:
    size = 0
    for path, _, files in os.walk(folder):
        for file in files:
            try:
                size += os.stat(os.path.join(path, file)).st_size
            except OSError:
                continue
    return size


def heap_after_collections(folder: Path, jvms: Iterable[int]) -> list[list[float]]:
    """Read from the logs of JVMs how much of the heap was in use after each collection.

    Returns:
        Seconds since the epoch and MB.
    """
    logs = [folder / GC_LOG.replace("%p", str(jvm)) for jvm in jvms]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in logs if file.exists()]
    return sorted(
        [_instant(at), float(left)] for text in texts for at, left in _PAUSE.findall(text)
    )


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
