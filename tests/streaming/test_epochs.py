"""An epoch a run, and reads that agree while the tables do not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.crashes import after_merges
from tests.running import click, read
from tests.worlds import TO_SILVER, World, world
from tidelake.delta.log import newest_version
from tidelake.delta.tables import HOPS, Lake
from tidelake.errors import UsageError
from tidelake.ledger.query import ask_at_epoch, ask_for_user
from tidelake.runtime import runner
from tidelake.runtime.epochs import close_epoch
from tidelake.runtime.hop import Run
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import parse_trigger

GOLD: list[dict[str, Any]] = [
    {
        "name": "by_minute",
        "window": {"kind": "tumbling", "size": "1 minute"},
        "where": "action <> 'bot'",
        "keys": ["user_id"],
        "measures": {"events": {"count": "*"}},
    },
    {
        "name": "visits",
        "window": {"kind": "session", "gap": "12 minutes"},
        "keys": ["user_id"],
        "measures": {"events": {"count": "*"}},
    },
]
# What the tumbling table counts and what it is made of; the same of the sessions.
COUNTS = """
    SELECT (SELECT sum(events) FROM gold.by_minute),
        (SELECT count(*) FROM silver.clickstream WHERE action <> 'bot'),
        (SELECT sum(events) FROM gold.visits),
        (SELECT count(*) FROM silver.clickstream)
"""
FATES = """
    SELECT (SELECT count(*) FROM bronze.clickstream), (SELECT count(*) FROM silver.clickstream),
        (SELECT count(*) FROM silver.clickstream__quarantine)
"""
# Two sessions of a user within the gap are one that is seen twice.
SEEN_TWICE = """
    SELECT count(*) FROM gold.visits a JOIN gold.visits b USING (user_id)
    WHERE a.session_id <> b.session_id
        AND a.session_start <= b.session_end + INTERVAL 12 MINUTE
        AND b.session_start <= a.session_end + INTERVAL 12 MINUTE
"""
PARTS = 6
FIRST, LAST = (15, 15, 20, 20), (60, 60, 80, 80)


def clicks(part: int) -> list[bytes]:
    """Write a sixth of 120 clicks.

    A user's lie apart by more than the gap in a part, and by less in all of them.
    """
    return [click(n, minute=2 * n) for n in range(120) if n // 4 % PARTS == part]


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Give a pipeline after one run over the first part."""
    made = world(spark, tmp_path_factory.mktemp("epochs"), gold=GOLD, quality=None)
    made.land("0.jsonl", clicks(0))
    made.run()
    return made


@pytest.fixture
def played(begun: World, tmp_path: Path) -> Iterator[World]:
    """Give a copy of the tables, whose files stay where they arrived."""
    yield begun.copied(tmp_path / "copy")
    for file in begun.landing.iterdir():
        if file.name != "0.jsonl":
            file.unlink()


def plainly(lake: Lake, sql: str = COUNTS) -> tuple[Any, ...]:
    return ask_for_user(lake, sql).rows[0]


def consistently(lake: Lake, sql: str = COUNTS) -> tuple[Any, ...]:
    return ask_at_epoch(lake, sql)[0].rows[0]


def epochs(lake: Lake) -> list[tuple[int, dict[str, int]]]:
    return read(lake, "ops.epochs", "epoch, versions")  # type: ignore[return-value]


def test_statements_see_the_last_boundary_until_a_run_closes_an_epoch(played: World) -> None:
    lake = played.lake
    assert [number for number, _ in epochs(lake)] == [1]
    before = newest_version(lake.epochs())
    played.run()
    assert newest_version(lake.epochs()) == before

    # Between the hops.
    played.land("1.jsonl", [*clicks(1), b"nope"])
    played.run(hops=TO_SILVER)
    assert plainly(lake) == (15, 30, 20, 40)
    assert consistently(lake) == FIRST
    assert plainly(lake, FATES) == (41, 40, 1)
    assert consistently(lake, FATES) == (20, 20, 0)
    assert [number for number, _ in epochs(lake)] == [1]

    # Between two tables of gold.
    with after_merges(1):
        played.run()
    close_epoch(played.context)
    assert plainly(lake) == (30, 30, 20, 40)
    assert consistently(lake) == FIRST
    assert [number for number, _ in epochs(lake)] == [1]

    played.run(hops=["gold"])
    assert plainly(lake) == consistently(lake) == (30, 30, 40, 40)
    assert consistently(lake, FATES) == (41, 40, 1)
    (_, first), (number, second) = epochs(lake)
    assert number == 2
    names = {t.name for t in lake.existing() if not t.name.startswith("ops.")}
    assert set(first) == set(second) == names
    assert second == {name: newest_version(lake.table(name)) for name in names}
    rested = {"bronze.clickstream__requeue", "silver.clickstream__late"}
    assert {name for name in names if first[name] == second[name]} == rested
    row = "pipeline, generation, batch, watermark = max(watermark) OVER ()"
    assert read(lake, "ops.epochs", row)[-1] == ("clickstream", "g1", 1, True)


@pytest.mark.long
def test_a_run_of_copies_moves_the_epoch_in_bronze(played: World) -> None:
    played.land("1.jsonl", clicks(0))
    played.run()

    assert consistently(played.lake, FATES) == (40, 20, 0)
    assert consistently(played.lake) == FIRST


@pytest.mark.long
def test_an_epoch_reads_tables_with_deletion_vectors(played: World) -> None:
    table = played.lake.gold("visits")
    played.spark.sql(
        f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)"
    )
    for part in (1, 2):
        played.land(f"{part}.jsonl", clicks(part))
        played.run()
    played.land("3.jsonl", clicks(3))
    played.run(hops=TO_SILVER)

    log = (table.path / "_delta_log" / f"{newest_version(table):020}.json").read_text()
    assert '"deletionVector"' in log
    assert consistently(played.lake) == (45, 45, 60, 60)
    assert consistently(played.lake, SEEN_TWICE) == (0,)
    assert plainly(played.lake) == (45, 60, 60, 80)


@pytest.mark.long
def test_after_a_vacuum_a_run_closes_a_new_epoch(played: World) -> None:
    played.land("1.jsonl", clicks(1))
    played.run()
    for name in ("gold.by_minute", "silver.clickstream"):
        table = DeltaTable(str(played.lake.table(name).path))
        table.optimize.compact()
        table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(UsageError, match=r"epoch 2 of clickstream.* tidelake run clickstream"):
        consistently(played.lake)

    played.run()
    assert [number for number, _ in epochs(played.lake)] == [1, 2, 3]
    assert consistently(played.lake) == (30, 30, 40, 40)


@dataclass
class Reader:
    """Lets files arrive while a run goes on, and reads all the time.

    Attributes:
        played: The pipeline.
        context: Of the run; ended when the last epoch was seen.
    """

    played: World
    context: Run
    seen: list[tuple[Any, ...]] = field(default_factory=list)
    plain: list[tuple[Any, ...]] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)

    def run(self) -> None:
        """Poll until the run has taken all parts, or for four minutes."""
        try:
            self._poll()
        except BaseException as error:
            self.failed.append(error)
        finally:
            self.context.stop.set()

    def _poll(self) -> None:
        lake = self.played.lake
        ends = time.monotonic() + 240
        parts = iter(range(1, 4))
        lands = 0.0
        while time.monotonic() < ends and (not self.seen or self.seen[-1] != LAST):
            if time.monotonic() > lands:
                lands = time.monotonic() + 4
                part = next(parts, None)
                if part is not None:
                    self.played.land(f"{part}.jsonl", clicks(part))
            self.seen.append(consistently(lake))
            self.plain.append(plainly(lake))
            for ask in (plainly, consistently):
                assert ask(lake, SEEN_TWICE) == (0,)
            # Leaves the processor to the run.
            time.sleep(1.5)


@pytest.mark.long
def test_a_reader_of_a_run_that_goes_on_sees_boundaries_only(
    played: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_EPOCH_SECONDS", 0.5)
    context = played.context
    reader = Reader(played, context)
    thread = threading.Thread(target=reader.run)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_hops(context, HOPS, parse_trigger("continuous"))
    thread.join()

    assert reader.failed == []
    states = sorted(set(reader.seen), key=reader.seen.index)
    # Each as the run left it: what the two tables count is what they were made of.
    assert all(state[:1] + state[2:3] == (state[1], state[3]) for state in states)
    assert [state[3] for state in states] == sorted(state[3] for state in states)
    assert states[-1] == LAST
    # Three parts came; an epoch at least was closed on the way.
    assert len(states) >= 3
    print(f"{states} of {len(set(reader.plain))} states in {len(reader.plain)} looks")
