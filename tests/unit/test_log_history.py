"""A catalog's history: what each kind of commit counts as, and how often Spark is asked."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException

from tidelake.delta import store as stores
from tidelake.delta.log import HistoryEntry, Info, commits, encode, last_commit, newest_version
from tidelake.delta.positions import added_between, rewriting, version_at
from tidelake.delta.store import Catalog, CatalogTable
from tidelake.delta.tables import Table

START = datetime(2026, 1, 5, tzinfo=UTC)
# Delta counts a file without rows, and leaves it out.
CREATED = ("CREATE TABLE AS SELECT", {}, {"numFiles": "1", "numOutputRows": "0"})
OPTIMIZED = ("OPTIMIZE", {}, {"numAddedFiles": "1", "numRemovedFiles": "9"})


def appended(rows: int, size: int = 100) -> tuple[str, dict[str, Any], dict[str, str]]:
    metrics = {"numFiles": "2", "numOutputRows": str(rows), "numOutputBytes": str(size)}
    return "WRITE", {"mode": "Append"}, metrics


class History:
    """Stands for Spark: a table's commits, and the questions that it was asked."""

    def __init__(self, *told: tuple[str, dict[str, Any], dict[str, str]]) -> None:
        self.entries: list[HistoryEntry] = []
        self.limits: list[int | None] = []
        for one in told:
            self.add(*one)

    def add(
        self, operation: str, parameters: dict[str, Any], metrics: dict[str, str], note: str = ""
    ) -> None:
        version = len(self.entries)
        written = START + timedelta(minutes=version)
        info = Info(written, operation, parameters, metrics, note or None)
        self.entries.append(HistoryEntry(version, info))

    def ask(self, _: CatalogTable, limit: int | None) -> list[HistoryEntry]:
        self.limits.append(limit)
        return self.entries[::-1][:limit]


def table_of(history: History, monkeypatch: pytest.MonkeyPatch) -> Table:
    def session() -> Any:
        raise AssertionError("Spark was asked")

    monkeypatch.setattr(stores, "_history", history.ask)
    return CatalogTable("bronze.shop", Catalog("c", session), "bronze", "shop")


def test_a_reader_stands_behind_commits_that_brought_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_of(History(CREATED, appended(5), OPTIMIZED, appended(7, 30)), monkeypatch)

    assert [version_at(table, (end, -1)) for end in range(5)] == [0, 0, 2, 2, 3]
    assert added_between(table, (0, -1)).rows == 12
    assert added_between(table, (2, -1), (4, -1)).rows == 7
    assert added_between(table, (1, -1), (2, -1)).size == 100
    assert newest_version(table) == 3


@pytest.mark.parametrize(
    ("operation", "parameters", "metrics", "removes_rows"),
    [
        (*appended(3), False),
        (*OPTIMIZED, False),
        ("WRITE", {"mode": "Append"}, {}, False),
        ("WRITE", {"mode": "Overwrite"}, {"numRemovedFiles": "2"}, True),
        ("WRITE", {"mode": "Overwrite"}, {"numRemovedFiles": "0"}, False),
        ("WRITE", {"mode": "Overwrite"}, {}, True),
        ("DELETE", {}, {"numRemovedFiles": "0", "numDeletionVectorsAdded": "1"}, True),
        ("DELETE", {}, {"numRemovedFiles": "0", "numDeletionVectorsAdded": "0"}, False),
        ("MERGE", {}, {"numTargetRowsInserted": "4", "numTargetFilesRemoved": "0"}, False),
        ("MERGE", {}, {"numTargetFilesRemoved": "1"}, True),
        ("RESTORE", {"version": "0"}, {"numRemovedFiles": "1"}, True),
        ("RESTORE", {}, {"numRemovedFiles": "0", "numRestoredFiles": "1"}, True),
        ("RESTORE", {}, {"numRemovedFiles": "0", "numRestoredFiles": "0"}, False),
        ("WRITE", {"mode": "Overwrite"}, {"numFiles": "2", "numOutputRows": "0"}, True),
        ("REPLACE TABLE AS SELECT", {}, {"numFiles": "2", "numOutputRows": "0"}, True),
        ("CREATE OR REPLACE TABLE AS SELECT", {}, {"numRemovedFiles": "0"}, False),
        ("CREATE OR REPLACE TABLE", {}, {}, True),
        ("STREAMING UPDATE", {"outputMode": "Append"}, {}, False),
        ("STREAMING UPDATE", {"outputMode": "Complete"}, {"numRemovedFiles": "1"}, True),
        *[(name, {}, {}, True) for name in ("DELETE", "MERGE", "TRUNCATE", "UPDATE", "RESTORE")],
        ("FSCK", {}, {"numRemovedFiles": "1"}, True),
        ("SOMETHING NEW", {}, {}, True),
        ("SOMETHING NEW", {}, {"numTouched": "1"}, True),
        # By delta-rs.
        ("DELETE", {}, {"num_removed_files": 1, "num_deleted_rows": 1}, True),
        ("MERGE", {}, {"num_target_files_removed": 0}, False),
        ("SET TBLPROPERTIES", {}, {}, False),
        ("VACUUM END", {}, {"numDeletedFiles": "3"}, False),
    ],
)
def test_what_takes_rows_out_is_told_by_the_operation_and_its_counts(
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    parameters: dict[str, Any],
    metrics: dict[str, str],
    removes_rows: bool,
) -> None:
    history = History(CREATED, appended(5), (operation, parameters, metrics))
    table = table_of(history, monkeypatch)

    found = rewriting(table, (2, -1))
    assert (found and found.version) == (2 if removes_rows else None)
    assert rewriting(table, (3, -1)) is None


@pytest.mark.parametrize(
    "operation",
    [
        *("CHANGE COLUMNS", "ADD CONSTRAINT", "DROP CONSTRAINT", "UPDATE SCHEMA"),
        *("REPLACE COLUMNS", "REMOVE COLUMN MAPPING", "DROP FEATURE", "REORG"),
        *("ROW TRACKING BACKFILL", "ROW TRACKING UNBACKFILL", "OPTIMIZE CHECKPOINT"),
        *("DOMAIN METADATA CLEANUP", "Deletion Vector Tombstones", "Empty Commit"),
        "REORG TABLE UPGRADE UNIFORM",
    ],
)
def test_operations_that_change_no_row_stop_no_reader(
    monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    table = table_of(History(CREATED, appended(5), (operation, {}, {})), monkeypatch)

    assert rewriting(table, (2, -1)) is None
    assert version_at(table, (2, -1)) == 2


@pytest.mark.parametrize("operation", ["SOMETHING NEW", "CREATE OR REPLACE TABLE"])
def test_an_operation_without_counts_removes_nothing_if_delta_says_that_it_only_added(
    operation: str,
) -> None:
    entries = [
        HistoryEntry(1, Info(START, operation, {}, {}, None, adds_only=adds_only))
        for adds_only in (True, False)
    ]
    assert [entry.removes_rows() for entry in entries] == [False, True]


def test_a_merge_brings_the_rows_of_the_files_that_it_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics = {"numOutputRows": "4", "numTargetFilesAdded": "1", "numTargetBytesAdded": "9"}
    table = table_of(History(CREATED, ("MERGE", {}, metrics)), monkeypatch)

    assert (added_between(table, (0, -1)).rows, added_between(table, (0, -1)).size) == (4, 9)


def test_notes_before_a_restore_are_left_out_as_in_a_log_of_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History(CREATED)
    for batch in range(3):
        history.add(*appended(1), encode({"generation": "g1", "batch": batch}))
    history.add("RESTORE", {"version": "2", "timestamp": None}, {"numRemovedFiles": "1"})
    table = table_of(history, monkeypatch)

    assert [commit.batch for commit in commits(table)] == [1, 0]


def test_a_restore_to_an_instant_is_known_by_the_time_where_files_are_not_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History(CREATED)
    for batch in range(3):
        history.add(*appended(1), encode({"generation": "g1", "batch": batch}))
    made = table_of(history, monkeypatch)
    written = next(one.written_at for one in commits(made) if one.batch == 1)
    back_to = {"version": None, "timestamp": written.strftime("%Y-%m-%d %H:%M:%S.%f")}
    history.add("RESTORE", back_to, {"numRemovedFiles": "1"})
    table = table_of(history, monkeypatch)

    assert [commit.batch for commit in commits(table)] == [1, 0]


def test_what_is_known_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(*[appended(1)] * 30)
    table = table_of(history, monkeypatch)

    assert newest_version(table) == 29
    assert history.limits == [8, None]
    history.add(*appended(1))
    assert added_between(table, (0, -1)).rows == 31
    assert history.limits == [8, None, 8]


def test_all_are_asked_for_where_the_newest_do_not_reach_what_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History(*[appended(1)] * 30)
    table = table_of(history, monkeypatch)
    newest_version(table)
    for _ in range(9):
        history.add(*appended(1))

    assert added_between(table, (0, -1)).rows == 39
    assert history.limits[2:] == [8, None]


def test_a_table_made_anew_by_the_same_name_is_not_taken_for_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History(*[appended(1)] * 30)
    table = table_of(history, monkeypatch)
    newest_version(table)
    history.entries = []
    for _ in range(25):
        history.add(*appended(2))

    assert added_between(table, (0, -1)).rows == 50


def test_a_table_that_is_not_there_has_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(History(), monkeypatch)

    assert newest_version(table) == -1
    assert isinstance(table, CatalogTable)
    assert list(table.entries()) == []


def test_versions_that_are_known_are_not_asked_for_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(*[appended(1)] * 5)
    table = table_of(history, monkeypatch)
    newest_version(table)
    history.limits.clear()

    assert added_between(table, (1, -1), (4, -1)).rows == 3
    assert last_commit(table, up_to=3) is None
    assert history.limits == []
    assert added_between(table, (1, -1), (6, -1)).rows == 4
    assert history.limits == [8]


@pytest.mark.parametrize(("provider", "is_history"), [("delta", True), ("parquet", False)])
def test_a_table_of_another_kind_in_a_schema_has_no_commits(
    monkeypatch: pytest.MonkeyPatch, provider: str, is_history: bool
) -> None:
    def sql(statement: str) -> Any:
        if statement.startswith("DESCRIBE HISTORY"):
            raise AnalysisException("not a Delta table, or not allowed")
        rows = [{"col_name": "Provider", "data_type": provider}]
        return SimpleNamespace(collect=lambda: rows)

    monkeypatch.setattr(CatalogTable, "exists", True)
    table = CatalogTable("gold.x", Catalog("c", lambda: cast(Any, session)), "gold", "x")
    session = SimpleNamespace(sql=sql)
    with pytest.raises(AnalysisException) if is_history else nullcontext():
        assert list(table.entries()) == []
