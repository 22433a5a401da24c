"""Joins across pipelines: either side may come first, and late sides change the row."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.oracles.gold import Recomputation, columns_of, consumed, stored
from tests.running import click, read
from tests.worlds import TO_SILVER, World, world
from tidelake.config.pipeline import Watermark
from tidelake.delta.log import last_commit
from tidelake.errors import GenerationError, UsageError
from tidelake.ledger.query import ask
from tidelake.replay.repairing import repair
from tidelake.runtime.runner import refusals

JOIN: dict[str, Any] = {
    "name": "click_to_order",
    "left": {
        "where": "action = 'click'",
        "columns": {"clicked_at": "event_time", "click": "event_id"},
    },
    "right": {
        "pipeline": "orders",
        "where": "action = 'purchase'",
        "columns": {"bought_at": "event_time", "bought": "event_id", "value": "value"},
    },
    "on": ["user_id"],
    "within": "30 minutes",
    "type": "left",
}
ORDERS = [
    {
        "name": "orders_ever",
        "window": {"kind": "global"},
        "keys": ["user_id"],
        "measures": {"events": {"count": "*"}},
    }
]


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> tuple[World, World]:
    """Give clicks, and orders in a pipeline of their own; both in one lake."""
    clicks = world(spark, tmp_path, gold=[], joins=[JOIN], quality=None)
    orders = world(spark, tmp_path / "orders", name="orders", gold=ORDERS, quality=None)
    environment = clicks.environment
    return clicks, World(spark, environment, orders.pipeline, clicks.folder, orders.landing)


def clicked(number: int, minute: float) -> bytes:
    return click(number, minute=minute, event_id=f"c{number}", user_id="u", action="click")


def bought(number: int, minute: float, **changes: Any) -> bytes:
    ordinary = {"event_id": f"o{number}", "user_id": "u", "action": "purchase"}
    return click(number, minute=minute, **ordinary | changes)


def pairs(clicks: World) -> list[tuple[Any, ...]]:
    """Give the pairs that gold holds, once they equal the recomputation."""
    table = clicks.lake.gold("click_to_order").path
    silver = Recomputation(clicks.lake.root, "clickstream", consumed(table))
    expected = silver.join("clickstream", JOIN)
    assert sorted(stored(table, columns_of(JOIN)), key=repr) == sorted(expected, key=repr)
    return read(clicks.lake, "gold.click_to_order", "click, bought")


@pytest.mark.long
def test_whichever_side_comes_first_the_rows_are_the_same(shop: tuple[World, World]) -> None:
    clicks, orders = shop
    orders.land("0.jsonl", [bought(0, 10), bought(1, 50)])
    orders.run(hops=TO_SILVER)
    clicks.land("0.jsonl", [clicked(0, 5), clicked(1, 15), clicked(2, 20), clicked(3, 51)])
    clicks.run()
    # 50 is 35 minutes after 15, and exactly 30 after 20.
    assert pairs(clicks) == [("c0", "o0"), ("c1", None), ("c2", "o1"), ("c3", None)]
    version = last_commit(clicks.lake.gold("click_to_order")).version  # type: ignore[union-attr]

    # An order alone, with no new click: earlier than the match of one, the first of another.
    orders.land("1.jsonl", [bought(2, 21), bought(3, 9), bought(4, 9, user_id="v")])
    orders.run(hops=TO_SILVER)
    clicks.run(hops=["gold"])
    assert pairs(clicks) == [("c0", "o3"), ("c1", "o2"), ("c2", "o2"), ("c3", None)]
    assert last_commit(clicks.lake.gold("click_to_order")).version > version  # type: ignore[union-attr]

    # Two orders at one instant: the lower id is the first.
    orders.land("2.jsonl", [bought(6, 60), bought(5, 60)])
    clicks.land("1.jsonl", [clicked(4, 59)])
    orders.run(hops=TO_SILVER)
    clicks.run()
    assert pairs(clicks)[3:] == [("c3", "o5"), ("c4", "o5")]

    # Nothing new: no new version.
    version = last_commit(clicks.lake.gold("click_to_order")).version  # type: ignore[union-attr]
    clicks.run()
    assert last_commit(clicks.lake.gold("click_to_order")).version == version  # type: ignore[union-attr]


@pytest.mark.long
def test_final_rows_wait_for_the_slower_side(shop: tuple[World, World]) -> None:
    clicks, orders = shop
    times = {"delay": "1 minute", "allowed_lateness": "0 seconds"}
    clicks = clicks.redefined(watermark=times)
    slow = Watermark(delay=timedelta(minutes=10), allowed_lateness=timedelta(minutes=20))
    orders = replace(orders, pipeline=orders.pipeline.model_copy(update={"watermark": slow}))
    orders.land("0.jsonl", [bought(0, 0)])
    orders.run(hops=TO_SILVER)
    clicks.land("0.jsonl", [clicked(0, 5), clicked(1, 500)])
    clicks.run()
    final = "SELECT click FROM gold.click_to_order__final"
    assert ask(clicks.lake, final).rows == ()
    # Ten minutes of delay, twenty that orders may be late, thirty for a match: before 35.
    orders.land("1.jsonl", [bought(1, 95)])
    orders.run(hops=TO_SILVER)
    clicks.run(hops=["gold"])
    assert last_commit(clicks.lake.gold("click_to_order")).batch == 1  # type: ignore[union-attr]
    assert ask(clicks.lake, final).rows == (("c0",),)


@pytest.mark.long
def test_a_side_that_is_not_there_yet_is_named(shop: tuple[World, World]) -> None:
    clicks, _ = shop
    clicks.land("0.jsonl", [clicked(0, 5)])
    with pytest.raises(UsageError, match="tidelake run orders --hop silver"):
        clicks.run()


@pytest.mark.long
def test_a_deleted_checkpoint_is_refused_and_repaired(shop: tuple[World, World]) -> None:
    clicks, orders = shop
    orders.land("0.jsonl", [bought(0, 10)])
    orders.run(hops=TO_SILVER)
    clicks.land("0.jsonl", [clicked(0, 5), clicked(1, 8)])
    clicks.run()
    for file in sorted(clicks.lake.checkpoints("clickstream", "gold").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    orders.land("1.jsonl", [bought(1, 7)])
    orders.run(hops=TO_SILVER)
    with pytest.raises(GenerationError, match="tidelake repair clickstream --hop gold"):
        clicks.run()
    assert not repair(clicks.context, "gold").why
    clicks.run()
    assert pairs(clicks) == [("c0", "o1"), ("c1", "o0")]
    assert not repair(clicks.context, "gold").why


@pytest.mark.long
def test_gold_goes_on_without_a_join_after_a_repair(shop: tuple[World, World]) -> None:
    clicks, orders = shop
    ever = [ORDERS[0] | {"name": "clicks_ever"}]
    clicks = clicks.redefined(gold=ever)
    orders.land("0.jsonl", [bought(0, 10)])
    orders.run(hops=TO_SILVER)
    clicks.land("0.jsonl", [clicked(0, 5), clicked(1, 8)])
    clicks.run()
    alone = clicks.redefined(gold=ever, joins=[])
    alone.land("1.jsonl", [clicked(2, 9)])
    why = r"silver\.orders is no longer an input"
    with pytest.raises(GenerationError, match=f"{why}.*tidelake repair clickstream --hop gold"):
        alone.run()
    # `tidelake check` says so too.
    assert list(refusals(alone.context)) == ["gold"]
    assert not repair(alone.context, "gold").why
    assert refusals(alone.context) == {}
    for number in (2, 3):
        alone.run()
        assert read(alone.lake, "gold.clicks_ever", "user_id, events") == [("u", number + 1)]
        alone.land(f"{number}.jsonl", [clicked(number + 1, 11)])
    # Put back, the join is filled again with the others.
    both = alone.redefined(gold=ever)
    assert list(refusals(both.context)) == ["gold"]
    assert repair(both.context, "gold").why
    both.run()
    assert [click for click, _ in pairs(both)] == ["c0", "c1", "c2", "c3", "c4"]
