"""No row stops a run: rows from the edges of every type, through every kind of table."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.edges import FAILING, KNOWN, KNOWN_MINUTES, edge_rows, edges_pipeline, known_rows
from tests.running import read
from tests.worlds import world
from tidelake.ledger.terms import read_ledger
from tidelake.ops.status import read_status
from tidelake.replay.verify import verify

_SEEDS = int(os.environ.get("TIDELAKE_EDGES", "1"))
_SEED = int(os.environ.get("TIDELAKE_SEED", str(time.time_ns() % 1_000_000)))


@pytest.mark.parametrize("number", range(_SEEDS))
def test_rows_from_the_edges_of_every_type_go_through_every_kind_of_table(
    spark: SparkSession, tmp_path: Path, number: int
) -> None:
    seed = _SEED + number
    print(f"seed {seed}; repeat with TIDELAKE_SEED={seed}")
    played = world(spark, tmp_path, base=edges_pipeline())
    for part in range(2):
        drawn = edge_rows(seed + part * 1_000_000, 100)
        played.land(f"{part}.jsonl", [*known_rows(part), *drawn])
    played.run()

    minutes = "window_start, events, total, mean, ratio"
    assert read(played.lake, f"gold.by_minute WHERE who = '{KNOWN}'", minutes) == KNOWN_MINUTES
    refused = read(played.lake, "silver.edges__quarantine WHERE event_id = 'known-3'", "reasons")
    assert refused == [(["event_time: not in the years 1000 to 9999"],)]
    told = read_status(played.lake, played.pipeline).failed
    assert told.keys() >= {f"gold.{name}" for name in FAILING}
    books = read_ledger(played.lake, played.pipeline).to_json()
    assert books["balanced"], books["problems"]
    judged = verify(played.context)
    assert judged.equal, json.dumps(judged.to_json(), indent=1, default=str)


@pytest.mark.long
def test_a_table_whose_sums_an_earlier_version_kept_as_bigint_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As earlier versions summed integers.
    monkeypatch.setattr("tidelake.gold.measures._cast_of", lambda _: None)
    base = edges_pipeline() | {"joins": [], "detections": []}
    base["gold"] = [
        {
            "name": "sums",
            "window": {"kind": "global"},
            "keys": ["who"],
            "measures": {"total": {"sum": "n"}, "mean": {"avg": "n"}},
        }
    ]
    played = world(spark, tmp_path, base=base, small=False)
    row = {"who": "a", "at": "2026-01-05T00:00:00Z"}
    for number, n in enumerate((7, 2**63 - 1)):
        played.land(f"{number}.jsonl", [json.dumps(row | {"id": str(number), "n": n}).encode()])
        played.run()
        monkeypatch.undo()
        # Another text: the columns of a definition are kept by its text in all tests.
        played = played.redefined(gold=[base["gold"][0] | {"description": "Of all."}])
    assert read(played.lake, "gold.sums", "total, mean") == [(2**63 + 6, (2**63 + 6) / 2)]
    assert verify(played.context).equal
