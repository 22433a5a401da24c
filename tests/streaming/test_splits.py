"""Neither the split into files nor the split into runs changes what the tables hold."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.comparing import assert_gold_equals_oracle, distinct_events
from tests.running import click, clickstream, land, read, run, small_batches
from tidelake.config import Environment
from tidelake.delta.tables import Lake

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
