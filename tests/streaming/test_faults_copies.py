"""Copies and conflicts in any number, order and distance: the first arrival counts, once."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.batches import closed
from tests.fates import assert_books, assert_fates
from tests.oracles.silver import Rules
from tests.running import START, click, land, place_of, read
from tests.worlds import TO_SILVER, World, world
from tidelake.bronze.records import BRONZE_DDL, REQUEUE_DDL
from tidelake.delta.append import append, ensure_table
from tidelake.delta.commit_metadata import SilverNote
from tidelake.ledger.terms import read_ledger
from tidelake.replay.compare import SHOWN
from tidelake.replay.requeue import next_instant
from tidelake.replay.verify import find_repeated_ids, verify
from tidelake.replay.verify_silver import read_inputs
from tidelake.runtime.schemas import from_ddl

_FULL = os.environ.get("TIDELAKE_FULL") == "1"
_IDS = 100_000 if _FULL else 2_000
_CONFLICTS = 500 if _FULL else 20
_DAY = 24 * 60
_NOON = START + timedelta(days=10, hours=12)


def _copies(chance: random.Random) -> Iterator[tuple[bytes, int]]:
    """Give each id's line and how often it comes, at least twice, some a hundred times."""
    for number in range(_IDS):
        yield click(number, minute=10 * _DAY + number % 700), 100 if number % 200 == 0 else 2
    for number in range(_CONFLICTS):
        for _ in range(chance.randrange(1, 4)):
            day = chance.choice([9, 10])
            yield click(number, minute=day * _DAY, product_id=f"other {chance.random()}"), 2


@pytest.fixture(scope="module")
def merged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Let copies arrive in one batch, after a restart, and after the TTL."""
    played = world(spark, tmp_path_factory.mktemp("copied"), dedup={"beyond_ttl": "merge"})
    chance = random.Random(22)
    lines = [line for line, times in _copies(chance) for _ in range(times)]
    nothing = [click(n, minute=10 * _DAY, event_id=None) for n in range(10)]
    nothing += [click(n, minute=10 * _DAY, event_time=None) for n in range(10)]
    lines += nothing * 2
    chance.shuffle(lines)
    most = len(lines) * 2 // 3
    # Lines 9 and 10 of the file: as texts, 10 comes first.
    pair = [click(_IDS, minute=10 * _DAY, product_id=name) for name in ("ninth", "tenth")]
    played.land("a.jsonl", [*lines[:9], *pair, *lines[9:most]])
    played.land("b.jsonl", lines[most : most + most // 4])
    played.run(_NOON, _NOON + timedelta(minutes=59), hops=TO_SILVER)
    played.land("c.jsonl", [*lines[most + most // 4 :], *lines[: len(lines) // 4]])
    played.run(_NOON + timedelta(minutes=61), hops=TO_SILVER)
    return played


@pytest.fixture(scope="module", params=["merge", pytest.param("ignore", marks=pytest.mark.long)])
def copied(
    request: pytest.FixtureRequest, merged: World, tmp_path_factory: pytest.TempPathFactory
) -> World:
    """Decide the same bronze under either rule."""
    if request.param == "merge":
        return merged
    played = merged.copied(tmp_path_factory.mktemp("ignored") / "copy")
    for name in ("silver", "ops", "checkpoints/clickstream/silver"):
        shutil.rmtree(played.lake.root / name)
    played = played.redefined(dedup={"beyond_ttl": request.param})
    played.run(hops=["silver"])
    return played


def test_of_any_number_of_copies_the_first_arrival_counts(copied: World) -> None:
    merges = copied.pipeline.dedup.beyond_ttl == "merge"
    judge = assert_fates(copied.lake, Rules(merges=merges))
    assert_books(copied.lake, copied.pipeline, judge)
    ids = Counter(row[0] for row in read(copied.lake, "silver.clickstream", "event_id"))
    late = read(copied.lake, "silver.clickstream__late", "event_id")
    assert len({*ids, *(row[0] for row in late)}) == _IDS + 1
    # Past the TTL an id is another event where `ignore` says so, or on another date.
    assert sum(ids.values()) > _IDS
    alike = Counter(read(copied.lake, "silver.clickstream", "event_id, event_date"))
    assert (max(alike.values()) == 1) is merges
    events = Counter([*ids.elements(), *(row[0] for row in late)])
    repeated = sorted(name for name, count in events.items() if count > 1)
    inputs = read_inputs(copied.context)
    assert find_repeated_ids(inputs) == (len(repeated), tuple(repeated[:SHOWN]))
    assert find_repeated_ids(inputs.since(_NOON + timedelta(days=1))) == (0, ())


def test_a_first_arrival_is_first_by_number_and_not_by_text(copied: World) -> None:
    columns = "product_id, record_id"
    ((product, record),) = read(
        copied.lake, f"silver.clickstream WHERE event_id = 'e{_IDS}'", columns
    )
    assert (product, place_of(record)) == ("ninth", ("a.jsonl", 9))
    conflicts = f"silver.clickstream__quarantine WHERE event_id = 'e{_IDS}'"
    assert [place_of(row[0]) for row in read(copied.lake, conflicts, "record_id")] == [
        ("a.jsonl", 10)
    ]


def test_rows_without_id_or_time_and_conflicts_all_lie_in_quarantine(copied: World) -> None:
    rows = read(copied.lake, "silver.clickstream__quarantine", "payload, stage, reasons")
    payloads = [bytes(row[0]) for row in read(copied.lake, "bronze.clickstream", "payload")]
    for field in ("event_id", "event_time"):
        mark = f'"{field}": null'.encode()
        came = [payload for payload in payloads if mark in payload]
        held = [bytes(payload) for payload, stage, _ in rows if mark in bytes(payload)]
        assert sorted(held) == sorted(came)
        assert all(
            (stage, why) == ("contract", [f"{field}: missing"])
            for payload, stage, why in rows
            if mark in bytes(payload)
        )
    found = {stage for _, stage, _ in rows}
    assert found == {"contract", "conflicting_duplicate"}


@pytest.mark.long
def test_a_clock_that_steps_back_changes_no_order(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Neither in silver, which closes after each batch, nor for who recomputes it in one."""
    played = world(spark, tmp_path_factory.mktemp("clock"))
    # By their names the files would come the other way round.
    for part, name in enumerate(("2.jsonl", "1.jsonl", "0.jsonl")):
        late = [click(900, minute=0)] if part == 1 else []
        lines = [
            click(number, minute=(8 + part) * _DAY, product_id=f"p{part}")
            for number in range(_CONFLICTS)
        ]
        played.land(name, [*lines, *late])
    # Silver's commits are written now, when the clock is right again.
    ahead, back = _NOON.replace(year=2100), timedelta(hours=3)
    played.run(ahead, ahead - back, ahead - 2 * back, hops=TO_SILVER)
    stamps = sorted({row[0] for row in read(played.lake, "bronze.clickstream", "ingested_at")})
    assert stamps == [ahead + timedelta(microseconds=n) for n in range(3)]
    assert_books(played.lake, played.pipeline, assert_fates(played.lake))
    parts = read(played.lake, "silver.clickstream", "product_id")
    assert Counter(row[0] for row in parts) == {"p0": _CONFLICTS}
    assert len(read(played.lake, "silver.clickstream__late", "record_id")) == 1
    assert verify(played.context, since=stamps[0]).equal
    # What is requeued now comes after all that.
    assert next_instant(played.context) == stamps[-1] + timedelta(microseconds=1)


@pytest.mark.long
def test_arrivals_out_of_order_in_bronze_are_decided_by_their_instants(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    played = world(spark, tmp_path_factory.mktemp("by-hand"))
    chance = random.Random(38)
    bronze, requeue = (played.lake.bronze("clickstream"), played.lake.requeue("clickstream"))
    note = {"pipeline": "clickstream", "hop": "bronze", "generation": "g1"}
    for table, ddl in ((bronze, BRONZE_DDL), (requeue, REQUEUE_DDL)):
        ensure_table(spark, table, from_ddl(spark, ddl), {**note, "batch": -1})
    for batch in range(3):
        file = f"/by hand/{batch}.jsonl"
        rows = [
            (
                f"file:///by%20hand/{batch}.jsonl:{position}",
                click(
                    number,
                    minute=chance.choice([8, 9, 10]) * _DAY,
                    product_id=f"p{chance.randrange(2)}",
                ),
                # Within the TTL, so that either way round they meet.
                int((_NOON + timedelta(minutes=chance.randrange(50))).timestamp()),
            )
            for position, number in enumerate(chance.choices(range(_CONFLICTS), k=3 * _CONFLICTS))
        ]
        frame = spark.createDataFrame(rows, "record_id string, payload binary, at bigint")
        frame.coalesce(1).selectExpr(
            "record_id",
            "cast(NULL AS binary) AS key",
            "payload",
            "cast(NULL AS array<struct<key: string, value: binary>>) AS headers",
            f"'file:///by%20hand/{batch}.jsonl' AS source",
            "cast(NULL AS timestamp) AS source_timestamp",
            "timestamp_seconds(at) AS ingested_at",
            "to_date(timestamp_seconds(at)) AS ingest_date",
        ).createOrReplaceTempView("by_hand")
        more = {"batch": batch, "records": len(rows), "fingerprint": 0}
        more["files"] = [[file, 1, 1, len(rows)]]
        append(spark.table("by_hand"), bronze, {**note, **more})
    played.run(hops=["silver"])
    judge = assert_fates(played.lake)
    verdicts = Counter(fate.verdict for fate in judge.fates.values())
    assert verdicts["conflicting_duplicate"] > 0 < verdicts["duplicate"]
    names = [row[0] for row in read(played.lake, "silver.clickstream", "event_id")]
    assert len(names) == len(set(names))


@pytest.mark.long
def test_an_id_past_the_ttl_on_another_date_is_another_event_even_within_one_batch(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    each = {"max_files_per_trigger": 1}
    played = world(spark, tmp_path_factory.mktemp("one-batch"), small=False, source=each)
    hours = (0, 2, 4)
    for hour in hours:
        day = [click(n, minute=(10 - hour / 2) * _DAY, product_id=f"p{hour}") for n in range(3)]
        copies = [*day, click(0, minute=(10 - hour / 2) * _DAY, product_id="other")]
        played.land(f"{hour}.jsonl", copies)
    played.run(*[_NOON + timedelta(hours=hour) for hour in hours], hops=TO_SILVER)
    assert len(closed(played.lake.silver("clickstream"))) == 1
    judge = assert_fates(played.lake)
    verdicts = Counter(fate.verdict for fate in judge.fates.values())
    assert verdicts == {"silver": 9, "conflicting_duplicate": 3}
    # The first event of the id bears this date, a later one lies within the TTL. Its file is older
    # than all that were read before, and lies deeper.
    deep = played.landing / "deep" / "er"
    land(deep, "old one.jsonl", [click(1, minute=10 * _DAY, product_id="p0")])
    os.utime(deep / "old one.jsonl", (86_400, 86_400))
    land(deep, "empty.jsonl", [])
    played.run(_NOON + timedelta(hours=4.5), hops=TO_SILVER)
    records = [row[0] for row in read(played.lake, "bronze.clickstream", "record_id")]
    assert ("old one.jsonl", 0) in map(place_of, records)
    judge = assert_fates(played.lake)
    assert judge.batches[-1] == {"duplicate": 1}


@pytest.mark.long
def test_a_batch_of_nothing_but_copies_closes_and_the_next_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = world(spark, tmp_path)
    first = [click(n, minute=n) for n in range(10)]
    for name, lines in (
        ("a", first),
        ("b", first[:2]),
        ("c", [click(50, minute=50)]),
        ("d", []),
        ("e", [click(51, minute=51)]),
    ):
        played.land(f"{name}.jsonl", lines)
        played.run()
    told = read_ledger(played.lake, played.pipeline).to_json()
    assert (told["duplicates"], told["silver"], told["balanced"]) == (2, 12, True)


def test_after_a_backlog_of_years_batches_search_their_own_dates_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = world(spark, tmp_path)
    backlog = [click(number, minute=-3 * _DAY * number) for number in range(200)]
    played.land("a.jsonl", [*backlog, click(200, minute=0, event_time="1900-01-01T00:00:00Z")])
    for number, name in enumerate(("b.jsonl", "c.jsonl", "d.jsonl"), start=1):
        # The second of them has copies from two years before.
        copies = backlog[-2:] if number == 2 else []
        today = [click(1_000 * number + n, minute=10 * _DAY + 5 * number) for n in range(3)]
        played.land(name, [*today, *copies])
    played.run(*[_NOON + timedelta(hours=2 * n) for n in range(4)], hops=TO_SILVER)
    assert_fates(played.lake)
    # The copies' dates are in the backlog's file, today's in those of the batches before.
    notes = closed(played.lake.silver("clickstream"))
    assert [SilverNote.of(commit).searched for commit in notes] == [0, 0, 204, 6]
