from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import deltalake
import numpy as np
import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.pipelines import shop
from tidelake.bronze.records import REQUEUE_DDL
from tidelake.delta.access import load
from tidelake.delta.append import append, ensure_table
from tidelake.delta.log import Commit
from tidelake.delta.tables import Lake, Table
from tidelake.errors import UsageError
from tidelake.instants import to_micros
from tidelake.names import ID_HASH
from tidelake.replay import backfill
from tidelake.replay.verify_silver import SilverInputs
from tidelake.runtime import accepted_rows
from tidelake.runtime.accepted_rows import AcceptedRows, FilesInScope
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import from_ddl
from tidelake.silver.driver_dedup import ACCEPTED, Numbers, may_have_hash
from tidelake.silver.search_bounds import DedupScope, united, with_id_hash
from tidelake.silver.stages import hash_of_id
from tidelake.spark import tuning
from tidelake.spark.internals import JavaError

pytestmark = pytest.mark.usefixtures("interpreted")

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = 20_513
_INSTANT = pa.timestamp("us", "UTC")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    folder = tmp_path / "a lake, 100%25"
    tmp_path.joinpath("plain").mkdir()
    folder.symlink_to("plain")
    return Lake(folder).silver("shop")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note each time that Delta is asked."""
    found: list[str] = []
    real = accepted_rows.properties

    def noted(spark: SparkSession, table: Table) -> object:
        found.append(table.name)
        return real(spark, table)

    monkeypatch.setattr(accepted_rows, "properties", noted)
    yield found


def fill(
    table: Table,
    hour: int,
    *,
    hashes: Mapping[str, int] | None = None,
    batch: int = 0,
    requeued: Mapping[str, datetime] = MappingProxyType({}),
) -> None:
    """Append three events as Spark would, which takes a second for it.

    Args:
        table: Made by the first events.
        hour: When they arrived, and part of their ids.
        hashes: By event id; None for events that a version wrote that did not store them.
        batch: Which decided them.
        requeued: By event id, when they were sent again.
    """
    names = [f"{hour}-{number}" for number in range(3)]
    columns = {
        "event_id": pa.array(names),
        "record_id": pa.array([f"f:{name}" for name in names]),
        "event_date": pa.array([DAY] * 3, pa.int32()).cast(pa.date32()),
        "ingested_at": pa.array([NOON + timedelta(hours=hour)] * 3, _INSTANT),
        "_payload_hash": pa.array([0] * 3),
    }
    if hashes is not None:
        columns[ID_HASH] = pa.array([hashes[name] for name in names])
        columns["_batch"] = pa.array([batch] * 3)
        columns["_requeued_at"] = pa.array([requeued.get(name) for name in names], _INSTANT)
    # The writer decodes a path twice, so it gets one without a percent sign.
    deltalake.write_deltalake(os.path.realpath(str(table.path)), pa.table(columns), mode="append")


def events(spark: SparkSession, hour: int) -> DataFrame:
    arrived = F.lit(NOON + timedelta(hours=hour))
    return spark.range(3).select(
        F.format_string(f"{hour}-%d", "id").alias("event_id"),
        F.format_string(f"f:{hour}-%d", "id").alias("record_id"),
        F.date_from_unix_date(F.lit(DAY)).alias("event_date"),
        arrived.alias("ingested_at"),
        F.lit(0).cast("bigint").alias("_payload_hash"),
    )


def scope(hour: int, *days: int) -> DedupScope:
    return DedupScope(NOON + timedelta(hours=hour), days=united((day, day) for day in days))


def ids(rows: DataFrame) -> set[str]:
    return {row.event_id for row in rows.collect()}


def of_hours(*hours: int) -> set[str]:
    return {f"{hour}-{number}" for hour in hours for number in range(3)}


def test_what_commits_bring_is_read_without_asking_delta_again(
    spark: SparkSession, table: Table, asked: list[str]
) -> None:
    known = FilesInScope(table)
    for hour in range(3):
        fill(table, hour)
    assert known.count is None
    assert ids(known.rows(spark, scope(1))) == of_hours(1, 2)
    assert known.count == 6
    fill(table, 3)
    fill(table, 4)
    assert ids(known.rows(spark, scope(2))) == of_hours(2, 3, 4)
    assert known.count == 9
    assert asked == [table.name]


def test_the_files_of_a_table_are_in_its_last_checkpoint_and_in_the_commits_after_it(
    spark: SparkSession, table: Table
) -> None:
    for hour in range(3):
        fill(table, hour)
    DeltaTable.forPath(spark, str(table.path)).delete("event_id = '1-0'")
    deltalake.DeltaTable(os.path.realpath(str(table.path))).create_checkpoint()
    for file in sorted(Path(str(table.path), "_delta_log").glob("*.json"))[:3]:
        file.unlink()
    fill(table, 3)
    DeltaTable.forPath(spark, str(table.path)).delete("event_id = '0-0'")
    known = FilesInScope(table)
    assert ids(known.rows(spark, scope(0))) == of_hours(0, 1, 2, 3) - {"0-0", "1-0"}
    assert known.count == 10
    assert ids(known.rows(spark, scope(2))) == of_hours(2, 3)
    assert known.count == 6


def test_statistics_that_a_file_lacks_may_be_anything(spark: SparkSession, table: Table) -> None:
    fill(table, 0)
    file = max(Path(str(table.path), "_delta_log").glob("*.json"))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    soon = '{"numRecords": 3, "minValues": {"ingested_at": "soon"}, "maxValues": {}}'
    for stats in (None, "null", "{}", soon):
        for line in lines:
            if "add" in line:
                line["add"]["stats"] = stats
        file.write_text("\n".join(map(json.dumps, lines)))
        known = FilesInScope(table)
        assert ids(known.rows(spark, scope(9))) == of_hours(0)
        assert known.count == 3


def test_the_last_arrival_of_a_file_is_up_to_a_millisecond_after_its_statistics(
    spark: SparkSession, table: Table
) -> None:
    arrived = NOON + timedelta(microseconds=700)
    rows = events(spark, 0).withColumn("ingested_at", F.lit(arrived))
    rows.coalesce(1).write.format("delta").save(str(table.path))
    since = DedupScope(NOON + timedelta(microseconds=600))
    assert ids(FilesInScope(table).rows(spark, since)) == of_hours(0)


def test_a_batch_that_reaches_back_further_finds_older_files(
    spark: SparkSession, table: Table, asked: list[str]
) -> None:
    known = FilesInScope(table)
    for hour in range(3):
        fill(table, hour)
    assert ids(known.rows(spark, scope(2))) == of_hours(2)
    assert ids(known.rows(spark, scope(0))) == of_hours(0, 1, 2)
    assert len(asked) == 1


def test_a_compaction_between_two_batches_doubles_no_row(
    spark: SparkSession, table: Table, asked: list[str]
) -> None:
    known = FilesInScope(table)
    for hour in range(2):
        fill(table, hour)
    known.rows(spark, scope(0))
    DeltaTable.forPath(spark, str(table.path)).optimize().executeCompaction()
    fill(table, 2)
    rows = known.rows(spark, scope(0))
    assert rows.count() == 9
    assert ids(rows) == of_hours(0, 1, 2)
    assert len(asked) == 1


def test_rows_that_were_taken_out_are_not_met_again(spark: SparkSession, table: Table) -> None:
    known = FilesInScope(table)
    fill(table, 0)
    known.rows(spark, scope(0))
    DeltaTable.forPath(spark, str(table.path)).delete("event_id = '0-1'")
    assert ids(known.rows(spark, scope(0))) == {"0-0", "0-2"}


def test_a_table_with_deletion_vectors_is_read_by_delta(spark: SparkSession, table: Table) -> None:
    events(spark, 0).coalesce(1).write.format("delta").option(
        "delta.enableDeletionVectors", "true"
    ).save(str(table.path))
    stored = DeltaTable.forPath(spark, str(table.path))
    stored.delete("event_id = '0-1'")
    assert ids(FilesInScope(table).rows(spark, scope(0))) == {"0-0", "0-2"}


def test_a_table_that_gets_deletion_vectors_is_read_by_delta_from_then_on(
    spark: SparkSession, table: Table
) -> None:
    known = FilesInScope(table)
    fill(table, 0)
    assert ids(known.rows(spark, scope(0))) == of_hours(0)
    spark.sql(f"ALTER TABLE {table.sql} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    DeltaTable.forPath(spark, str(table.path)).delete("event_id = '0-1'")
    assert ids(known.rows(spark, scope(0))) == {"0-0", "0-2"}
    assert known.count is None


def test_a_new_column_is_read(spark: SparkSession, table: Table) -> None:
    known = FilesInScope(table)
    fill(table, 0)
    known.rows(spark, scope(0))
    wider = events(spark, 1).withColumn("coupon", F.lit("spring"))
    wider.write.format("delta").mode("append").option("mergeSchema", "true").save(str(table.path))
    rows = known.rows(spark, scope(0)).select("event_id", "coupon").collect()
    assert {(row.event_id[0], row.coupon) for row in rows} == {("0", None), ("1", "spring")}


def test_a_batch_of_many_dates_leaves_nothing_to_the_batches_after_it(
    spark: SparkSession, table: Table
) -> None:
    known = FilesInScope(table)
    for hour in range(3):
        fill(table, hour)
    # The table's one date is among those of years; what follows has another one.
    years = [DAY - 1 - number for number in range(2_000)]
    assert ids(known.rows(spark, scope(9, DAY, *years))) == of_hours(0, 1, 2)
    assert ids(known.rows(spark, scope(9, DAY + 1))) == set()
    # Nor does one that reaches back far by arrival, or of rows that were sent again.
    assert ids(known.rows(spark, scope(0, DAY + 1))) == of_hours(0, 1, 2)
    assert ids(known.rows(spark, scope(2, DAY + 1))) == of_hours(2)
    hour_1 = to_micros(NOON + timedelta(hours=1))
    for requeued, found in (((hour_1, hour_1 + 9), {1}), ((hour_1 + 10**6, hour_1 + 10**7), set())):
        assert ids(known.rows(spark, DedupScope(None, (requeued,)))) == of_hours(*found)


def hashed(rows: DataFrame) -> DataFrame:
    never = F.lit(None).cast("timestamp")
    batch = F.lit(0).cast("bigint")
    return rows.withColumns({ID_HASH: hash_of_id(), "_batch": batch, "_requeued_at": never})


@pytest.fixture(scope="module")
def hashes(spark: SparkSession) -> dict[str, int]:
    """Give the hash of each event's id."""
    known = [(event,) for event in sorted(of_hours(*range(10)))]
    rows = spark.createDataFrame(known, "event_id string")
    return {
        row.event_id: row.h for row in rows.select("event_id", hash_of_id().alias("h")).collect()
    }


def sorted_hashes(hashes: Mapping[str, int], *events: str) -> Numbers:
    return np.sort(np.array([hashes[event] for event in events]))


COLUMNS = pa.schema(
    [
        ACCEPTED.field(name)
        for name in ("event_id", "record_id", "event_date", "ingested_at", ID_HASH)
    ]
)


@pytest.mark.parametrize("sparse", [0, 400])
def test_rows_are_found_by_the_hashes_of_their_ids(
    spark: SparkSession,
    table: Table,
    asked: list[str],
    hashes: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    sparse: int,
) -> None:
    # Read by DuckDB and by Arrow.
    monkeypatch.setattr(tuning, "SPARSE", sparse)
    known = FilesInScope(table)
    for hour in range(3):
        if hour == 0:
            # As Spark writes them, instants too.
            hashed(events(spark, 0)).coalesce(1).write.format("delta").save(str(table.path))
        else:
            fill(table, hour, hashes=hashes)
        wanted = sorted_hashes(hashes, "0-1", "2-2", "9-2")
        found = known.with_hashes(spark, scope(0), wanted, COLUMNS)
        assert found is not None
        assert found.schema == COLUMNS
        assert set(found["event_id"].to_pylist()) == ({"0-1", "2-2"} if hour == 2 else {"0-1"})
        assert known.count == 3 * (hour + 1)
    assert found["ingested_at"].to_pylist()[0] == NOON
    # More hashes than a file holds.
    many = np.union1d(sorted_hashes(hashes, "1-1"), np.arange(50, dtype=np.int64))
    found = known.with_hashes(spark, scope(0), many, COLUMNS)
    assert found is not None
    assert found["event_id"].to_pylist() == ["1-1"]
    assert asked == [table.name]


@pytest.mark.parametrize(("most", "again"), [(1_000_000, []), (5, [0, 1])])
def test_few_ids_are_cached_beside_those_that_a_batch_needs(
    spark: SparkSession,
    table: Table,
    hashes: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    again: list[int],
) -> None:
    monkeypatch.setattr(tuning, "SPARE_IDS", most)
    read, real = [], accepted_rows._read_file

    def noted(file: str, columns: list[str]) -> pa.Table:
        read.append(file)
        return real(file, columns)

    for hour in range(3):
        fill(table, hour, hashes=hashes)
    known, nothing = FilesInScope(table), np.arange(1, dtype=np.int64)
    monkeypatch.setattr(accepted_rows, "_read_file", noted)
    for hour in (0, 2, 0):
        known.with_hashes(spark, scope(hour), nothing, COLUMNS)
    assert read[3:] == [read[number] for number in again]


def test_spark_looks_where_an_earlier_version_wrote_no_hash(
    spark: SparkSession, table: Table, hashes: dict[str, int]
) -> None:
    fill(table, 0)
    known, wanted = FilesInScope(table), sorted_hashes(hashes, "0-1")
    assert known.with_hashes(spark, scope(0), wanted, COLUMNS) is None
    spark.sql(
        f"ALTER TABLE {table.sql} ADD COLUMNS ({ID_HASH} BIGINT, _batch BIGINT, "
        "_requeued_at TIMESTAMP)"
    )
    fill(table, 1, hashes=hashes)
    assert known.with_hashes(spark, scope(0), wanted, COLUMNS) is None
    # Rows of both kinds in one file.
    DeltaTable.forPath(spark, str(table.path)).optimize().executeCompaction()
    assert known.with_hashes(spark, scope(0), wanted, COLUMNS) is None
    rows = with_id_hash(known.rows(spark, scope(0)))
    found = rows.where(may_have_hash(spark, ID_HASH, sorted_hashes(hashes, "0-1", "1-1")))
    assert ids(found) == {"0-1", "1-1"}


def test_spark_looks_where_the_hashes_would_fill_the_driver(
    spark: SparkSession, table: Table, monkeypatch: pytest.MonkeyPatch, hashes: dict[str, int]
) -> None:
    fill(table, 0, hashes=hashes)
    known, wanted = FilesInScope(table), sorted_hashes(hashes, "0-1")
    assert known.with_hashes(spark, scope(0), wanted, COLUMNS) is not None
    monkeypatch.setattr(tuning, "INDEXED_IDS", 2)
    assert known.with_hashes(spark, scope(0), wanted, COLUMNS) is None


def test_spark_names_a_file_that_is_gone(
    spark: SparkSession, table: Table, monkeypatch: pytest.MonkeyPatch, hashes: dict[str, int]
) -> None:
    fill(table, 0, hashes=hashes)
    wanted = sorted_hashes(hashes, "0-1")
    known = FilesInScope(table)
    assert known.with_hashes(spark, scope(0), wanted, COLUMNS) is not None
    [file] = [Path(str(file)) for file in table.path.glob("*.parquet")]
    file.unlink()
    # Its hashes are known, its rows are not.
    for sparse in (0, 400):
        monkeypatch.setattr(tuning, "SPARSE", sparse)
        assert known.with_hashes(spark, scope(0), wanted, COLUMNS) is None
    afresh = FilesInScope(table)
    assert afresh.with_hashes(spark, scope(0), wanted, COLUMNS) is None
    with pytest.raises(JavaError, match="FILE_NOT_EXIST"):
        afresh.rows(spark, scope(0)).collect()


def test_late_rows_of_the_batch_itself_were_not_accepted_before_it(
    spark: SparkSession, tmp_path: Path, hashes: dict[str, int]
) -> None:
    """An interrupted attempt wrote them; both the driver and Spark pass over them."""
    lake, pipeline = Lake(tmp_path / "lake"), shop(tmp_path)
    silver, late = lake.silver("shop"), lake.late("shop")
    for table, batch in ((silver, 0), (late, 0), (late, 1)):
        fill(table, batch + (table == late), hashes=hashes, batch=batch)
    wanted = sorted_hashes(hashes, "0-1", "1-1", "2-1")
    for files in ({table.name: FilesInScope(table) for table in (silver, late)}, {}):
        search = AcceptedRows(spark, pipeline, lake, 1, files=files)
        found = search.with_hashes(scope(0), wanted)
        assert found is not None
        assert set(found.rows["event_id"].to_pylist()) == {"0-1", "1-1"}


def test_rows_that_a_run_commits_beside_a_partial_backfill_were_not_accepted_before_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashes: dict[str, int]
) -> None:
    """They arrived earlier, and silver lagged: decided anew, they must not meet themselves."""
    lake, pipeline = Lake(tmp_path / "lake"), shop(tmp_path)
    silver, late = lake.silver("shop"), lake.late("shop")
    fill(silver, 0, hashes=hashes)
    fill(late, 1, hashes=hashes)
    accepted, too_late = load(spark, silver, version=0), load(spark, late)
    none = accepted.limit(0)
    decided = {silver: accepted, lake.quarantine("shop"): none, late: too_late}
    closing = [Commit(0, NOON, 3, {"generation": "g1", "batch": 0})]
    inputs = SilverInputs(0, closing, none, none, decided)
    monkeypatch.setattr(backfill, "read_inputs", lambda _: inputs)
    run = Run(spark, pipeline, lake, cast(Any, None), cast(Any, None))
    stored = backfill.decided_before(run, NOON + timedelta(hours=9))
    fill(silver, 2, hashes=hashes)
    assert ids(stored.silver) == of_hours(0, 1)
    of_silver, of_late = stored.accepted.read()
    assert (ids(of_silver), ids(of_late)) == (of_hours(0), of_hours(1))


@pytest.mark.parametrize("hour", [3, 4])
def test_a_partial_backfill_is_not_promoted_over_rows_that_were_requeued_since_it_was_filled(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hour: int
) -> None:
    """They arrived before its start, at hour 4: its tables know only what they were before."""
    requeued = events(spark, hour)
    inputs = SilverInputs(0, [], requeued.limit(0), requeued, {})
    monkeypatch.setattr(backfill, "read_inputs", lambda _: inputs)
    monkeypatch.setattr(backfill, "_can_continue", lambda *_: True)
    pipeline = shop(tmp_path)
    run = Run(spark, pipeline, Lake(tmp_path / "lake"), cast(Any, None), cast(Any, None))
    backfill._begin_silver(run, run, None)
    is_before = pytest.raises(UsageError, match="were requeued since then") if hour < 4 else None
    with is_before or nullcontext():
        backfill._begin_silver(run, run, NOON + timedelta(hours=4))


def test_a_late_row_counts_until_it_is_decided_again(
    spark: SparkSession, tmp_path: Path, hashes: dict[str, int]
) -> None:
    """Up to where the batches have read the requeue; both the driver and Spark see that."""
    lake, pipeline = Lake(tmp_path / "lake"), shop(tmp_path)
    # One of them was found too late once more, after it had been sent again.
    fill(lake.silver("shop"), 9, hashes=hashes)
    again = {"0-1": NOON + timedelta(hours=1)}
    fill(lake.late("shop"), 0, hashes=hashes, requeued=again)
    requeue = lake.requeue("shop")
    note = {"generation": "g1", "batch": -1}
    ensure_table(spark, requeue, from_ddl(spark, REQUEUE_DDL), note)
    for batch, sent in enumerate((("f:0-0", "f:0-1"), ("f:0-2",))):
        at = NOON + timedelta(minutes=batch)
        rows = spark.createDataFrame(
            [(one, at) for one in sent], "record_id string, requeued_at timestamp"
        )
        append(rows, requeue, {**note, "batch": batch, "requeued_at": at.isoformat()})
    refused = spark.createDataFrame([("f:0-2", NOON)], "record_id string, requeued_at timestamp")
    wanted = sorted_hashes(hashes, "0-0", "0-1", "0-2")
    for files in (
        {name: FilesInScope(lake.table(name)) for name in ("silver.shop", "silver.shop__late")},
        {},
    ):
        for end, own, counts in (
            ((0, -1), None, {"0-0", "0-1", "0-2"}),
            ((1, -1), None, {"0-0", "0-1", "0-2"}),
            ((1, 0), None, {"0-1", "0-2"}),
            ((2, -1), None, {"0-1", "0-2"}),
            ((2, -1), refused, {"0-1"}),
            ((0, -1), refused, {"0-0", "0-1"}),
            ((3, -1), None, {"0-1"}),
        ):
            search = AcceptedRows(spark, pipeline, lake, 1, end, own, files=files)
            found = search.with_hashes(scope(0), wanted)
            assert found is not None
            assert set(found.rows["event_id"].to_pylist()) == counts, (end, own is None)
