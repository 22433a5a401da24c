"""What a topic has lost stops the run by name; what was given up in it is never seen."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.brokers import Followed, Kafka, following
from tests.recovery.failpoints import armed
from tests.recovery.reporting import Report
from tests.recovery.transactions import Transactions
from tests.running import click, read
from tidelake.delta.tables import Hop
from tidelake.errors import LostError
from tidelake.ledger.terms import read_ledger

_LOST = int(os.environ.get("TIDELAKE_LOST", "1"))
_TRANSACTIONS = int(os.environ.get("TIDELAKE_TRANSACTIONS", "10"))
_SEED = int(os.environ.get("TIDELAKE_SEED", str(time.time_ns() % 1_000_000)))
_BRONZE: tuple[Hop, ...] = ("bronze",)


def _clicks(count: int) -> list[bytes]:
    return [click(n, minute=n) for n in range(count)]


def _payloads(clicks: Followed) -> list[bytes]:
    return [bytes(row[0]) for row in read(clicks.lake, "bronze.clicks", "payload")]


def _refused(clicks: Followed, why: str, told: Report) -> None:
    """Run twice: each time it is told, and bronze stays as it was."""
    before = _payloads(clicks)
    for _ in range(2):
        with pytest.raises(LostError, match=why):
            clicks.run(_BRONZE)
    assert _payloads(clicks) == before
    told.reached += 1
    told.refused += 1


def test_retention_that_passed_the_offset_stops_the_run_and_the_rest_stays(
    spark: SparkSession, tmp_path: Path, kafka: Kafka, report: Callable[..., Report]
) -> None:
    told = report("retention passed the offset", tried=_LOST, seed=_SEED, full=20)
    for number in range(_LOST):
        chance = random.Random(f"{_SEED}/{number}")
        partitions = chance.randint(1, 4)
        topic = kafka.topic(partitions=partitions)
        clicks = following(spark, tmp_path / str(number), kafka, topic=topic)
        kafka.send(topic, _clicks(partitions * chance.randint(1, 20)))
        clicks.run(_BRONZE)
        taken = kafka.ends(topic)
        # What was taken may go.
        kafka.forget(topic, {int(one): chance.randint(0, end) for one, end in taken.items()})
        kafka.send(topic, _clicks(partitions * chance.randint(2, 20)))
        lost = chance.randrange(partitions)
        first, end = taken[str(lost)], kafka.ends(topic)[str(lost)]
        gone = chance.randint(first + 1, end)
        why = f"{topic} partition {lost}: offsets {first} to {gone - 1} are gone"
        forget = partial(kafka.forget, topic, {lost: gone})
        if chance.random() < 0.5:
            forget()
        else:
            # After the batch was planned, Spark finds it out, in words of its own.
            told_by_spark = pytest.raises(LostError, match=f"records of a topic are gone.*{topic}-")
            with told_by_spark, armed("bronze/read/before", forget):
                clicks.run(_BRONZE)
        _refused(clicks, why, told)


def test_a_topic_that_was_made_anew_stops_the_run_however_far_it_has_come(
    spark: SparkSession, tmp_path: Path, kafka: Kafka, report: Callable[..., Report]
) -> None:
    told = report("topic made anew", tried=_LOST, seed=_SEED, full=20)
    for number in range(_LOST):
        chance = random.Random(f"{_SEED}/{number}")
        topic = kafka.topic(partitions=chance.randint(1, 4))
        clicks = following(spark, tmp_path / str(number), kafka, topic=topic)
        count = chance.randint(4, 40)
        kafka.send(topic, _clicks(count))
        clicks.run(_BRONZE)
        kafka.drop(topic)
        kafka.topic(name=topic, partitions=chance.randint(1, 4))
        # By its offsets alone nothing would be wrong where it has grown past the old end.
        kafka.send(topic, _clicks(chance.choice([0, count // 2, count, 3 * count])))
        _refused(clicks, f"{topic} was deleted and recreated", told)


@pytest.mark.long
def test_what_was_given_up_is_never_seen_and_what_is_open_comes_once_it_is_committed(
    spark: SparkSession, tmp_path: Path, kafka: Kafka, report: Callable[..., Report]
) -> None:
    told = report("aborted transactions", tried=_TRANSACTIONS, seed=_SEED, full=1000)
    topic = kafka.topic(partitions=3)
    clicks = following(spark, tmp_path, kafka, topic=topic, max_offsets_per_trigger=200)
    transactions = Transactions(kafka, topic, _SEED)
    # Looked at on the way, while some are open.
    for share in _shares(_TRANSACTIONS, 1 + min(9, _TRANSACTIONS // 10)):
        transactions.play(share)
        clicks.run(_BRONZE)
        assert sorted(_payloads(clicks)) == sorted(transactions.visible())
        told.reached += share
    transactions.end_all()
    clicks.run()
    assert transactions.aborted and transactions.committed
    found, wanted = _payloads(clicks), list(transactions.committed.values())
    told.lost = len(set(wanted) - set(found))
    told.doubled = len(found) - len(set(found))
    assert sorted(found) == sorted(wanted)
    assert sorted(found) == sorted(value for _, _, value, _ in kafka.records(topic))
    assert read_ledger(clicks.lake, clicks.pipeline).balanced


def _shares(count: int, parts: int) -> list[int]:
    """Cut a number into parts."""
    return [count * (part + 1) // parts - count * part // parts for part in range(parts)]
