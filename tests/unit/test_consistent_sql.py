"""``sql --consistent``: every table of a statement as the newest epoch of them all had it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable, Field

from tests.unit.handmade import write_rows
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.delta.tables import Lake, Table
from tidelake.errors import DamagedError, UsageError
from tidelake.ledger.query import ask, ask_at_epoch

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
BOTH = "SELECT (SELECT count(*) FROM silver.shop), (SELECT sum(events) FROM gold.totals)"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Give a silver and a gold table of three versions each, an epoch of the second ones."""
    lake = Lake(tmp_path / "it's a lake")
    for _ in range(3):
        row(lake.silver("shop"), "SELECT 'e' AS event_id", pipeline="shop")
        row(lake.gold("totals"), "SELECT 1 AS events", pipeline="shop")
    epoch(lake, "shop", 1, {"silver.shop": 0, "gold.totals": 0})
    epoch(lake, "shop", 2, {"silver.shop": 1, "gold.totals": 1})
    return lake


def row(table: Table, sql: str, **note: Any) -> None:
    write_rows(table, sql, note={"generation": "g1", "batch": 0, "hop": "gold", **note})


def epoch(
    lake: Lake, pipeline: str, number: int, versions: Mapping[str, int], *, minutes: int = 0
) -> None:
    """Write an epoch that closed so many minutes after that of its number."""
    at = NOON + timedelta(hours=number, minutes=minutes)
    pairs = ", ".join(f"'{name}': {version}::BIGINT" for name, version in versions.items())
    sql = (
        f"SELECT '{pipeline}' AS pipeline, {number}::BIGINT AS epoch, "
        f"TIMESTAMPTZ '{at.isoformat()}' AS closed_at, MAP {{{pairs}}} AS versions"
    )
    row(lake.epochs(), sql)


def test_each_table_is_read_as_the_newest_epoch_had_it(lake: Lake) -> None:
    assert ask(lake, BOTH).rows == ((3, 3),)

    answer, found = ask_at_epoch(lake, BOTH)

    assert answer.rows == ((2, 2),)
    assert found is not None
    assert (found.pipeline, found.number, found.closed_at) == ("shop", 2, NOON.replace(hour=14))
    assert str(found) == "epoch 2 of shop, closed 2024-01-01 14:00:00Z"


def test_columns_that_came_after_the_epoch_are_not_there(lake: Lake) -> None:
    table = DeltaTable(str(lake.silver("shop").path))
    table.alter.add_columns(Field("later", "long"))  # type: ignore[arg-type]
    assert ask(lake, "SELECT count(later) FROM silver.shop").rows == ((0,),)

    with pytest.raises(UsageError, match="later"):
        ask_at_epoch(lake, "SELECT later FROM silver.shop")


def test_the_newest_epoch_that_holds_all_tables_is_taken_whatever_pipeline_closed_it(
    lake: Lake,
) -> None:
    row(lake.gold("joined"), "SELECT 1 AS matches", pipeline="stock")
    # Pipelines count apart: this number is the larger, and closed before the other's last.
    epoch(lake, "stock", 7, {"gold.joined": 0, "silver.shop": 0}, minutes=-330)

    both = "SELECT (SELECT count(*) FROM silver.shop), (SELECT count(*) FROM gold.joined)"
    answer, found = ask_at_epoch(lake, both)
    assert answer.rows == ((1, 1),)
    assert str(found) == "epoch 7 of stock, closed 2024-01-01 13:30:00Z"
    answer, found = ask_at_epoch(lake, "SELECT count(*) FROM silver.shop")
    assert answer.rows == ((2,),)
    assert str(found) == "epoch 2 of shop, closed 2024-01-01 14:00:00Z"


def test_final_rows_are_those_of_the_pinned_version(lake: Lake) -> None:
    table = lake.gold("daily")
    for day in range(2, 5):
        final = {"column": "window_end", "until": f"2024-01-0{day}T00:00:00+00:00"}
        end = f"TIMESTAMPTZ '2024-01-0{day + 1} 00:00:00Z'"
        row(table, f"SELECT {end} AS window_end", final=final)
    epoch(lake, "shop", 3, {"gold.daily": 1})

    sql = "SELECT count(*), max(window_end) FROM gold.daily__final"
    assert ask(lake, sql).rows == ((2, datetime(2024, 1, 4, tzinfo=UTC)),)
    answer, _ = ask_at_epoch(lake, sql)
    assert answer.rows == ((1, datetime(2024, 1, 3, tzinfo=UTC)),)


def test_a_statement_without_a_table_needs_no_epoch(lake: Lake) -> None:
    answer, found = ask_at_epoch(lake, "SELECT 1")

    assert (answer.rows, found) == (((1,),), None)


def test_tables_of_operations_belong_to_no_epoch(lake: Lake) -> None:
    with pytest.raises(UsageError, match=r"^ops\.epochs belongs to no epoch; .* without --consist"):
        ask_at_epoch(lake, "SELECT * FROM ops.epochs, silver.shop")


def test_a_table_without_an_epoch_is_named_with_the_run_that_closes_one(lake: Lake) -> None:
    row(lake.gold("news"), "SELECT 1 AS events", pipeline="press")

    with pytest.raises(
        UsageError, match=r"^no epoch holds gold\.news yet\. Close one with: tidelake run press$"
    ):
        ask_at_epoch(lake, "SELECT * FROM gold.news, silver.shop")


def test_before_the_first_epoch_the_run_is_named(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    row(lake.silver("shop"), "SELECT 1 AS n", pipeline="shop")

    with pytest.raises(UsageError, match=r"no epoch holds silver\.shop yet\..* tidelake run shop$"):
        ask_at_epoch(lake, "SELECT * FROM silver.shop")


def test_tables_that_never_stood_together_are_named(lake: Lake) -> None:
    row(lake.gold("news"), "SELECT 1 AS events", pipeline="press")
    epoch(lake, "press", 1, {"gold.news": 0})

    with pytest.raises(
        UsageError,
        match=r"^gold\.news, silver\.shop are in no common epoch: .*"
        r"with: tidelake run press and tidelake run shop$",
    ):
        ask_at_epoch(lake, "SELECT * FROM gold.news, silver.shop")


def test_a_vacuumed_version_is_named_with_the_remedy(lake: Lake) -> None:
    table = DeltaTable(str(lake.silver("shop").path))
    table.optimize.compact()
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)

    assert ask(lake, BOTH).rows == ((3, 3),)
    with pytest.raises(
        UsageError,
        match=r"^epoch 2 of shop, closed 2024-01-01 14:00:00Z can no longer be read \(version 1 "
        r"of gold\.totals, version 1 of silver\.shop\): .*with: tidelake run shop\n",
    ):
        ask_at_epoch(lake, BOTH)


def test_a_version_whose_log_is_gone_is_named_with_the_remedy(lake: Lake) -> None:
    table = lake.silver("shop")
    DeltaTable(str(table.path)).create_checkpoint()
    for version in (0, 1):
        (table.path / "_delta_log" / f"{version:020}.json").unlink()

    assert ask(lake, BOTH).rows == ((3, 3),)
    with pytest.raises(UsageError, match=r"can no longer be read .*: tidelake run shop\n"):
        ask_at_epoch(lake, BOTH)


@pytest.mark.parametrize(
    "sql", ["SELECT nope FROM silver.shop", "SELECT 1/0 + 'x' FROM silver.shop", "SELECT FROM"]
)
def test_a_mistake_in_the_statement_is_told_as_without_an_epoch(lake: Lake, sql: str) -> None:
    with pytest.raises(UsageError) as plain:
        ask(lake, sql)
    with pytest.raises(UsageError) as pinned:
        ask_at_epoch(lake, sql)

    assert str(pinned.value) == str(plain.value)


@pytest.mark.parametrize("relation", ["read_text('{file}')", "'{file}'", "glob('{file}')"])
def test_files_beside_the_tables_cannot_be_read(lake: Lake, tmp_path: Path, relation: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("password,n\nhunter2,1\n")

    with pytest.raises(UsageError) as refused:
        ask_at_epoch(lake, f"SELECT * FROM silver.shop, {relation.replace('{file}', str(secret))}")
    assert "can no longer be read" not in str(refused.value)
    unnamed = str(lake.gold("totals").path).replace("'", "''")
    with pytest.raises(UsageError):
        ask_at_epoch(lake, f"SELECT * FROM silver.shop, delta_scan('{unnamed}')")


def test_the_command_tells_the_epoch_beside_the_answer(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--root", str(lake.root)]
    assert run_command(app, ["sql", BOTH + " AS n", "--json", *options]) == 0
    plain = capsys.readouterr()
    assert run_command(app, ["sql", BOTH + " AS n", "--consistent", "--json", *options]) == 0
    pinned = capsys.readouterr()

    assert pinned.err == "Read in epoch 2 of shop, closed 2024-01-01 14:00:00Z\n"
    assert plain.err == ""
    assert [list(line.values()) for line in json.loads(plain.out)] == [[3, 3]]
    assert [list(line.values()) for line in json.loads(pinned.out)] == [[2, 2]]
    assert [list(line) for line in json.loads(plain.out)] == [
        list(line) for line in json.loads(pinned.out)
    ]


def test_the_command_refuses_what_stands_in_no_epoch(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    row(lake.gold("news"), "SELECT 1 AS events", pipeline="press")

    sql = ["sql", "SELECT * FROM gold.news", "--consistent", "--root", str(lake.root)]
    assert run_command(app, sql) == 2
    captured = capsys.readouterr()
    command = f"tidelake run press --root {shlex.quote(str(lake.root))}"
    assert (captured.out, captured.err) == (
        "",
        f"tidelake: no epoch holds gold.news yet. Close one with: {command}\n",
    )


@pytest.mark.parametrize("version", [None, "newest"])
def test_a_file_that_the_newest_version_lacks_is_not_vacuumed(
    lake: Lake, version: str | None
) -> None:
    """Another epoch would lack it too."""
    table = DeltaTable(str(lake.silver("shop").path))
    Path(unquote(table.file_uris()[0].removeprefix("file://"))).unlink()
    epoch(lake, "shop", 3, {"silver.shop": 2, "gold.totals": 2})
    asks = ask_at_epoch if version else ask
    with pytest.raises(DamagedError, match=r"cannot be read .*Restore the table's folder"):
        asks(lake, "SELECT max(event_id) FROM silver.shop")
