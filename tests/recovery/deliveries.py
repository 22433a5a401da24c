"""What is delivered to the clickstream by the tests that kill it, and what must come of it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import SparkSession

from tests.comparing import assert_gold_equals_oracle, distinct_events
from tests.recovery.chains import losses
from tests.recovery.reporting import Report
from tests.running import click, land, read, run
from tidelake.config import Environment, Pipeline, load_environment, load_pipeline
from tidelake.delta.tables import Lake
from tidelake.ledger.terms import read_ledger


def lines(part: int, seed: int) -> list[bytes]:
    """Write one file's lines, among them copies, garbage and a conflict, none too late."""
    chance = random.Random(f"{seed}/{part}")
    first = part * 40
    made = [click(n, minute=chance.uniform(0, 600)) for n in range(first, first + 40)]
    made += [made[3], b'{"event_id": "cut off', click(first, minute=1, product_id="other")]
    if part:
        made.append(click(first - 1, minute=2, product_id="other"))
    chance.shuffle(made)
    return made


def deliver(folder: Path, part: int, seed: int) -> None:
    """Put a file into the landing folder, unless it is there: a changed file would be refused."""
    landing, name = folder / "landing", f"part-{part:04d}.jsonl"
    if not (landing / name).exists():
        land(landing, name, lines(part, seed))


def arguments(folder: Path) -> list[str]:
    """Give the arguments of a run."""
    places = ["--root", str(folder / "lake"), "--source", str(folder / "landing")]
    return ["run", _definition(folder), *places]


def _definition(folder: Path) -> str:
    """Name the definition that a folder has of its own, or the reference pipeline, whole."""
    own = folder / "clickstream.yml"
    return str(own) if own.exists() else "clickstream"


def _loaded(folder: Path) -> tuple[Environment, Pipeline]:
    """Load what the command line does with those arguments."""
    environment = load_environment("local", root=str(folder / "lake"))
    landing = str(folder / "landing")
    return environment, load_pipeline(_definition(folder), environment, source=landing)


def run_to_the_end(spark: SparkSession, folder: Path) -> None:
    """Run with those arguments, in this process."""
    run(spark, *_loaded(folder))


def assert_as_delivered(folder: Path, parts: Iterable[int], seed: int, told: Report) -> None:
    """Hold every table against the oracle, and the ledger; report what is lost or doubled."""
    delivered = [line for part in parts for line in lines(part, seed)]
    lake = Lake(folder / "lake")
    told.lost, told.doubled = losses(lake, delivered)
    assert (told.lost, told.doubled) == (0, 0)
    books = read_ledger(lake, _loaded(folder)[1]).to_json()
    assert books["problems"] == []
    assert books["source"] == books["bronze"] == len(delivered)
    expected = distinct_events(delivered)
    assert read(lake, "silver.clickstream__late", "event_id") == []
    assert [row[0] for row in read(lake, "silver.clickstream", "event_id")] == sorted(
        event["event_id"] for event in expected
    )
    assert_gold_equals_oracle(lake, expected)
