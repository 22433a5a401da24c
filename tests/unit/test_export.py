"""An answer in a file: whole or not at all, and no statement reaches another file."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import NoReturn

import duckdb
import pytest
from deltalake import write_deltalake

from tests.unit.handmade import write_rows
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.delta.tables import Lake
from tidelake.errors import TidelakeError, UsageError
from tidelake.ledger.query import AnswerFile, write_for_user

_TOTALS = """
    SELECT * FROM (VALUES ('u1', TIMESTAMPTZ '2024-01-01 12:00:00+02:00', 1.50::DECIMAL(18,2)),
                          ('u2', NULL, NULL)) AS t(user_id, seen_at, total)
"""
ALL = "SELECT * FROM gold.totals ORDER BY user_id -- all"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("it's exported") / "lake")
    with duckdb.connect() as connection:
        write_deltalake(str(lake.gold("totals").path), connection.sql(_TOTALS))
    return lake


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "it's here"
    made.mkdir()
    return made


def test_csv_holds_a_header_and_instants_in_utc(lake: Lake, folder: Path) -> None:
    assert write_for_user(lake, ALL, AnswerFile(folder / "a.csv")) == 2

    assert (folder / "a.csv").read_text() == (
        "user_id,seen_at,total\nu1,2024-01-01 10:00:00+00,1.50\nu2,,\n"
    )
    assert [file.name for file in folder.iterdir()] == ["a.csv"]


def test_parquet_keeps_types(lake: Lake, folder: Path) -> None:
    write_for_user(lake, ALL, AnswerFile(folder / "a.parquet"))

    with duckdb.connect() as connection:
        found = connection.read_parquet(str(folder / "a.parquet"))
        types = [str(kind) for kind in found.types]
        assert types == ["VARCHAR", "TIMESTAMP WITH TIME ZONE", "DECIMAL(18,2)"]
        assert [row[2] for row in found.fetchall()] == [Decimal("1.50"), None]


def test_parquet_keeps_every_digit_of_a_sum(lake: Lake, folder: Path) -> None:
    large = 2**53 + 1
    sql = (
        f"SELECT sum(n) AS s, [sum(n)] AS l, {{'a': sum(n)}} AS r, 7::UHUGEINT AS u "
        f"FROM (VALUES ({large}::BIGINT)) AS t(n), gold.totals WHERE user_id = 'u1'"
    )
    write_for_user(lake, sql, AnswerFile(folder / "a.parquet"))

    with duckdb.connect() as connection:
        found = connection.read_parquet(str(folder / "a.parquet"))
        assert [str(kind) for kind in found.types[:2]] == ["DECIMAL(38,0)", "DECIMAL(38,0)[]"]
        ((sums, sum_list, struct, unsigned),) = found.fetchall()
    assert (sums, sum_list, struct, unsigned) == (large, [large], {"a": large}, 7)


def test_what_a_killed_export_left_stops_none(lake: Lake, folder: Path) -> None:
    (folder / ".a.csv.part").write_text("half")
    assert write_for_user(lake, ALL, AnswerFile(folder / "a.csv")) == 2
    assert [file.name for file in folder.iterdir()] == ["a.csv"]


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.parquet"])
def test_columns_whose_names_differ_in_case_alone_are_refused(
    lake: Lake, folder: Path, name: str
) -> None:
    """DuckDB would rename one."""
    with pytest.raises(UsageError, match="two columns have the same name"):
        write_for_user(lake, 'SELECT 1 AS a, 2 AS "A"', AnswerFile(folder / name))
    assert list(folder.iterdir()) == []


def test_json_is_a_row_a_line(lake: Lake, folder: Path) -> None:
    write_for_user(lake, ALL, AnswerFile(folder / "a.json"))

    lines = (folder / "a.json").read_text().splitlines()
    assert [json.loads(line)["user_id"] for line in lines] == ["u1", "u2"]


def test_json_has_null_for_what_is_no_number_also_within_values(lake: Lake, folder: Path) -> None:
    odd = "'nan'::DOUBLE"
    kept = (
        "1.5::FLOAT AS kept, ROW(1.5::DOUBLE) AS unnamed, ['inf'] AS text, NULL::DOUBLE[] AS none, "
        "NULL::STRUCT(a DOUBLE) AS no_struct, MAP {'a': 1} AS whole"
    )
    sql = (
        f'SELECT {odd} AS "x ""y", \'-inf\'::FLOAT AS a, [[{odd}, 1.5], NULL] AS lists, '
        f"{{'from it': {{'a': [{odd}], 'b': 'nan'}}}} AS structs, MAP {{'k': {odd}}} AS maps, "
        f"[2.5, {odd}]::DOUBLE[2] AS x, {kept}"
    )
    write_for_user(lake, sql, AnswerFile(folder / "a.json"))

    def refuse(text: str) -> NoReturn:
        pytest.fail(f"{text} is not JSON")

    assert json.loads((folder / "a.json").read_text(), parse_constant=refuse) == {
        **{'x "y': None, "a": None, "lists": [[None, 1.5], None]},
        **{"structs": {"from it": {"a": [None], "b": "nan"}}, "maps": {"k": None}},
        **{"x": [2.5, None], "kept": 1.5, "unnamed": {"": 1.5}, "text": ["inf"], "none": None},
        **{"no_struct": None, "whole": {"a": 1}},
    }


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT nope FROM gold.totals",
        "SELECT error('in the middle') FROM gold.totals",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM '{secret}'",
        "COPY (SELECT 1) TO '{secret}'",
        "SELECT 1) TO '{secret}'; --",
    ],
)
def test_a_statement_that_fails_leaves_no_file_and_reaches_none(
    lake: Lake, folder: Path, sql: str
) -> None:
    secret = folder / "secret.csv"
    secret.write_text("password\nhunter2\n")

    statement = sql.replace("{secret}", str(secret).replace("'", "''"))
    with pytest.raises(UsageError):
        write_for_user(lake, statement, AnswerFile(folder / "a.csv"))

    assert [file.name for file in folder.iterdir()] == ["secret.csv"]
    assert secret.read_text() == "password\nhunter2\n"


def test_a_file_that_is_there_stays_unless_it_is_to_be_replaced(lake: Lake, folder: Path) -> None:
    file = folder / "a.csv"
    file.write_text("mine")

    with pytest.raises(UsageError, match="already exists"):
        AnswerFile(file)
    with pytest.raises(UsageError):
        write_for_user(lake, "SELECT nope", AnswerFile(file, overwrite=True))
    assert file.read_text() == "mine"
    write_for_user(lake, "SELECT 1 AS n", AnswerFile(file, overwrite=True))
    assert file.read_text() == "n\n1\n"


def test_a_folder_that_cannot_be_written_is_named(lake: Lake, folder: Path) -> None:
    target = AnswerFile(folder / "a.csv")
    folder.rmdir()

    with pytest.raises(TidelakeError, match=r"a\.csv: ") as failed:
        write_for_user(lake, "SELECT 1", target)
    assert failed.value.exit_code == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [("a.txt", "must end in one of"), ("gone/a.csv", "does not exist"), ("b.csv", "is a folder")],
)
def test_a_place_where_nothing_can_be_written_is_refused(
    folder: Path, name: str, words: str
) -> None:
    (folder / "b.csv").mkdir()
    with pytest.raises(UsageError, match=words):
        AnswerFile(folder / name)


def test_the_command_writes_a_file_and_says_how_many(
    lake: Lake, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["sql", ALL, "--to", str(folder / "a.csv"), "--root", str(lake.root)]
    assert run_command(app, arguments) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"2 rows in {folder / 'a.csv'}\n")
    assert run_command(app, arguments) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run_command(app, [*arguments, "--overwrite"]) == 0
    assert run_command(app, ["sql", "--to", str(folder / "b.csv")]) == 2


def test_a_consistent_answer_goes_to_a_file_too(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = Lake(tmp_path / "lake")
    stamp = {"generation": "g1", "batch": 0, "hop": "gold", "pipeline": "shop"}
    for _ in range(2):
        write_rows(lake.gold("totals"), "SELECT 1 AS events", note=stamp)
    epoch = (
        "SELECT 'shop' AS pipeline, 1::BIGINT AS epoch, TIMESTAMPTZ '2024-01-01 12:00:00Z' AS "
        "closed_at, MAP {'gold.totals': 0::BIGINT} AS versions"
    )
    write_rows(lake.epochs(), epoch, note=stamp)
    count = "SELECT sum(events) AS n FROM gold.totals"
    arguments = ["sql", count, "--to", str(folder / "a.csv"), "--root", str(lake.root)]

    assert run_command(app, [*arguments, "--consistent"]) == 0
    assert (folder / "a.csv").read_text() == "n\n1\n"
    assert "Read in epoch 1 of shop" in capsys.readouterr().err
