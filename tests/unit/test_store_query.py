"""SQL on a store: the same answers, nothing beside the tables, and no secret in sight."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import duckdb
import pytest
from deltalake import write_deltalake

from tests.stores import Store
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.delta.tables import Lake, Table
from tidelake.errors import DamagedError, MachineError, UsageError
from tidelake.folders import folder, is_stored
from tidelake.ledger import query
from tidelake.ledger.query import ask, ask_for_user

_ROWS = "VALUES ('a', 1.10::DECIMAL(18, 2)), ('b', NULL), ('c', 2.20)"
_HTTP = {"AWS_ALLOW_HTTP": "true"}


def add(table: Table, where: str = "true") -> None:
    """Append rows to a table, as another engine would."""
    options = _HTTP if is_stored(table.path) else None
    rows = duckdb.sql(f"SELECT * FROM ({_ROWS}) AS t(event_id, value) WHERE {where}")
    write_deltalake(str(table.path), rows, mode="append", storage_options=options)


@pytest.fixture
def stored(s3: Store) -> Lake:
    """Give a lake with one table of two commits, made by another engine."""
    lake = Lake(folder(s3.prefix()))
    add(lake.table("silver.shop"), "event_id < 'c'")
    add(lake.table("silver.shop"), "event_id = 'c'")
    return lake


def test_a_table_on_a_store_answers_as_one_on_a_disk(stored: Lake, tmp_path: Path) -> None:
    disk = Lake(tmp_path)
    add(disk.table("silver.shop"))
    query = "SELECT event_id, value FROM silver.shop ORDER BY 1"

    assert ask(stored, query) == ask(disk, query) == ask_for_user(stored, query)
    assert ask_for_user(stored, query, {"silver.shop": 0}).rows == ask(disk, query).rows[:2]
    assert [table.name for table in stored.existing()] == ["silver.shop"]


def test_what_a_writer_added_is_in_the_next_answer(stored: Lake) -> None:
    assert ask(stored, "SELECT count(*) FROM silver.shop").rows == ((3,),)
    add(stored.table("silver.shop"))

    assert ask(stored, "SELECT count(*) FROM silver.shop").rows == ((6,),)


def test_a_statement_of_the_users_reads_nothing_beside_the_tables_it_names(
    s3: Store, stored: Lake
) -> None:
    outside = s3.put(f"{stored.root}/landing/a.csv", b"a,b\n1,2\n")

    with pytest.raises(UsageError, match=r"(?i)permission|cannot access|disabled"):
        ask_for_user(stored, f"SELECT * FROM read_csv('{outside}'), silver.shop")


def test_no_statement_shows_the_secret(stored: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    query = "SELECT s.secret_string, count(*) FROM duckdb_secrets() s, silver.shop GROUP BY 1"

    assert run_command(app, ["sql", "--json", query, "--root", str(stored.root)]) == 2
    told = capsys.readouterr()
    assert "duckdb_secrets() is refused" in told.err
    assert "of the store" not in told.out + told.err


@pytest.mark.parametrize("kept", [0, 99])
def test_a_file_that_is_gone_or_truncated_is_damage_as_on_a_disk(
    s3: Store, stored: Lake, kept: int
) -> None:
    table = str(stored.table("silver.shop").path)
    for key in s3.keys(table):
        if key.endswith(".parquet"):
            place = f"s3://tidelake/{key}"
            part = s3.get(place)[:kept]
            s3.client.delete_object(Bucket="tidelake", Key=key)
            if part:
                s3.put(place, part)

    for reader in (ask, ask_for_user):
        with pytest.raises(DamagedError, match=r"^silver\.shop cannot be read .*from a backup\.$"):
            reader(stored, "SELECT max(value) FROM silver.shop")


def test_a_gap_in_a_log_is_damage_as_on_a_disk(s3: Store, stored: Lake) -> None:
    add(stored.table("silver.shop"))
    log = f"{stored.table('silver.shop').path}/_delta_log"
    s3.client.delete_object(Bucket="tidelake", Key=f"{log}/{1:020}.json".partition("tidelake/")[2])

    with pytest.raises(DamagedError, match=r"^silver\.shop cannot be read .*from a backup\.$"):
        ask(stored, "SELECT max(value) FROM silver.shop")


def test_a_file_or_log_that_may_not_be_read_is_no_wrong_use(
    stored: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a store with rights for each object would answer."""
    error = duckdb.HTTPException("HTTP Error: HTTP GET error reading 'http://a/b' (HTTP 403)")
    error.status_code = 403  # type: ignore[attr-defined]
    assert isinstance(query._refused(error, stored), MachineError)

    class Refuses:
        def execute(self, sql: str) -> None:
            if "VIEW" in sql:
                raise error

    shop = {"silver.shop": stored.table("silver.shop")}
    with pytest.raises(
        MachineError, match=r"^silver\.shop cannot be read: the object store denied"
    ):
        query._create_views(cast(Any, Refuses()), shop, {})
