"""Gold tables that join a definition later, and one that is computed anew, alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.crashes import after_merges
from tests.following import GOLD, JOINS, assert_gold_follows
from tests.running import click, read, versions
from tests.worlds import World, world
from tidelake.delta.access import properties
from tidelake.delta.commit_metadata import Final, positions
from tidelake.delta.log import last_commit
from tidelake.delta.tables import Table
from tidelake.errors import GenerationError, RefusedError, UsageError
from tidelake.ledger.query import ask
from tidelake.ledger.terms import read_ledger
from tidelake.ops.status import read_status, tables_to_fill
from tidelake.replay.backfill import build
from tidelake.replay.backfill_promotion import promote, rollback
from tidelake.replay.backfill_state import read_state
from tidelake.replay.compatibility import judge_tables
from tidelake.replay.differences import differences
from tidelake.replay.repairing import why_rebuilt
from tidelake.replay.verify import verify
from tidelake.runtime import gold as gold_hop
from tidelake.runtime.runner import refusals

_MINUTES, _, _VISITS, _EVER = GOLD
# The added ones come first and last.
_ALL = [_VISITS, _MINUTES, _EVER]
_OLD = ["gold.by_minutes", "gold.ever"]
_NEW = ["gold.visits", "gold.click_to_purchase"]


def _lines(part: int) -> list[bytes]:
    """Write events of twenty hours; each part fills gaps of the one before, late but allowed."""
    return [click(100 * part + n, minute=(n * 61 + 17 * part) % 1200) for n in range(40)]


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run two batches into two gold tables."""
    made = world(
        spark, tmp_path_factory.mktemp("grown"), gold=[_MINUTES, _EVER], joins=[], quality=None
    )
    for part in range(2):
        made.land(f"{part}.jsonl", _lines(part))
    made.run()
    assert last_commit(made.lake.gold("ever")).batch == 1  # type: ignore[union-attr]
    return made


@pytest.fixture(autouse=True)
def _landing_as_it_was(filled: World) -> Iterator[None]:
    """Remove what a test lands: copies share the folder."""
    yield
    for name in ("2.jsonl", "3.jsonl"):
        (filled.landing / name).unlink(missing_ok=True)


@pytest.fixture
def grown(filled: World, tmp_path: Path) -> World:
    """Copy the tables, and add two gold tables to their definition."""
    copied = filled.copied(tmp_path / "copy")
    return copied.redefined(gold=_ALL, joins=JOINS[:1])


def _assert_exact(played: World, *tables: dict[str, Any]) -> None:
    assert_gold_follows(played, tables or (*_ALL, *JOINS[:1]))
    assert read_ledger(played.lake, played.pipeline).problems == ()


def _assert_sound(played: World, *tables: dict[str, Any]) -> None:
    _assert_exact(played, *tables)
    assert verify(played.context).equal
    assert all(verdict.may_continue for verdict in judge_tables(played.context))
    assert refusals(played.context) == {}


def _standings(played: World) -> dict[str, str]:
    return {verdict.table: verdict.standing for verdict in judge_tables(played.context)}


@contextmanager
def _dying_at_append(number: int, *, after: bool) -> Iterator[None]:
    """Die before or after an append of the gold hop."""
    real, begun = gold_hop.append, []

    def append(rows: DataFrame, table: Table, *rest: Any, **options: Any) -> None:
        begun.append(table.name)
        dies = len(begun) == number
        if not dies or after:
            real(rows, table, *rest, **options)
        if dies:
            raise RuntimeError("cut off")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="cut off"):
        patch.setattr(gold_hop, "append", append)
        yield


@pytest.mark.long
def test_added_tables_fill_themselves_and_the_others_are_not_touched(grown: World) -> None:
    before = versions(grown.lake)
    standings = _standings(grown)
    assert [name for name, standing in standings.items() if standing == "new"] == _NEW
    assert refusals(grown.context) == {}
    assert list(tables_to_fill(grown.lake, grown.pipeline)) == _NEW
    assert read_status(grown.lake, grown.pipeline).hops[-1].batch == 1
    assert versions(grown.lake) == before

    told = grown.run()
    assert [line.split(":")[0] for line in told] == [
        f"gold    {name} filled from silver as of batch 1" for name in _NEW
    ]
    assert {name: versions(grown.lake)[name] for name in before if name[:3] != "ops"} == {
        name: version for name, version in before.items() if name[:3] != "ops"
    }
    old, *new = (last_commit(grown.lake.table(name)) for name in ["gold.by_minutes", *_NEW])
    assert old is not None
    for last in new:
        assert last is not None
        assert (last.generation, last.batch, positions(last)) == ("g1", 1, positions(old))
    # A left event may be matched until 30 minutes after it, that instant included (ADR 69).
    ended = Final.of(old).until - timedelta(minutes=30, microseconds=1)  # type: ignore[union-attr]
    assert Final.of(new[1]).until == ended  # type: ignore[union-attr]
    assert tables_to_fill(grown.lake, grown.pipeline) == ()
    epoch = ask(grown.lake, "SELECT versions FROM ops.epochs ORDER BY epoch DESC LIMIT 1").rows
    assert set(_NEW) < set(epoch[0][0])
    _assert_sound(grown)

    # The late rows of another batch change what was filled; nothing is filled again.
    grown.land("2.jsonl", _lines(2))
    assert not any("filled from" in line for line in grown.run())
    assert last_commit(grown.lake.gold("visits")).batch == 2  # type: ignore[union-attr]
    _assert_exact(grown)


@pytest.mark.long
def test_a_run_that_dies_while_it_fills_begins_anew(grown: World) -> None:
    grown.land("2.jsonl", _lines(2))
    with _dying_at_append(1, after=False):
        grown.run()
    assert list(tables_to_fill(grown.lake, grown.pipeline)) == _NEW
    assert read(grown.lake, "gold.visits", "count(*)") == [(0,)]
    assert _standings(grown)["gold.visits"] == "new"
    # It was made under a definition that has changed since.
    visits = {**_VISITS, "keys": ["user_id", "action"]}
    grown = grown.redefined(gold=[visits, *_ALL[1:]], joins=JOINS[:1])
    with _dying_at_append(1, after=True):
        grown.run()
    assert tables_to_fill(grown.lake, grown.pipeline) == ("gold.click_to_purchase",)
    told = grown.run()
    assert sum("filled from" in line for line in told) == 1
    assert last_commit(grown.lake.gold("visits")).batch == 2  # type: ignore[union-attr]
    _assert_exact(grown, visits, *_ALL[1:], JOINS[0])


@pytest.mark.long
def test_a_table_that_is_added_within_a_batch_joins_it(grown: World, tmp_path: Path) -> None:
    old = grown.redefined(gold=[_MINUTES, _EVER], joins=[])
    old.land("2.jsonl", _lines(2))
    with after_merges(1):
        old.run()
    assert [last_commit(old.lake.table(one)).batch for one in _OLD] == [2, 1]  # type: ignore[union-attr]
    # With a column that silver gets in the same run, after rows that gold has not read.
    by_channel = {**_EVER, "name": "by_channel", "keys": ["channel"]}
    grown = grown.redefined(
        event={
            "schema": "event_id STRING, user_id STRING, event_time TIMESTAMP, action STRING, "
            "product_id STRING, value DECIMAL(18,2), channel STRING",
            "select": {
                "user_id": "user_id",
                "action": "lower(action)",
                "product_id": "product_id",
                "value": "value",
                "channel": "channel",
            },
        },
        gold=[by_channel, *_ALL],
        joins=JOINS[:1],
    )
    # As after a week without a run, in which Delta reads no older version by itself.
    silver, kept = grown.lake.silver("clickstream"), "'delta.deletedFileRetentionDuration'"
    grown.spark.sql(f"ALTER TABLE {silver.sql} SET TBLPROPERTIES ({kept} = 'interval 0 seconds')")
    with pytest.raises(UsageError, match=r"no column channel yet, which gold\.by_channel reads"):
        grown.run(hops=["gold"])
    told = grown.run()
    filled = [line for line in told if "filled from" in line]
    assert len(filled) == 3 and all("as of batch 1:" in line for line in filled)
    _assert_sound(grown)
    count = read(grown.lake, "silver.clickstream", "count(*)")
    assert read(grown.lake, "gold.by_channel", "channel, events") == [(None, *count[0])]


@pytest.mark.long
def test_what_cannot_be_filled_is_refused_and_nothing_is_changed(grown: World) -> None:
    table = grown.lake.silver("clickstream")
    assert isinstance(table.path, Path)
    file = next(one for one in table.path.rglob("*.parquet") if "_delta_log" not in one.parts)
    hidden = file.rename(file.with_suffix(".away"))
    # A run that is refused copies commit metadata.
    copied = {"ops.books": 0}
    before = versions(grown.lake) | copied
    why = r"silver\.clickstream is damaged: .*is gone.*backfill run clickstream, then"
    with pytest.raises(RefusedError, match=why):
        grown.run(hops=["gold"])
    after = versions(grown.lake) | copied
    assert {name: version for name, version in after.items() if version > 0} == {
        name: version for name, version in before.items() if version > 0
    }
    hidden.rename(file)
    grown.run(hops=["gold"])
    _assert_exact(grown)


@pytest.mark.long
def test_one_table_is_computed_anew_and_rolled_back_alone(filled: World, tmp_path: Path) -> None:
    old = filled.copied(tmp_path / "copy")
    changed = {**_EVER, "keys": ["action"], "where": "action <> 'bot'"}
    changed |= {"properties": {"team": "growth"}}
    ever = old.lake.gold("ever")
    new = old.redefined(gold=[_MINUTES, changed])
    with pytest.raises(GenerationError, match=r"gold\.ever was filled under another definition"):
        new.run()
    before = versions(new.lake)
    state = build(new.context, "silver", table="gold.ever")
    found = differences(new.context, state)
    assert list(found.gold) == ["gold.ever"] and found.redefined == {"gold.ever"}
    # Under another key all rows differ.
    rows = read(new.lake, "gold.ever", "user_id")
    assert found.gold["gold.ever"].rows == len(rows) < found.gold["gold.ever"].differing
    assert versions(new.lake) == before

    promote(new.context)
    assert versions(new.lake) | {"gold.ever": before["gold.ever"]} == before
    assert properties(new.spark, ever)["team"] == "growth"
    _assert_sound(new, _MINUTES, changed)
    assert new.run() == []
    # At once it is put back as it was, but for its settings.
    rollback(new.context)
    assert properties(new.spark, ever)["team"] == "growth"
    assert versions(new.lake)["gold.by_minutes"] == before["gold.by_minutes"]
    with pytest.raises(GenerationError, match=r"gold\.ever was filled under another definition"):
        new.run()
    _assert_exact(old, _MINUTES, _EVER)
    assert old.run() == []

    build(new.context, "silver", table="gold.ever")
    promote(new.context)
    new.land("2.jsonl", _lines(2))
    new.run()
    _assert_exact(new, _MINUTES, changed)
    # After another batch the rows of before lack it.
    stands = versions(new.lake)
    with pytest.raises(RefusedError, match=r"Restore its definition in .*clickstream\.yml"):
        rollback(new.context)
    assert versions(new.lake) == stands
    assert read_state(new.lake, new.pipeline).stage == "promoted"  # type: ignore[union-attr]
    back = new.redefined(gold=[_MINUTES, {**_EVER, "properties": {"team": "core"}}])
    rollback(back.context)
    assert properties(new.spark, ever)["team"] == "core"
    assert versions(back.lake)["gold.by_minutes"] == stands["gold.by_minutes"]
    back.land("3.jsonl", _lines(3))
    back.run()
    _assert_sound(back, _MINUTES, _EVER)


@pytest.mark.long
def test_a_table_that_is_computed_anew_within_a_batch_joins_its_retry(
    filled: World, tmp_path: Path
) -> None:
    """Its empty commit of the batch has a transaction id, which Delta remembers."""
    quiet = {**_EVER, "where": "action = 'none'"}
    new = filled.copied(tmp_path / "copy").redefined(gold=[quiet, _MINUTES])
    build(new.context, "silver", table="gold.ever")
    promote(new.context)
    new.land("2.jsonl", _lines(2))
    with after_merges(1):
        new.run()
    heads = [last_commit(new.lake.table(one)) for one in ("gold.ever", "gold.by_minutes")]
    assert [head.batch for head in heads if head] == [2, 1]

    silent = {**quiet, "where": "action = 'nothing'"}
    new = new.redefined(gold=[silent, _MINUTES])
    build(new.context, "silver", table="gold.ever")
    promote(new.context)
    assert last_commit(new.lake.gold("ever")).batch == 1  # type: ignore[union-attr]
    new.run()
    assert last_commit(new.lake.gold("ever")).batch == 2  # type: ignore[union-attr]
    _assert_sound(new, silent, _MINUTES)


@pytest.mark.long
def test_a_table_that_was_removed_and_is_added_again_is_filled_again(
    filled: World, tmp_path: Path
) -> None:
    made = filled.copied(tmp_path / "copy")
    minutes = made.lake.gold("by_minutes").path
    assert isinstance(minutes, Path)
    copied = shutil.copytree(minutes, tmp_path / "by_minutes")
    less = made.redefined(gold=[_MINUTES])
    less.land("2.jsonl", _lines(2))
    less.run()
    again = less.redefined(gold=[_EVER, _MINUTES])
    assert tables_to_fill(again.lake, again.pipeline) == ("gold.ever",)
    assert _standings(again)["gold.ever"] == "new"
    assert read_status(again.lake, again.pipeline).hops[-1].batch == 2
    before = versions(again.lake)["gold.by_minutes"]
    assert [line.split(":")[0] for line in again.run()] == [
        "gold    gold.ever filled from silver as of batch 2"
    ]
    assert versions(again.lake)["gold.by_minutes"] == before
    _assert_sound(again, _EVER, _MINUTES)

    # A table that the newest batch filled is an older copy, and is not written over.
    shutil.rmtree(minutes)
    copied.rename(minutes)
    with pytest.raises(GenerationError, match=r"gold\.by_minutes is at batch 1.* older copy"):
        again.run(hops=["gold"])


@pytest.mark.long
def test_a_rollback_of_all_tables_empties_one_that_was_added_since(
    filled: World, tmp_path: Path
) -> None:
    old = filled.copied(tmp_path / "copy")
    build(old.context, "silver")
    promote(old.context)
    grown = old.redefined(gold=_ALL)
    grown.run()
    rollback(grown.context)
    assert read(grown.lake, "gold.visits", "count(*)") == [(0,)]
    assert tables_to_fill(grown.lake, grown.pipeline) == ("gold.visits",)
    # Its definition changes before it is filled again.
    visits = {**_VISITS, "keys": ["user_id", "action"]}
    grown = grown.redefined(gold=[visits, *_ALL[1:]])
    assert sum("gold.visits filled from silver" in line for line in grown.run()) == 1
    _assert_sound(grown, visits, *_ALL[1:])


@pytest.mark.long
def test_tables_that_never_held_a_batch_take_another_definition(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = world(spark, tmp_path, gold=[_VISITS, _EVER], joins=[], quality=None)
    for part in range(2):
        made.land(f"{part}.jsonl", _lines(part))
    # The first batch is planned, and neither table has it.
    with after_merges(0):
        made.run()
    generations = {last_commit(made.lake.gold(one)).generation for one in ("visits", "ever")}  # type: ignore[union-attr]
    other = {**_EVER, "keys": ["action"], "measures": {"events": {"count": "*"}}}
    made = made.redefined(gold=[_MINUTES | {"name": "visits"}, other], joins=[])
    assert set(_standings(made).values()) == {"continues"}
    made.run()
    assert generations == {last_commit(made.lake.gold("ever")).generation} == {"g1"}  # type: ignore[union-attr]
    _assert_sound(made, _MINUTES | {"name": "visits"}, other)


@pytest.mark.long
def test_what_was_computed_from_a_narrower_type_is_computed_anew(
    filled: World, tmp_path: Path
) -> None:
    third = {**_EVER, "name": "thirds", "measures": {"third": {"sum": "value / 3"}}}
    each = {**_EVER, "name": "each", "measures": {"total": {"sum": "value"}}}
    old = filled.copied(tmp_path / "copy").redefined(gold=[_MINUTES, each, third])
    old.run()
    note = last_commit(old.lake.gold("thirds")).note["definition"]  # type: ignore[union-attr]
    assert note["types"] == {"silver.value": "decimal(18,2)"}
    fields = "event_id STRING, user_id STRING, event_time TIMESTAMP, action STRING, "
    schema = {"schema": fields + "product_id STRING, value DECIMAL(20,4)"}
    new = old.redefined(gold=[_MINUTES, each, third], event=schema)
    refused = [one.table for one in judge_tables(new.context) if not one.may_continue]
    assert refused == ["gold.by_minutes", "gold.thirds"]
    with pytest.raises(UsageError, match=r"value as decimal\(18,2\) still.*run .* --hop silver"):
        why_rebuilt(new.context, "gold")
    why = r"gold\.thirds were computed from silver\.value as decimal\(18,2\); it is decimal\(20,4\)"
    with pytest.raises(GenerationError, match=rf"{why} now.*--table thirds, then promote"):
        new.run()
    assert why_rebuilt(new.context, "gold") == "the columns of gold.by_minutes changed"
    for table in ("gold.thirds", "gold.by_minutes"):
        build(new.context, "silver", table=table)
        promote(new.context)
    new.land("2.jsonl", _lines(2))
    new.run()
    assert verify(new.context).equal
    _assert_sound(new, _MINUTES, each)
