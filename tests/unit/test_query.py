"""SQL by logical names: one query at a time, on Delta tables, and on nothing else."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
from deltalake import write_deltalake

from tests.unit.handmade import write_rows
from tidelake.delta.tables import Lake
from tidelake.errors import DamagedError, MachineError, UsageError
from tidelake.lakehouse import open_lakehouse
from tidelake.ledger import query
from tidelake.ledger.query import AnswerFile
from tidelake.ledger.query import ask_for_user as ask

TOTALS = """
    SELECT * FROM (VALUES
        ('u1', TIMESTAMPTZ '2024-01-01 12:00:00+02:00', 1.50::DECIMAL(18,2)),
        ('u2', TIMESTAMPTZ '2024-01-01 12:00:00+02:00', NULL)
    ) AS t(user_id, window_start, total)
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Give one gold table under a root whose name needs quoting."""
    lake = Lake(tmp_path_factory.mktemp("it's a lake"))
    with duckdb.connect() as connection:
        write_deltalake(str(lake.gold("totals").path), connection.sql(TOTALS))
    yield lake


def test_a_delta_table_is_read_by_its_logical_name(lake: Lake) -> None:
    answer = ask(lake, "SELECT user_id, total FROM gold.totals ORDER BY user_id")

    assert answer.columns == ("user_id", "total")
    assert answer.rows == (("u1", Decimal("1.50")), ("u2", None))
    assert answer.as_dicts()[0] == {"user_id": "u1", "total": Decimal("1.50")}


def test_timestamps_come_out_in_utc_whatever_the_machines_zone(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")

    ((start, text),) = ask(
        lake, "SELECT DISTINCT window_start, CAST(window_start AS VARCHAR) FROM gold.totals"
    ).rows

    assert start == datetime(2024, 1, 1, 10, tzinfo=UTC)
    assert start.utcoffset().total_seconds() == 0
    assert text == "2024-01-01 10:00:00+00"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM gold.totals",
        "select COUNT(*) from GOLD.Totals",
        'SELECT count(*) FROM "gold"."totals"',
        "SELECT count(*) FROM gold.totals;",
        "-- why\nSELECT count(*) FROM gold.totals",
        "SELECT count(*) FROM gold.totals; -- done",
        "WITH t AS (SELECT * FROM gold.totals) SELECT count(*) FROM t",
        "SELECT (SELECT count(*) FROM gold.totals)",
        "SELECT count(*) FROM (SELECT 1 FROM gold.totals WHERE user_id = 'u1' UNION ALL SELECT 1)",
    ],
)
def test_any_form_of_a_query_is_understood(lake: Lake, sql: str) -> None:
    assert ask(lake, sql).rows == ((2,),)


def test_a_tables_columns_can_be_described(lake: Lake) -> None:
    types = {row[0]: row[1] for row in ask(lake, "DESCRIBE gold.totals").rows}

    assert types["window_start"] == "TIMESTAMP WITH TIME ZONE"
    assert types["total"] == "DECIMAL(18,2)"


@pytest.mark.parametrize(
    "sql",
    [
        "",
        ";",
        "-- nothing",
        "INSERT INTO gold.totals VALUES ('u3', NULL, NULL)",
        "UPDATE gold.totals SET total = 0",
        "DELETE FROM gold.totals",
        "DROP VIEW gold.totals",
        "CREATE TABLE t AS SELECT 1",
        "COPY (SELECT 1) TO '{out}'",
        "COPY gold.totals TO '{out}'",
        "EXPORT DATABASE '{out}'",
        "ATTACH '{out}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET TimeZone = 'Asia/Kolkata'",
        "PRAGMA database_list",
        "CALL pragma_version()",
        "SELECT 1; SELECT 2",
        "SELECT 1; COPY (SELECT 1) TO '{out}'",
        "SELECT * FROM query('COPY (SELECT 1) TO ''{out}''')",
    ],
)
def test_anything_but_one_query_is_refused_and_writes_nothing(
    lake: Lake, tmp_path: Path, sql: str
) -> None:
    with pytest.raises(UsageError) as refused:
        ask(lake, sql.replace("{out}", str(tmp_path / "out")))

    assert refused.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []
    assert ask(lake, "SELECT count(*) FROM gold.totals").rows == ((2,),)


def test_a_statement_that_cannot_be_read_is_refused_in_one_line(lake: Lake) -> None:
    with pytest.raises(UsageError, match=r"^the statement cannot be read: .*$"):
        ask(lake, "SELECT * FROM gold.totals WHERE")


def test_an_unknown_table_lists_the_known_ones(lake: Lake) -> None:
    with pytest.raises(
        UsageError, match=r"(?s)no table gold\.nope, silver\.nope\..*Tables under .*: gold\.totals$"
    ):
        ask(lake, "SELECT * FROM gold.nope, silver.nope, gold.totals")


@pytest.mark.parametrize("name", ["totals", '"gold.totals"', "elsewhere.gold.totals"])
def test_a_table_that_is_not_named_in_full_lists_the_known_ones(lake: Lake, name: str) -> None:
    with pytest.raises(UsageError, match=r"Tables under .*: gold\.totals$"):
        ask(lake, f"SELECT * FROM {name}")


def test_an_empty_root_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none yet; fill them with: tidelake demo$"):
        ask(Lake(tmp_path), "SELECT * FROM gold.totals")

    assert list(tmp_path.iterdir()) == []


def test_an_unknown_column_is_named_beside_the_tables(lake: Lake) -> None:
    with pytest.raises(UsageError, match=r'(?s)"nope" not found.*Tables under'):
        ask(lake, "SELECT nope FROM gold.totals")


@pytest.mark.parametrize(
    "relation",
    [
        "'{file}'",
        "'file://{file}'",
        '"{file}"',
        "read_csv('{file}')",
        "read_text('{file}')",
        "read_blob('{file}')",
        "sniff_csv('{file}')",
        "glob('{folder}/*')",
        "query_table('{file}')",
        "query('SELECT * FROM read_text(''{file}'')')",
    ],
)
def test_files_beside_the_tables_cannot_be_read(lake: Lake, tmp_path: Path, relation: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("password,n\nhunter2,1\n")
    place = relation.replace("{file}", str(secret)).replace("{folder}", str(tmp_path))

    with pytest.raises(UsageError):
        ask(lake, f"SELECT * FROM {place}")


def test_ctrl_c_while_a_table_is_read_is_an_interrupt(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[str]()

    class Interrupted:
        def execute(self, *_: object) -> object:
            # As DuckDB does.
            raise RuntimeError("Query interrupted") from KeyboardInterrupt()

        def interrupt(self) -> None:
            calls.append("interrupt")

    cursor = SimpleNamespace(cursor=lambda: nullcontext(Interrupted()))
    monkeypatch.setattr(query, "_instance", lambda: cursor)
    monkeypatch.setattr(query, "_prepare", lambda *_, **__: None)

    with pytest.raises(KeyboardInterrupt):
        query.first_rows(lake.gold("totals").path, 1)
    assert calls == ["interrupt"]


def _written(lake: Lake, sql: str, tmp_path: Path) -> tuple[tuple[object, ...], ...]:
    file = tmp_path / "answer.csv"
    query.write_for_user(lake, sql, AnswerFile(file, overwrite=True))
    return tuple(tuple(map(int, row.split(","))) for row in file.read_text().splitlines()[1:])


@pytest.mark.parametrize("reader", ["user", "trusted", "file"])
def test_a_statement_reads_each_table_at_one_version_and_the_next_at_its_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    lake = Lake(tmp_path / "lake")
    final = {"column": "ends_at", "until": "2024-01-01T12:00:00+00:00"}
    note = {"generation": "g1", "batch": 0, "final": final}

    def add() -> None:
        row = "SELECT TIMESTAMPTZ '2024-01-01 11:00:00Z' AS ends_at"
        write_rows(lake.gold("totals"), row, note=note)

    create = query._create_views

    def commit_before_the_answer(*arguments: Any) -> None:
        create(*arguments)
        add()

    add()
    monkeypatch.setattr(query, "_create_views", commit_before_the_answer)

    def read(sql: str) -> tuple[tuple[Any, ...], ...]:
        if reader == "file":
            return _written(lake, sql, tmp_path)
        return (ask if reader == "user" else query.ask)(lake, sql).rows

    counts = ", ".join(
        f"(SELECT count(*) FROM gold.totals{view}) AS {name}"
        for name, view in (("a", ""), ("b", ""), ("c", "__final"))
    )

    assert [read(f"SELECT {counts}") for _ in range(2)] == [((1, 1, 1),), ((2, 2, 2),)]


def test_an_interval_is_the_text_that_duckdb_shows(lake: Lake) -> None:
    """A timedelta would make 30 days of a month."""
    sql = (
        "SELECT age(DATE '2024-12-31', DATE '2024-01-01') AS x, 1 AS x, [INTERVAL '1' YEAR] AS l, "
        "{'i': INTERVAL 1 HOUR} AS s FROM gold.totals ORDER BY user_id LIMIT 1; -- both"
    )
    answer = ask(lake, sql)

    assert answer.columns == ("x", "x", "l", "s")
    assert answer.rows == (("11 months 30 days", 1, ["1 year"], {"i": "01:00:00"}),)
    assert answer.types[0] == "INTERVAL"


_LARGE = (
    "SELECT max(r) FROM (SELECT row_number() OVER (ORDER BY hash(i), i) r FROM range(600000) t(i))"
)


@pytest.mark.parametrize("reader", ["user", "trusted", "file"])
def test_what_does_not_fit_into_memory_is_beside_the_temporary_files_of_others(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    spills = tempfile.TemporaryDirectory(dir=tmp_path)
    monkeypatch.setattr(query, "_spills", lambda: spills)
    monkeypatch.chdir(tmp_path)
    connect = duckdb.connect

    def connect_small() -> duckdb.DuckDBPyConnection:
        return connect(config={"memory_limit": "20MB", "threads": 1})

    monkeypatch.setattr(query.duckdb, "connect", connect_small)
    query._instance.cache_clear()

    def read() -> Any:
        if reader == "file":
            return _written(lake, _LARGE, tmp_path)
        return (ask if reader == "user" else query.ask)(lake, _LARGE).rows

    try:
        assert read() == ((600000,),)
        assert stat.S_IMODE(Path(spills.name).stat().st_mode) == 0o700
        assert {path.name for path in tmp_path.iterdir()} <= {Path(spills.name).name, "answer.csv"}
        query._instance.cache_clear()
        spills.cleanup()
        with pytest.raises(MachineError, match=r"cannot spill it to disk: .* set TMPDIR"):
            read()
    finally:
        query._instance.cache_clear()


def test_two_columns_of_one_name_are_both_in_the_answer(lake: Lake) -> None:
    answer = ask(lake, "SELECT 'a' AS x, 'b' AS x")

    assert (answer.columns, answer.rows) == (("x", "x"), (("a", "b"),))


def test_two_columns_of_one_name_are_refused_where_one_would_hide_the_other(lake: Lake) -> None:
    with pytest.raises(UsageError, match="same name"):
        ask(lake, "SELECT 'a' AS x, 'b' AS x").as_dicts()
    with pytest.raises(UsageError, match="same name"):
        open_lakehouse(str(lake.root)).ask("SELECT 1 AS a, 2 AS a")


def test_the_database_reads_and_writes_nothing_else_whatever_the_statement(
    lake: Lake, tmp_path: Path
) -> None:
    """Even if the check of statements let one through."""
    secret, answer = tmp_path / "secret.csv", tmp_path / "answer.csv"
    secret.write_text("a\n1\n")
    with query._for_user(lake, "SELECT 1 FROM gold.totals", {}, writes=answer) as connection:
        assert connection.execute("SELECT count(*) FROM gold.totals").fetchall() == [(2,)]
        for statement in (
            f"SELECT * FROM read_csv('{secret}')",
            f"COPY (SELECT 1) TO '{secret}'",
            f"ATTACH '{tmp_path / 'other.db'}'",
            "SET enable_external_access = true",
            "SET allowed_paths = ['/']",
            "SET TimeZone = 'Asia/Tokyo'",
            "INSTALL httpfs",
        ):
            with pytest.raises(duckdb.Error, match=r"disabled|locked|not allowed|[Cc]annot"):
                connection.execute(statement)
        connection.execute(f"COPY (SELECT 1 AS a) TO '{answer}'")
    assert (secret.read_text(), answer.read_text()) == ("a\n1\n", "a\n1\n")


@pytest.mark.parametrize("reader", ["user", "trusted", "file"])
@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_truncated_file_of_a_table_is_damage_by_its_name(
    tmp_path: Path, reader: str, kept: int
) -> None:
    lake = Lake(tmp_path / "it's a lake")
    for name in ("totals", "totals_1d"):
        write_rows(lake.gold(name), TOTALS, note={"generation": "g1", "batch": 0})
    (file,) = lake.gold("totals").path.glob("*.parquet")
    file.write_bytes(file.read_bytes()[:kept])
    sql = "SELECT max(total) FROM gold.totals"

    with pytest.raises(DamagedError, match=r"^gold\.totals cannot be read .*from a backup\.$"):
        if reader == "file":
            _written(lake, sql, tmp_path)
        else:
            (ask if reader == "user" else query.ask)(lake, sql)


def test_an_invalid_argument_in_a_statement_is_no_damage(lake: Lake) -> None:
    with pytest.raises(UsageError, match=r"Invalid Input Error: .*\nTables under"):
        ask(lake, "SELECT list_slice([1], 1, 1, 0) FROM gold.totals")


@pytest.mark.parametrize("pinned", [False, True])
def test_a_gap_in_a_log_is_damage_also_of_the_version_that_is_asked_for(
    tmp_path: Path, pinned: bool
) -> None:
    lake = Lake(tmp_path)
    for batch in range(4):
        write_rows(lake.gold("totals"), TOTALS, note={"generation": "g1", "batch": batch})
    (lake.gold("totals").path / "_delta_log" / f"{2:020}.json").unlink()

    with pytest.raises(DamagedError, match=r"^gold\.totals cannot be read .*from a backup\.$") as e:
        query.ask(lake, "SELECT 1 FROM gold.totals", {"gold.totals": 3} if pinned else None)
    assert "ParsedLogPath" not in str(e.value)
    # A version that does not exist is an error of the call.
    with pytest.raises(UsageError, match=r"^gold\.totals cannot be read: "):
        query.ask(lake, "SELECT 1 FROM gold.totals", {"gold.totals": 9})
