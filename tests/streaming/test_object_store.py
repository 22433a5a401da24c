"""A root and a source on an object store: the same tables as on a disk, the same care."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.running import click, read
from tests.running import run as run_on
from tests.stores import Store
from tests.worlds import World, reference_gold, world
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.delta.locks import hold_hops
from tidelake.delta.log import commits, newest_version
from tidelake.delta.tables import HOPS, Hop, Lake
from tidelake.errors import GenerationError, SourceChangedError
from tidelake.folders import folder
from tidelake.ledger.terms import read_ledger
from tidelake.ops.maintenance import plan_upkeep, upkeep
from tidelake.replay.backfill import build
from tidelake.replay.backfill_promotion import promote, rollback
from tidelake.replay.repairing import repair
from tidelake.replay.requeue import apply_late
from tidelake.replay.verify import verify
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress

# What depends on when a row arrived, or where its file lay, differs between two runs.
_COLUMNS = {
    "bronze.clickstream": "payload, regexp_extract(record_id, '[^/]*$')",
    "silver.clickstream": "event_id, event_time, user_id, action, value, is_late, event_date",
    "silver.clickstream__quarantine": "payload, event_id, reasons, stage",
    "silver.clickstream__late": "event_id, event_time, watermark, lateness_seconds",
}
_OF_GOLD = "* EXCLUDE (_generation, _batch)"


@dataclass(frozen=True)
class Twins:
    """One pipeline twice: on a disk, and on a store."""

    disk: World
    stored: Run
    store: Store

    @property
    def root(self) -> str:
        """Where the second lies."""
        return str(self.stored.lake.root)

    def land(self, name: str, lines: list[bytes]) -> None:
        """Let the same file arrive at both, later than those before it."""
        self.disk.land(name, lines)
        # A store tells whole seconds.
        time.sleep(1.1)
        self.store.put(f"{self.root}/landing/{name}", b"".join(line + b"\n" for line in lines))

    def run(self, *hops: Hop) -> None:
        """Run hops of both."""
        self.disk.run(hops=hops or HOPS)
        self.run_stored(*hops)

    def run_stored(self, *hops: Hop) -> None:
        """Run hops on the store."""
        stored = self.stored
        run_on(stored.spark, stored.environment, stored.pipeline, hops=hops or HOPS)

    def assert_alike(self) -> None:
        """Compare all tables, row by row."""
        names = [table.name for table in self.disk.lake.existing()]
        assert [table.name for table in self.stored.lake.existing()] == names
        compared = _COLUMNS | dict.fromkeys(self.disk.pipeline.gold_names, _OF_GOLD)
        for name, columns in compared.items():
            assert read(self.stored.lake, name, columns) == read(self.disk.lake, name, columns)

    def assert_balanced(self) -> None:
        """Add up the books of the second."""
        assert read_ledger(self.stored.lake, self.stored.pipeline).problems == ()


@pytest.fixture(scope="module")
def twins(
    spark: SparkSession, s3: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Twins]:
    gold = reference_gold("user_sessions")
    disk = world(spark, tmp_path_factory.mktemp("twins"), gold=gold)
    root = s3.prefix()
    environment = disk.environment.model_copy(update={"root": folder(root)})
    source = disk.pipeline.source.model_copy(update={"path": f"{root}/landing"})
    pipeline = disk.pipeline.model_copy(update={"source": source})
    assert environment.root is not None
    lake = Lake(environment.root)
    found = Twins(disk, Run(spark, pipeline, lake, environment, Progress(lambda _: None)), s3)
    first = [click(number, minute=number) for number in range(40)]
    later = [click(number, minute=5000 + number) for number in range(50, 80)]
    broken = [b"no json", click(41, minute=2, value="12,50")]
    found.land("a b.jsonl", [*first, first[3], *broken, *later])
    found.land("c.jsonl", [click(90, minute=1), click(7, minute=7, product_id="other")])
    found.run()
    yield found


@pytest.mark.long
def test_a_run_on_a_store_gives_the_tables_of_a_run_on_a_disk(twins: Twins) -> None:
    assert read(twins.stored.lake, "silver.clickstream__late", "event_id") == [("e90",)]
    twins.assert_alike()
    twins.assert_balanced()


@pytest.mark.long
def test_the_next_run_takes_what_is_new_and_asks_for_no_commit_again(twins: Twins) -> None:
    twins.land("e.jsonl", [click(number, minute=5100 + number) for number in range(100, 110)])
    twins.run()
    twins.assert_alike()

    # The driver's own looks at the logs; DuckDB's and Spark's readers keep what they keep.
    logs = [list(commits(table)) for table in twins.stored.lake.existing()]
    twins.store.asked.clear()
    assert [list(commits(table)) for table in twins.stored.lake.existing()] == logs
    assert [path for _, path in twins.store.asked if path.endswith(".json")] == []


@pytest.mark.long
def test_sql_reads_the_store_with_the_same_answers(
    twins: Twins, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "SELECT count(*) AS n, sum(value) AS v FROM silver.clickstream"
    answers = []
    for root in (twins.root, str(twins.disk.lake.root)):
        assert run_command(app, ["sql", "--json", query, "--root", root]) == 0
        answers.append(capsys.readouterr().out)

    assert answers[0] == answers[1]
    assert "of the store" not in str(answers)
    outside = f"SELECT * FROM read_csv('{twins.root}/landing/c.jsonl')"
    assert run_command(app, ["sql", outside, "--root", twins.root]) == 2


@pytest.mark.long
def test_beside_a_run_maintenance_makes_no_commit_on_a_store(twins: Twins) -> None:
    """Two commits of one version would overwrite each other, there."""
    lake, bronze = twins.stored.lake, twins.stored.lake.bronze("clickstream")
    plans = plan_upkeep(lake, twins.stored.pipeline, horizon=timedelta(days=7))
    mine = [plan for plan in plans if plan.table == bronze]
    before = newest_version(bronze)
    with hold_hops(lake, "clickstream", ["bronze"]):
        list(upkeep(twins.stored, mine))
    assert newest_version(bronze) == before
    list(upkeep(twins.stored, mine))
    assert newest_version(bronze) > before


@pytest.mark.long
def test_a_lost_checkpoint_is_refused_and_a_repair_goes_on_after_the_table(twins: Twins) -> None:
    checkpoint = twins.stored.lake.checkpoints("clickstream", "bronze") / "g1"
    kept = {key: (checkpoint / key).read_text() for key in ("metadata",)}
    checkpoint.fs.rm([f"{checkpoint.path}/{key}" for key in kept])
    with pytest.raises(GenerationError, match="metadata of its checkpoint is missing"):
        twins.run_stored("bronze")

    repair(twins.stored, "bronze")
    repair(twins.disk.context, "bronze")
    twins.land("f.jsonl", [click(number, minute=5200 + number) for number in range(110, 115)])
    twins.run()

    twins.assert_alike()
    twins.assert_balanced()


@pytest.mark.long
def test_an_object_that_changed_after_it_was_read_stops_bronze(twins: Twins) -> None:
    place = f"{twins.root}/landing/c.jsonl"
    before = (folder(place)).read_bytes()
    twins.store.put(place, b"another\n")
    try:
        with pytest.raises(SourceChangedError, match=r"c\.jsonl: [\d,]+ bytes when read, 8 bytes"):
            twins.run_stored("bronze")
    finally:
        twins.store.put(place, before)


@pytest.mark.long
def test_late_rows_backfills_and_upkeep_do_on_a_store_what_they_do_on_a_disk(
    spark: SparkSession, s3: Store, tmp_path: Path
) -> None:
    disk = world(spark, tmp_path)
    root = s3.prefix()
    environment = disk.environment.model_copy(update={"root": folder(root)})
    source = disk.pipeline.source.model_copy(update={"path": f"{root}/landing"})
    pipeline = disk.pipeline.model_copy(update={"source": source})
    assert environment.root is not None
    stored = Run(spark, pipeline, Lake(environment.root), environment, Progress(lambda _: None))
    both = Twins(disk, stored, s3)
    both.land("a.jsonl", [click(number, minute=number) for number in range(30)])
    both.land("b.jsonl", [click(number, minute=5000 + number) for number in range(50, 60)])
    both.land("c.jsonl", [click(90, minute=1)])
    both.run()
    for one in (disk.context, stored):
        assert apply_late(one) == 1
    both.run()
    both.assert_alike()
    for one in (disk.context, stored):
        build(one, "silver")
        promote(one)
    both.assert_alike()
    both.land("d.jsonl", [click(number, minute=5100 + number) for number in range(100, 105)])
    both.run()
    both.assert_alike()
    for one in (disk.context, stored):
        rollback(one)
    both.run()
    both.assert_alike()
    both.assert_balanced()
    for hop in HOPS:
        repair(stored, hop)
    plans = plan_upkeep(stored.lake, pipeline, horizon=environment.recovery_horizon)
    assert {done.table.name for done in upkeep(stored, plans)} >= {"silver.clickstream"}
    both.run_stored()
    both.assert_alike()
    assert verify(stored).equal
    both.assert_balanced()
