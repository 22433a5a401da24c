"""What changes tables afterwards, in a catalog: repair, backfill, erasure, maintenance."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.catalogs import a_catalog, looking
from tests.following import GOLD, JOINS
from tests.running import START, click, read
from tests.worlds import World, world
from tidelake.config import Environment
from tidelake.delta.access import load
from tidelake.delta.tables import HOPS, Hop
from tidelake.errors import GenerationError
from tidelake.ledger.terms import read_ledger
from tidelake.ops.maintenance import plan_upkeep, upkeep
from tidelake.replay.backfill import build
from tidelake.replay.backfill_promotion import promote, rollback
from tidelake.replay.differences import differences
from tidelake.replay.erase import erase
from tidelake.replay.repairing import repair
from tidelake.replay.subject import Subject
from tidelake.replay.verify import verify

pytestmark = pytest.mark.long
_TOTALS = {
    "name": "totals",
    "window": {"kind": "tumbling", "size": "1 minute"},
    "keys": ["user_id"],
    "measures": {"events": {"count": "*"}},
}


@pytest.fixture
def environment(spark: SparkSession, tmp_path: Path) -> Iterator[Environment]:
    """Make a catalog that is empty."""
    with a_catalog(spark, tmp_path) as environment:
        yield environment


def filled(spark: SparkSession, folder: Path, environment: Environment, **changes: Any) -> World:
    """Run two files, in two batches, through all hops."""
    changes = {"gold": [_TOTALS], **changes}
    made = world(spark, folder, environment=environment, quality=None, **changes)
    for part in range(2):
        made.land(f"{part}.jsonl", lines(part))
    made.run(*[START + timedelta(days=1, minutes=part) for part in range(2)])
    return made


def lines(part: int) -> list[bytes]:
    """Write events, some of them twice and some broken."""
    numbers = range(part * 15, part * 15 + 20)
    return [*[click(n, minute=n * 1.5) for n in numbers], b"{broken"]


def assert_sound(made: World) -> None:
    books = read_ledger(made.lake, made.pipeline)
    assert books.balanced, books.problems
    assert verify(made.context).equal


def test_a_run_goes_on_where_one_of_its_inputs_rests(
    spark: SparkSession, tmp_path: Path, environment: Environment
) -> None:
    """Nothing is requeued: the feed has no commit at the place from which it is to be read."""
    made = filled(spark, tmp_path / "w", environment)
    made.land("2.jsonl", lines(2))
    made.run(START + timedelta(days=2))
    assert read_ledger(made.lake, made.pipeline).balanced


def test_a_backfill_stands_beside_and_is_promoted_and_taken_back(
    spark: SparkSession, tmp_path: Path, environment: Environment
) -> None:
    made = filled(spark, tmp_path / "w", environment)
    before = [table.name for table in made.lake.existing()]
    rows = read(made.lake, "silver.clickstream", "event_id")
    final = "SHOW CREATE TABLE gold.totals__final"
    shown = spark.sql(final).collect()
    changed = made.redefined(event={"where": "action <> 'purchase'"})
    state = build(changed.context, "bronze")
    assert [table.name for table in made.lake.existing()] == before
    assert spark.sql(final).collect() == shown
    assert differences(changed.context, state).silver
    promote(changed.context)
    assert len(read(made.lake, "silver.clickstream", "event_id")) < len(rows)
    changed.land("2.jsonl", lines(2))
    changed.run(START + timedelta(days=2))
    assert_sound(changed)
    rollback(changed.context)
    assert read(made.lake, "silver.clickstream", "event_id") == rows
    made.run(START + timedelta(days=3))
    assert_sound(made)
    build(made.context, "silver")
    beside = spark.sql("SHOW TABLES IN silver LIKE '*__green_*'").collect()
    assert not beside


def test_an_erased_subject_is_in_no_table_and_in_no_feed(
    spark: SparkSession, tmp_path: Path, environment: Environment
) -> None:
    made = filled(spark, tmp_path / "w", environment)
    report = erase(made.context, Subject("user_id", "u1"), now=True)
    assert report.rows["silver.clickstream"] > 0
    assert_sound(made)
    for table in made.lake.existing():
        stored = load(spark, table)
        if "user_id" in stored.columns:
            assert stored.where("user_id = 'u1'").count() == 0
    with looking():
        changed = list((tmp_path / "warehouse").glob("*/*/_change_data/*.parquet"))
    assert changed == []


@pytest.mark.parametrize("hop", HOPS)
def test_a_hop_whose_checkpoint_is_gone_is_refused_and_repaired(
    spark: SparkSession, tmp_path: Path, environment: Environment, hop: Hop
) -> None:
    made = filled(spark, tmp_path / "w", environment)
    shutil.rmtree(made.lake.checkpoints("clickstream", hop) / "g1")
    with pytest.raises(GenerationError, match=f"tidelake repair clickstream --hop {hop}"):
        made.run()
    assert repair(made.context, hop).why == ""
    made.land("2.jsonl", lines(2))
    made.run(START + timedelta(days=2))
    assert_sound(made)


def test_maintenance_changes_no_row(
    spark: SparkSession, tmp_path: Path, environment: Environment
) -> None:
    made = filled(spark, tmp_path / "w", environment)
    plans = plan_upkeep(made.lake, made.pipeline, horizon=timedelta(hours=1))
    done = {one.table.name: one for one in upkeep(made.context, plans)}
    bronze, silver = (done[f"{layer}.clickstream"] for layer in ("bronze", "silver"))
    # Silver was compacted in a batch of its own.
    assert (bronze.files_before, bronze.files, silver.files) == (2, 1, 1)
    assert_sound(made)
    made.land("2.jsonl", lines(2))
    made.run(START + timedelta(days=2))
    assert_sound(made)


def test_every_kind_of_gold_and_a_new_column_follow_by_name(
    spark: SparkSession, tmp_path: Path, environment: Environment
) -> None:
    made = filled(spark, tmp_path / "w", environment, gold=GOLD, joins=JOINS)
    made.land("2.jsonl", [click(n, minute=n, shade="red") for n in range(60, 70)])
    made.run(START + timedelta(days=2))
    assert "shade" in load(spark, made.lake.silver("clickstream")).columns
    assert_sound(made)


def test_the_prefilter_s_rows_are_found_in_the_feed(
    spark: SparkSession, tmp_path: Path, environment: Environment
) -> None:
    made = filled(spark, tmp_path / "w", environment, dedup={"prefilter": "operator"})
    assert read_ledger(made.lake, made.pipeline).fates["duplicate"] > 0
    assert_sound(made)
