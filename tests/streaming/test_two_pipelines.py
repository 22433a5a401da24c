"""Two pipelines at once in one Spark session: neither writes into the other's books."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.comparing import assert_gold_equals_oracle, distinct_events
from tests.running import click
from tests.worlds import world
from tidelake.delta.log import commits
from tidelake.ledger.terms import read_ledger


@pytest.mark.long
def test_two_pipelines_at_once_in_one_session_fill_their_own_tables(
    spark: SparkSession, tmp_path: Path
) -> None:
    worlds = [world(spark, tmp_path / name, name=name) for name in ("clickstream", "taps")]
    delivered: list[list[bytes]] = []
    for number, played in enumerate(worlds):
        # The same ids, and other values: what came into the wrong table would show.
        lines = [click(n, minute=n + 100 * number) for n in range(12 + 6 * number)]
        played.land("a.jsonl", lines[:6])
        played.land("b.jsonl", lines[6:])
        delivered.append(lines)
    with ThreadPoolExecutor(len(worlds)) as pool:
        list(pool.map(lambda played: played.run(), worlds))
    for played, lines in zip(worlds, delivered, strict=True):
        assert read_ledger(played.lake, played.pipeline).problems == ()
        assert_gold_equals_oracle(played.lake, distinct_events(lines))
        batches = [one.batch for one in commits(played.lake.gold("user_sessions"))]
        assert batches == [1, 0, -1]
