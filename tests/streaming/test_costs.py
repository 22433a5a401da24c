"""What a small batch costs, in counts: a job more in each batch shows here, on any machine."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from threading import enumerate as threads
from threading import get_ident
from typing import Any

import pytest
from benchmarks.executions import newest
from delta.tables import DeltaTable
from py4j.clientserver import JavaClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.costs import Spent, spent
from tests.running import click, read
from tests.worlds import World, world
from tidelake.delta.access import ASKING_AHEAD
from tidelake.delta.log import newest_version
from tidelake.delta.positions import BEGINNING, files_between
from tidelake.delta.store import FolderTable
from tidelake.delta.tables import Hop, Table
from tidelake.runtime import runner
from tidelake.runtime.gold import GoldHop
from tidelake.runtime.hop import Heads, HopQuery
from tidelake.runtime.runner import run_hops
from tidelake.runtime.silver import SilverHop
from tidelake.runtime.triggers import AVAILABLE_NOW, Pace, parse_trigger
from tidelake.spark.tuning import SMALL_BATCH_SETTINGS

BATCHES = 4
_EVENTS = {"events": {"count": "*"}, "total": {"sum": "value"}}
_MINUTES = {
    "name": "minutes",
    "window": {"kind": "tumbling", "size": "1 minute"},
    "keys": ["user_id"],
    "measures": _EVENTS,
}
_VISITS = {
    "name": "visits",
    "window": {"kind": "session", "gap": "5 minutes"},
    "keys": ["user_id"],
    "measures": _EVENTS,
}


def filled(spark: SparkSession, folder: Path) -> World:
    """Run batches in the order of their time; each has a copy of an event of the one before."""
    played = world(spark, folder, gold=[_MINUTES], quality=None)
    for batch in range(BATCHES):
        first = batch * 60
        lines = [click(first + number, minute=first + number) for number in range(40)]
        copies = [click(first - 30, minute=first - 30)] if batch else []
        played.land(f"{batch}.jsonl", [*lines, *copies])
    played.run()
    return played


def merges(spark: SparkSession, table: Table) -> list[dict[str, int]]:
    """Give what Delta counted in each MERGE, the newest first."""
    history = DeltaTable.forPath(spark, str(table.path)).history().collect()
    metrics = [row["operationMetrics"] for row in history if row["operation"] == "MERGE"]
    return [{name: int(value) for name, value in one.items()} for one in metrics]


def _checkpoints(played: World, hop: Hop) -> Path:
    return Path(played.lake.checkpoints("clickstream", hop))


@dataclass
class Seen:
    """What Python did with silver's batches.

    Attributes:
        frames: What it still held when the run had ended; None for what it had let go.
        queries: The same of all hops' queries, once Python had looked for cycles.
        calls: How often it called into the JVM, by batch.
    """

    frames: list[Any] = field(default_factory=list)
    queries: list[Any] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)


@pytest.fixture(scope="module")
def seen() -> Seen:
    return Seen()


@pytest.fixture(scope="module")
def played(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seen: Seen) -> World:
    frames, queries = [], []
    here: set[int] = set()
    write, send, start = SilverHop.write, JavaClient.send_command, HopQuery.start

    def started(hop: HopQuery, trigger: dict[str, Any]) -> StreamingQuery:
        query = start(hop, trigger)
        queries.append(weakref.ref(query))
        return query

    def noted(hop: SilverHop, rows: DataFrame, batch: int, heads: Heads) -> None:
        frames.append(weakref.ref(rows._jdf))
        seen.calls.append(0)
        here.add(get_ident())
        try:
            write(hop, rows, batch, heads)
        finally:
            here.clear()

    def counted(client: JavaClient, command: str, *args: Any, **kwargs: Any) -> Any:
        # What Python lets go meanwhile is told to the JVM too, at no fixed time.
        if get_ident() in here and not command.startswith("m\nd"):
            seen.calls[-1] += 1
        return send(client, command, *args, **kwargs)

    # Python may look for cycles at any time by itself; PySpark turns that on where it was off.
    usual = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SilverHop, "write", noted)
            patch.setattr(HopQuery, "start", started)
            patch.setattr(JavaClient, "send_command", counted)
            made = filled(spark, tmp_path_factory.mktemp("minutes"))
        seen.frames.extend(frame() for frame in frames)
        gc.collect()
        seen.queries.extend(query() for query in queries)
    finally:
        gc.set_threshold(*usual)
    return made


def test_a_small_batch_of_bronze_is_counted_and_written(spark: SparkSession, played: World) -> None:
    # The count of what the file offers meets in one task, which is the shuffle.
    assert spent(spark, _checkpoints(played, "bronze"), BATCHES - 1) <= Spent(jobs=2, shuffles=1)


def test_a_small_batch_of_silver_shuffles_nothing(spark: SparkSession, played: World) -> None:
    silver = played.lake.silver("clickstream")
    last = BATCHES - 1
    # Rows are judged and kept in the driver, brought to Python, which finds repeats and counts,
    # and events are appended.
    assert spent(spark, _checkpoints(played, "silver"), last) <= Spent(jobs=3, shuffles=0)
    assert len(files_between(silver, BEGINNING, (last + 2, -1))) == BATCHES


def test_a_merge_of_a_small_batch_reads_and_rewrites_what_it_touches(
    spark: SparkSession, played: World
) -> None:
    # Events are kept and counted, then their partial sums. Delta reconstructs the table's state,
    # and its size, each with a shuffle; lists the files in reach, finds the rows, and writes.
    assert spent(spark, _checkpoints(played, "gold"), BATCHES - 1) <= Spent(jobs=7, shuffles=2)
    # The first batch is appended.
    found = merges(spark, played.lake.gold("minutes"))
    assert [one["numTargetFilesRemoved"] for one in found] == [0] * (BATCHES - 1)
    assert [one["numTargetRowsCopied"] for one in found] == [0] * (BATCHES - 1)
    assert [one["numTargetFilesAdded"] for one in found] == [1] * (BATCHES - 1)


def test_in_a_run_that_goes_on_delta_knows_the_state_before_the_next_merge(
    spark: SparkSession, played: World, tmp_path: Path
) -> None:
    """It reconstructs the state after a batch, while the run waits."""
    # The same silver, of which another table is made.
    played = played.copied(tmp_path / "copy").redefined(gold=[_MINUTES | {"name": "again"}])
    shutil.rmtree(_checkpoints(played, "gold"))
    hop = GoldHop(played.context)
    hop.pace = Pace(60.0, hop.most, hop.unit)
    hop.give_way = lambda _: [one.join() for one in threads() if one.name == ASKING_AHEAD]
    query = hop.start(parse_trigger(AVAILABLE_NOW).options)
    assert query.awaitTermination(120)
    hop.check(query)
    assert spent(spark, _checkpoints(played, "gold"), BATCHES - 1) <= Spent(jobs=6, shuffles=0)
    again, minutes = (
        read(played.lake, f"gold.{name}", "window_start, user_id, events, total")
        for name in ("again", "minutes")
    )
    assert again == minutes != []


def test_the_first_batch_of_gold_keeps_its_events_and_no_partial_sums(
    spark: SparkSession, played: World
) -> None:
    # Events are kept and counted, then aggregated and appended: nothing is stored to add them to,
    # and Delta need not know the table's state.
    assert spent(spark, _checkpoints(played, "gold"), 0) <= Spent(jobs=2, shuffles=0)


def test_only_times_and_keys_of_gold_have_file_statistics(played: World) -> None:
    minutes = played.lake.gold("minutes")
    log = Path(str(minutes.path)) / "_delta_log"
    actions = [json.loads(line) for file in log.glob("*.json") for line in file.open()]
    written = [json.loads(action["add"]["stats"]) for action in actions if "add" in action]
    assert len(written) == BATCHES
    assert {frozenset(stats["minValues"]) for stats in written} == {
        frozenset(("window_start", "window_end", "user_id"))
    }


def test_a_warm_up_of_silver_starts_python_and_writes_nothing(
    spark: SparkSession, played: World
) -> None:
    hop = SilverHop(played.context, creates=False)
    before = [newest_version(table) for table in played.lake.existing()]
    settings = {key: spark.conf.get(key, None) for key in SMALL_BATCH_SETTINGS}
    ran = newest(spark)[1]
    hop.warm_up()
    assert newest(spark)[1] > ran
    assert [newest_version(table) for table in played.lake.existing()] == before
    assert {key: spark.conf.get(key, None) for key in SMALL_BATCH_SETTINGS} == settings


def test_a_cold_run_loads_delta_once_with_a_table_that_is_gone_then(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    create = runner.ensure_table

    def recorded(session: SparkSession, table: FolderTable, *more: Any) -> None:
        create(session, table, *more)
        assert table.exists
        made.append(Path(str(table.path)))

    monkeypatch.setattr(runner, "ensure_table", recorded)
    played = world(spark, tmp_path, gold=[_MINUTES], quality=None)
    played.land("a.jsonl", [click(0, minute=0)])
    for _ in range(2):
        run_hops(played.context, ["bronze"], parse_trigger(AVAILABLE_NOW), cold=True)
    assert [path.exists() for path in made] == [False]
    assert "bronze.none" not in [table.name for table in played.lake.existing()]


@pytest.mark.long
def test_sessions_of_a_small_batch_cost_little_more(
    spark: SparkSession, played: World, tmp_path: Path
) -> None:
    # The same silver, of which sessions alone are made.
    played = played.copied(tmp_path / "copy").redefined(gold=[_VISITS])
    shutil.rmtree(played.lake.checkpoints("clickstream", "gold"))
    played.run(hops=["gold"])
    # Beside those of windows: stored sessions in reach are read, put together with the batch's,
    # and kept.
    assert spent(spark, _checkpoints(played, "gold"), BATCHES - 1) <= Spent(jobs=13, shuffles=4)
    found = merges(spark, played.lake.gold("visits"))
    assert [one["numTargetRowsCopied"] for one in found] == [0] * (BATCHES - 1)


def test_spark_gets_back_what_it_keeps_for_batches_that_ended(played: World, seen: Seen) -> None:
    assert seen.frames == [None] * BATCHES


def test_spark_gets_back_the_queries_of_a_run_that_ended(played: World, seen: Seen) -> None:
    assert seen.queries
    assert set(seen.queries) == {None}


def test_columns_are_built_once_and_not_for_each_batch(played: World, seen: Seen) -> None:
    # Each file that could hold the batch's ids is a call, too.
    assert seen.calls[-1] <= 450


def test_spark_keeps_no_note_of_the_files_that_a_plan_named(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    caches = jvm.org.apache.spark.sql.execution.datasources.FileStatusCache
    kept = caches.getOrCreate(spark._jsparkSession)
    assert kept.getClass().getSimpleName() == "NoopCache$"
