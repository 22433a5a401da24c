"""Commands that lose their lock between two tables; a promotion and a rollback with a full requeue.

After the lock is lost nothing is written, and the message says what was done. No row that waits in
the requeue is lost, and none counts twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.crashes import before_silver_closes, lease_lost_once
from tests.running import START, click, read, versions
from tests.worlds import TO_SILVER, World, world
from tidelake.delta.log import last_commit, newest_version
from tidelake.delta.merge import compact
from tidelake.errors import LeaseLostError, RefusedError, UnbalancedError, UsageError
from tidelake.instants import Range
from tidelake.ledger.terms import read_ledger
from tidelake.ops.maintenance import plan_upkeep, upkeep
from tidelake.replay import backfill_promotion
from tidelake.replay.backfill import build, plan_rollback
from tidelake.replay.backfill_promotion import promote, rollback
from tidelake.replay.backfill_state import need_state
from tidelake.replay.differences import differences
from tidelake.replay.erase import erase
from tidelake.replay.repairing import repair
from tidelake.replay.requeue import Choice, apply_late, discard_quarantine, replay_quarantine
from tidelake.replay.subject import Subject
from tidelake.replay.verify import verify
from tidelake.replay.verify_silver import SilverInputs, read_inputs
from tidelake.runtime.hop import Run

pytestmark = pytest.mark.usefixtures("interpreted")

_DAY = 24 * 60
_ARRIVALS = [START + timedelta(days=6, minutes=n) for n in range(3)]
_GOLD = [
    {
        "name": f"by_{key}",
        "window": {"kind": "global"},
        "keys": [key],
        "measures": {"events": {"count": "*"}},
    }
    for key in ("user_id", "product_id")
]


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run two files to silver: four events, then seven late ones and two implausible ones."""
    made = world(spark, tmp_path_factory.mktemp("rollback"), gold=_GOLD)
    made.land("a.jsonl", [click(n, minute=6 * _DAY - n) for n in range(4)])
    long_name = click(21, minute=6 * _DAY, user_id="u" * 65)
    implausible = [click(20, minute=6 * _DAY, value=-1), long_name]
    made.land("b.jsonl", [*(click(n, minute=n) for n in range(10, 17)), *implausible])
    made.run(*_ARRIVALS[:2], hops=TO_SILVER)
    return made


@pytest.fixture
def played(filled: World, tmp_path: Path) -> Iterator[World]:
    """Give a copy of the tables, whose files stay where they arrived."""
    yield filled.copied(tmp_path / "copy")
    (filled.landing / "c.jsonl").unlink(missing_ok=True)


def _told(played: World) -> tuple[int, ...]:
    """Give the rows of silver, late, quarantine and the requeue; the ledger must balance."""
    told = read_ledger(played.lake, played.pipeline).to_json()
    assert told["problems"] == []
    return tuple(told[key] for key in ("silver", "late", "quarantined", "requeued"))


def _generation(played: World, table: str) -> str:
    last = last_commit(played.lake.table(table))
    assert last is not None
    return last.generation


@pytest.mark.long
def test_without_its_lock_a_command_of_one_step_does_nothing(filled: World) -> None:
    """Nothing is sent again or given up, and no hop is repaired."""
    before = versions(filled.lake)
    loose = filled.redefined(quality=None)
    with lease_lost_once(lambda: True):
        with pytest.raises(
            LeaseLostError,
            match=r"Done: nothing\. Not begun: append 7 rows to bronze\.clickstream__requeue\. "
            r"Continue with: tidelake late apply clickstream$",
        ) as lost:
            apply_late(filled.context)
        with pytest.raises(LeaseLostError, match="Continue with: tidelake quarantine replay"):
            replay_quarantine(loose.context, Choice())
        with pytest.raises(LeaseLostError, match="Continue with: tidelake quarantine discard"):
            discard_quarantine(filled.context, Choice(), why="a test")
        for hop in ("bronze", "silver"):
            with pytest.raises(LeaseLostError, match=f"repair clickstream --hop {hop}"):
                repair(filled.context, hop)
    assert lost.value.exit_code == 3
    kept = {name: version for name, version in versions(filled.lake).items() if name in before}
    assert kept == before


@pytest.mark.long
def test_a_repair_stops_between_two_tables_and_is_done_again(played: World) -> None:
    played.run(hops=["gold"])
    first, second = played.pipeline.gold_names
    with (
        lease_lost_once(lambda: _generation(played, first) == "g2"),
        pytest.raises(
            LeaseLostError,
            match=f"Done: .*begin generation g2 in {first}. Not begun: begin generation g2 in "
            f"{second}. Continue with: tidelake repair clickstream --hop gold",
        ),
    ):
        repair(played.context, "gold")
    assert _generation(played, second) == "g1"
    with pytest.raises(RefusedError, match="tidelake repair clickstream --hop gold"):
        played.run(hops=["gold"])
    repair(played.context, "gold")
    assert played.run() == []


@pytest.mark.long
def test_an_erasure_stops_between_two_tables_and_goes_on(played: World) -> None:
    late, silver = played.lake.late("clickstream"), played.lake.silver("clickstream")
    whose, before = Subject("user_id", "u0"), (newest_version(late), newest_version(silver))
    with (
        lease_lost_once(lambda: newest_version(late) > before[0]),
        pytest.raises(
            LeaseLostError,
            match=f"delete rows from {late.name}. Not begun: delete rows from {silver.name}. "
            "Continue with: tidelake erase clickstream --subject user_id=VALUE",
        ),
    ):
        erase(played.context, whose)
    assert newest_version(silver) == before[1]
    erase(played.context, whose)
    assert read_ledger(played.lake, played.pipeline).problems == ()
    assert ("u0",) not in read(played.lake, "silver.clickstream", "user_id")


@pytest.mark.long
def test_rows_in_the_requeue_are_taken_after_a_promotion_and_after_a_rollback(
    played: World,
) -> None:
    """Late and replayed rows, sent before the promotion or after it; gold had not run.

    Both lose their locks once, between two tables.
    """
    strict = played.redefined(gold=_GOLD[:1])
    loose = played.redefined(gold=_GOLD[:1], quality=None)
    assert apply_late(strict.context) == 7
    assert replay_quarantine(loose.context, Choice(rule="value: ")).requeued == 1
    assert _told(strict) == (4, 0, 1, 8)

    build(strict.context, "bronze")
    late, quarantine = (f"silver.clickstream__{side}" for side in ("late", "quarantine"))
    before = versions(strict.lake)
    with (
        lease_lost_once(lambda: versions(strict.lake)[quarantine] > before[quarantine]),
        pytest.raises(
            LeaseLostError,
            match=f"Done: fill the green tables; .*replace {quarantine}. Not begun: replace {late}."
            " Continue with: tidelake backfill promote clickstream",
        ),
    ):
        promote(strict.context)
    changed = {name for name, version in versions(strict.lake).items() if version != before[name]}
    assert changed == {"bronze.clickstream__requeue", quarantine, "ops.books"}
    promote(strict.context)
    # What the promoted tables hold in quarantine still waits.
    assert _told(strict) == (11, 0, 1, 1)
    assert replay_quarantine(loose.context, Choice(rule="user_id: ")).requeued == 1
    loose.land("c.jsonl", [click(30, minute=30)])
    loose.run(_ARRIVALS[2], hops=TO_SILVER)
    assert apply_late(loose.context) == 1
    assert _told(loose) == (13, 0, 0, 1)

    requeue = loose.lake.requeue("clickstream")
    sent = newest_version(requeue)
    with (
        # Once the requeue is restored, and one commit is behind that.
        lease_lost_once(lambda: newest_version(requeue) > sent + 1),
        pytest.raises(LeaseLostError, match=r"Done: .*Continue with: tidelake backfill rollback"),
    ):
        rollback(loose.context)
    rollback(loose.context)
    assert _told(loose) == (4, 0, 0, 9)
    loose.run()
    # What arrived after the promotion is decided anew, with its arrival.
    assert _told(loose) == (13, 1, 0, 0)
    assert verify(loose.context).equal


@pytest.mark.long
def test_gold_that_a_promotion_from_silver_made_is_emptied_and_filled_by_the_next_run(
    played: World,
) -> None:
    build(played.context, "silver")
    promote(played.context)
    names, columns = [f"gold.{one['name']}" for one in _GOLD], "count(*), count(DISTINCT events)"
    promoted = [read(played.lake, name, columns) for name in names]
    state = need_state(played.lake, played.pipeline, "promoted")
    assert plan_rollback(played.lake, played.pipeline, state) == ({}, names)
    with (
        lease_lost_once(lambda: read(played.lake, names[0], "count(*)") == [(0,)]),
        pytest.raises(LeaseLostError, match=f"empty {names[0]}. Not begun: empty {names[1]}"),
    ):
        rollback(played.context)
    rollback(played.context)
    assert [read(played.lake, name, "count(*)") for name in names] == [[(0,)], [(0,)]]

    played.run(hops=["gold"])
    assert [read(played.lake, name, columns) for name in names] == promoted
    assert verify(played.context).equal


@pytest.mark.long
def test_a_rollback_finds_the_rows_that_waited_in_a_requeue_that_was_compacted(
    played: World,
) -> None:
    """Late rows waited in two files; maintenance put them together, and ran again after a week."""
    strict = played.redefined(gold=_GOLD[:1])
    requeue = strict.lake.requeue("clickstream")
    assert apply_late(strict.context, Range(end=START + timedelta(minutes=13))) == 3
    assert apply_late(strict.context) == 4
    names = list(requeue.path.glob("*.parquet"))
    compact(strict.spark, requeue)
    _age(requeue.path, by=timedelta(days=3))
    loose = played.redefined(gold=_GOLD[:1], quality=None)
    assert replay_quarantine(loose.context, Choice(rule="value: ")).requeued == 1
    before = _told(strict)
    build(strict.context, "bronze")
    promote(strict.context)
    strict.run(hops=TO_SILVER)
    day = timedelta(days=1)
    environment = strict.environment.model_copy(update={"recovery_horizon": day})
    plans = plan_upkeep(strict.lake, strict.pipeline, horizon=day, environment=environment)
    list(upkeep(strict.context, [plan for plan in plans if plan.table == requeue]))
    assert len(names) >= 2 and all(file.exists() for file in names)

    # Whoever deletes them by hand has no rollback, and no table is changed by its attempt.
    aside = [file.rename(file.with_suffix(".aside")) for file in names]
    versions_before = versions(strict.lake)
    with pytest.raises(RefusedError, match=r"again are gone\. No table was changed"):
        rollback(strict.context)
    assert versions(strict.lake) == versions_before
    for file, name in zip(aside, names, strict=True):
        file.rename(name)
    rollback(strict.context)
    assert _told(strict) == before
    strict.run()
    assert verify(strict.context).equal


def _age(table: Path, *, by: timedelta) -> None:
    """Make a table's commits and files as much older."""
    milliseconds = int(by.total_seconds() * 1000)
    for file in (table / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] -= milliseconds
            if "remove" in action:
                action["remove"]["deletionTimestamp"] -= milliseconds
        file.write_text("".join(json.dumps(action) + "\n" for action in actions))
    for sums in (table / "_delta_log").glob("*.crc"):
        sums.unlink()
    for file in table.glob("*.parquet"):
        os.utime(file, (file.stat().st_mtime - by.total_seconds(),) * 2)


def _without_a_row(green: Run) -> SilverInputs:
    found = read_inputs(green)
    silver, *_ = found.decided
    kept = found.decided[silver].where("event_id <> 'e1'")
    return replace(found, decided={**found.decided, silver: kept})


@pytest.mark.long
@pytest.mark.parametrize("begun", [True, False])
def test_before_silvers_first_batch_a_promotion_that_does_not_balance_is_taken_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    played = world(spark, tmp_path, gold=_GOLD[:1], quality=None)
    played.land("a.jsonl", [*(click(n, minute=-n) for n in range(4)), b"garbage"])
    played.run(START, hops=["bronze"])
    if begun:
        with before_silver_closes():
            played.run(hops=["silver"])
    state = build(played.context, "bronze")
    if not begun:
        with pytest.raises(UsageError, match=r"silver\.clickstream does not exist yet.*promote"):
            differences(played.context, state)
    with monkeypatch.context() as patch:
        patch.setattr(backfill_promotion, "read_inputs", _without_a_row)
        with pytest.raises(UnbalancedError, match=r"is promoted.*backfill rollback clickstream"):
            promote(played.context)
    assert need_state(played.lake, played.pipeline, "promoted")
    rollback(played.context)
    assert _told(played) == (0, 0, 0, 0)
    played.run()
    assert _told(played) == (4, 0, 1, 0)
