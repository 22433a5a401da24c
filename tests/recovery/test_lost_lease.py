"""A lock that is lost in the middle of a command: nothing is written after it, and all is told.

Of a promotion and a rollback: see ``test_rollback``.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.crashes import lease_lost_once
from tests.running import START, click, read, versions
from tests.worlds import World, world
from tidelake.delta.log import last_commit, newest_version
from tidelake.errors import LeaseLostError, RefusedError
from tidelake.ledger.terms import read_ledger
from tidelake.replay.erase import erase
from tidelake.replay.generations import repair
from tidelake.replay.requeue import Choice, apply_late, discard_quarantine, replay_quarantine
from tidelake.replay.subject import Subject

_DAY = 24 * 60
_ARRIVAL = START + timedelta(days=6)


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run two files: four events, then one that is late and one that is implausible."""
    made = world(spark, tmp_path_factory.mktemp("lost"))
    made.land("a.jsonl", [click(n, minute=6 * _DAY - n) for n in range(4)])
    late, refused = click(10, minute=10), click(11, minute=6 * _DAY, value=-1)
    made.land("b.jsonl", [late, refused])
    made.run(_ARRIVAL, _ARRIVAL + timedelta(minutes=1))
    return made


def _generation(played: World, table: str) -> str:
    last = last_commit(played.lake.table(table))
    assert last is not None
    return last.generation


def test_nothing_is_sent_again_or_given_up_and_no_hop_is_repaired(filled: World) -> None:
    """Of a command with one step, none is done."""
    before = versions(filled.lake)
    loose = filled.redefined(quality=None)
    with lease_lost_once(lambda: True):
        with pytest.raises(
            LeaseLostError,
            match=r"Done: nothing\. Not begun: append 1 rows to bronze\.clickstream__requeue\. "
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


def test_a_repair_stops_between_two_tables_and_is_done_again(filled: World, tmp_path: Path) -> None:
    played = filled.copied(tmp_path / "copy")
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
def test_an_erasure_stops_between_two_tables_and_goes_on(filled: World, tmp_path: Path) -> None:
    played = filled.copied(tmp_path / "copy")
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
