"""Cut a text into statements where their semicolons are, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator

# What a semicolon may stand in without ending anything: texts, names in quotes, comments.
_PART = re.compile(
    r"""
    '(?:[^']|'')*'?
    | "(?:[^"]|"")*"?
    | --[^\n]*
    | /\*.*?(?:\*/|\Z)
    | (?P<end>;)
    | .
    """,
    re.DOTALL | re.VERBOSE,
)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


def statements_of(text: str) -> Iterator[str]:
    """Cut a text into statements and commands.

    A command begins with a dot and takes its line; the last statement needs no semicolon.
    """
    while not _is_blank(text):
        text = text.lstrip()
        if text.startswith("."):
            command, _, text = text.partition("\n")
            yield command.rstrip("; \t")
            continue
        statement, rest = _first(text)
        if not _is_blank(statement):
            yield statement.strip()
        text = rest or ""


def is_complete(text: str) -> bool:
    """Tell whether Enter sends what was typed, or begins another line."""
    if _is_blank(text) or text.lstrip().startswith("."):
        return True
    rest: str | None = text
    while rest is not None and not _is_blank(rest):
        _, rest = _first(rest)
    return rest is not None


def _first(text: str) -> tuple[str, str | None]:
    """Give a text's first statement, and what follows its semicolon; None without one."""
    for part in _PART.finditer(text):
        if part["end"]:
            return text[: part.start()], text[part.end() :]
    return text, None


def _is_blank(text: str) -> bool:
    """Tell whether a text says nothing to the database."""
    return not _COMMENT.sub("", text).strip()
