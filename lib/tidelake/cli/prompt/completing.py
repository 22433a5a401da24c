"""Say what could come next in a statement."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tidelake.cli.prompt.catalogue import Column
from tidelake.cli.prompt.layout import FORMATS

# Commands, and the words that each takes; None for a table.
COMMANDS: dict[str, tuple[str, ...] | None] = {
    ".tables": (),
    ".describe": None,
    ".consistent": ("on", "off"),
    ".format": FORMATS,
    ".output": (),
    ".help": (),
    ".exit": (),
}
KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "GROUP BY ALL", "HAVING", "ORDER BY", "LIMIT"),
    *("JOIN", "LEFT JOIN", "ON", "USING", "AS", "AND", "OR", "NOT", "IN", "IS NULL"),
    *("IS NOT NULL", "BETWEEN", "LIKE", "CASE", "WHEN", "THEN", "ELSE", "END", "DISTINCT"),
    *("UNION ALL", "WITH", "OVER", "PARTITION BY", "QUALIFY", "ASC", "DESC", "INTERVAL"),
    *("DESCRIBE", "count(*)", "count(", "sum(", "avg(", "min(", "max(", "coalesce("),
    *("date_trunc(", "round(", "median(", "count(DISTINCT "),
)
_WORD = re.compile(r"[A-Za-z_.][\w.]*$")
_TABLE = re.compile(r"\b(?:FROM|JOIN|DESCRIBE)\s+$", re.IGNORECASE)
_NAMED = re.compile(
    r"\b(?:FROM|JOIN|,)\s*(?P<table>[a-z]+\.\w+)(?:\s+(?:AS\s+)?(?P<alias>\w+))?", re.IGNORECASE
)
# What may follow a table's name and is no name for it.
_NO_ALIAS = re.compile(
    "where|group|order|limit|join|left|inner|on|using|having|union|qualify", re.IGNORECASE
)


@dataclass(frozen=True)
class Suggestion:
    """Something that could come next.

    Attributes:
        text: What would stand there.
        replaces: How many characters before the cursor it takes the place of.
        about: What it is, for people.
    """

    text: str
    replaces: int
    about: str


@dataclass(frozen=True)
class Scope:
    """What names a statement may use.

    Attributes:
        tables: Every table.
        columns: Gives a table's columns.
    """

    tables: Sequence[str]
    columns: Callable[[str], Sequence[Column]]


def suggestions(before: str, after: str, scope: Scope) -> list[Suggestion]:
    """Say what could come next: the likely first.

    Args:
        before: The statement up to the cursor.
        after: What follows the cursor; its FROM counts too.
        scope: The names.
    """
    if before.lstrip().startswith("."):
        return _of_command(before.lstrip(), scope)
    word = _WORD.search(before)
    begun = word[0] if word else ""
    lead = before[: len(before) - len(begun)]
    named = _named(before + after)
    owner, dot, part = begun.rpartition(".")
    if dot and owner.lower() in named:
        columns = scope.columns(named[owner.lower()])
        return _matching(((column.name, column.type) for column in columns), part)
    tables = [(table, "table") for table in scope.tables]
    if dot or _TABLE.search(lead):
        return _matching(tables, begun)
    own = [
        (column.name, f"{column.type}, {table}")
        for table in dict.fromkeys(named.values())
        for column in scope.columns(table)
    ]
    return _matching([*own, *((word, "") for word in KEYWORDS), *tables], begun)


def _of_command(before: str, scope: Scope) -> list[Suggestion]:
    command, blank, begun = before.partition(" ")
    if not blank:
        return _matching(((name, "command") for name in COMMANDS), command)
    values = COMMANDS.get(command.lower(), ())
    known = scope.tables if values is None else values
    return _matching(((name, "") for name in known), begun)


def _named(statement: str) -> dict[str, str]:
    """Find the tables that a statement reads, by the names that it gives them."""
    found = {}
    for match in _NAMED.finditer(statement):
        table, alias = match["table"].lower(), match["alias"]
        found[table] = table
        if alias and not _NO_ALIAS.fullmatch(alias):
            found[alias.lower()] = table
    return found


def _matching(candidates: Iterable[tuple[str, str]], begun: str) -> list[Suggestion]:
    """Keep what goes on as it was begun; a column's hidden neighbours only when asked for."""
    kept: dict[str, Suggestion] = {}
    for text, about in candidates:
        hidden = text.startswith("_") and not begun.startswith("_")
        if text.lower().startswith(begun.lower()) and text != begun and not hidden:
            kept.setdefault(text, Suggestion(text, len(begun), about))
    return list(kept.values())
