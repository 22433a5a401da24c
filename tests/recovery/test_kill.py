"""SIGKILL of the whole process group at any moment, then a run: the tables as without it."""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.recovery.deliveries import arguments, assert_as_delivered, deliver, run_to_the_end
from tests.recovery.failpoints import POINTS
from tests.recovery.processes import Started, racing
from tests.recovery.reporting import Report
from tests.worlds import write_clickstream

pytestmark = pytest.mark.usefixtures("interpreted")

_FEW = 1
_KILLS = int(os.environ.get("TIDELAKE_KILLS", _FEW))
_RACES = int(os.environ.get("TIDELAKE_RACES", "20"))
_SEED = int(os.environ.get("TIDELAKE_SEED", str(time.time_ns() % 1_000_000)))
# From Spark's start to some time after a run's usual end, so that every step is hit.
_EARLIEST, _LATEST = 3.0, 12.0 if _KILLS <= _FEW else 24.0
_LONGEST = 600.0
# In kills: how long a broken table may stay unnoticed.
_CHECKED_EVERY = 25
# Steps of every run that has something to take in.
_STEPS = [name for name in POINTS if name.split("/")[1] not in ("create", "late", "close")]


@dataclass
class _State:
    """How far the kills have come; kept beside the tables, so that they can go on.

    Attributes:
        seed: What they are drawn from.
        moments: Where each run was killed; ``end`` for those that were quicker.
    """

    seed: int
    moments: list[str] = field(default_factory=list)

    @staticmethod
    def of(folder: Path) -> _State:
        file = folder / "kills.json"
        return _State(**json.loads(file.read_text())) if file.exists() else _State(_SEED)

    def keep(self, folder: Path) -> None:
        written = folder / ".kills.json"
        written.write_text(json.dumps(asdict(self)))
        written.rename(folder / "kills.json")


def _kill_one(folder: Path, part: int, seed: int, *, may_be_done: bool) -> str:
    """Start two runs at the same moment: one is refused; kill the other, and tell where.

    At a random time, or in a random step, which a run reaches unless the part was taken in before.
    """
    chance = random.Random(f"{seed}/{part}/kill")
    moment, step = chance.uniform(_EARLIEST, _LATEST), chance.choice(_STEPS)
    is_in_a_step = part % 2 == 0
    fail = f"{step}:1:hang" if is_in_a_step else ""
    began = time.monotonic()
    with racing(folder, arguments(folder), fail=fail) as (run, refused):
        _assert_refused(refused, run)
        left = _LONGEST if is_in_a_step else moment - (time.monotonic() - began)
        ended = run.ends_within(left)
        assert not ended or run.process.returncode == 0, run.words
        assert may_be_done or not (ended and is_in_a_step), f"{step} was not reached: {run.words}"
    return "end" if ended else step if is_in_a_step else f"{moment:.1f} s"


def test_a_kill_at_any_moment_changes_nothing(
    spark: SparkSession, tmp_path: Path, report: Callable[..., Report]
) -> None:
    folder = Path(os.environ.get("TIDELAKE_RESUME") or tmp_path).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if _KILLS <= _FEW:
        # A run of few gold tables takes half the time.
        write_clickstream(folder, kind="files", path=str(folder / "landing"), format="json")
    state = _State.of(folder)
    told = report("SIGKILL of the process group", tried=_KILLS, seed=state.seed, full=1000)
    print(f"seed {state.seed}, {len(state.moments)} of {_KILLS} kills under {folder}")
    print(f"repeat with TIDELAKE_SEED={state.seed}, go on with TIDELAKE_RESUME={folder}")
    # The test may have ended between the kill of this part and its note.
    resumed = len(state.moments) if (folder / "landing").exists() else None
    while len(state.moments) < _KILLS:
        part = len(state.moments)
        deliver(folder, part, state.seed)
        moment = _kill_one(folder, part, state.seed, may_be_done=part == resumed)
        state.moments.append(moment)
        told.refused += 1
        state.keep(folder)
        if len(state.moments) % _CHECKED_EVERY == 0 and len(state.moments) < _KILLS:
            _end(spark, folder, state, told)
            print(f"{len(state.moments)} kills, nothing lost and nothing doubled", flush=True)
    _end(spark, folder, state, told)
    print(f"killed at: {', '.join(state.moments)}")


def _end(spark: SparkSession, folder: Path, state: _State, told: Report) -> None:
    """Run to the end in this process; after a kill that another follows, a new one went on."""
    run_to_the_end(spark, folder)
    told.reached = sum(moment != "end" for moment in state.moments)
    assert_as_delivered(folder, range(len(state.moments)), state.seed, told)


def _assert_refused(refused: Started, other: Started) -> None:
    assert refused.process.returncode == 3, refused.words
    assert re.search(
        rf"^tidelake: clickstream, hop bronze, is being written by process {other.process.pid}\.",
        refused.words,
        re.MULTILINE,
    ), refused.words
    # Told at once, before Spark starts.
    assert "Starting Spark" not in refused.words
    assert "Traceback" not in refused.words


@pytest.mark.long
def test_of_two_runs_on_one_root_one_works_and_the_other_is_refused(
    tmp_path: Path, report: Callable[..., Report]
) -> None:
    told = report("two runs on one root", tried=_RACES, seed=_SEED, full=100)
    chance = random.Random(_SEED)
    for part in range(_RACES):
        deliver(tmp_path, part, _SEED)
        # The first works for about fifteen seconds; at once is the worst of all moments.
        delay = chance.choice([0, 0, 0.2, 1, 6])
        with racing(tmp_path, arguments(tmp_path), delay=delay) as (one, other):
            one.process.wait()
            assert one.process.returncode == 0, one.words
            _assert_refused(other, one)
        told.reached += 1
        told.refused += 1
    assert_as_delivered(tmp_path, range(_RACES), _SEED, told)
