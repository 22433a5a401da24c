"""Alerts are what the rules say of all payments, in whatever order and batches they came."""

from __future__ import annotations

import json
import os
import random
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.oracles.payments import alerts, consumed_payments
from tests.running import START, read
from tests.worlds import World, world
from tidelake.delta.log import last_commit
from tidelake.errors import TidelakeError
from tidelake.examples import generate
from tidelake.gold.detections import Detected
from tidelake.ledger.terms import read_ledger
from tidelake.replay.verify import judge_target
from tidelake.runtime.gold_tables import targets_of

_CARDS = int(os.environ.get("TIDELAKE_GOLD_EXAMPLES", "60"))
_SEED = int(os.environ.get("TIDELAKE_SEED", str(time.time_ns() % 1_000_000)))
_PLACES = ((52.37, 4.9), (52.4, 4.95), (40.71, -74.01), (-33.87, 151.21), (None, None))


def payments(spark: SparkSession, folder: Path) -> World:
    """Give the reference pipeline, with the alerts alone."""
    return world(spark, folder, base="payments", gold=[], quality=None)


def told(played: World) -> set[tuple[str, str, str]]:
    """Read the alerts that gold holds, once no event has the same one twice."""
    rows = read(played.lake, "gold.payment_alerts", "event_id, rule, evidence")
    assert len({row[:2] for row in rows}) == len(rows)
    return {(one, rule, json.dumps(json.loads(why), sort_keys=True)) for one, rule, why in rows}


def expected(played: World) -> set[tuple[str, str, str]]:
    """Judge the payments that gold has taken in."""
    lake = played.lake
    silver, gold = lake.silver("payments").path, lake.gold("payment_alerts").path
    return alerts(consumed_payments(silver, gold))


def test_after_each_batch_alerts_are_what_the_rules_say_of_the_payments_so_far(
    spark: SparkSession, tmp_path: Path
) -> None:
    print(f"seed {_SEED}; repeat with TIDELAKE_SEED={_SEED} TIDELAKE_GOLD_EXAMPLES={_CARDS}")
    played = payments(spark, tmp_path)
    seen: list[set[tuple[str, str, str]]] = []

    def look(line: str) -> None:
        if line.startswith("gold"):
            now = told(played)
            assert now == expected(played)
            seen.append(now)

    for number, lines in enumerate(_files(random.Random(_SEED))):
        played.land(f"{number}.jsonl", lines)
    played.run(look=look)
    # A burst that began in the hour before its batch.
    of_the_burst = '{"events": 5, "since": "2026-01-04T22:59:50.000Z"}'
    assert ("hour 6", "burst", of_the_burst) in seen[-1]
    # Not only are there alerts of each rule: some were taken back by what came later.
    assert {rule for _, rule, _ in seen[-1]} == {"unusual_amount", "burst", "impossible_travel"}
    names = [{alert[:2] for alert in now} for now in seen]
    assert any(earlier - later for earlier, later in pairwise(names))
    assert len(seen) == 3


@pytest.mark.long
def test_a_batch_that_reached_the_features_alone_gives_the_same_alerts_when_repeated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = payments(spark, tmp_path)
    first, second, _ = _files(random.Random(7))
    played.land("0.jsonl", first)
    played.run()
    played.land("1.jsonl", second)
    with monkeypatch.context() as broken:
        broken.setattr(Detected, "plan", _refused)
        with pytest.raises(TidelakeError, match="cut off"):
            played.run()
    lake = played.lake
    features, alerted = (last_commit(lake.gold(one)) for one in ("card_hours", "payment_alerts"))
    assert features is not None
    assert alerted is not None
    assert features.batch > alerted.batch
    played.run()
    assert told(played) == expected(played)


def _refused(*_: object) -> None:
    raise TidelakeError("cut off")


def _files(chance: random.Random) -> list[list[bytes]]:
    """Write the payments of many cards into three files, each wherever chance puts it.

    A burst across an hour is split between the first file and the second, whose earliest it has.
    """
    files: list[list[bytes]] = [[] for _ in range(3)]
    for file, second in ((0, -10), (0, -9), (0, -8), (1, 5), (1, 6)):
        at = START - timedelta(hours=1) + timedelta(seconds=second)
        paid: dict[str, Any] = {
            "payment_id": f"hour {second}",
            "card_id": "hour",
            "paid_at": at.isoformat(),
        }
        files[file].append(json.dumps({**paid, "amount": "1.00"}).encode())
    for card in range(_CARDS):
        step = chance.choice([timedelta(seconds=10), timedelta(minutes=13), timedelta(hours=1)])
        for number in range(chance.randrange(4, 16)):
            when = START + step * chance.randrange(0, 20)
            when += timedelta(microseconds=chance.choice([0, 0, 0, -1, 1]))
            latitude, longitude = chance.choice(_PLACES)
            paid = {
                "payment_id": f"{card}-{number}",
                "card_id": f"card {card}" if chance.random() < 0.97 else None,
                "paid_at": when.isoformat(timespec="microseconds"),
                "amount": chance.choice(["1.00", "1.00", "2.00", "9.99", "100.00", None]),
                "latitude": latitude,
                "longitude": longitude,
            }
            chance.choice(files).append(json.dumps(paid).encode())
    return files


@pytest.fixture(scope="module")
def generated(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run a generated stream in several batches."""
    played = world(spark, tmp_path_factory.mktemp("payments"), base="payments", small=False)
    generate("payments", played.landing, events=3_000, seed=5)
    played.run()
    return played


@pytest.mark.long
def test_every_known_fraud_is_found_and_nothing_is_lost(generated: World) -> None:
    cases: dict[str, set[str]] = {}
    for file in sorted(generated.landing.iterdir()):
        for line in file.read_text().splitlines():
            found = json.loads(line).get("fraud_case") if line.endswith("}") else None
            if found:
                cases.setdefault(found.partition(":")[0], set()).add(found)
    rows = read(generated.lake, "gold.payment_alerts", "rule, fraud_case")
    assert sum(map(len, cases.values())) >= 10
    for rule, known in cases.items():
        assert known <= {case for name, case in rows if name == rule}
    books = read_ledger(generated.lake, generated.pipeline)
    assert books.balanced
    assert books.gold["card_hours"].expected == books.gold["card_hours"].counted


@pytest.mark.long
def test_alerts_verify_and_the_oracle_agrees(generated: World) -> None:
    assert told(generated) == expected(generated)
    for target in targets_of(generated.lake, generated.pipeline):
        newest = last_commit(target.table)
        assert newest is not None
        judged = judge_target(generated.context, target, newest.version, None)
        assert judged.equal, target.table.name
