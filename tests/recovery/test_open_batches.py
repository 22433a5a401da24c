"""The definition changes while a batch is open: bronze's and gold's. Silver's: the side tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.crashes import after_merges
from tests.recovery.failpoints import armed, die
from tests.running import click, read, versions
from tests.worlds import TO_SILVER, world
from tidelake.errors import GenerationError, TidelakeError
from tidelake.ledger.terms import read_ledger
from tidelake.replay.generations import repair

_GOLD: list[dict[str, Any]] = [
    {
        "name": f"by_{key}",
        "window": {"kind": "global"},
        "keys": [key],
        "measures": {"events": {"count": "*"}},
    }
    for key in ("user_id", "product_id")
]
_CHANGED = [{**_GOLD[0], "where": "value > 20"}, _GOLD[1]]


def test_an_open_batch_of_bronze_and_of_gold_is_of_one_definition(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Bronze knows nothing of rules; gold is refused, and mended by the command that is named."""
    played = world(spark, tmp_path, gold=_GOLD, quality=None)
    played.land("a.jsonl", [click(n, minute=n) for n in range(8)])
    with armed("bronze/append/before", die), pytest.raises(TidelakeError, match="DiedError"):
        played.run(hops=["bronze"])
    no_bots = {"where": "action <> 'bot'"}
    other = played.redefined(event=no_bots)
    other.run(hops=TO_SILVER)
    told = read_ledger(other.lake, other.pipeline)
    assert (told.bronze, told.fates["filtered"], told.problems) == (8, 2, ())

    with after_merges(1):
        other.run(hops=["gold"])
    changed = other.redefined(event=no_bots, gold=_CHANGED)
    before = versions(changed.lake)
    with pytest.raises(GenerationError, match="tidelake repair clickstream --hop gold"):
        changed.run(hops=["gold"])
    assert versions(changed.lake) == before
    assert repair(changed.context, "gold").why
    assert changed.run() == []
    assert read_ledger(changed.lake, changed.pipeline).problems == ()
    large = read(changed.lake, "(SELECT * FROM silver.clickstream WHERE value > 20)", "event_id")
    assert sum(row[0] for row in read(changed.lake, "gold.by_user_id", "events")) == len(large)
