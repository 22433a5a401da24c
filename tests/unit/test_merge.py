"""Merges into gold: once for each batch, however often it comes."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteReadException,
    ProtocolChangedException,
)
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions import connect
from pyspark.sql import SparkSession

from tidelake.delta import merge as merging
from tidelake.delta.access import load
from tidelake.delta.log import last_commit
from tidelake.delta.merge import (
    TRIES,
    cluster,
    clustering_of,
    compact,
    delete_records,
    merge,
    retry_conflicts,
)
from tidelake.delta.tables import Lake
from tidelake.gold.merge_plan import MergePlan
from tidelake.spark.engine import with_settings
from tidelake.spark.tuning import COMPILED_ROWS


def test_a_batch_that_is_merged_again_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = Lake(tmp_path).gold("totals")
    ddl = "user_id string, events bigint, _batch bigint"
    stored = [("kept", 1, 0), ("grown", 1, 0), ("gone", 1, 0), ("of a later batch", 1, 2)]
    spark.createDataFrame(stored, ddl).coalesce(1).write.format("delta").save(str(table.path))
    rows = [
        ("grown", 2, 1, False),
        ("gone", 0, 1, True),
        ("of a later batch", 9, 1, False),
        ("new", 4, 1, False),
        ("gone before", 0, 1, True),
    ]
    plan = MergePlan(
        spark.createDataFrame(rows, f"{ddl}, _gone boolean"),
        on="t.user_id = s.user_id",
        update={"events": "t.events + s.events", "_batch": "s._batch"},
    )
    for _ in range(2):
        merge(plan, table, {"generation": "g1", "batch": 1}, copied=0)
        found = {row["user_id"]: row["events"] for row in load(spark, table).collect()}
        assert found == {"kept": 1, "grown": 3, "of a later batch": 1, "new": 4}
    last = last_commit(table)
    assert last is not None
    assert (last.generation, last.batch) == ("g1", 1)


@pytest.mark.parametrize(
    ("copied", "how"), [(COMPILED_ROWS, "NO_CODEGEN"), (COMPILED_ROWS + 1, "FALLBACK")]
)
def test_expressions_are_compiled_for_a_merge_that_copies_many_rows(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, copied: int, how: str
) -> None:
    merged = []
    table, name = MagicMock(), "spark.sql.codegen.factoryMode"
    table.merge.side_effect = lambda *_, **__: merged.append(spark.conf.get(name))
    rows = spark.range(1).selectExpr("'u' AS user_id", "1 AS _batch")
    with with_settings(spark, {name: "NO_CODEGEN"}):
        merge(MergePlan(rows, on="t.user_id = s.user_id"), table, {}, copied=copied)
        assert spark.conf.get(name) == "NO_CODEGEN"
    assert merged == [how]


@pytest.mark.parametrize("failures", [TRIES - 1, TRIES])
def test_a_delete_beside_which_the_table_is_compacted_is_done_again_but_not_for_ever(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "with_settings", lambda *_: nullcontext())
    table = MagicMock()
    table.merge.side_effect = [ConcurrentDeleteReadException("")] * failures + [None]
    with nullcontext() if failures < TRIES else pytest.raises(ConcurrentDeleteReadException):
        delete_records(MagicMock(), table)
    assert table.merge.call_count == TRIES


def test_a_commit_beside_which_the_table_got_a_feature_is_done_again() -> None:
    """As silver enables type widening when it opens."""
    commit = MagicMock(side_effect=[ProtocolChangedException(""), None])
    retry_conflicts(commit)
    assert commit.call_count == 2


def test_a_compaction_beside_which_the_table_got_a_feature_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merging, "with_settings", lambda *_: nullcontext())
    spark = MagicMock()
    spark.sql.side_effect = ProtocolChangedException("")
    compact(spark, MagicMock(reads_files_directly=False))
    assert spark.sql.call_count == 1


def _raised_through_connect() -> Exception:
    """Convert a server's conflict as the client does."""
    classes = [
        *("io.delta.exceptions.ConcurrentAppendException", "java.lang.RuntimeException"),
        *("java.lang.Exception", "java.lang.Throwable", "java.lang.Object"),
    ]
    info = SimpleNamespace(reason=classes[0], metadata={"classes": json.dumps(classes)})
    return connect.convert_exception(cast(Any, info), "files were added", None)


def _retried() -> None:
    tried: list[int] = []

    def commit() -> None:
        tried.append(1)
        if len(tried) == 1:
            raise _raised_through_connect()

    retry_conflicts(commit)


def _merged() -> None:
    table = MagicMock()
    table.merge.side_effect = lambda *_, **__: _raise()
    with pytest.raises(ConcurrentAppendException):
        merge(MergePlan(MagicMock(columns=["n"]), on="true"), table, {}, copied=0)


def _compacted() -> None:
    spark = MagicMock()
    spark.sql.side_effect = lambda *_: _raise()
    compact(spark, MagicMock(reads_files_directly=False))


def _raise() -> None:
    raise _raised_through_connect()


@pytest.mark.parametrize("does", [_retried, _merged, _compacted])
def test_a_conflict_is_known_through_spark_connect_too(
    monkeypatch: pytest.MonkeyPatch, does: Any
) -> None:
    """Delta's package teaches its classes to Spark Connect when its own client is imported."""
    known = connect.EXCEPTION_CLASS_MAPPING
    untaught = {name: kind for name, kind in known.items() if "delta" not in name}
    monkeypatch.setattr(connect, "EXCEPTION_CLASS_MAPPING", untaught)
    monkeypatch.delitem(sys.modules, "delta.connect.exceptions", raising=False)
    monkeypatch.setattr(merging, "with_settings", lambda *_: nullcontext())
    monkeypatch.setattr(merging, "runs_in_process", lambda: False)
    assert not isinstance(_raised_through_connect(), merging.CONFLICTS)
    does()


def test_a_table_is_clustered_only_by_columns_with_statistics(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Delta refuses keys that a table got since it was created, and types without statistics."""
    lake = Lake(tmp_path)
    listed, unlisted = lake.gold("listed"), lake.gold("unlisted")
    columns = "city string, is_bot boolean, `user` string"
    for table, statistics in (
        (listed, "('delta.dataSkippingStatsColumns' = '`user`')"),
        (unlisted, ""),
    ):
        properties = statistics and f"TBLPROPERTIES {statistics}"
        spark.sql(f"CREATE TABLE {table.sql} ({columns}) USING delta {properties}")
    refused = {"city": "COLUMN_MISSING_STATS", "is_bot": "COLUMNS_DATATYPE_NOT_SUPPORTED"}
    for (name, why), table in zip(refused.items(), (listed, unlisted), strict=True):
        with pytest.raises(AnalysisException, match=f"DELTA_CLUSTERING_{why}"):
            spark.sql(f"ALTER TABLE {table.sql} CLUSTER BY ({name})")
        cluster(spark, table, [name])
        assert clustering_of(spark, table) == ()
    for table, found in ((listed, ("user",)), (unlisted, ("city", "user"))):
        cluster(spark, table, ["city", "is_bot", "user"])
        assert clustering_of(spark, table) == found
