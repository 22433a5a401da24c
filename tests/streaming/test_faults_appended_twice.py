"""A bronze batch that two writers append: the ledger and verify find it, silver accepts once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.following import GOLD
from tests.running import START, click, read
from tests.unit.handmade import write_commit
from tests.worlds import World, without_prefilter, world
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.delta.access import load
from tidelake.delta.append import append
from tidelake.delta.log import last_commit, newest_version
from tidelake.delta.tables import Table
from tidelake.errors import GenerationError
from tidelake.ledger.terms import read_ledger
from tidelake.replay.requeue import as_requeued, read_side
from tidelake.replay.verify import Verification, verify
from tidelake.runtime import bronze_hop, gold, silver

_NOON = START + timedelta(days=1, hours=12)


@dataclass(frozen=True)
class Played:
    """A pipeline, two of whose bronze batches stand in the table twice, and what was found."""

    world: World
    verification: Verification


def _append_again(played: World, arrived: datetime) -> None:
    """Append the newest bronze batch once more, as a second writer without a lock does."""
    bronze = played.lake.bronze(played.pipeline.name)
    last = last_commit(bronze)
    assert last is not None
    stored = DeltaTable.forPath(played.spark, str(bronze.path)).toDF()
    batch = stored.where(
        F.col("ingested_at") == F.lit(datetime.fromisoformat(last.note["ingested_at"]))
    )
    rows = batch.withColumn("ingested_at", F.lit(arrived))
    append(rows, bronze, {**last.note, "ingested_at": arrived.isoformat()})


@pytest.fixture(scope="module")
def twice(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Let the second writer arrive in the same instant, and in the next batch a minute later."""
    made = world(spark, tmp_path_factory.mktemp("twice"), small=False, gold=GOLD[:1], quality=None)
    lines = [click(n, minute=n) for n in range(4)]
    made.land("a.jsonl", [*lines, lines[1], click(2, minute=2, action="view"), b"garbage"])
    made.run(_NOON, hops=["bronze"])
    _append_again(made, _NOON)
    made.land("b.jsonl", [click(n, minute=n) for n in range(4, 8)])
    made.run(_NOON + timedelta(minutes=1), hops=["bronze"])
    _append_again(made, _NOON + timedelta(minutes=2))
    made.run(hops=["silver"])
    return Played(made, verify(made.context))


@pytest.mark.long
def test_each_event_is_accepted_once_and_every_row_has_a_fate(twice: Played) -> None:
    lake = twice.world.lake
    accepted = read(lake, "silver.clickstream", "event_id, ingested_at")
    assert [event for event, _ in accepted] == [f"e{n}" for n in range(8)]
    assert {at for _, at in accepted} == {_NOON, _NOON + timedelta(minutes=1)}
    stages = Counter(row[0] for row in read(lake, "silver.clickstream__quarantine", "stage"))
    assert stages == {"parse": 2, "conflicting_duplicate": 2}
    told = read_ledger(lake, twice.world.pipeline).to_json()
    assert (told["bronze"], told["silver"], told["duplicates"]) == (22, 8, 10)


@pytest.mark.long
def test_as_many_rows_are_requeued_as_a_side_table_holds(twice: Played) -> None:
    run, name = twice.world.context, "clickstream"
    kept = read_side(run, run.lake.quarantine(name))
    assert kept.count() == as_requeued(run, kept, "quarantine").count() == 4
    # A late row's copy is a duplicate: of the two in bronze one is requeued.
    one = load(run.spark, run.lake.silver(name)).where("event_id IN ('e1', 'e5')")
    requeued = as_requeued(run, one, "late").select("record_id", "ingested_at").collect()
    assert sorted(requeued) == sorted(one.select("record_id", "ingested_at").collect())


@pytest.mark.long
def test_the_ledger_and_verify_name_the_batches_and_the_records(
    twice: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    made = twice.world
    first = read(made.lake, "bronze.clickstream", "min(record_id)")[0][0]
    problems = read_ledger(made.lake, made.pipeline).problems
    assert problems == (
        "bronze, batch 0 of generation g1 was committed 2 times, by versions 1, 2",
        "bronze, batch 1 of generation g1 was committed 2 times, by versions 3, 4",
        f"bronze holds 11 records more than once, {first} for example",
    )
    wrong = {
        one.table.name: one.comparison.differences
        for one in twice.verification.tables
        if not one.comparison.equal
    }
    assert list(wrong) == ["bronze.clickstream"]
    found = wrong["bronze.clickstream"]
    assert {one.kind for one in found} == {"doubled"}
    assert [dict(one.where) for one in found][:3] == [
        {"generation": "g1", "batch": 0},
        {"generation": "g1", "batch": 1},
        {"record_id": first},
    ]
    assert twice.verification.tables[0].comparison.differing == 13
    place = ["--root", str(made.environment.root)]
    file = str(made.folder / "clickstream.yml")
    assert run_command(app, ["ledger", file, *place]) == 3
    assert "was committed 2 times" in capsys.readouterr().out


@pytest.mark.long
def test_the_prefilter_drops_no_row_without_a_fate(spark: SparkSession, tmp_path: Path) -> None:
    """Of a record's rows by two writers, in one batch of silver, it keeps any one."""
    dedup = {"prefilter": "operator"}
    made = world(spark, tmp_path, small=False, dedup=dedup, gold=[], quality=None)
    made.land("a.jsonl", [*[click(n, minute=n) for n in range(4)], b"garbage"])
    made.run(_NOON, hops=["bronze"])
    _append_again(made, _NOON + timedelta(seconds=1))
    with without_prefilter(spark):
        made.run(hops=["silver"])
    accepted = read(made.lake, "silver.clickstream", "event_id, ingested_at")
    assert accepted == [(f"e{n}", _NOON) for n in range(4)]
    told = read_ledger(made.lake, made.pipeline).to_json()
    assert (told["bronze"], told["silver"], told["duplicates"]) == (10, 4, 4)
    assert len(read(made.lake, "silver.clickstream__quarantine", "stage")) == 2


@pytest.mark.long
def test_a_generation_that_began_during_a_batch_is_not_written_over(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a repair beside a writer without a lock."""
    made = world(spark, tmp_path, small=False, gold=GOLD[:1], quality=None)
    lake, name = made.lake, made.pipeline.name
    made.land("a.jsonl", [click(n, minute=n) for n in range(4)])
    made.run(_NOON)
    gold_table = lake.gold(made.pipeline.gold[0].name)
    steps = {
        "bronze": (lake.bronze(name), bronze_hop.BronzeHop, "_files"),
        "silver": (lake.silver(name), silver, "decide_fates"),
        "gold": (gold_table, gold, "GoldBatch"),
    }
    made.land("b.jsonl", [*[click(n, minute=n) for n in range(4, 8)], b"garbage"])
    for minute, (hop, (table, module, step)) in enumerate(steps.items(), 1):
        done = getattr(module, step)

        def begin(*args: Any, table: Table = table, done: Any = done, **more: Any) -> Any:
            note = last_commit(table).note | {"generation": "g9", "batch": 1}  # type: ignore[union-attr]
            write_commit(table, newest_version(table) + 1, note=note)
            return done(*args, **more)

        with monkeypatch.context() as patched:
            patched.setattr(module, step, begin)
            with pytest.raises(GenerationError, match="has generation g9, this writer has g1"):
                made.run(_NOON + timedelta(minutes=minute), hops=[hop])
        assert last_commit(table).generation == "g9"  # type: ignore[union-attr]
        if hop == "silver":
            assert read(lake, f"silver.{name}__quarantine", "record_id") == []
        (table.path / "_delta_log" / f"{newest_version(table):020}.json").unlink()
        made.run(_NOON + timedelta(minutes=minute), hops=[hop])
    assert len(read(lake, f"silver.{name}", "event_id")) == 8
