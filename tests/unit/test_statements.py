"""Semicolons end statements where they stand by themselves."""

from __future__ import annotations

import pytest

from tidelake.cli.prompt import is_complete, statements_of


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (" ;; \n", []),
        ("-- nothing\n", []),
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1; SELECT 2", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';'; SELECT 2;", ["SELECT ';'", "SELECT 2"]),
        ("SELECT 'it''s;'; SELECT 2;", ["SELECT 'it''s;'", "SELECT 2"]),
        ('SELECT 1 AS "a;b"; SELECT 2', ['SELECT 1 AS "a;b"', "SELECT 2"]),
        ("SELECT 1 -- a; b\n; SELECT 2", ["SELECT 1 -- a; b", "SELECT 2"]),
        ("SELECT /* a; b */ 1; SELECT 2", ["SELECT /* a; b */ 1", "SELECT 2"]),
        (".tables\nSELECT 1;\n.format csv;\n", [".tables", "SELECT 1", ".format csv"]),
        ("-- a report\n.format csv\nSELECT 1", [".format csv", "SELECT 1"]),
        ("/* a\nb */ .tables\n-- the end", [".tables"]),
        ("SELECT $$a;b$$; SELECT $t$;'$t$", ["SELECT $$a;b$$", "SELECT $t$;'$t$"]),
        ("SELECT $1; SELECT $2", ["SELECT $1", "SELECT $2"]),
        ("SELECT .5;", ["SELECT .5"]),
        ("SELECT 'open; SELECT 2", ["SELECT 'open; SELECT 2"]),
        (
            r"SELECT E'a\'b;c'; SELECT e'\\'; SELECT 2",
            [r"SELECT E'a\'b;c'", r"SELECT e'\\'", "SELECT 2"],
        ),
        (r"SELECT '\'; SELECT E'it''s;'", [r"SELECT '\'", "SELECT E'it''s;'"]),
        # Not E'…': the E ends a name.
        (r"SELECT date'2024-01-01\'; SELECT 2", [r"SELECT date'2024-01-01\'", "SELECT 2"]),
        ("SELECT /* a /* b */ ; */ 1; SELECT 2", ["SELECT /* a /* b */ ; */ 1", "SELECT 2"]),
        ("SELECT /*/ ; */ 1; SELECT 2", ["SELECT /*/ ; */ 1", "SELECT 2"]),
        ("/* a /* b */ */ .tables\nSELECT 1", [".tables", "SELECT 1"]),
        ("SELECT 1 -- a\r; SELECT 2", ["SELECT 1 -- a", "SELECT 2"]),
        ("SELECT 1 AS a$b$, 2; SELECT 3$b$", ["SELECT 1 AS a$b$, 2", "SELECT 3$b$"]),
    ],
)
def test_a_text_is_cut_where_statements_end(text: str, found: list[str]) -> None:
    assert list(statements_of(text)) == found


@pytest.mark.parametrize(
    "text", ["", "  ", ".tables", "SELECT 1;", "SELECT 1; -- why", "a;b;", r"SELECT E'\';';"]
)
def test_enter_sends_what_is_complete(text: str) -> None:
    assert is_complete(text)


@pytest.mark.parametrize(
    "text", ["SELECT 1", "SELECT ';", "SELECT 1; SELECT", "SELECT 1 -- ;", "/* /* */ ;"]
)
def test_enter_goes_on_where_a_statement_is_open(text: str) -> None:
    assert not is_complete(text)
