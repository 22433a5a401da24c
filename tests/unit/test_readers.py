"""Whoever still reads an older version of a table keeps its files, and is named with a remedy."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.shops import Shop
from tests.unit.handmade import write_commit, write_rows
from tidelake.errors import RefusedError
from tidelake.ops.maintenance import Plan, plan_upkeep
from tidelake.replay.backfill_state import State, write_state

_WEEK = timedelta(days=7)
_LATER = timedelta(days=9)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Give a lake of three batches, none of them read by anybody any more."""
    return Shop(tmp_path).run(3)


def _plans(shop: Shop, *, keep: timedelta | None = None) -> dict[str, Plan]:
    """Plan an upkeep nine days after the batches; by default files are kept while needed."""
    now = shop.began + _LATER
    plans = plan_upkeep(shop.lake, shop.pipeline, horizon=_WEEK, keep=keep, now=now)
    return {plan.table.name: plan for plan in plans}


def _gold_lags(shop: Shop) -> str:
    note = {"pipeline": "shop", "hop": "gold", "generation": "g1", "batch": 0}
    write_commit(shop.lake.gold("totals"), 3, note={**note, "until": {"silver": [1, -1]}})
    return "silver.shop"


def _epoch_names_older_versions(shop: Shop) -> str:
    versions = "MAP {'silver.shop': 1::BIGINT, 'gold.visits': 2::BIGINT} AS versions"
    row = f"SELECT 'shop' AS pipeline, 7::BIGINT AS epoch, {versions}"
    write_rows(shop.lake.epochs(), row, note={"generation": "g1", "batch": 0})
    return "silver.shop"


def _backfill_is_promoted(shop: Shop) -> str:
    before = {"gold.totals": 1}
    write_state(shop.lake, shop.pipeline, State("silver", "another", "promoted", before=before))
    return "gold.totals"


@pytest.mark.parametrize(
    ("begin", "by", "remedy"),
    [
        (_gold_lags, "gold.totals has not read further", "tidelake run shop --hop gold"),
        (_epoch_names_older_versions, "epoch 7 of shop", "tidelake run shop"),
        (
            _backfill_is_promoted,
            "the rollback of shop's backfill",
            "wait until the recovery horizon has passed",
        ),
    ],
    ids=["a stream", "a consistent read", "a rollback"],
)
def test_files_that_a_reader_needs_are_kept_and_the_reader_is_named(
    shop: Shop, begin: Callable[[Shop], str], by: str, remedy: str
) -> None:
    table = begin(shop)
    found = _plans(shop)
    assert [(need.by, need.remedy) for need in found[table].needs] == [(by, remedy)]
    assert found[table].keep >= _LATER - timedelta(minutes=1)
    others = {name: plan for name, plan in found.items() if name != table}
    assert {plan.keep for plan in others.values()} == {_WEEK}
    with pytest.raises(RefusedError, match=f"still needed: {by}.*or first: {remedy}"):
        _plans(shop, keep=_WEEK)


def test_a_gold_table_that_left_the_file_needs_no_file_of_silver(shop: Shop) -> None:
    """No run would ever let it read further."""
    silver = _gold_lags(shop)
    assert _plans(shop)[silver].needs
    shop.definition = shop.definition | {"gold": shop.definition["gold"][:-1]}
    shop.write_definition()
    assert not any(plan.needs for plan in _plans(shop, keep=_WEEK).values())


def test_for_a_table_of_another_pipeline_that_may_be_given_up_there_is_a_remedy(
    shop: Shop,
) -> None:
    note = {"pipeline": "till", "hop": "gold", "generation": "g1", "batch": 0}
    until = {"silver": [0, -1], "silver.shop": [1, -1]}
    write_commit(shop.lake.gold("joined"), 0, note={**note, "until": until})
    (need,) = _plans(shop)["silver.shop"].needs
    assert need.by == "gold.joined has not read further"
    assert need.remedy == (
        "tidelake run till --hop gold (or remove gold.joined, if till no longer fills it)"
    )


def test_a_rollback_needs_no_file_once_the_horizon_has_passed(shop: Shop) -> None:
    _backfill_is_promoted(shop)
    (file,) = (shop.root / "backfill").rglob("*.json")
    promoted = (shop.began - timedelta(days=1)).timestamp()
    os.utime(file, (promoted, promoted))
    assert _plans(shop)["gold.totals"].needs == ()
    _plans(shop, keep=_WEEK)


def test_a_rollback_of_silver_needs_the_bronze_that_silver_had_read(shop: Shop) -> None:
    before = {"silver.shop": 1}
    write_state(shop.lake, shop.pipeline, State("bronze", "another", "promoted", before=before))
    needs = {name: plan.needs for name, plan in _plans(shop).items() if plan.needs}
    assert set(needs) == {"bronze.shop", "silver.shop"}
    assert {need.by for found in needs.values() for need in found} == {
        "the rollback of shop's backfill"
    }
