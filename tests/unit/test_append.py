"""Which commits carry a transaction id, and what it is good for."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from delta.exceptions import MetadataChangedException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidelake.config.descriptions import Meaning
from tidelake.delta import append as appending
from tidelake.delta.access import detail, has_files, load
from tidelake.delta.append import append, ensure_table
from tidelake.delta.log import commits
from tidelake.delta.tables import Lake
from tidelake.folders import Folder, folder
from tidelake.runtime.schemas import from_ddl

pytestmark = pytest.mark.usefixtures("interpreted")

_BATCH = {"hop": "silver", "generation": "g2", "batch": 7}


@pytest.mark.parametrize(
    ("root", "note", "filled", "has_id"),
    [
        (Path("/lake"), _BATCH, True, False),
        (Path("/remote"), _BATCH, True, True),
        (Path("/remote"), {"requeued": 3}, True, False),
        (Path("/lake"), _BATCH, False, True),
        ("s3://bucket/lake", _BATCH, True, True),
        ("s3://bucket/lake", {"requeued": 3}, True, False),
        (Path("/unlocked"), _BATCH, True, True),
        (Path("/unlocked"), {**_BATCH, "hop": "gold"}, True, True),
        (Path("/unlocked"), {"requeued": 3}, True, False),
    ],
)
def test_what_may_be_empty_has_a_transaction_id_and_each_batch_where_a_lock_may_be_missing(
    root: Path | str,
    note: dict[str, object],
    filled: bool,
    has_id: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if root == Path("/remote"):
        # As in a client of Spark Connect, and in the server's workers.
        monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    place: Folder = folder(root) if isinstance(root, str) else root
    rows = MagicMock()
    options = rows.write.format.return_value.mode.return_value.options

    lake = Lake(place, needs_locks=root != Path("/unlocked"))
    append(rows, lake.silver("shop"), note, even_empty=not filled)

    told = {key: value for key, value in options.call_args.kwargs.items() if key[:3] == "txn"}
    assert told == ({"txnAppId": "silver.shop/g2", "txnVersion": "7"} if has_id else {})
    options.return_value.save.assert_called_once_with(f"{root}/silver/shop")


def test_a_table_that_is_made_again_before_its_first_batch_has_an_id_of_its_own() -> None:
    """Delta would take the commit for the one that created the table, and skip it."""
    made = []
    for may_repeat in (False, True, True):
        rows = MagicMock()
        options = rows.write.format.return_value.mode.return_value.options
        note = {**_BATCH, "batch": -1}
        append(rows, Lake(Path("/l")).silver("s"), note, even_empty=True, may_repeat=may_repeat)
        made.append(options.call_args.kwargs["txnAppId"])
    assert made[0] == "silver.s/g2/made" and len(set(made)) == 3


def test_a_stored_table_is_described_only_where_somebody_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(appending, "evolve", lambda *_: StructType())
    table = SimpleNamespace(name="ops.x", sql="x", exists=True, is_created_first=False)

    def asked(**more: Any) -> bool:
        spark = MagicMock()
        ensure_table(spark, cast(Any, table), StructType(), {}, **more)
        return bool(spark.sql.called)

    assert not asked()
    assert asked(settings={})
    assert asked(meaning=Meaning("What it holds."))


def test_of_two_writers_without_a_lock_the_second_appends_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    bronze = Lake(tmp_path, needs_locks=False).bronze("shop")
    note = {"hop": "bronze", "generation": "g1", "batch": -1}
    rows = spark.range(3).coalesce(1)
    ensure_table(spark, bronze, rows.schema, note)
    for batch in (0, 1):
        # Both have looked at the table before either writes.
        for _ in range(2):
            append(rows, bronze, {**note, "batch": batch})
    assert [commit.batch for commit in commits(bronze)] == [1, 0, -1]
    assert load(spark, bronze).count() == 6


def test_tables_keep_statistics_of_what_files_are_skipped_by(
    spark: SparkSession, tmp_path: Path
) -> None:
    kept = {}
    window = "window_start timestamp, `user-id` string, is_new boolean, events bigint"
    identity = ("window_start", "user-id", "is_new")
    for name, ddl, searched_by in (
        ("bronze.a", "record_id string, payload binary, ingest_date date", ()),
        ("silver.a", "event_id string, event_time timestamp, _batch bigint", ()),
        ("silver.a__late", "event_id string, event_time timestamp", ()),
        ("gold.a", window, identity),
    ):
        table = Lake(tmp_path).table(name)
        note = {"pipeline": "a", "hop": name.split(".")[0], "generation": "g1", "batch": -1}
        ensure_table(spark, table, from_ddl(spark, ddl), note, searched_by=searched_by)
        properties = detail(spark, table)["properties"]
        kept[name] = properties.get("delta.dataSkippingStatsColumns")
    assert kept == {
        "bronze.a": "`ingest_date`",
        "silver.a": "`event_time`,`_batch`",
        "silver.a__late": None,
        # Delta collects none of booleans, and refuses to be asked.
        "gold.a": "`window_start`,`user-id`",
    }


def test_an_append_beside_which_a_property_is_set_is_done_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As `maintain` sets retentions beside a run, which would end with Delta's refusal."""
    bronze, begun, done = Lake(tmp_path).bronze("shop"), tmp_path / "begun", tmp_path / "done"
    note = {"hop": "bronze", "generation": "g1", "batch": -1}
    ensure_table(spark, bronze, from_ddl(spark, "id bigint"), note)

    def waits(number: int) -> bool:
        begun.touch()
        ends = time.monotonic() + 60
        while not done.exists() and time.monotonic() < ends:
            time.sleep(0.05)
        return True

    def set_property() -> None:
        while not begun.exists():
            time.sleep(0.05)
        spark.sql(f"ALTER TABLE {bronze.sql} SET TBLPROPERTIES ('delta.appendOnly' = 'false')")
        done.touch()

    other = threading.Thread(target=set_property)
    other.start()
    rows = spark.range(3).coalesce(1).where(F.udf(waits, "boolean", useArrow=False)("id"))
    append(rows, bronze, {**note, "batch": 0})
    other.join()
    assert [commit.batch for commit in commits(bronze)] == [0, -1]
    assert load(spark, bronze).count() == 3


@pytest.mark.parametrize(("failures", "generation"), [(5, "g1"), (1, "g2")])
def test_an_append_is_not_done_again_for_ever_nor_to_a_table_that_was_replaced(
    monkeypatch: pytest.MonkeyPatch, failures: int, generation: str
) -> None:
    save = MagicMock(side_effect=[MetadataChangedException("")] * failures + [None])
    table = SimpleNamespace(name="silver.a", needs_transaction_ids=False, save=save)
    last = SimpleNamespace(note={"generation": generation})
    monkeypatch.setattr(appending, "last_commit", lambda _: last)
    note = {"hop": "silver", "generation": "g1", "batch": 1}
    with pytest.raises(MetadataChangedException):
        append(MagicMock(), cast(Any, table), note)
    assert save.call_count == failures


@pytest.mark.parametrize(("meanwhile", "is_repeated"), [(4, True), (5, False)])
@pytest.mark.parametrize("key", ["rebuilt", "follows"])
def test_a_commit_that_begins_a_generation_is_done_again_unless_a_batch_was_committed(
    monkeypatch: pytest.MonkeyPatch, key: str, meanwhile: int, is_repeated: bool
) -> None:
    """Such as a promotion beside `maintain`: the table is still in the generation before it."""
    save = MagicMock(side_effect=[MetadataChangedException(""), None])
    table = SimpleNamespace(name="silver.a", needs_transaction_ids=False, save=save)
    seen = [SimpleNamespace(note={"generation": "g1"}, version=one) for one in (4, meanwhile)]
    monkeypatch.setattr(appending, "last_commit", MagicMock(side_effect=seen))
    note = {"hop": "silver", "generation": "g2", "batch": 1, key: True}
    with nullcontext() if is_repeated else pytest.raises(MetadataChangedException):
        append(MagicMock(), cast(Any, table), note)
    assert save.call_count == 1 + is_repeated


def test_a_version_lacks_files_once_one_of_its_own_is_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = Lake(tmp_path / "a C# lake?").silver("shop")
    for number in range(2):
        rows = spark.range(2, numPartitions=2).select(F.lit(number).alias("n"))
        append(rows, table, {**_BATCH, "batch": number}, replaces=True, may_repeat=True)
    newer, older = (commit.version for commit in commits(table))
    assert has_files(spark, table, newer) and has_files(spark, table, older)
    current = {uri.rpartition("/")[2] for uri in load(spark, table).inputFiles()}
    replaced = [file for file in table.path.glob("*.parquet") if file.name not in current]
    assert len(replaced) == 2
    replaced[0].unlink()
    assert has_files(spark, table, newer) and not has_files(spark, table, older)
