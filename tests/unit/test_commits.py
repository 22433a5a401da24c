"""Notes in Delta's log: which are ours, in what order, and what a reader has yet to take."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from tests.unit.handmade import write_commit
from tidelake.delta.log import commits, encode, last_commit, newest_version, oldest_version
from tidelake.delta.merge import shorten_log
from tidelake.delta.positions import BEGINNING, Position, added_between
from tidelake.delta.tables import Lake, Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Lake(tmp_path).table("bronze.shop")


def test_notes_are_read_newest_first_with_rows_and_time(table: Table) -> None:
    write_commit(table, 0, note={"batch": -1, "generation": "g1"})
    write_commit(table, 1, note={"batch": 0, "generation": "g1"}, rows=7)

    newest, oldest = commits(table)

    assert (newest.version, newest.batch, newest.generation, newest.rows) == (1, 0, "g1", 7)
    assert newest.written_at == datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=1)
    assert (oldest.version, oldest.batch, oldest.rows) == (0, -1, None)


def test_versions_are_ordered_as_numbers(table: Table) -> None:
    for version in range(12):
        write_commit(table, version, note={"batch": version, "generation": "g1"})

    assert [commit.version for commit in commits(table)] == list(range(11, -1, -1))


@pytest.mark.parametrize(
    "metadata",
    [None, "", "compacted by night", "[1]", '"text"', "3", "{}", '{"tidelake": 1}', '{"a": {}}'],
)
def test_a_foreign_commit_is_passed_over(table: Table, metadata: str | None) -> None:
    write_commit(table, 0, note={"batch": 3, "generation": "g1"})
    write_commit(table, 1, metadata=metadata, operation="OPTIMIZE")

    assert [commit.version for commit in commits(table)] == [0]
    last = last_commit(table)
    assert last is not None
    assert last.batch == 3


def test_a_compaction_that_took_a_merge_s_note_is_passed_over(table: Table) -> None:
    write_commit(table, 0, note={"batch": 0})
    write_commit(table, 1, note={"batch": 1}, operation="OPTIMIZE")
    assert [commit.batch for commit in commits(table)] == [0]


def test_a_commit_without_commit_info_is_passed_over(table: Table) -> None:
    write_commit(table, 0, note={"batch": 0, "generation": "g1"})
    (table.path / "_delta_log" / f"{1:020}.json").write_text('{"protocol": {}}\n')

    assert [commit.version for commit in commits(table)] == [0]


def test_commits_that_come_later_are_found_without_a_listing(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_commit(table, 0, note={"batch": 0})
    assert newest_version(table) == 0
    for version in range(1, 4):
        write_commit(table, version, note={"batch": version})
    monkeypatch.setattr("tidelake.delta.log.list_folder", lambda _: [])

    assert [commit.batch for commit in commits(table)] == [3, 2, 1, 0]


def test_a_table_that_was_made_anew_is_listed_anew(table: Table) -> None:
    for version in range(5):
        write_commit(table, version, note={"batch": version})
    assert newest_version(table) == 4
    shutil.rmtree(table.path)
    assert newest_version(table) == -1
    for version in range(2):
        write_commit(table, version, note={"batch": 7 + version})

    assert [(one.version, one.batch) for one in commits(table)] == [(1, 8), (0, 7)]


def test_commits_below_one_that_was_taken_out_are_still_read(table: Table) -> None:
    for version in range(6):
        write_commit(table, version, note={"batch": version})
    (table.path / "_delta_log" / f"{3:020}.json").unlink()

    assert [commit.version for commit in commits(table)] == [5, 4, 2, 1, 0]


def test_delta_checkpoints_and_checksums_are_no_commits(table: Table) -> None:
    write_commit(table, 0, note={"batch": 0, "generation": "g1"}, adds=[(2, True)])
    log = table.path / "_delta_log"
    (log / f"{0:020}.crc").write_text("{}")
    (log / f"{0:020}.checkpoint.parquet").write_bytes(b"PAR1")
    (log / "_last_checkpoint").write_text("{}")

    assert [commit.version for commit in commits(table)] == [0]
    assert added_between(table, BEGINNING).rows == 2


@pytest.mark.parametrize(
    "name", [f"{0:020}.{1:020}.compacted.json", f"{1:020}.checkpoint.a-b.json"]
)
def test_log_compactions_and_v2_checkpoints_are_no_commits(table: Table, name: str) -> None:
    write_commit(table, 0, adds=[(2, True)])
    write_commit(table, 1, adds=[(3, True)])
    (table.path / "_delta_log" / name).write_text('{"protocol": {}}\n')

    assert added_between(table, BEGINNING).rows == 5


def test_a_missing_table_has_no_commits_and_no_rows(table: Table) -> None:
    assert list(commits(table)) == []
    assert last_commit(table) is None
    assert added_between(table, BEGINNING).rows == 0


def test_a_note_survives_encoding() -> None:
    note = {"batch": 1, "files": [["/a b/ü.json", 3]]}

    assert json.loads(encode(note)) == {"tidelake": note}


@pytest.mark.parametrize(
    ("version", "index", "rows"),
    [
        (0, -1, 111111),
        (1, -1, 111111),
        (1, -100, 111111),
        (1, 0, 111110),
        (1, 1, 111100),
        (2, -1, 111100),
        (2, 0, 111000),
        (2, 1, 110000),
        (2, 2, 100000),
        (3, -1, 100000),
        (3, 0, 0),
        (4, -1, 0),
        (1, 9223372036854775707, 111100),
    ],
)
def test_rows_after_a_position_are_those_of_the_files_behind_it(
    table: Table, version: int, index: int, rows: int
) -> None:
    write_six_files(table)

    assert added_between(table, (version, index)).rows == rows
    assert added_between(table, BEGINNING, (version, index)).rows == 111111 - rows


def write_six_files(table: Table) -> None:
    """Write files of 1, 10, ... 100,000 rows, so that each digit of a sum names a file."""
    write_commit(table, 0)
    write_commit(table, 1, adds=[(1, True), (10, True)])
    write_commit(table, 2, adds=[(100, True), (1000, True), (10000, True)])
    write_commit(table, 3, adds=[(100000, True)])


@pytest.mark.parametrize(
    ("after", "until", "rows"),
    [
        ((0, -1), (0, -1), 0),
        ((1, 0), (1, 0), 0),
        ((1, 0), (1, 1), 10),
        ((1, -1), (2, -1), 11),
        ((1, 0), (2, -1), 10),
        ((1, 0), (2, 0), 110),
        ((1, 1), (2, 1), 1100),
        ((2, 0), (2, 1), 1000),
        ((2, 0), (2, 9), 11000),
        ((2, 2), (3, 0), 100000),
        ((1, -100), (3, -100), 11111),
        ((3, 0), (4, -1), 0),
    ],
)
def test_two_positions_hold_the_rows_of_the_files_in_between(
    table: Table, after: Position, until: Position, rows: int
) -> None:
    write_six_files(table)

    assert added_between(table, after, until).rows == rows


def test_any_stop_on_the_way_adds_up_to_the_whole(table: Table) -> None:
    write_six_files(table)
    stops = [(version, index) for version in range(5) for index in range(-1, 4)]

    for stop in stops:
        assert (
            added_between(table, BEGINNING, stop).rows + added_between(table, stop).rows == 111111
        )


def test_a_log_knows_its_oldest_and_newest_version_whoever_wrote_them(table: Table) -> None:
    assert (oldest_version(table), newest_version(table)) == (0, -1)

    write_commit(table, 3, note={"batch": 0, "generation": "g1"})
    write_commit(table, 12, operation="OPTIMIZE")
    (table.path / "_delta_log" / f"{1:020}.{2:020}.compacted.json").write_text("{}\n")

    assert (oldest_version(table), newest_version(table)) == (3, 12)


def test_files_that_a_compaction_rewrote_are_not_taken_again(table: Table) -> None:
    write_commit(table, 0, adds=[(5, True)])
    write_commit(table, 1, adds=[(5, False)], operation="OPTIMIZE")
    write_commit(table, 2, adds=[(3, True)])

    assert added_between(table, (0, 0)).rows == 3
    assert added_between(table, (0, 0), (1, 0)).rows == 0


def versions_after_a_restore(table: Table, *parameters: dict[str, str]) -> list[int]:
    """Write three batches, then restore once for each set of parameters."""
    for version in range(3):
        write_commit(table, version, note={"batch": version, "generation": "g1"})
    for number, one in enumerate(parameters):
        write_commit(table, 3 + number, operation="RESTORE", parameters=one)
    return [commit.version for commit in commits(table)]


def test_commits_that_a_restore_undid_are_left_out(table: Table) -> None:
    assert versions_after_a_restore(table, {"version": "1"}) == [1, 0]

    write_commit(table, 4, note={"batch": 2, "generation": "g2"})
    assert [commit.version for commit in commits(table)] == [4, 1, 0]


@pytest.mark.parametrize(("back_to", "remaining"), [(0, [0]), (1, [1, 0])])
def test_a_restore_to_an_instant_knows_files_by_their_deletion_vectors(
    table: Table, back_to: int, remaining: list[int]
) -> None:
    def file(vector: str | None, **more: Any) -> dict[str, Any]:
        return {"path": "a.parquet", "deletionVector": vector and {"storageType": vector}, **more}

    write_commit(table, 0, note={"batch": 0, "generation": "g1"})
    write_commit(table, 1, note={"batch": 1, "generation": "g1"})
    write_commit(table, 2, operation="COMPUTE STATS")
    write_commit(table, 3, note={"batch": 2, "generation": "g1"})
    write_commit(table, 4, operation="RESTORE", parameters={"timestamp": "2026-01-01 00:00:01.0"})
    vectors = [None, "u", "p"]
    for version, removed, added in [
        (0, [], vectors[0]),
        (1, vectors[:1], vectors[1]),
        (2, [], vectors[1]),
        (3, vectors[1:2], vectors[2]),
        (4, vectors[2:], vectors[back_to]),
    ]:
        actions = [{"remove": file(vector)} for vector in removed]
        actions.append({"add": file(added, dataChange=version != 2)})
        with (table.path / "_delta_log" / f"{version:020}.json").open("a") as log:
            log.write("".join(json.dumps(action) + "\n" for action in actions))

    assert [commit.version for commit in commits(table)] == remaining


def test_a_table_has_its_id_when_the_log_no_longer_has_the_first_commit(table: Table) -> None:
    with duckdb.connect() as connection:
        for n in range(3):
            write_deltalake(str(table.path), connection.sql(f"SELECT {n} AS n"), mode="append")
    stored = DeltaTable(str(table.path))
    known = str(stored.metadata().id)
    assert table.id == known
    stored.create_checkpoint()
    first = table.path / "_delta_log" / f"{0:020}.json"
    first.unlink()
    assert table.id == known
    (table.path / "_delta_log" / f"{2:020}.checkpoint.parquet").unlink()
    assert table.id is None


@pytest.mark.parametrize("zone", [None, "Pacific/Kiritimati", "Etc/GMT+12"])
def test_a_restore_to_an_instant_is_known_by_its_files(table: Table, zone: str | None) -> None:
    write = partial(write_deltalake, str(table.path), mode="append")
    with duckdb.connect() as connection:
        for batch in (0, 1, 2):
            note = CommitProperties({"userMetadata": encode({"generation": "g1", "batch": batch})})
            write(connection.sql("SELECT 1 AS n"), commit_properties=note)
    # What Spark writes: the time of the JVM's zone, without the zone.
    written = DeltaTable(str(table.path)).history()[1]["timestamp"]
    DeltaTable(str(table.path)).restore(1)
    file = table.path / "_delta_log" / f"{3:020}.json"
    actions = list(map(json.loads, file.read_text().splitlines()))
    instant = datetime.fromtimestamp(written / 1000, tz=UTC)
    there = instant.astimezone(ZoneInfo(zone)) if zone else instant
    named = {"version": None, "timestamp": there.strftime("%Y-%m-%d %H:%M:%S.%f")}
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["operationParameters"] = named
    file.write_text("\n".join(map(json.dumps, actions)))

    assert [commit.batch for commit in commits(table)] == [1, 0]


def test_a_restore_that_undoes_a_restore_brings_the_commits_back(table: Table) -> None:
    assert versions_after_a_restore(table, {"version": "0"}, {"version": "2"}) == [2, 1, 0]


def test_a_restore_to_the_version_of_a_restore_stays_there(table: Table) -> None:
    there = [{"version": "1"}, {"version": "0"}, {"version": "3"}]
    assert versions_after_a_restore(table, *there) == [1, 0]


def test_a_restore_that_the_deltalake_package_writes_is_understood(table: Table) -> None:
    with duckdb.connect() as connection:
        for batch in (-1, 0, 1):
            note = encode({"generation": "g1", "batch": batch})
            write_deltalake(
                str(table.path),
                connection.sql("SELECT 1 AS n"),
                mode="append",
                commit_properties=CommitProperties(custom_metadata={"userMetadata": note}),
            )
    DeltaTable(str(table.path)).restore(1)

    assert [commit.batch for commit in commits(table)] == [0, -1]


def test_older_checksum_files_leave_a_log_that_is_listed_whole(lake: Lake) -> None:
    table = lake.gold("totals")
    log = table.path / "_delta_log"
    log.mkdir(parents=True)
    for version in range(12):
        for name in (f"{version:020d}.json", f"{version:020d}.crc", f".{version:020d}.json.crc"):
            (log / name).write_text("{}")
    shorten_log(table)
    left = sorted(file.name for file in log.glob("[0-9]*"))
    assert [name for name in left if name.endswith(".crc")] == [
        f"{version:020d}.crc" for version in range(2, 12)
    ]
    assert len([name for name in left if name.endswith(".json")]) == 12
    assert len(list(log.glob(".*"))) == 12
