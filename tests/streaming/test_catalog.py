"""Tables that are names in a catalog: the same rows, books and answers as under a root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from tests.catalogs import a_catalog, looking
from tests.running import START, click
from tests.worlds import World, define, world
from tidelake.config import Environment
from tidelake.delta.access import follow, load
from tidelake.delta.append import append, ensure_table
from tidelake.delta.log import CREATION, last_commit, newest_version, oldest_version
from tidelake.delta.positions import (
    BEGINNING,
    added_between,
    rewriting,
    version_at,
)
from tidelake.delta.store import FolderTable
from tidelake.delta.tables import Lake, Table
from tidelake.ledger.history import history
from tidelake.ledger.query import ask, ask_at_epoch, ask_for_user
from tidelake.ledger.side_tables import list_late, list_quarantine
from tidelake.ledger.terms import read_ledger
from tidelake.names import LAYERS
from tidelake.ops.doctor import examine_lake
from tidelake.ops.status import read_status
from tidelake.replay.compatibility import payload_drift
from tidelake.replay.requeue import apply_late
from tidelake.replay.verify import verify
from tidelake.runtime.checkpoints import planned_positions

_AFTER = timedelta(days=4)
_SESSIONS = {
    "name": "user_sessions",
    "window": {"kind": "session", "gap": "30 minutes"},
    "keys": ["user_id"],
    "measures": {"events": {"count": "*"}, "total": {"sum": "value"}},
}


class Pair(NamedTuple):
    """One pipeline in a catalog and under a root, which take in the same files.

    Attributes:
        warehouse: The files of the tables in the catalog, which only a test may touch.
    """

    named: World
    rooted: World
    warehouse: Lake

    @property
    def worlds(self) -> tuple[World, World]:
        """Both pipelines."""
        return self.named, self.rooted


def pair_of(spark: SparkSession, folder: Path, environment: Environment) -> Pair:
    """Make the worlds; they share the landing folder."""
    gold = {"gold": [_SESSIONS], "quality": None}
    rooted = world(spark, folder / "rooted", **gold)
    named = world(spark, folder / "named", environment=environment, **gold)
    pipeline = define(named.folder, named.environment, rooted.landing)
    named = replace(named, pipeline=pipeline, landing=rooted.landing)
    return Pair(named, rooted, Lake(folder / "warehouse"))


def files_of_every_fate() -> list[list[bytes]]:
    """Write two files whose rows meet every fate, some with two new fields.

    The run of the second one gives silver's two new columns their comments, in one commit.
    """
    first = [click(n, minute=n) for n in range(30)]
    copies_and_too_late = [click(n, minute=n) for n in range(25, 40)]
    conflict = click(3, minute=3, value=99.5)
    days_later = [click(100 + n, minute=3 * 24 * 60 + n, extra="x", more="y") for n in range(2)]
    nameless = click(50, minute=31, event_id=None)
    return [
        [*first, b"{broken", nameless, days_later[0]],
        [*copies_and_too_late, conflict, days_later[1]],
    ]


def rows_of(lake: Lake, table: str) -> list[tuple[Any, ...]]:
    """Read a table without Spark, which takes as long for each as for a batch."""
    with looking():
        answer = ask(lake, f"SELECT * FROM {table}")
    # The moment in which rows were sent again is that of the clock.
    clock = {"requeued_at", "_requeued_at"}
    kept = [n for n, name in enumerate(answer.columns) if name not in clock]
    return sorted([tuple(row[n] for n in kept) for row in answer.rows], key=repr)


def assert_same(pair: Pair) -> None:
    """Compare every table of the two, and what the books say."""
    named, rooted, warehouse = pair
    tables = [table.name for table in rooted.lake.existing()]
    assert [table.name for table in named.lake.existing()] == tables
    for name in tables:
        if not name.startswith("ops."):
            assert rows_of(warehouse, name) == rows_of(rooted.lake, name), name
    books = [read_ledger(one.lake, one.pipeline) for one in pair.worlds]
    assert books[0].balanced, books[0].problems
    assert books[0].to_json() == books[1].to_json()
    assert _status(named) == _status(rooted)
    assert verify(named.context).equal


def _status(one: World) -> dict[str, Any]:
    told = read_status(one.lake, one.pipeline, now=START).to_json()
    told["dedup"].pop("seconds")
    for hop in told["hops"]:
        # When it was, and how fast.
        for name in ("last_commit", "rows_per_second"):
            hop.pop(name)
    return told


@pytest.fixture(scope="module")
def pair(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Run both worlds to the end."""
    folder = tmp_path_factory.mktemp("catalog")
    with a_catalog(spark, folder) as environment:
        pair = pair_of(spark, folder, environment)
        # Each in a run of its own: by name a batch takes all that there is.
        for number, lines in enumerate(files_of_every_fate()):
            pair.rooted.land(f"{number}.jsonl", lines)
            for one in pair.worlds:
                one.run(START + _AFTER + timedelta(minutes=number))
        yield pair


def test_a_run_by_name_gives_what_a_run_under_a_root_gives(pair: Pair) -> None:
    silver = pair.named.lake.silver(pair.named.pipeline.name)
    assert "CHANGE COLUMNS" in {entry.info.operation for entry in silver.entries()}
    assert_same(pair)


@pytest.mark.long
def test_lists_of_side_tables_are_the_same(pair: Pair) -> None:
    named, rooted = ([*_lists(one)] for one in pair.worlds)
    assert named == rooted
    assert named[0]


def _lists(one: World) -> Iterator[Any]:
    yield [asdict(day) for day in list_late(one.lake, one.pipeline)]
    yield [asdict(group) for group in list_quarantine(one.lake, one.pipeline)]
    yield payload_drift(one.context)


@pytest.mark.long
def test_the_history_tells_what_the_log_files_tell(pair: Pair) -> None:
    """Each table's files lie in the warehouse: there both ways can be tried."""
    named = pair.named
    for table in named.lake.existing():
        detail = named.spark.sql(f"DESCRIBE DETAIL {table.sql}").collect()[0]
        filed = FolderTable(table.name, Path(detail["location"].removeprefix("file:")))
        told, size = _all_of(table, named), added_between(table, BEGINNING).size
        with looking():
            assert told == _all_of(filed, named), table.name
            # Of a file without a row, which is left out, the bytes are counted.
            assert size >= added_between(filed, BEGINNING).size, table.name


def _all_of(table: Table, one: World) -> list[Any]:
    newest = newest_version(table)
    ends = [(version, -1) for version in range(newest + 2)]
    spans = [*pairwise(ends), (ends[0], ends[-1])]
    return [
        newest,
        oldest_version(table),
        table.id,
        # A file's own time may be some milliseconds after what is written in it.
        [replace(commit, written_at=START) for commit in history(one.lake, table)],
        [version_at(table, end) for end in ends],
        [one and one.version for one in (rewriting(table, end) for end in ends)],
        [added_between(table, *span).rows for span in spans],
    ]


def test_a_users_statement_is_answered_by_spark(pair: Pair) -> None:
    asked = "SELECT user_id, count_if(is_late) AS late FROM silver.clickstream s GROUP BY ALL"
    ordered = f"{asked} ORDER BY s.user_id"
    told = ask_for_user(pair.named.lake, ordered)
    by_duckdb = ask_for_user(pair.rooted.lake, ordered.replace("s.user_id", "user_id"))
    assert (told.columns, told.rows) == (by_duckdb.columns, by_duckdb.rows)
    # Each engine names types in its own words, and DuckDB counts in wider integers.
    assert (told.types, by_duckdb.types) == (("string", "bigint"), ("VARCHAR", "HUGEINT"))


def test_a_consistent_statement_sees_the_versions_of_the_epoch(pair: Pair) -> None:
    asked = "SELECT count(*) FROM gold.user_sessions JOIN silver.clickstream USING (user_id)"
    (named, at), (rooted, _) = (ask_at_epoch(one.lake, asked) for one in pair.worlds)
    assert named.rows == rooted.rows
    assert at is not None
    assert at.versions.keys() >= {"gold.user_sessions", "silver.clickstream"}


def test_the_view_of_final_rows_shows_what_sql_shows_under_a_root(pair: Pair) -> None:
    named, rooted, warehouse = pair
    final = ask(rooted.lake, "SELECT session_id FROM gold.user_sessions__final").rows
    shown = named.spark.sql("SELECT session_id FROM gold.user_sessions__final").collect()
    assert sorted(tuple(row) for row in shown) == sorted(final)
    assert 0 < len(final) < len(rows_of(warehouse, "gold.user_sessions"))
    assert sorted(ask(named.lake, "SELECT session_id FROM gold.user_sessions__final").rows) == (
        sorted(final)
    )


@pytest.mark.long
def test_late_rows_are_applied_by_name(pair: Pair) -> None:
    sent = [apply_late(one.context) for one in pair.worlds]
    assert sent[0] == sent[1] > 0
    for one in pair.worlds:
        one.run(START + _AFTER + timedelta(hours=1))
    assert_same(pair)


def test_of_two_runs_that_close_one_batch_the_second_writes_nothing(pair: Pair) -> None:
    """A volume may know no locks, and both may have asked the table before either wrote."""
    named, table = pair.named, pair.named.lake.table("bronze.twice")
    note = {"pipeline": "twice", "hop": "bronze", "generation": "g1", "batch": 0}
    rows = named.spark.range(3)
    ensure_table(named.spark, table, rows.schema, {**note, "batch": CREATION})
    for _ in range(2):
        append(rows, table, note)
    assert load(named.spark, table).count() == 3
    named.spark.sql(f"DROP TABLE {table.sql}")


@pytest.mark.long
def test_no_limit_cuts_a_commit_in_two(pair: Pair, tmp_path: Path) -> None:
    named, table = pair.named, pair.named.lake.table("bronze.several")
    note = {"pipeline": "several", "hop": "bronze", "generation": "g1"}
    rows = named.spark.range(4).repartition(2)
    ensure_table(named.spark, table, rows.schema, {**note, "batch": CREATION})
    for batch in range(2):
        append(rows, table, {**note, "batch": batch})
    taken: list[int] = []
    query = (
        follow(named.spark, table, max_bytes=1)
        .writeStream.foreachBatch(lambda came, _: taken.append(came.count()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert taken == [8]
    assert planned_positions(tmp_path, 0, 1) == [(newest_version(table) + 1, -1)]
    named.spark.sql(f"DROP TABLE {table.sql}")


@pytest.mark.long
def test_a_table_that_was_made_without_its_first_note_gets_it(pair: Pair) -> None:
    named, table = pair.named, pair.named.lake.table("bronze.cut")
    note = {"pipeline": "cut", "hop": "bronze", "generation": "g1", "batch": CREATION}
    rows = named.spark.range(0)
    table.create(named.spark, rows.schema, {})
    assert last_commit(table) is None
    for _ in range(2):
        ensure_table(named.spark, table, rows.schema, note)
    assert [commit.batch for commit in history(named.lake, table)] == [CREATION]
    named.spark.sql(f"DROP TABLE {table.sql}")


@pytest.mark.long
def test_the_doctor_tries_each_schema_and_the_volume(pair: Pair) -> None:
    lake, spark = pair.named.lake, pair.named.spark
    assert lake.catalog is not None
    findings = {one.what: one for one in examine_lake(lake)}
    assert all(one.well for one in findings.values()), findings
    assert {"Spark", "Catalog", "Volume", *[f"Schema {layer}" for layer in LAYERS]} < set(findings)
    spark.sql("ALTER SCHEMA dim SET LOCATION '/proc/nowhere'")
    lost = replace(lake, root=lake.root / "nowhere")
    remedies = {one.what: one.remedy for one in examine_lake(lost)}
    assert "grant USE SCHEMA, CREATE TABLE" in remedies["Schema dim"]
    assert "WRITE VOLUME" in remedies["Volume"]
    spark.sql("DROP SCHEMA dim")
    missing = {one.what: one.remedy for one in examine_lake(lake)}
    assert missing["Schema dim"] == "CREATE SCHEMA `spark_catalog`.`dim`"
