"""What stops a run by name, and what a retry must not do twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.comparing import assert_gold_equals_oracle, distinct_events
from tests.crashes import before_silver_closes
from tests.running import click, clickstream, land, read, run, versions
from tidelake.config import Environment, load_environment
from tidelake.errors import GenerationError, SourceChangedError
from tidelake.ops.ledger import read_ledger
from tidelake.tables import HOPS, Hop, Lake

_LINES = [click(number, minute=number) for number in range(40)] + [b"garbage", click(1, minute=1)]


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run one small file, to be copied by each test."""
    base = tmp_path_factory.mktemp("filled")
    land(base / "landing", "a.jsonl", _LINES)
    environment = load_environment("local", root=str(base / "lake"))
    run(spark, environment, clickstream(environment, base / "landing"))
    return base


@pytest.fixture
def world(filled: Path, tmp_path: Path) -> tuple[Environment, Lake, Path]:
    """Give a copy of the filled tables, their checkpoints and the landing folder."""
    shutil.copytree(filled / "lake", tmp_path / "lake")
    environment = load_environment("local", root=str(tmp_path / "lake"))
    return environment, Lake(tmp_path / "lake"), filled / "landing"


def test_a_batch_that_lost_only_its_checkpoint_commit_is_not_written_twice(
    spark: SparkSession, world: tuple[Environment, Lake, Path]
) -> None:
    environment, lake, landing = world
    before = versions(lake)
    for hop in HOPS:
        for name in ("0", ".0.crc"):
            (lake.checkpoints("clickstream", hop) / "g1" / "commits" / name).unlink()
    run(spark, environment, clickstream(environment, landing))
    assert versions(lake) == before


@pytest.mark.parametrize("hop", HOPS)
def test_a_deleted_checkpoint_is_refused_and_no_table_changes(
    spark: SparkSession, world: tuple[Environment, Lake, Path], hop: Hop
) -> None:
    environment, lake, landing = world
    before = versions(lake)
    shutil.rmtree(lake.checkpoints("clickstream", hop) / "g1")
    with pytest.raises(GenerationError, match=f"tidelake repair clickstream --hop {hop}"):
        run(spark, environment, clickstream(environment, landing))
    assert versions(lake) == before


def test_a_file_that_grew_after_it_was_read_stops_bronze_by_name(
    spark: SparkSession, world: tuple[Environment, Lake, Path], tmp_path: Path
) -> None:
    environment, lake, _ = world
    landing = tmp_path / "landing"
    land(landing, "b.jsonl", [click(100, minute=3)])
    run(spark, environment, clickstream(environment, landing), hops=["bronze"])
    before = versions(lake)
    with (landing / "b.jsonl").open("ab") as file:
        file.write(click(101, minute=4) + b"\n")
    with pytest.raises(SourceChangedError, match=r"b\.jsonl"):
        run(spark, environment, clickstream(environment, landing), hops=["bronze"])
    assert versions(lake) == before


@pytest.mark.long
def test_a_batch_interrupted_before_silver_closed_it_leaves_one_copy_of_everything(
    spark: SparkSession,
    environment: Environment,
    lake: Lake,
    tmp_path: Path,
) -> None:
    land(tmp_path / "landing", "a.jsonl", _LINES)
    pipeline = clickstream(environment, tmp_path / "landing")
    with before_silver_closes():
        run(spark, environment, pipeline)
    assert len(read(lake, "silver.clickstream__quarantine", "payload")) == 1
    run(spark, environment, pipeline)
    assert len(read(lake, "silver.clickstream__quarantine", "payload")) == 1
    assert read_ledger(lake, pipeline).balanced
    assert_gold_equals_oracle(lake, distinct_events(_LINES))


@pytest.mark.long
def test_a_batch_of_nothing_but_copies_closes_and_the_next_goes_on(
    spark: SparkSession, world: tuple[Environment, Lake, Path], tmp_path: Path
) -> None:
    environment, lake, _ = world
    landing = tmp_path / "landing"
    before = versions(lake)
    land(landing, "b.jsonl", [click(1, minute=1), click(2, minute=2)])
    run(spark, environment, clickstream(environment, landing))
    after = versions(lake)
    assert after["silver.clickstream"] == before["silver.clickstream"] + 1
    land(landing, "c.jsonl", [click(50, minute=50)])
    land(landing, "d.jsonl", [])
    run(spark, environment, clickstream(environment, landing))
    land(landing, "e.jsonl", [])
    run(spark, environment, clickstream(environment, landing))
    land(landing, "f.jsonl", [click(51, minute=51)])
    run(spark, environment, clickstream(environment, landing))
    told = read_ledger(lake, clickstream(environment, landing)).to_json()
    assert (told["duplicates"], told["silver"], told["balanced"]) == (3, 42, True)


def test_another_definition_on_stored_tables_is_refused_with_the_difference(
    spark: SparkSession, world: tuple[Environment, Lake, Path]
) -> None:
    environment, lake, landing = world
    before = versions(lake)
    pipeline = clickstream(environment, landing)
    first, *others = pipeline.gold
    narrower = first.model_copy(update={"measures": first.measures[:1]})
    changed = pipeline.model_copy(update={"gold": (narrower, *others)})
    with pytest.raises(GenerationError, match=r"gold\.user_activity_1m was filled under another"):
        run(spark, environment, changed)
    assert versions(lake) == before
