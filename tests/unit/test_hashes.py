"""Two events of one 64-bit hash are two events."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.collisions import colliding
from tests.pipelines import bronze, shop, timed
from tests.unit.test_dedup import KNOWN_DDL, MERGE, MONDAY, NOON, classified, verdicts
from tidelake.names import ID_HASH
from tidelake.runtime.prefilter import copies_of, held_back
from tidelake.silver.dedup import (
    Comparison,
    colliding_ids,
    group_accepted,
    having,
    match_accepted,
    rank_arrivals,
    undecided_rows,
)
from tidelake.silver.stages import hash_of_id

PAIRS = 10
TTL = timedelta(hours=1)


def test_the_pairs_have_one_hash_and_are_two(spark: SparkSession) -> None:
    pairs = [colliding("x" * 32 * (n % 3), "y" * n, seed=n) for n in range(PAIRS)]
    rows = spark.createDataFrame(pairs, "one string, two string")
    same = rows.where(F.xxhash64("one") == F.xxhash64("two")).where("one <> two")
    assert same.count() == PAIRS


def test_ids_of_one_hash_meet_and_are_told_apart(spark: SparkSession) -> None:
    pairs = [colliding("", "", seed=n) for n in range(PAIRS)]
    new = undecided_rows(
        classified(
            spark,
            [
                (event, f"a:{2 * n + side}", MONDAY, NOON, 7)
                for n, pair in enumerate(pairs)
                for side, event in enumerate(pair)
            ],
        ),
        Comparison(MERGE),
    )
    known = timed(
        spark,
        [(one, f"k:{n}", MONDAY, f"{MONDAY} {NOON}", 7, False) for n, (one, _) in enumerate(pairs)],
        KNOWN_DDL,
    ).withColumn(ID_HASH, hash_of_id())
    ids = colliding_ids(new, known)
    assert ids.count() == PAIRS
    close = having(new, ids)
    assert close.count() == 2 * PAIRS
    judged = match_accepted(
        close,
        group_accepted(having(known, ids), Comparison(MERGE)),
        Comparison(MERGE),
    )
    firsts = {f"a:{2 * n}": "duplicate" for n in range(PAIRS)}
    assert verdicts(rank_arrivals(judged, Comparison(MERGE))) == firsts


def test_a_payload_that_the_prefilter_took_for_another_event_is_no_copy(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It goes the ordinary way, where its own id is looked for."""
    pipeline = shop(tmp_path)
    times = '"event_time": "2024-01-01T12:00:00Z", "user_id": "u"'
    before = f'{{{times}, "event_id": "'
    before = f"{{{' ' * (-len(before) % 32)}{before[1:]}"
    pairs = [colliding(before, '"}', seed=n) for n in range(PAIRS)]
    arrived = "2024-01-01 12:00:00"
    stored = timed(
        spark,
        [(one[len(before) : -2], f"k:{n}", arrived) for n, (one, _) in enumerate(pairs)],
        "event_id string; record_id string; ingested_at timestamp",
    )
    payloads = {f"f:{n}": text for n, pair in enumerate(pairs) for text in (pair[0],)}
    payloads |= {f"g:{n}": other for n, (_, other) in enumerate(pairs)}
    taken = bronze(
        spark,
        [
            {"record_id": name, "payload": text, "ingested_at": "2024-01-01 12:00:01"}
            for name, text in payloads.items()
        ],
    )
    hashes = taken.where("record_id LIKE 'f:%'").select(
        F.concat(F.lit("k:"), F.substring_index("record_id", ":", -1)).alias("record_id"),
        F.xxhash64("payload").alias("_payload_hash"),
    )
    accepted = stored.join(hashes, on="record_id")
    missing = held_back(taken, taken.limit(0))
    copies = copies_of(missing, accepted, pipeline)
    assert {row["record_id"] for row in copies.collect()} == {f"f:{n}" for n in range(PAIRS)}
