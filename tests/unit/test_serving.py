"""What a connection to the Thrift server may bring along, and which tables it finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.attacks import SETTINGS
from tests.unit.handmade import write_commit, write_rows
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.delta.tables import Lake, Table
from tidelake.ops.serving import Registered, allowed_settings

_HARMLESS = {
    "use:database": "gold",
    "set:hiveconf:hive.server2.thrift.resultset.default.fetch.size": "1000",
    "set:hiveconf:spark.sql.session.timeZone": "Asia/Tokyo",
    "set:hivevar:spark.sql.ansi.enabled": "false",
}


def test_a_session_begins_with_what_drivers_send_and_allowed_settings() -> None:
    assert allowed_settings(_HARMLESS) == _HARMLESS


@pytest.mark.parametrize(
    "prefix",
    [
        *("", "set:", "set:hiveconf:", "set:hivevar:", "set:system:", "set:metaconf:", "set:env:"),
        *(" set:hiveconf:", "set: hiveconf:", "set:hiveconf: ", "SET:hiveconf:", "set:set:"),
        *("set:hiveconf:hiveconf:", "set:hiveconf:hivevar:", "set:hiveconf:system:", "use:"),
    ],
)
def test_every_other_setting_is_left_out_whatever_stands_before_it(prefix: str) -> None:
    bad = {f"{prefix}{key}": value for settings, _ in SETTINGS for key, value in settings.items()}
    more = ("hive.server2.proxy.user", "hive.exec.scratchdir", "javax.jdo.option.ConnectionURL")

    brought = bad | {f"{prefix}{key}": "x" for key in more} | _HARMLESS
    assert allowed_settings(brought) == _HARMLESS


def test_no_value_refers_to_the_servers_environment() -> None:
    assert allowed_settings({"set:hiveconf:spark.sql.session.timeZone": "${env:PATH}"}) == {}


@pytest.fixture(autouse=True)
def _columns_as_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tidelake.spark.internals.list_columns", lambda spark, name: spark.sql(f"COLUMNS {name}")
    )


class Spark:
    """Keeps the statements; those that contain a word in ``refused`` fail."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.refused = ""
        self.has_ended = False

    @property
    def version(self) -> str:
        if self.has_ended:
            raise ConnectionRefusedError(111, "Connection refused")
        return "4"

    def sql(self, statement: str) -> None:
        str(self.version)
        if self.refused and self.refused in statement:
            raise RuntimeError("Spark cannot read it")
        self.begun.append(statement)

    def views(self, word: str = "VIEW") -> list[str]:
        """Give the statements on views, or with another word, since the last call."""
        found = [one for one in self.begun if word in one]
        self.begun.clear()
        return found


NOON, ONE = "2024-01-01T12:00:00+00:00", "2024-01-01T13:00:00+00:00"


def noted(until: str | None, column: str = "window_end") -> dict[str, Any]:
    final = {"final": {"column": column, "until": until}} if until else {}
    return {"generation": "g1", "batch": 0, "hop": "gold", **final}


def served(tmp_path: Path, *names: str) -> tuple[Registered, Any]:
    """Give a server of gold tables without Spark."""
    lake, spark = Lake(tmp_path / "lake"), Spark()
    for name in names:
        write_rows(lake.gold(name), "SELECT now() AS window_end", note=noted(NOON))
    return Registered(spark, lake), spark  # type: ignore[arg-type]


def newest(table: Table) -> Path:
    return max(Path(str(table.path), "_delta_log").glob("*.json"))


def test_a_table_that_cannot_be_read_is_told_once_and_others_are_served(tmp_path: Path) -> None:
    registered, _ = served(tmp_path, "a", "b")
    file = newest(registered.lake.gold("a"))
    whole = file.read_text()
    file.write_text("")

    assert registered.refresh() == ["gold.a", "gold.b", "gold.b__final"]
    assert registered.refresh() == []
    (problem,) = registered.problems()
    assert problem.startswith("gold.a cannot be read: ") and "is empty" in problem

    file.write_text(whole)
    assert registered.refresh() == ["gold.a__final"]
    file.write_text("")
    registered.refresh()
    assert len(registered.problems()) == 1 and registered.problems() == []


def test_a_table_that_spark_refuses_is_registered_once_it_is_not(tmp_path: Path) -> None:
    registered, spark = served(tmp_path, "a", "b")
    spark.refused = "CREATE TABLE gold.a "
    assert registered.refresh() == ["gold.b", "gold.b__final"]
    spark.refused = ""
    assert registered.refresh() == ["gold.a", "gold.a__final"]


def test_the_server_ends_with_spark(tmp_path: Path) -> None:
    registered, spark = served(tmp_path, "a")
    registered.refresh()
    write_rows(registered.lake.gold("a"), "SELECT now() AS window_end", note=noted(ONE))
    spark.has_ended = True
    with pytest.raises(ConnectionRefusedError):
        registered.refresh()


def test_serve_goes_on_after_a_refresh_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    registered, _ = served(tmp_path, "a", "b")

    @contextmanager
    def serving(*_: object, **__: object) -> Iterator[Registered]:
        registered.refresh()
        newest(registered.lake.gold("a")).write_text("")
        yield registered

    def stop_after_three(stop: Any) -> None:
        answers = iter((False, False, False, True))
        stop.wait = lambda _: next(answers)

    monkeypatch.setattr("tidelake.ops.serving.serving", serving)
    monkeypatch.setattr("tidelake.cli.operating.stop_on_signal", stop_after_three)
    assert run_command(app, ["serve", "--root", str(registered.lake.root)]) == 0
    said = capsys.readouterr().err
    assert said.count("gold.a cannot be read: ") == 1 and said.endswith("Stopped.\n")


def test_a_view_of_final_rows_follows_its_bound(tmp_path: Path) -> None:
    registered, spark = served(tmp_path, "a")
    table = registered.lake.gold("a")
    registered.refresh()
    (first,) = spark.views()
    write_rows(table, "SELECT now() AS window_end", note=noted(NOON))
    assert (registered.refresh(), spark.views()) == ([], [])

    for note in (noted(ONE), noted(ONE, column="session_end")):
        write_rows(table, "SELECT now() AS window_end", note=note)
        assert registered.refresh() == []
        (view,) = spark.views()
        assert (
            view != first and note["final"]["column"] in view and " 13:00" in view.replace("T", " ")
        )

    write_rows(table, "SELECT now() AS window_end", note=noted(None))
    assert registered.refresh() == []
    assert spark.views() == ["DROP VIEW IF EXISTS gold.a__final"]
    write_rows(table, "SELECT now() AS window_end", note=noted(ONE))
    assert registered.refresh() == ["gold.a__final"]


def test_a_view_of_final_rows_gets_the_columns_of_a_rebuilt_table(tmp_path: Path) -> None:
    registered, spark = served(tmp_path, "a")
    table = registered.lake.gold("a")
    registered.refresh()
    before = spark.views()
    # A promotion, and the batch after it; the watermark stands still.
    write_commit(table, 1, note=noted(NOON), table_id="made")
    write_commit(table, 2, note=noted(NOON))

    assert (registered.refresh(), spark.views()) == ([], before)
    assert (registered.refresh(), spark.views()) == ([], [])

    # A table that was made again has fewer versions.
    for version in (1, 2):
        (table.path / "_delta_log" / f"{version:020}.json").unlink()
    assert (registered.refresh(), spark.views()) == ([], before)


def test_the_columns_that_tools_list_are_those_of_each_tables_newest_version(
    tmp_path: Path,
) -> None:
    registered, spark = served(tmp_path, "a")
    silver = registered.lake.silver("shop")
    write_rows(silver, "SELECT 1 AS n", note=noted(None))
    registered.refresh()
    assert spark.views("COLUMNS") == ["COLUMNS silver.shop", "COLUMNS gold.a"]
    write_commit(silver, 1, note=noted(None), adds=[(5, True)])
    registered.refresh()
    assert spark.views("COLUMNS") == []

    # A new column, the first time in vain.
    write_commit(silver, 2, note=noted(None), table_id="made")
    write_commit(silver, 3, note=noted(None), adds=[(5, True)])
    spark.refused = "COLUMNS"
    registered.refresh()
    spark.refused = ""
    registered.refresh()
    registered.refresh()
    assert spark.views("COLUMNS") == ["COLUMNS silver.shop"]
