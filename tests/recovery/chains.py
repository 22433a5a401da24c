"""Runs of one pipeline that die one after the other, each in the recovery of the one before."""

from __future__ import annotations

import re
import resource
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql import SparkSession

from tests.fates import assert_books, assert_fates
from tests.following import assert_gold_follows
from tests.recovery.failpoints import POINTS, DiedError, armed, die
from tests.recovery.script import TABLES
from tests.running import read, versions
from tests.worlds import World
from tidelake.delta.log import commits
from tidelake.delta.tables import HOPS, Hop, Lake
from tidelake.errors import TidelakeError

_STEP = re.compile(r"(?P<point>[a-z/]+)(#(?P<nth>[0-9]+))?(?P<full>!)?")


@dataclass(frozen=True)
class Death:
    """A run that was to die.

    Attributes:
        step: Where: a point; with ``#n`` at its n-th pass, with ``!`` of a full disk.
        reached: Whether the run came by.
        told: What it ended with; empty where it went on to its end.
        before: Versions of the tables when it began.
        after: When it had ended.
    """

    step: str
    reached: bool
    told: str
    before: dict[str, int]
    after: dict[str, int]

    @property
    def point(self) -> str:
        """The point alone."""
        return _parsed(self.step)["point"]

    @property
    def is_of_a_full_disk(self) -> bool:
        """Whether the disk was full."""
        return bool(_parsed(self.step)["full"])


@dataclass
class Chain:
    """Lets runs of a pipeline die.

    Attributes:
        played: The pipeline.
        clock: When bronze's batches arrive, one instant a run.
        deaths: Those so far.
    """

    played: World
    clock: Iterator[datetime]
    deaths: list[Death] = field(default_factory=list)

    def die_at(self, *steps: str, hops: Sequence[Hop] = ()) -> None:
        """Run once for each step, by default only the hop that comes by, so that it ends there."""
        for step in steps:
            parsed = _parsed(step)
            before, told = versions(self.played.lake), ""
            with full_disk(self.played.spark) as fill:
                act = fill if parsed["full"] else die
                with armed(parsed["point"], act, nth=int(parsed["nth"] or 1)) as passes:
                    try:
                        self.run(hops or _hops(parsed["point"]))
                    except (TidelakeError, DiedError) as error:
                        told = str(error)
            after = versions(self.played.lake)
            self.deaths.append(Death(step, passes.reached, told, before, after))

    def run(self, hops: Sequence[Hop] = HOPS) -> list[str]:
        """Run hops to their end."""
        return self.played.run(next(self.clock), hops=hops)


def _parsed(step: str) -> dict[str, str]:
    found = _STEP.fullmatch(step)
    assert found, step
    return found.groupdict()


def _hops(point: str) -> Sequence[Hop]:
    """Give the hops of a run that comes by a point; any comes by the books and the epochs."""
    hop = POINTS[point].hop
    return [name for name in HOPS if name == hop] or ["gold"]


@contextmanager
def full_disk(spark: SparkSession) -> Iterator[Callable[[], None]]:
    """Give a function from whose call on Spark's process can write nothing, until this ends.

    The system refuses to let any file of the process grow, as it does when a disk is full; Python
    may go on writing.
    """
    context = spark.sparkContext
    assert context._jvm is not None
    jvm = int(context._jvm.java.lang.ProcessHandle.current().pid())
    limits = resource.prlimit(jvm, resource.RLIMIT_FSIZE)

    def fill() -> None:
        resource.prlimit(jvm, resource.RLIMIT_FSIZE, (0, limits[1]))

    try:
        yield fill
    finally:
        resource.prlimit(jvm, resource.RLIMIT_FSIZE, limits)


def losses(lake: Lake, delivered: Sequence[bytes], name: str = "clickstream") -> tuple[int, int]:
    """Count the records that are lost, and those that are there twice.

    In bronze by their bytes; in silver and its side tables by their ids, since what is in none of
    them must be in the books.
    """
    found = Counter(bytes(row[0]) for row in read(lake, f"bronze.{name}", "payload"))
    wanted = Counter(delivered)
    placed: Counter[str] = Counter()
    for table in (lake.silver(name), lake.quarantine(name), lake.late(name)):
        placed.update(row[0] for row in read(lake, table.name, "record_id"))
    doubled = (found - wanted).total() + sum(times - 1 for times in placed.values())
    return (wanted - found).total(), doubled


def closed_twice(lake: Lake) -> list[tuple[str, int]]:
    """List the batches of which a table has more than one commit."""
    closed = Counter(
        (table.name, commit.generation, commit.batch)
        for table in lake.existing()
        for commit in commits(table)
    )
    return [(name, batch) for (name, _, batch), times in closed.items() if times > 1]


def assert_whole(played: World) -> None:
    """Hold every table against the oracles, and the ledger."""
    assert_books(played.lake, played.pipeline, assert_fates(played.lake))
    assert_gold_follows(played, TABLES)
