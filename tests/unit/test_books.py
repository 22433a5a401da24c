"""The books beyond the log: every commit is in them once, however often they were copied."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.pipelines import shop
from tests.unit.handmade import write_commit, write_rows
from tidelake.config import Environment
from tidelake.delta.log import commits, newest_version
from tidelake.delta.tables import HOPS, Lake, Table
from tidelake.errors import RefusedError, UsageError
from tidelake.ledger.history import history, require_tables
from tidelake.ledger.query import ask
from tidelake.replay.repairing import why_rebuilt
from tidelake.runtime import epochs, runner
from tidelake.runtime.epochs import copy_books
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger

FOUND = [["silver", None, "bronze", 3, 12], ["quarantined", "parse", "bronze", 1, 1 << 59]]


@pytest.fixture
def run(spark: SparkSession, environment: Environment, lake: Lake, tmp_path: Path) -> Run:
    """Give a pipeline whose bronze and silver hold three batches each."""
    for table, hop in ((lake.bronze("shop"), "bronze"), (lake.silver("shop"), "silver")):
        for version, batch in enumerate(range(-1, 3)):
            commit(table, version, hop, batch)
    return Run(spark, shop(tmp_path), lake, environment, Progress(lambda _: None))


def commit(
    table: Table, version: int, hop: str, batch: int, *, table_id: str | None = None
) -> None:
    note = {"pipeline": "shop", "hop": hop, "generation": "g1", "batch": batch}
    if hop == "silver" and batch >= 0:
        mark = f"2024-01-0{batch + 1}T00:00:00+00:00"
        note |= {"watermark": mark, "taken": {"bronze": 4, "requeue": 0}, "counts": FOUND}
    rows = None if batch < 0 else batch * 10
    write_commit(table, version, note=note, rows=rows, table_id=table_id)


def forget(table: Table, *, below: int) -> None:
    """Remove a log's oldest files, as Delta does once they are past their retention."""
    for version in range(below):
        (table.path / "_delta_log" / f"{version:020}.json").unlink(missing_ok=True)


def copied(lake: Lake) -> Counter[tuple[str, int]]:
    return Counter(ask(lake, "SELECT table_name, version FROM ops.books").rows)


def once(lake: Lake, *tables: Table) -> Counter[tuple[str, int]]:
    return Counter((table.name, commit.version) for table in tables for commit in commits(table))


def test_history_goes_beyond_a_log_whose_old_files_were_removed(run: Run, lake: Lake) -> None:
    tables = [lake.bronze("shop"), lake.silver("shop")]
    before = {table.name: history(lake, table) for table in tables}
    copy_books(run, HOPS)
    for table in tables:
        assert history(lake, table) == before[table.name]
        forget(table, below=2)
        assert [found.version for found in commits(table)] == [3, 2]
        assert history(lake, table) == before[table.name]

    commit(lake.silver("shop"), 4, "silver", 3)
    assert [found.batch for found in history(lake, lake.silver("shop"))] == [3, 2, 1, 0, -1]
    assert history(lake, lake.bronze("other")) == []


def test_a_run_copies_what_a_killed_one_left_before_its_batches(
    run: Run, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: list[Counter[tuple[str, int]]] = []
    monkeypatch.setattr(runner, "check_definition", lambda _: None)
    monkeypatch.setattr(runner, "_close_epoch", lambda _: None)
    monkeypatch.setattr(runner, "_run_to_the_end", lambda *_, **__: before.append(copied(lake)))
    runner.run_hops(run, ["silver"], parse_trigger(AVAILABLE_NOW))
    assert before == [once(lake, lake.silver("shop"))]


def test_commits_that_a_rollback_undid_do_not_come_back_with_the_books(
    run: Run, lake: Lake
) -> None:
    silver = lake.silver("shop")

    def close(version: int, generation: str, batch: int, **more: Any) -> None:
        note = {"pipeline": "shop", "hop": "silver", "generation": generation, "batch": batch}
        write_commit(silver, version, note={**note, **more}, rows=1)

    copy_books(run, HOPS)
    # The promotion's batch, and one after it, are copied before the rollback.
    close(4, "g2", 1, rebuilt=True)
    close(5, "g2", 2)
    copy_books(run, HOPS)
    write_commit(silver, 6, operation="RESTORE", parameters={"version": "3"})
    close(7, "g3", 2, follows=3)
    close(8, "g3", 3)
    copy_books(run, HOPS)
    close(9, "g3", 4)
    before = history(lake, silver)
    assert [found.version for found in before] == [9, 8, 7, 3, 2, 1, 0]
    for oldest in (5, 7, 8):
        forget(silver, below=oldest)
        assert history(lake, silver) == before
    # A repair that nothing was undone before hides nothing.
    close(10, "g4", 4, follows=9)
    copy_books(run, HOPS)
    close(11, "g4", 5)
    forget(silver, below=11)
    assert [found.version for found in history(lake, silver)] == [11, 10, 9, 8, 7, 3, 2, 1, 0]


def test_without_books_history_is_what_the_log_still_has(lake: Lake) -> None:
    table = lake.bronze("shop")
    for version in range(3):
        commit(table, version, "bronze", version - 1)
    forget(table, below=1)
    assert [found.version for found in history(lake, table)] == [2, 1]


def test_the_books_hold_what_a_commit_says(run: Run, lake: Lake) -> None:
    copy_books(run, ["silver"])
    columns = (
        "pipeline, hop, generation, batch, version, rows, watermark::VARCHAR, taken['bronze'], "
        "counts[2].fate, counts[2].stage, counts[2].rows, counts[2].fingerprint, "
        "committed_at::VARCHAR"
    )
    sql = f"SELECT {columns} FROM ops.books ORDER BY version DESC LIMIT 1"
    assert ask(lake, sql).rows == (
        (
            *("shop", "silver", "g1", 2, 3, 20, "2024-01-03 00:00:00+00", 4),
            *("quarantined", "parse", 1, 1 << 59, "2024-01-01 00:00:03+00"),
        ),
    )
    (text,) = ask(lake, "SELECT note FROM ops.books WHERE version = 3").rows[0]
    assert json.loads(text) == next(commits(lake.silver("shop"))).note


def test_copying_again_adds_nothing(run: Run, lake: Lake) -> None:
    copy_books(run, HOPS)
    before = newest_version(lake.books())
    copy_books(run, HOPS)
    assert newest_version(lake.books()) == before
    assert copied(lake) == once(lake, lake.bronze("shop"), lake.silver("shop"))


def test_many_commits_are_copied_in_parts_each_once_also_if_one_is_cut_off(
    run: Run, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended = epochs.append_records
    sizes: list[int] = []

    def append(*words: Any, **more: Any) -> None:
        if len(sizes) == 2:
            raise OSError("cut off")
        sizes.append(len(words[2]))
        appended(*words, **more)

    monkeypatch.setattr(epochs, "_ROWS", 3)
    monkeypatch.setattr(epochs, "append_records", append)
    with pytest.raises(OSError, match="cut off"):
        copy_books(run, HOPS)
    assert sizes == [3, 3]
    assert sum(copied(lake).values()) == 6
    monkeypatch.setattr(epochs, "append_records", appended)
    copy_books(run, HOPS)
    assert copied(lake) == once(lake, lake.bronze("shop"), lake.silver("shop"))


def test_hops_that_are_copied_apart_come_in_once_each(run: Run, lake: Lake) -> None:
    copy_books(run, ["silver"])
    assert copied(lake) == once(lake, lake.silver("shop"))
    commit(lake.bronze("shop"), 4, "bronze", 3)
    copy_books(run, ["bronze"])
    commit(lake.silver("shop"), 4, "silver", 3)
    commit(lake.bronze("shop"), 5, "bronze", 4)
    copy_books(run, HOPS)
    assert copied(lake) == once(lake, lake.bronze("shop"), lake.silver("shop"))


def test_a_hop_that_was_not_asked_for_is_not_copied(run: Run, lake: Lake) -> None:
    copy_books(run, ["gold"])
    assert not lake.books().exists


def test_a_table_that_rested_until_the_books_own_log_forgot_it_comes_in_once(
    run: Run, lake: Lake
) -> None:
    copy_books(run, ["silver"])
    copy_books(run, ["bronze"])
    # The books' own log keeps only its newest commits too; a checkpoint holds the rest.
    DeltaTable(str(lake.books().path)).create_checkpoint()
    forget(lake.books(), below=newest_version(lake.books()))

    commit(lake.silver("shop"), 4, "silver", 3)
    copy_books(run, ["silver"])
    assert copied(lake) == once(lake, lake.bronze("shop"), lake.silver("shop"))


def test_bronze_of_which_no_log_has_all_files_is_not_repaired(run: Run, lake: Lake) -> None:
    """Its new checkpoint would not list them, and they would be ingested again."""
    bronze = lake.bronze("shop")
    copy_books(run, HOPS)
    assert why_rebuilt(run, "bronze") == ""
    forget(bronze, below=2)
    assert why_rebuilt(run, "bronze") == ""
    shutil.rmtree(lake.books().path)
    lost = r"commits of bronze\.shop are gone from its log and from ops\.books"
    with pytest.raises(RefusedError, match=f"{lost}.* Restore ops.books, or the checkpoint of hop"):
        why_rebuilt(run, "bronze")


def test_a_pipeline_without_bronze_is_refused_with_the_command(lake: Lake) -> None:
    with pytest.raises(UsageError, match=r"shop has no tables under .*: tidelake run shop$"):
        require_tables(lake, "shop")


@pytest.mark.parametrize("left", ["silver.shop", "gold.totals", "dim.prices"])
def test_tables_without_the_bronze_that_they_were_filled_from_are_not_called_nothing(
    lake: Lake, left: str
) -> None:
    # Of another pipeline, and the copy of commits.
    write_commit(lake.gold("sales"), 0, note={"pipeline": "other", "batch": -1})
    commit(lake.books(), 0, "books", -1)
    with pytest.raises(UsageError, match="shop has no tables"):
        require_tables(lake, "shop")
    commit(lake.table(left), 0, left.partition(".")[0], -1)
    with pytest.raises(RefusedError, match=r"^bronze\.shop was deleted.* from a backup"):
        require_tables(lake, "shop")


def _fill(table: Table, first: int, end: int, table_id: str | None) -> None:
    for version in range(first, end):
        made = table_id if version == 0 else None
        commit(table, version, "gold", version - 1, table_id=made)


# The versions of a table before it was deleted, and of the one that was filled in its place.
LIVES = {
    "shorter": (6, 2, None),
    "shorter, with ids": (6, 2, "new"),
    "as long": (6, 6, "new"),
    "longer": (6, 9, "new"),
}


@pytest.mark.parametrize(("before", "after", "new_id"), LIVES.values(), ids=LIVES)
def test_a_table_that_was_deleted_and_filled_again_comes_in_from_its_beginning(
    environment: Environment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: int,
    after: int,
    new_id: str | None,
) -> None:
    lake, said = Lake(tmp_path), Progress(lambda _: None)
    run = Run(cast(Any, None), shop(tmp_path), lake, environment, said)
    (table,), taken = lake.closing_tables(run.pipeline, "gold"), list[int]()

    def append_records(
        _: Any, own: Table, fresh: Any, *rest: Any, newest: Any, **note: Any
    ) -> None:
        taken.extend(row["version"] for row in fresh)
        version = newest_version(own) + 1
        write_commit(own, version, note={**note, "generation": "g1", "batch": version})

    def copy() -> list[int]:
        taken.clear()
        copy_books(run, ["gold"])
        return list(taken)

    monkeypatch.setattr(epochs, "append_records", append_records)
    _fill(table, 0, before - 1, new_id and "old")
    assert copy() == list(range(before - 1))
    _fill(table, before - 1, before, None)
    assert copy() == [before - 1]
    assert copy() == []

    shutil.rmtree(table.path)
    _fill(table, 0, after, new_id)
    if after != before:
        assert copy() == list(range(after))
        assert copy() == []
    _fill(table, after, after + 1, None)
    assert copy() == ([after] if after != before else list(range(after + 1)))
    assert copy() == []


def test_history_leaves_out_a_table_of_the_name_that_was_deleted(lake: Lake) -> None:
    table = lake.gold("totals")
    # Of the deleted table, in December, and of the one that was filled in its place.
    lives = [("2023-12-01", version) for version in range(9)]
    lives += [("2024-01-01", version) for version in range(4)]
    rows = ", ".join(
        f"('gold.totals', {version}, {version - 1}, TIMESTAMPTZ '{day} 00:00:0{version}+00', "
        f"{version}, '{json.dumps({'batch': version - 1, 'generation': 'g1', 'life': day})}')"
        for day, version in lives
    )
    columns = "table_name, version, batch, committed_at, rows, note"
    sql = f"SELECT * FROM (VALUES {rows}) AS t({columns})"
    write_rows(lake.books(), sql, note={"pipeline": "shop", "generation": "g1", "batch": 0})
    _fill(table, 4, 6, None)
    found = history(lake, table)
    assert [one.version for one in found] == [5, 4, 3, 2, 1, 0]
    assert {one.note.get("life") for one in found} == {None, "2024-01-01"}


@pytest.mark.parametrize("created", [0, 9], ids=["in order", "before the clock went back"])
def test_history_lists_a_commit_once_that_was_copied_twice(lake: Lake, created: int) -> None:
    table = lake.gold("totals")
    rows = ", ".join(
        f"('gold.totals', {version}, {version - 1}, "
        f"TIMESTAMPTZ '2024-01-01 00:00:0{version or created}+00', "
        f'{version}, \'{{"batch": {version - 1}, "generation": "g1"}}\')'
        for version in (0, 0, 1, 1, 2, 3, 3)
    )
    columns = "table_name, version, batch, committed_at, rows, note"
    sql = f"SELECT * FROM (VALUES {rows}) AS t({columns})"
    write_rows(lake.books(), sql, note={"pipeline": "shop", "generation": "g1", "batch": 0})
    _fill(table, 4, 5, None)
    assert [one.version for one in history(lake, table)] == [4, 3, 2, 1, 0]


def test_two_processes_that_copy_at_once_copy_each_commit_once(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, said = Lake(tmp_path), Progress(lambda _: None)
    run = Run(cast(Any, None), shop(tmp_path), lake, environment, said)
    bronze, silver, taken = lake.bronze("shop"), lake.silver("shop"), Counter[tuple[str, int]]()
    other = threading.Thread(target=copy_books, args=(run, ["bronze"]))

    def append_records(
        _: Any, own: Table, fresh: Any, *rest: Any, newest: Any, **note: Any
    ) -> None:
        if other.ident is None:
            # The first to copy has read the notes: what the other one copies is not in them.
            other.start()
            other.join(0.5)
        taken.update((row["table_name"], row["version"]) for row in fresh)
        version = newest_version(own) + 1
        write_commit(own, version, note={**note, "generation": "g1", "batch": version})

    monkeypatch.setattr(epochs, "append_records", append_records)
    commit(bronze, 0, "bronze", -1)
    commit(silver, 0, "silver", -1)
    copy_books(run, ["silver"])
    other.join(20)
    # Until the other's commit is no longer among the notes that are looked at.
    for version in range(1, epochs._NOTES + 1):
        commit(silver, version, "silver", -1)
        copy_books(run, ["silver"])
    commit(bronze, 1, "bronze", 0)
    copy_books(run, ["bronze"])
    assert taken == once(lake, bronze, silver)
