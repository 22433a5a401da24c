"""Triggers of bronze on a landing folder with many files that it has read before.

A commit names the files, and a repair wrote the checkpoint that lists them. Then a query with an
interval runs, with a few new files at a time. Spark does not report idle triggers: one is the step
``latestOffset`` alone, a listing. With ``--store`` the folder is on a local S3 server, whose
requests are counted.

Usage: python -m benchmarks.large_folders [--files 1000 10000] [--store] [--folders N] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.stores import Store, a_free_port, a_store, variables

from benchmarks.visits import NAME, opened
from tidelake.cli.render import print_table
from tidelake.config import load_environment, load_pipeline
from tidelake.delta.append import append_nothing
from tidelake.delta.log import last_commit
from tidelake.folders import folder
from tidelake.replay.repairing import repair
from tidelake.runtime.bronze_hop import BronzeHop
from tidelake.runtime.hop import Run
from tidelake.runtime.landed_files import list_files
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.session import build_session

_LINE = (
    b'{"event_id": "e%d", "user_id": "u1", "event_time": "2026-01-05T10:00:00Z", '
    b'"action": "click", "value": 1.5}\n'
)
_INTERVAL = 2
_STEPS = ("latestOffset", "getBatch", "queryPlanning", "addBatch", "walCommit", "commitOffsets")


class Landing:
    """A landing folder: its place, and the files that were written into it."""

    def __init__(self, place: str, folders: int) -> None:
        """Describe a folder with files in so many subfolders; nothing is written."""
        self.place, self.folders, self.landed = place, folders, 0

    def land(self, files: int) -> None:
        """Write files of one line each."""
        root = folder(self.place)
        for number in range(self.landed, self.landed + files):
            part = root / f"{number % self.folders:04d}" if self.folders else root
            if not number or number < self.folders:
                part.mkdir(parents=True, exist_ok=True)
            (part / f"{number:07d}.jsonl").write_bytes(_LINE % number)
        self.landed += files


def measure(
    run: Run, landing: Landing, options: argparse.Namespace, store: Store | None
) -> dict[str, Any]:
    """Return the figures of a folder that bronze has taken, in seconds."""
    files, began = landing.landed, time.monotonic()
    list_files(landing.place)
    listed = time.monotonic()
    hop = BronzeHop(run)
    opened_at = time.monotonic()
    query = hop.start({"processingTime": f"{_INTERVAL} seconds"})
    try:
        landing.land(options.new)
        while not _triggers(query):
            hop.check(query)
        with _counted(store) as idle_requests:
            ends = time.monotonic() + _INTERVAL * options.idle
            while time.monotonic() < ends:
                hop.check(query)
        with _counted(store) as requests:
            for _ in range(options.triggers):
                before = len(_triggers(query))
                landing.land(options.new)
                while len(_triggers(query)) == before:
                    hop.check(query)
        # The first one warms up.
        new = _triggers(query)[1:]
    finally:
        query.stop()
    found: dict[str, Any] = {
        "files": files,
        "our_listing": round(listed - began, 3),
        "open": round(opened_at - listed, 3),
        **_summary(new),
    }
    if store is not None:
        found["requests_idle"] = _each(idle_requests, options.idle)
        found["requests_new"] = _each(requests, options.triggers)
    return found


def _triggers(query: StreamingQuery) -> list[Mapping[str, int]]:
    """Return the durations of triggers with new files, in milliseconds by step."""
    return [each.durationMs for each in query.recentProgress if "addBatch" in each.durationMs]


def _summary(triggers: list[Mapping[str, int]]) -> dict[str, float]:
    """Return median and maximum of the whole trigger, and the medians of its steps, in seconds."""
    whole = [each["triggerExecution"] / 1000 for each in triggers]
    steps = {
        step: round(median(each.get(step, 0) for each in triggers) / 1000, 3) for step in _STEPS
    }
    return {"median": round(median(whole), 3), "longest": round(max(whole), 3), **steps}


@contextmanager
def _counted(store: Store | None) -> Iterator[Counter[str]]:
    """Count the requests of a store in the block: listings apart from other requests."""
    found: Counter[str] = Counter()
    begins = 0 if store is None else len(store.asked)
    yield found
    for method, path in () if store is None else store.asked[begins:]:
        found["LIST" if method == "GET" and "list-type" in path else method] += 1


def _each(requests: Counter[str], triggers: int) -> dict[str, float]:
    return {method: round(count / triggers, 1) for method, count in sorted(requests.items())}


def filled(spark: SparkSession, root: Path, landing: Landing, files: int) -> Run:
    """Return the context of a pipeline whose bronze has taken all files of a folder."""
    run = opened(spark, root, root / "empty", files=1000)
    pipeline = load_pipeline(str(root / f"{NAME}.yml"), run.environment, source=landing.place)
    run = replace(run, pipeline=pipeline)
    landing.land(10)
    run_hops(run, ["bronze"], parse_trigger(AVAILABLE_NOW))
    landing.land(files - 10)
    bronze = run.lake.bronze(NAME)
    last = last_commit(bronze)
    assert last is not None
    files_taken = list_files(landing.place).values()
    taken = [[file.path, file.size, file.modified, 1] for file in files_taken]
    # Without their rows: no trigger reads them again.
    note = {**last.note, "batch": last.batch + 1, "files": taken}
    append_nothing(spark, bronze, note)
    repair(run, "bronze")
    return run


def main() -> None:
    """Measure each size, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--folders", type=int, default=0, help="subfolders; 0 for none")
    parser.add_argument("--new", type=int, default=10, help="new files in a trigger")
    parser.add_argument("--idle", type=int, default=5, help="idle triggers, for their requests")
    parser.add_argument("--triggers", type=int, default=12, help="triggers with new files")
    parser.add_argument("--store", action="store_true", help="on a local S3 server")
    parser.add_argument("--conf", nargs="*", default=[], help="settings of Spark, KEY=VALUE")
    parser.add_argument("--json", action="store_true", help="an object a line")
    options = parser.parse_args()
    if options.store:
        os.environ.update(variables(a_free_port()))
    with tempfile.TemporaryDirectory() as name, a_store() if options.store else nullcontext() as s3:
        environment = load_environment("local", root=name)
        settings = dict(setting.split("=", 1) for setting in options.conf)
        spark_conf = {**environment.spark, **settings}
        place = s3.prefix() if s3 else f"{name}/landing"
        spark = build_session(environment.model_copy(update={"spark": spark_conf}), reads=[place])
        try:
            for files in options.files:
                landing = Landing(f"{place}/{files}", options.folders)
                run = filled(spark, Path(name) / str(files), landing, files)
                _show(measure(run, landing, options, s3), as_json=options.json)
        finally:
            spark.stop()


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found), flush=True)
        return
    steps = ("our_listing", "open", "median", "longest", *_STEPS)
    print_table(
        ["", "seconds"],
        [[step, found[step]] for step in steps],
        title=f"{found['files']:,} files",
    )
    for key in ("requests_idle", "requests_new"):
        if key in found:
            print(f"{key}: {found[key]}")


if __name__ == "__main__":
    main()
