"""Runs that die at each step of each hop: in the end, the tables as without it."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.recovery.chains import Chain, assert_whole, closed_twice, losses
from tests.recovery.failpoints import POINTS, armed
from tests.recovery.reporting import Report
from tests.recovery.script import BATCHES, CREATION, TABLES, clock, lines, of_bots
from tests.running import versions
from tests.worlds import World, world
from tidelake.delta.commit_metadata import pipeline_hash
from tidelake.delta.tables import HOPS
from tidelake.errors import LockedError
from tidelake.ops.maintenance import plan_upkeep, upkeep
from tidelake.replay.backfill_promotion import promote, rollback
from tidelake.replay.backfill_state import Stage, State, write_state
from tidelake.replay.repairing import repair
from tidelake.replay.requeue import Choice, apply_late, discard_quarantine, replay_quarantine
from tidelake.runtime import session_pool
from tidelake.runtime.hop import Run

pytestmark = pytest.mark.usefixtures("interpreted")

_SEED = int(os.environ.get("TIDELAKE_SEED", "39"))
_PATIENCE = 120


@pytest.fixture(scope="module")
def chain(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Let runs die at every point, and the last one come to its end.

    As on one slot: side by side, a second table would close its batch while the first one's run
    dies, and nothing would be left for the points behind that.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_pool, "slots_of", lambda session: 1)
        return _dead_at_every_point(spark, tmp_path_factory)


def _dead_at_every_point(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    played = world(spark, tmp_path_factory.mktemp("chain"), gold=TABLES, quality=None)
    dying = Chain(played, clock(_SEED))
    played.land("0.jsonl", lines(0))
    for hop in HOPS:
        dying.die_at(*CREATION[hop])
        dying.run([hop])
    played.land("1.jsonl", lines(1))
    played.land("2.jsonl", of_bots(2))
    for hop in HOPS:
        dying.die_at(*BATCHES[hop])
        dying.run([hop])
    dying.run()
    return dying


def test_every_point_was_reached_and_ended_its_run(chain: Chain) -> None:
    assert {death.point for death in chain.deaths} == set(POINTS)
    assert [death.step for death in chain.deaths if not (death.reached and death.told)] == []


def test_a_full_disk_stops_a_run_by_name_and_no_table_changes(chain: Chain) -> None:
    full = [death for death in chain.deaths if death.is_of_a_full_disk]
    assert full
    for death in full:
        assert re.match(
            r"clickstream, "
            r"(hop \w+|copying commit metadata to ops.books,|closing an epoch,) stopped: "
            r".*File too large\nRaise the limit on the size of files",
            death.told,
        ), death
        assert death.after == death.before, death.step


def test_after_all_deaths_each_record_is_there_once(
    chain: Chain, report: Callable[..., Report]
) -> None:
    told = report("die at each step in turn", seed=_SEED)
    told.tried, told.reached = len(chain.deaths), sum(death.reached for death in chain.deaths)
    told.refused = sum(death.is_of_a_full_disk for death in chain.deaths)
    told.lost, told.doubled = losses(chain.played.lake, [*lines(0), *lines(1), *of_bots(2)])
    assert (told.lost, told.doubled) == (0, 0)
    assert closed_twice(chain.played.lake) == []
    assert_whole(chain.played)


def _refused_beside_a_run(played: World) -> dict[str, Callable[[], object]]:
    """Give what another process could ask for while a run writes silver."""
    context = played.context
    asked: dict[str, Callable[[], object]] = {
        "run": played.run,
        "late apply": lambda: apply_late(context),
        "quarantine replay": lambda: replay_quarantine(context, Choice()),
        "quarantine discard": lambda: discard_quarantine(context, Choice(), why="a test"),
        "backfill promote": lambda: promote(_at_stage(context, "built")),
        "backfill rollback": lambda: rollback(_at_stage(context, "promoted")),
    }
    return asked | {f"repair {hop}": partial(repair, context, hop) for hop in HOPS}


def _at_stage(context: Run, stage: Stage) -> Run:
    """Let a backfill seem to have come so far."""
    state = State("bronze", pipeline_hash(context.pipeline), stage)
    write_state(context.lake, context.pipeline, state)
    return context


@contextmanager
def _held_at(played: World, step: str) -> Iterator[None]:
    """Let a run stand still at a step meanwhile, and then end."""
    reached, goes_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        reached.set()
        assert goes_on.wait(_PATIENCE)

    with armed(step, stand_still), ThreadPoolExecutor(1) as pool:
        running = pool.submit(played.run)
        try:
            assert reached.wait(_PATIENCE)
            yield
        finally:
            goes_on.set()
        running.result()


def test_beside_a_batch_each_writer_is_refused_and_maintenance_harms_nobody(
    chain: Chain, tmp_path: Path, report: Callable[..., Report]
) -> None:
    played = chain.played.copied(tmp_path / "copy")
    file = played.land("3.jsonl", lines(3))
    told = report("another writer beside an open batch")
    silver = played.lake.silver("clickstream")
    try:
        with _held_at(played, "silver/append/before"):
            before = versions(played.lake)
            for ask in _refused_beside_a_run(played).values():
                told.tried += 1
                with pytest.raises(LockedError, match=rf"^clickstream, hop \w+, .* {os.getpid()}"):
                    ask()
                told.refused += 1
            assert versions(played.lake) == before
            plans = plan_upkeep(played.lake, played.pipeline, horizon=timedelta(hours=1))
            [done] = upkeep(played.context, [plan for plan in plans if plan.table == silver])
            # Its commit could overwrite the batch's.
            assert done.files == done.files_before
            assert versions(played.lake) == before
    finally:
        file.unlink()
    delivered = [*lines(0), *lines(1), *of_bots(2), *lines(3)]
    told.lost, told.doubled = losses(played.lake, delivered)
    assert (told.lost, told.doubled) == (0, 0)
    assert_whole(played)
