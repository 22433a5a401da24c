"""The clickstream, whole: generated files through real Delta tables, against the oracle."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.comparing import assert_gold_equals_oracle
from tests.oracles import clickstream as oracle
from tests.running import clickstream, place_of, read, run, versions
from tidelake.config import Environment, Limits, Pipeline, load_environment
from tidelake.delta.merge import compact
from tidelake.delta.tables import Lake
from tidelake.examples import generate
from tidelake.ledger.terms import read_ledger
from tidelake.ops.status import read_status

_EVENTS = 6_000
_STAGES = {
    "malformed": "parse",
    "contract": "contract",
    "expectation": "expectation",
    "future": "future_event_time",
    "conflicting": "conflicting_duplicate",
}


@dataclass(frozen=True)
class World:
    """A finished run and what the oracle says of it."""

    environment: Environment
    pipeline: Pipeline
    lake: Lake
    lines: list[bytes]
    fates: list[oracle.Fate]
    places: dict[tuple[str, int], int]
    log: list[str]

    def positions(self, table: str) -> list[int]:
        """Give the input positions of a table's rows."""
        return sorted(self.places[place_of(row[0])] for row in read(self.lake, table, "record_id"))

    def expected(self, *verdicts: str) -> list[int]:
        """Give the positions that the oracle gives these verdicts."""
        return [fate.position for fate in self.fates if fate.verdict in verdicts]


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Generate a stream with every kind of trouble and run it in several batches."""
    base = tmp_path_factory.mktemp("clickstream")
    landing = base / "landing"
    generate("clickstream", landing, events=_EVENTS, seed=3)
    # Several batches of silver, and few of gold, which has six tables to merge into.
    limits = {"limits": Limits(silver_bytes="1k", gold_bytes="256k")}
    environment = load_environment("local", root=str(base / "lake")).model_copy(update=limits)
    pipeline = clickstream(environment, landing)
    log = run(spark, environment, pipeline)
    assert environment.root is not None
    lake = Lake(environment.root)

    lines: list[bytes] = []
    places: dict[tuple[str, int], int] = {}
    for file in sorted(landing.iterdir()):
        for number, line in enumerate(file.read_bytes().split(b"\n")[:-1]):
            places[file.name, number] = len(lines)
            lines.append(line)
    # Watermarks follow from batches, which the oracle does not know; the tables say who was late.
    late = [places[place_of(row[0])] for row in read(lake, "silver.clickstream__late", "record_id")]
    return World(
        environment, pipeline, lake, lines, oracle.fates(lines, too_late=late), places, log
    )


def test_bronze_holds_every_line_verbatim(world: World) -> None:
    rows = read(world.lake, "bronze.clickstream", "record_id, payload")
    found = {world.places[place_of(record)]: bytes(payload) for record, payload in rows}
    assert [found[position] for position in range(len(world.lines))] == world.lines


def test_silver_holds_exactly_the_accepted_events(world: World) -> None:
    assert world.positions("silver.clickstream") == world.expected("accepted")


def test_silver_holds_the_values_as_they_were_written(world: World) -> None:
    columns = ("event_id", "event_time", "user_id", "action", "product_id", "value")
    expected = [
        tuple(fate.event[name] for name in columns)
        for fate in world.fates
        if fate.verdict == "accepted" and fate.event is not None
    ]
    assert read(world.lake, "silver.clickstream", ", ".join(columns)) == sorted(expected, key=repr)


def test_quarantine_holds_each_broken_line_verbatim_with_its_stage(world: World) -> None:
    rows = read(world.lake, "silver.clickstream__quarantine", "record_id, payload, stage, reasons")
    found = {
        world.places[place_of(record)]: (bytes(payload), stage)
        for record, payload, stage, _ in rows
    }
    expected = {
        fate.position: (world.lines[fate.position], _STAGES[fate.verdict])
        for fate in world.fates
        if fate.verdict in _STAGES
    }
    assert found == expected
    assert all(reasons for *_, reasons in rows)


def test_late_rows_lie_beyond_the_allowed_lateness_of_their_watermark(world: World) -> None:
    rows = read(world.lake, "silver.clickstream__late", "event_time, watermark, lateness_seconds")
    assert rows, "the stream was to hold events that come too late"
    for event_time, watermark, lateness in rows:
        assert lateness == pytest.approx((watermark - event_time).total_seconds())
        assert lateness > world.pipeline.watermark.allowed_lateness.total_seconds()


def test_late_but_allowed_events_are_marked_in_silver(world: World) -> None:
    assert Counter(row[0] for row in read(world.lake, "silver.clickstream", "is_late"))[True] > 0


def test_gold_equals_a_recomputation_over_the_accepted_events(world: World) -> None:
    accepted = [fate.event for fate in world.fates if fate.verdict == "accepted" and fate.event]
    assert_gold_equals_oracle(world.lake, accepted)


def test_the_books_balance_and_agree_with_the_oracle(world: World) -> None:
    told = read_ledger(world.lake, world.pipeline).to_json()
    assert told["balanced"]
    assert told["source"] == told["bronze"] == len(world.lines)
    assert told["silver"] == len(world.expected("accepted"))
    assert told["duplicates"] == len(world.expected("duplicate"))
    assert told["quarantined"] == len(world.expected(*_STAGES))
    assert told["late"] == len(world.expected("late"))
    assert told["filtered"] == len(world.expected("filtered"))
    files = told["source_files"]
    assert files["offered"] == files["taken"] == 20
    assert (
        files["bytes_offered"] == files["bytes_taken"] == sum(len(line) + 1 for line in world.lines)
    )


def test_status_says_that_nothing_waits(world: World) -> None:
    status = read_status(world.lake, world.pipeline)
    assert [hop.waiting for hop in status.hops] == [0, 0, 0]
    assert status.watermark is not None


def test_progress_tells_hop_batch_rows_and_watermark(world: World) -> None:
    assert len([line for line in world.log if line.startswith("silver")]) >= 4
    assert any("watermark 2026-01-0" in line for line in world.log)


@pytest.mark.long
def test_a_second_run_adds_nothing_and_a_new_file_adds_exactly_its_events(
    spark: SparkSession, world: World
) -> None:
    # Files that were put together bring no row, and no batch.
    for table in (world.lake.bronze("clickstream"), world.lake.silver("clickstream")):
        compact(spark, table)
    before = versions(world.lake)
    lines = run(spark, world.environment, world.pipeline)
    assert [line for line in lines if "does not exist yet" not in line] == []
    # But for the epoch, which names the new versions.
    after = versions(world.lake)
    assert {**after, "ops.epochs": 0} == {**before, "ops.epochs": 0}

    landing = Path(world.pipeline.source.path)  # type: ignore[union-attr]
    copy = world.lines[world.expected("accepted")[-1]]
    fresh = copy.replace(b'"event_id": "', b'"event_id": "new-').replace(
        b'"event_id":"', b'"event_id":"new-'
    )
    (landing / "zz-more.jsonl").write_bytes(fresh + b"\n" + copy + b"\n")
    ledger = read_ledger(world.lake, world.pipeline).to_json()
    run(spark, world.environment, world.pipeline)
    grown = read_ledger(world.lake, world.pipeline).to_json()
    assert grown["bronze"] - ledger["bronze"] == 2
    assert grown["silver"] - ledger["silver"] == 1
    assert grown["duplicates"] - ledger["duplicates"] == 1
    assert grown["balanced"]
