"""A million events from a topic into gold, while broker and driver are killed on the way."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.brokers import Kafka
from tests.recovery.outages import away
from tests.recovery.processes import Started, started
from tests.recovery.records import assert_follows, lines_of
from tests.recovery.reporting import Report
from tidelake.config import load_environment, load_pipeline
from tidelake.config.locations import conf_dir, find_file
from tidelake.delta.log import last_commit
from tidelake.delta.tables import Lake, Table

pytestmark = pytest.mark.long
_EVENTS = int(os.environ.get("TIDELAKE_KAFKA_EVENTS", "1000000"))
_SEED = int(os.environ.get("TIDELAKE_SEED", str(time.time_ns() % 1_000_000)))
# Micro-batches of bronze, about.
_BATCHES = 20
_LONGEST = 3600.0
_AWAY_SECONDS = (1.0, 20.0)


def _said(what: str, began: float) -> None:
    print(f"{time.monotonic() - began:6.0f} s  {what}", flush=True)


def _command(folder: Path, *arguments: str) -> None:
    """Run a command to its end."""
    with started(folder, arguments, name=arguments[0]) as command:
        assert command.ends_within(_LONGEST), command.words
        assert command.process.returncode == 0, command.words


def _comes_to(table: Table, batch: int, run: Started) -> None:
    """Wait until a table holds a batch."""
    until = time.monotonic() + _LONGEST
    while (last := last_commit(table)) is None or last.batch < batch:
        assert run.process.poll() is None, run.words
        assert time.monotonic() < until, run.words
        time.sleep(0.05)


def _define(folder: Path, **source: object) -> Path:
    """Write the reference pipeline, whole, on another source."""
    content = yaml.safe_load(find_file("clickstream", "pipeline").read_text(encoding="utf-8"))
    file = folder / "clickstream.yml"
    file.write_text(yaml.safe_dump(content | {"source": source}), encoding="utf-8")
    shutil.copytree(conf_dir() / "expectations", folder / "expectations")
    return file


def test_a_million_events_come_through_the_death_of_broker_and_driver(
    tmp_path: Path,
    kafka: Kafka,
    report: Callable[..., Report],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Minutes of work: the second compiler pays.
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")
    told = report(f"{_EVENTS:,} events, both killed", tried=2, seed=_SEED, full=2)
    print(f"seed {_SEED}: repeat with TIDELAKE_SEED={_SEED} TIDELAKE_KAFKA_EVENTS={_EVENTS}")
    began, chance = time.monotonic(), random.Random(_SEED)
    topic = kafka.topic(partitions=4)
    to = f"kafka://{kafka.bootstrap}/{topic}"
    size = max(100, _EVENTS // _BATCHES)
    source = {"kind": "kafka", "bootstrap": kafka.bootstrap, "topic": topic}
    file = _define(tmp_path, **source, max_offsets_per_trigger=size)
    events, seed = ["--events", str(_EVENTS)], ["--seed", str(_SEED)]
    _command(tmp_path, "generate", "clickstream", "--to", to, *events, *seed)
    _said("generated", began)

    lake = Lake(tmp_path / "lake")
    follow = ["run", str(file), "--root", str(lake.root)]
    first, second = sorted(chance.sample(range(1, _BATCHES - 4), 2))
    with started(tmp_path, [*follow, "--trigger", "continuous"], name="driver") as driver:
        _comes_to(lake.bronze("clickstream"), first, driver)
        time.sleep(chance.uniform(0, 1))
        with away(kafka, "killed"):
            _said(f"broker killed after batch {first} of bronze", began)
            assert not driver.ends_within(chance.uniform(*_AWAY_SECONDS)), driver.words
        told.reached += 1
        _comes_to(lake.bronze("clickstream"), second, driver)
        time.sleep(chance.uniform(0, 1))
    # Left, it is killed with its process group.
    told.reached += 1
    _said(f"driver killed after batch {second} of bronze", began)
    _command(tmp_path, *follow)
    _said("ran to the end", began)

    lines = lines_of(tmp_path / "drawn", _EVENTS, _SEED)
    pipeline = load_pipeline(str(file), load_environment("local", root=str(lake.root)))
    assert_follows(lake, pipeline, lines, told)
    _said("every table is what the oracles say", began)
    _command(tmp_path, "verify", str(file), "--root", str(lake.root))
    _said("verified", began)
