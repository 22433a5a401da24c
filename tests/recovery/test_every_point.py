"""Deaths at every point: in any batch, in any order, and of whole processes."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.recovery.chains import Chain, assert_whole, closed_twice, losses
from tests.recovery.failpoints import POINTS
from tests.recovery.processes import started
from tests.recovery.reporting import Report
from tests.recovery.script import BATCHES, CREATION, TABLES, clock, lines, of_bots
from tests.running import land
from tests.worlds import World, world
from tidelake.config.locations import conf_dir
from tidelake.delta.tables import HOPS

pytestmark = pytest.mark.long
_SEED = int(os.environ.get("TIDELAKE_SEED", "2"))
_CHAINS = int(os.environ.get("TIDELAKE_CHAINS", "10"))
_DEPTH = 5
# In chains or points: how long a broken table may stay unnoticed.
_CHECKED_EVERY = 5
# A batch passes a point once, or once a table.
_PASSES = {"gold/merge/before": 2, "gold/merge/after": 2}
_IN_BATCHES = [
    name
    for name in POINTS
    if name.startswith(("bronze", "silver", "gold")) and "/create/" not in name
]


class _Deliveries:
    """Lands files and knows what they held."""

    def __init__(self, played: World) -> None:
        self.played = played
        self.lines: list[bytes] = []
        self.parts = 0

    def land(self, *, only_bots: bool = False) -> None:
        made = of_bots(self.parts) if only_bots else lines(self.parts)
        self.played.land(f"{self.parts:04d}.jsonl", made)
        self.lines += made
        self.parts += 1

    def assert_whole(self, told: Report) -> None:
        lake = self.played.lake
        told.lost, told.doubled = losses(lake, self.lines)
        assert (told.lost, told.doubled) == (0, 0)
        assert closed_twice(lake) == []
        assert_whole(self.played)


@pytest.fixture
def chain(spark: SparkSession, tmp_path: Path) -> Chain:
    return Chain(world(spark, tmp_path, gold=TABLES, quality=None), clock(_SEED))


@pytest.mark.parametrize("batch", [1, 2, 3], ids=["first", "middle", "last"])
def test_a_death_at_any_point_in_any_batch_of_a_run_changes_nothing(
    chain: Chain, batch: int, report: Callable[..., Report]
) -> None:
    told = report(f"raise at every point, batch {batch} of 3", seed=_SEED)
    delivered = _Deliveries(chain.played)
    delivered.land()
    chain.run()
    for number, point in enumerate(_IN_BATCHES, 1):
        for _ in range(3):
            delivered.land(only_bots="/close/" in point)
        if not point.startswith("bronze"):
            chain.run(["bronze"])
        if point.startswith("gold"):
            chain.run(["silver"])
        passes = _PASSES.get(point, 1)
        chain.die_at(f"{point}#{(batch - 1) * passes + 1}")
        chain.run()
        told.tried += 1
        told.reached += chain.deaths[-1].reached
        if number % _CHECKED_EVERY == 0 or number == len(_IN_BATCHES):
            delivered.assert_whole(told)
    assert [death.step for death in chain.deaths if not death.reached] == []


def test_deaths_in_recoveries_of_recoveries_change_nothing(
    chain: Chain, report: Callable[..., Report]
) -> None:
    told = report(
        "five deaths deep, at random points",
        tried=_CHAINS * _DEPTH,
        seed=_SEED,
        full=100 * _DEPTH,
    )
    chance = random.Random(_SEED)
    delivered = _Deliveries(chain.played)
    for number in range(1, _CHAINS + 1):
        for _ in range(chance.randint(1, 3)):
            delivered.land(only_bots=chance.random() < 0.2)
        for _ in range(_DEPTH):
            point, nth = chance.choice(list(POINTS)), chance.choice([1, 1, 1, 2, 3])
            step = f"{point}#{nth}" + chance.choice(["", "", "!"])
            print(number, step, flush=True)
            chain.die_at(step, hops=HOPS)
        chain.run()
        told.reached = sum(death.reached for death in chain.deaths)
        if number % _CHECKED_EVERY == 0 or number == _CHAINS:
            delivered.assert_whole(told)


def _own_conf(folder: Path, played: World) -> None:
    """Let processes in a folder find the world's definition, and its small batches."""
    own = folder / "conf"
    shutil.copytree(conf_dir(), own)
    shutil.copy(played.folder / "clickstream.yml", own / "pipelines" / "clickstream.yml")
    environment = own / "environments" / "local.yml"
    content = yaml.safe_load(environment.read_text())
    content["limits"] = {"silver_bytes": "1k", "gold_bytes": "1k"}
    environment.write_text(yaml.safe_dump(content))


def _steps() -> Iterator[tuple[str, str]]:
    """Give the points of a whole script with their hops, in order; a file comes in between."""
    for script in (CREATION, BATCHES):
        yield "land", ""
        for hop in HOPS:
            for step in script[hop]:
                yield step.rstrip("!"), hop
            yield "", hop


@pytest.mark.parametrize("mode", ["exit", "hang"])
def test_the_death_of_a_process_at_any_point_changes_nothing(
    spark: SparkSession, tmp_path: Path, mode: str, report: Callable[..., Report]
) -> None:
    """Python alone dies at once and its JVM after it, or both are killed while it stands still."""
    deadly = "os._exit" if mode == "exit" else "SIGKILL while it hangs"
    told = report(f"{deadly} at every point")
    played = world(spark, tmp_path / "world", gold=TABLES, quality=None)
    _own_conf(tmp_path, played)
    files = iter([(lines(0),), (lines(1), of_bots(2))])
    delivered: list[bytes] = []
    run = ["run", "clickstream", "--root", str(played.lake.root), "--source", str(played.landing)]
    for step, hop in _steps():
        if step == "land":
            for made in next(files):
                land(played.landing, f"{len(delivered)}.jsonl", made)
                delivered += made
            continue
        name, _, nth = step.partition("#")
        fail = f"{name}:{nth or 1}:{mode}" if step else ""
        with started(tmp_path, [*run, "--hop", hop], name="run", fail=fail) as running:
            ended = running.ends_within(600)
            print(step or hop, "ended" if ended else "reached", flush=True)
            if not step:
                assert ended and running.process.returncode == 0, running.words
                continue
            told.tried += 1
            assert running.reached.exists(), (step, running.words)
            told.reached += 1
            if mode == "exit":
                assert running.process.wait() == 137, running.words
    with started(tmp_path, run, name="last") as last:
        assert last.process.wait() == 0, last.words
    told.lost, told.doubled = losses(played.lake, delivered)
    assert (told.lost, told.doubled) == (0, 0)
    assert closed_twice(played.lake) == []
    assert_whole(played)
