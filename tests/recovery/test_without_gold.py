"""A pipeline that ends with silver: its rules, and what the commands do without a gold table."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.running import click, read
from tests.worlds import World, reference_gold, world
from tidelake.delta.log import last_commit
from tidelake.errors import UsageError
from tidelake.ledger.terms import read_ledger
from tidelake.ops.alerts import alerts_of
from tidelake.ops.status import read_status
from tidelake.replay.backfill import build, plan
from tidelake.replay.backfill_promotion import promote, rollback
from tidelake.replay.differences import differences
from tidelake.replay.repairing import repair, reset
from tidelake.replay.verify import verify
from tidelake.runtime.runner import refusals

pytestmark = pytest.mark.usefixtures("interpreted")

# The values of `click` are null, 10.25, 20.5 and 30.75.
_RULES = {
    "low": "value < 30",
    "known": {"sql": "value IS NOT NULL", "severity": "warning"},
    "computed": "1 / (value - 20.5) > -1",
}


@pytest.fixture(scope="module")
def silver_only(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run two files of twelve events."""
    made = world(spark, tmp_path_factory.mktemp("silver_only"), gold=[], quality={"rules": _RULES})
    for part in range(2):
        made.land(f"{part}.jsonl", [click(n, minute=n) for n in range(12 * part, 12 * part + 12)])
    made.run()
    return made


@pytest.mark.long
def test_rows_are_judged_by_the_files_own_rules(silver_only: World) -> None:
    lake = silver_only.lake
    assert read(lake, "silver.clickstream", "DISTINCT value") == [(Decimal("10.25"),), (None,)]
    reasons = read(lake, "silver.clickstream__quarantine", "DISTINCT reasons")
    assert reasons == [(["computed: 1 / (value - 20.5) > -1"],), (["low: value < 30"],)]
    assert read_status(lake, silver_only.pipeline).warnings == {"known: value IS NOT NULL": 6}


@pytest.mark.long
def test_the_flow_ends_with_silver(silver_only: World) -> None:
    lake, pipeline = silver_only.lake, silver_only.pipeline
    assert read_ledger(lake, pipeline).problems == ()
    assert verify(silver_only.context).equal
    assert refusals(silver_only.context) == {}
    assert [hop.hop for hop in read_status(lake, pipeline).hops] == ["bronze", "silver"]
    opened = {alert.rule for alert in alerts_of(lake, pipeline, now=datetime.now(UTC))}
    assert opened <= {"quarantine_rate"}
    epoch = last_commit(lake.epochs())
    assert epoch is not None
    versions = epoch.note["last"]["clickstream"]["versions"]
    newest = last_commit(lake.silver("clickstream"))
    assert newest is not None
    assert versions["silver.clickstream"] == newest.version
    (said,) = silver_only.run(hops=("gold",))
    assert "defines no gold table" in said


@pytest.mark.long
def test_nothing_of_gold_is_recomputed(silver_only: World) -> None:
    for attempt in (
        lambda: repair(silver_only.context, "gold"),
        lambda: reset(silver_only.context, "gold"),
        lambda: build(silver_only.context, "silver"),
    ):
        with pytest.raises(UsageError, match="clickstream defines no gold table"):
            attempt()


@pytest.mark.long
def test_silver_is_recomputed_swapped_and_taken_back(silver_only: World, tmp_path: Path) -> None:
    copy = silver_only.copied(tmp_path / "copy")
    rows = read(copy.lake, "silver.clickstream", "event_id")
    assert [step.hop for step in plan(copy.lake, copy.pipeline, "bronze")] == ["silver"]
    looser = copy.redefined(quality={"rules": {"low": "value < 30.75"}})
    state = build(looser.context, "bronze")
    assert not differences(looser.context, state).equal
    promote(looser.context)
    assert len(read(copy.lake, "silver.clickstream", "event_id")) > len(rows)
    rollback(looser.context)
    assert read(copy.lake, "silver.clickstream", "event_id") == rows
    assert set(reset(copy.context, "silver")) == {"silver"}
    copy.run()
    assert verify(copy.context).equal
    assert read(copy.lake, "silver.clickstream", "event_id") == rows


@pytest.mark.long
def test_a_table_that_is_added_later_is_filled_from_the_start(
    silver_only: World, tmp_path: Path
) -> None:
    copy = silver_only.copied(tmp_path / "copy").redefined(gold=reference_gold("product_totals"))
    copy.run()
    assert verify(copy.context).equal
    counted = dict(read(copy.lake, "gold.product_totals", "product_id, events"))
    products = read(copy.lake, "silver.clickstream", "product_id")
    assert counted == Counter(product for (product,) in products)
