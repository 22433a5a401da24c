"""Whoever still reads an older version of a table keeps its files, and is named with a remedy."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from tests.shops import DEFINITION, Shop
from tests.unit.handmade import write_checkpoint, write_commit, write_offset, write_rows
from tidelake.config import load_environment
from tidelake.delta.log import written_at
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
    now, environment = shop.began + _LATER, load_environment("local", root=str(shop.root))
    plans = plan_upkeep(
        shop.lake, shop.pipeline, horizon=_WEEK, keep=keep, environment=environment, now=now
    )
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


def _promoted(shop: Shop, state: State) -> None:
    write_state(shop.lake, shop.pipeline, replace(state, stage="promoted"))


def _backfill_is_promoted(shop: Shop) -> str:
    _promoted(shop, State("silver", "another", table="gold.totals", before={"gold.totals": 1}))
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


@pytest.mark.parametrize(("read", "kept"), [((1, -1), 0), ((2, -1), 1), ((4, -1), 3)])
def test_a_rollback_of_silver_needs_the_files_of_rows_that_waited_in_the_requeue(
    shop: Shop, read: tuple[int, int], kept: int
) -> None:
    """It reads them as they were appended: a compaction since then must not be cleaned up."""
    requeue, silver = shop.lake.requeue("shop"), shop.lake.silver("shop")
    for version, (rows, changes) in enumerate([(1, True), (1, True), (2, False), (1, True)], 1):
        write_commit(requeue, version, adds=[(rows, changes)], second=100 * version)
    note = {"pipeline": "shop", "hop": "silver", "generation": "g1", "batch": 2}
    until = {"bronze": [3, -1], "requeue": list(read)}
    write_commit(silver, 3, note={**note, "until": until})
    # The next batch read all of it.
    until["requeue"] = [5, -1]
    write_commit(silver, 4, note={**note, "batch": 3, "until": until})
    before = {"silver.shop": 3, requeue.name: 3}
    for stage, begun in (("promoted", None), ("rolling back", 4)):
        state = State("bronze", "another", stage, before=before, requeue=begun)
        write_state(shop.lake, shop.pipeline, state)
        (need,) = _plans(shop)[requeue.name].needs
        assert need.by == "the rollback of shop's backfill"
        assert need.since == written_at(requeue, kept)
    # Where its log lacks that commit, all that follow it do.
    for version in range(2):
        (requeue.path / "_delta_log" / f"{version:020}.json").unlink()
    (need,) = _plans(shop)[requeue.name].needs
    assert need.since == written_at(requeue, max(kept, 2))


def test_a_rollback_of_gold_needs_the_silver_that_gold_had_read(shop: Shop) -> None:
    """Gold continues where it was then, which may be long before the promotion."""
    before = {"gold.totals": 1, "gold.visits": 2}
    _promoted(shop, State("silver", "another", before=before))
    (need,) = _plans(shop)["silver.shop"].needs
    assert need.by == "the rollback of shop's backfill"
    # Of the two, the table that had read less: all of silver's first two batches.
    assert need.since == shop.began + timedelta(seconds=10)
    # A silver that is restored, too, has what gold then reads.
    _promoted(shop, State("bronze", "another", before=before | {"silver.shop": 2}))
    assert not _plans(shop)["silver.shop"].needs
    # A single table is at the batch of the others, or is computed again.
    _promoted(shop, State("silver", "another", table="gold.totals", before={"gold.totals": 1}))
    assert not _plans(shop)["silver.shop"].needs


@pytest.mark.parametrize(
    ("offset", "committed", "seconds"),
    [
        ({"reservoirVersion": 2, "index": -1}, 0, 10),
        ({"reservoirVersion": 3, "index": -1}, 0, None),
        # A batch that is not closed is read again, and so is the snapshot with which it began.
        ({"reservoirVersion": 3, "index": -1}, -1, 0),
        ({"reservoirVersion": 2, "index": 0, "isStartingVersion": True}, 0, 0),
    ],
)
def test_a_pipeline_that_reads_a_table_as_its_source_needs_the_files_that_it_has_not_read(
    shop: Shop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    offset: dict[str, object],
    committed: int,
    seconds: int | None,
) -> None:
    """Its commits do not say how far it is: its checkpoint does."""
    folder = tmp_path / "project" / "conf" / "pipelines"
    folder.mkdir(parents=True)
    source = {"kind": "delta", "path": "${root}/silver/shop"}
    for name in ("reader", "new"):
        content = {**DEFINITION, "name": name, "source": source, "gold": []}
        (folder / f"{name}.yml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir(tmp_path / "project")
    lake = shop.lake
    note = {"pipeline": "reader", "hop": "bronze", "generation": "g1", "batch": committed}
    write_commit(lake.bronze("reader"), 0, note=note)
    checkpoint = lake.checkpoints("reader", "bronze") / "g1"
    write_checkpoint(checkpoint, planned=0, committed=committed)
    write_offset(checkpoint, 0, offset)
    needs = _plans(shop)["silver.shop"].needs
    if seconds is None:
        assert not needs
        return
    (need,) = needs
    assert need.since == shop.began + timedelta(seconds=seconds)
    assert (need.by, need.remedy) == (
        "reader, whose source it is, has not read further",
        "tidelake run reader --hop bronze",
    )
