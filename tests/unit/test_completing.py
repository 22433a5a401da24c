"""What the prompt offers: what fits where the cursor stands, the likely first."""

from __future__ import annotations

import pytest

from tidelake.cli.prompt import Columns, suggestions

_COLUMNS = {
    "gold.user_sessions": ("user_id", "events", "session_start", "_batch"),
    "silver.clickstream": ("event_id", "event_time", "user_id"),
}


def columns(table: str) -> Columns:
    return [(name, "VARCHAR") for name in _COLUMNS.get(table, ())]


def offered(before: str, after: str = "") -> list[str]:
    return [one.text for one in suggestions(before, after, list(_COLUMNS), columns)]


@pytest.mark.parametrize("before", ["SELECT * FROM ", "SELECT 1 FROM a JOIN ", "DESCRIBE "])
def test_after_from_come_tables_and_nothing_else(before: str) -> None:
    assert offered(before) == ["gold.user_sessions", "silver.clickstream"]


@pytest.mark.parametrize("begun", ["go", "gold.", "gold.us", "GOLD.US"])
def test_a_begun_table_is_completed(begun: str) -> None:
    assert offered(f"SELECT * FROM {begun}") == ["gold.user_sessions"]
    (found,) = suggestions(f"SELECT * FROM {begun}", "", list(_COLUMNS), columns)
    assert -found.start_position == len(begun)


def test_columns_of_the_tables_under_way_come_first_also_from_behind_the_cursor() -> None:
    found = offered("SELECT e", " FROM silver.clickstream")

    assert found[:2] == ["event_id", "event_time"]
    assert "ELSE" in found
    assert found.index("ELSE") > 1
    assert "events" not in found


def test_an_alias_stands_for_its_table() -> None:
    statement = "SELECT * FROM gold.user_sessions s JOIN silver.clickstream AS c ON s."

    assert offered(statement) == ["user_id", "events", "session_start"]
    assert offered(statement.replace("s.", "c.", 1).replace("ON s.", "ON c.")) == [
        *("event_id", "event_time", "user_id"),
    ]


def test_a_keyword_is_no_alias() -> None:
    assert offered("SELECT * FROM gold.user_sessions where.") == []


def test_the_systems_own_columns_are_offered_when_asked_for() -> None:
    assert offered("SELECT _", " FROM gold.user_sessions") == ["_batch"]


def test_keywords_complete_whatever_their_case() -> None:
    assert "GROUP BY" in offered("SELECT 1 gro")


def test_nothing_is_offered_twice_or_when_it_is_whole() -> None:
    both = offered("SELECT user", " FROM gold.user_sessions, silver.clickstream")

    assert both == ["user_id"]
    assert "user_id" not in offered("SELECT user_id", " FROM gold.user_sessions")


@pytest.mark.parametrize(
    ("before", "found"),
    [
        (".d", [".describe"]),
        (".describe g", ["gold.user_sessions"]),
        (".consistent ", ["on", "off"]),
        (".format j", ["json"]),
        (".nope ", []),
    ],
)
def test_commands_and_their_words_complete(before: str, found: list[str]) -> None:
    assert offered(before) == found
