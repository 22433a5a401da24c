"""Neither the split into files nor the split into runs changes what the tables hold."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.comparing import assert_gold_equals_oracle, distinct_events
from tests.running import click, clickstream, land, read, run, small_batches
from tidelake.config import Environment, load_environment
from tidelake.delta.log import commits
from tidelake.delta.tables import HOPS, Hop, Lake, lake_of
from tidelake.runtime import bronze_hop
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Observer, Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger

_PATIENCE = 120
_SILVER = "event_id, event_time, user_id, action, product_id, value, event_date"


def _stream(seed: int) -> list[bytes]:
    """Write a shuffled stream with copies, conflicts and garbage, nothing of it too late."""
    chance = random.Random(seed)
    lines = [click(number, minute=chance.uniform(0, 600)) for number in range(150)]
    lines += [lines[chance.randrange(150)] for _ in range(30)]
    lines += [click(number, minute=5, product_id="other") for number in range(0, 150, 30)]
    lines += [b'{"event_id": "half', b"", b'{"event_id": "x", "value": "12,50"}']
    chance.shuffle(lines)
    return lines


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param((1, 1), id="whole", marks=pytest.mark.long),
        pytest.param((4, 1), id="files", marks=pytest.mark.long),
        pytest.param((3, 3), id="runs", marks=pytest.mark.long),
    ],
)
def test_any_split_gives_the_same_tables(
    spark: SparkSession,
    environment: Environment,
    lake: Lake,
    tmp_path: Path,
    parts: tuple[int, int],
) -> None:
    files, runs = parts
    lines = _stream(seed=11)
    landing = tmp_path / "landing"
    environment = small_batches(environment)
    step = -(-len(lines) // files)
    for number in range(files):
        land(landing, f"part-{number}.jsonl", lines[number * step : (number + 1) * step])
        if runs > 1 or number == files - 1:
            run(spark, environment, clickstream(environment, landing))
    expected = distinct_events(lines)
    names = _SILVER.split(", ")[:-1]
    together = read(lake, "silver.clickstream", _SILVER) + read(
        lake, "silver.clickstream__late", _SILVER
    )
    assert sorted(row[:-1] for row in together) == sorted(
        tuple(event[name] for name in names) for event in expected
    )
    assert read(lake, "silver.clickstream__late", "event_id") == []
    assert_gold_equals_oracle(lake, expected)


class _Meeting(Observer):
    """Lets bronze go on after its second batch only once silver has closed its first."""

    def __init__(self) -> None:
        self._silver = threading.Event()
        self.met = False

    def closed(self, hop: Hop, batch: int, rows: int, seconds: float) -> None:
        if hop == "silver":
            self._silver.set()
        if (hop, batch) == ("bronze", 1):
            self.met = self._silver.wait(_PATIENCE)


def _batches(lake: Lake, table: str) -> list[tuple[int, object, object]]:
    """List a table's batches with their watermarks and rows, newest first."""
    found = commits(lake.table(table))
    return [(one.batch, one.note.get("watermark"), one.rows) for one in found if one.batch >= 0]


@pytest.mark.long
def test_hops_that_overlap_close_the_same_batches_as_hops_one_after_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    # A month that comes before its time makes what follows late, if that is in a later batch.
    days = ((0, 0), (30, 30), (0, 30))
    for number, days_of in enumerate(days):
        lines = [click(10 * number + n, minute=1440 * days_of[n % 2] + n) for n in range(10)]
        land(tmp_path / "landing", f"part-{number}.jsonl", lines)

    def played(name: str, observer: Observer, *runs: Sequence[Hop]) -> Lake:
        environment = small_batches(load_environment("local", root=str(tmp_path / name)))
        pipeline = clickstream(environment, tmp_path / "landing")
        source = pipeline.source.model_copy(update={"max_files_per_trigger": 1})
        update = {"source": source, "gold": pipeline.gold[:1], "joins": (), "enrich": ()}
        pipeline = pipeline.model_copy(update=update)
        lake = lake_of(environment)
        context = Run(spark, pipeline, lake, environment, Progress(print, observer))
        for hops in runs:
            run_hops(context, hops, parse_trigger(AVAILABLE_NOW))
        return lake

    meeting = _Meeting()
    overlapping = played("overlapping", meeting, HOPS)
    assert meeting.met
    apart = played("apart", Observer(), *([hop] for hop in HOPS))
    for table in ("bronze.clickstream", "silver.clickstream", "gold.user_activity_1m"):
        assert _batches(overlapping, table) == _batches(apart, table)
    assert len(_batches(overlapping, "silver.clickstream")) == len(days)
    assert read(overlapping, "silver.clickstream", _SILVER) == read(
        apart, "silver.clickstream", _SILVER
    )
    assert len(read(overlapping, "silver.clickstream__late", "event_id")) == 5


def test_a_commit_of_bronze_that_is_read_in_parts_is_decided_as_in_one_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bronze_hop, "BRONZE_BYTES_A_FILE", 1)
    landing = tmp_path / "landing"
    # The file that arrived first comes second by its name, and has the older events.
    land(landing, "z.jsonl", [click(number, minute=number) for number in range(12)])
    again = [click(number, minute=number) for number in range(3)]
    again += [click(number, minute=number, product_id="other") for number in range(3, 6)]
    later = [click(number, minute=1440 * 30 + number) for number in range(20, 30)]
    land(landing, "a.jsonl", [*again, *later])
    os.utime(landing / "z.jsonl", (1_700_000_000, 1_700_000_000))

    def played(name: str, *, in_parts: bool) -> Lake:
        environment = load_environment("local", root=str(tmp_path / name))
        environment = small_batches(environment) if in_parts else environment
        pipeline = clickstream(environment, landing)
        update = {"gold": pipeline.gold[:1], "joins": (), "enrich": ()}
        run(spark, environment, pipeline.model_copy(update=update))
        return lake_of(environment)

    whole, parts = played("whole", in_parts=False), played("parts", in_parts=True)
    (only,), (last, first) = (_batches(lake, "silver.clickstream") for lake in (whole, parts))
    assert (first[1], last[1]) == (None, only[1])
    assert (first[2], last[2]) == (16, 6)
    for table, columns in (
        ("silver.clickstream", _SILVER),
        ("silver.clickstream__quarantine", "event_id, stage, payload"),
        ("silver.clickstream__late", "event_id"),
        ("gold.user_activity_1m", "window_start, user_id, events"),
    ):
        assert read(parts, table, columns) == read(whole, table, columns), table
    assert {row[0] for row in read(whole, "silver.clickstream__quarantine", "stage")} == {
        "conflicting_duplicate"
    }
    assert read(whole, "silver.clickstream__late", "event_id") == []
