"""A broker that is killed, paused or restarted in the middle of a batch costs no record."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.brokers import Kafka
from tests.recovery.outages import KINDS, Kind, Producing, away, catches_up
from tests.recovery.processes import Started, started
from tests.recovery.records import assert_follows, lines_of
from tests.recovery.reporting import Report
from tests.running import run
from tests.worlds import write_clickstream
from tidelake.config import load_environment, load_pipeline
from tidelake.delta.tables import Lake

_OUTAGES = int(os.environ.get("TIDELAKE_OUTAGES", "1"))
_SEED = int(os.environ.get("TIDELAKE_SEED", str(time.time_ns() % 1_000_000)))
_STEPS = ("bronze/read/before", "bronze/append/before", "bronze/append/after")
# A run gives up after a minute in a batch, and after three between two.
_SHORT, _LONG = (1.0, 4.0), (70.0, 100.0)
_RECOVERS_WITHIN, _REACHED_WITHIN = 180.0, 120.0
_LINES, _PACE = 1_200, 50
_NAMED = re.compile(
    r"^tidelake: (clickstream, hop bronze stopped: the Kafka broker does not answer: "
    r"|the Kafka broker at \S+ does not answer: ).*\n?.*Check it, then run again\.",
    re.MULTILINE,
)


@dataclass(frozen=True)
class _Outage:
    """A broker that goes away.

    Attributes:
        kind: How.
        seconds: How long.
        step: Where the run is then; its run's others come at any moment.
    """

    kind: Kind
    seconds: float
    step: str


@dataclass(frozen=True)
class _Followed:
    """A topic and the pipeline that follows it on the command line.

    Attributes:
        kafka: The broker.
        topic: The topic.
        folder: Holds the tables and the definition.
    """

    kafka: Kafka
    topic: str
    folder: Path

    @property
    def arguments(self) -> list[str]:
        """The arguments of a run that goes on."""
        places = [str(self.folder / "clickstream.yml"), "--root", str(self.folder / "lake")]
        return ["run", *places, "--trigger", "1 second"]

    def catches_up(self, run: Started, seconds: float) -> bool:
        """Wait until bronze holds what the topic holds now; not if the run ended before."""
        ends = self.kafka.ends(self.topic)
        bronze = Lake(self.folder / "lake").bronze("clickstream")
        return catches_up(bronze, self.topic, ends, run, seconds)


def _outages(count: int, seed: int) -> list[_Outage]:
    """Draw outages; every fourth is longer than a run waits."""
    chance, drawn = random.Random(seed), []
    for number in range(count):
        kind = KINDS[(number + seed) % len(KINDS)]
        seconds = chance.uniform(*(_LONG if number % 4 == 3 else _SHORT))
        drawn.append(_Outage(kind, seconds, chance.choice(_STEPS)))
    return drawn


@pytest.mark.long
def test_a_broker_that_goes_away_in_the_middle_of_a_batch_costs_no_record(
    spark: SparkSession, tmp_path: Path, kafka: Kafka, report: Callable[..., Report]
) -> None:
    told = report("broker killed, paused, restarted", tried=_OUTAGES, seed=_SEED, full=50)
    print(f"seed {_SEED}: repeat with TIDELAKE_SEED={_SEED} TIDELAKE_OUTAGES={_OUTAGES}")
    topic = kafka.topic(partitions=3)
    source = {"kind": "kafka", "bootstrap": kafka.bootstrap, "topic": topic}
    # However long a batch takes, there are more than a fail point waits for.
    file = write_clickstream(tmp_path, **source, max_offsets_per_trigger=300)
    lines = lines_of(tmp_path / "drawn", _LINES * _OUTAGES, _SEED)
    followed = _Followed(kafka, topic, tmp_path)
    # The first comes in the middle of a batch, the second at any moment of the same run.
    with Producing(kafka, topic, lines, _PACE).running():
        drawn = _outages(_OUTAGES, _SEED)
        for number in range(0, len(drawn), 2):
            _run_through(followed, drawn[number : number + 2], told)
    environment = load_environment("local", root=str(tmp_path / "lake"))
    pipeline = load_pipeline(str(file), environment)
    run(spark, environment, pipeline)
    assert_follows(Lake(tmp_path / "lake"), pipeline, lines, told)


def _run_through(followed: _Followed, outages: Sequence[_Outage], told: Report) -> None:
    """Let one run live through outages; killed at the end, with its process group."""
    chance = random.Random(outages[0].seconds)
    fail = f"{outages[0].step}:{chance.randint(1, 3)}:wait"
    with started(followed.folder, followed.arguments, name="run", fail=fail) as run:
        assert not run.ends_within(_REACHED_WITHIN), run.words
        assert run.reached.exists(), run.words
        for outage in outages:
            with away(followed.kafka, outage.kind):
                run.reached.unlink(missing_ok=True)
                run.ends_within(outage.seconds)
            told.reached += 1
            back = time.monotonic()
            if followed.catches_up(run, _RECOVERS_WITHIN):
                how = "went on"
            else:
                _run_again(followed, run, back)
                how = "run again"
                told.refused += 1
            print(f"{outage}: {how}, had all after {time.monotonic() - back:.1f} s", flush=True)
            if outage.kind != "paused" and outage.seconds >= _LONG[0]:
                assert "bronze  waits: no Kafka broker can be reached" in run.words
            if run.process.poll() is not None:
                return
            time.sleep(chance.uniform(0, 2))


def _run_again(followed: _Followed, ended: Started, back: float) -> None:
    """Do what the run said when it ended: by name, and not by a traceback."""
    assert ended.process.returncode == 2, ended.words
    assert _NAMED.search(ended.words), ended.words
    assert "Traceback" not in ended.words
    with started(followed.folder, followed.arguments, name="again") as again:
        left = _RECOVERS_WITHIN - (time.monotonic() - back)
        assert followed.catches_up(again, left), again.words
