"""The data files of a table, from the last checkpoint of its log and the commits after it."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidelake.delta.log import live_files
from tidelake.delta.tables import Lake, Table


def _append(table: Table) -> None:
    deltalake.write_deltalake(str(table.path), pa.table({"number": [1, 2]}), mode="append")


def _version(table: Table, *, files: int = 3) -> int | None:
    """Read the version that is found; the files are those that deltalake finds in it."""
    found = live_files(table, lambda add: (add["path"], json.loads(add["stats"])["numRecords"]))
    if found is None:
        return None
    version, live = found
    adds = deltalake.DeltaTable(str(table.path)).get_add_actions()
    columns = (adds[name].to_pylist() for name in ("path", "num_records"))
    assert sorted(live.values()) == sorted(zip(*columns, strict=True))
    assert len(live) == files
    return version


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Give a table of three files, with a checkpoint as of the newest version."""
    table = Lake(tmp_path).bronze("shop")
    for _ in range(3):
        _append(table)
    deltalake.DeltaTable(str(table.path)).create_checkpoint()
    return table


def test_commits_after_the_checkpoint_add_files_and_take_some_away(table: Table) -> None:
    assert _version(table) == 2
    _append(table)
    assert _version(table, files=4) == 3
    deltalake.DeltaTable(str(table.path)).optimize.compact()
    assert _version(table, files=1) == 4
    _append(table)
    assert _version(table, files=2) == 5


def test_a_commit_that_removes_an_unknown_file_is_refused(table: Table) -> None:
    deltalake.DeltaTable(str(table.path)).delete()
    newest = max(Path(str(table.path), "_delta_log").glob("*.json"))
    # As another writer may write it.
    newest.write_text(newest.read_text().replace('"path":"', f'"path":"{table.path}/'))
    with pytest.raises(ValueError, match="version 3 removes an unknown file"):
        live_files(table, str)


def test_of_a_log_that_does_not_say_it_all_nothing_is_read(table: Table) -> None:
    log = Path(str(table.path), "_delta_log")
    [file], told = log.glob("*.checkpoint.parquet"), log / "_last_checkpoint"
    content, last = pq.read_table(file), told.read_text()
    # It has another name if it has several parts.
    file.unlink()
    assert live_files(table, str) is None
    # One of the V2 format may refer to files beside it.
    sidecar = pa.array([{"path": "a.parquet"}] * len(content))
    pq.write_table(content.drop(["sidecar"]).append_column("sidecar", sidecar), file)
    assert live_files(table, str) is None
    for sparse in (content, content.drop(["sidecar"])):
        pq.write_table(sparse, file)
        assert _version(table) == 2
    for broken in ("", "{}", "[]"):
        told.write_text(broken)
        assert live_files(table, str) is None
    told.unlink()
    assert _version(table) == 2
    # Without a checkpoint the log begins with its first commit.
    min(log.glob("*.json")).unlink()
    assert live_files(table, str) is None
    told.write_text(last)
    assert _version(table) == 2
    # A commit that is missing in between.
    for _ in range(2):
        _append(table)
    (log / f"{3:020d}.json").unlink()
    afresh = Lake(log.parents[2]).bronze("shop")
    assert live_files(afresh, str) is None
